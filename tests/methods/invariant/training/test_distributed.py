import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import training_scans
from siteless.methods.invariant.training import train

SETTINGS = replace(training_scans.QUICK, updates=40, precision="float32")
SCRIPT = Path(__file__).with_name("train_together.py")


def _log_of_two(out: Path) -> list[dict[str, Any]]:
    path = os.pathsep.join([str(SCRIPT.parents[3]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", str(SCRIPT), str(out)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(out.read_text())


def test_one_process_reports_an_error_and_all_end(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = ["-m", "siteless", "fit", str(missing), "--model", str(tmp_path / "m.safetensors")]
    process = subprocess.run(
        [*command, "--nproc-per-node=2", *words], capture_output=True, text=True, check=False
    )
    messages = [line for line in process.stderr.splitlines() if line.startswith("siteless: ")]
    assert process.returncode == 1
    assert messages == [
        f"siteless: {missing}: there is no such file; correct the path or restore it"
    ]


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    alone = train(training_scans.make_training_set(), SETTINGS).log
    together = _log_of_two(tmp_path / "together.json")
    for single, two in zip(map(dict, alone), together, strict=True):
        single.pop("patches_per_second")
        two.pop("patches_per_second")
        losses = {
            name: value for name, value in single.items() if name.startswith(("val", "train"))
        }
        assert {name: two[name] for name in losses} == pytest.approx(losses, rel=1e-4, abs=1e-4)
