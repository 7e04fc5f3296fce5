import json
import subprocess
import sys
from pathlib import Path

import pytest

from siteless.cli import bids_main

pytestmark = pytest.mark.usefixtures("study")


def _bids(study: Path, out: Path, *words: str) -> int:
    return bids_main([str(study / "data"), str(out), *words])


def test_group_learns_and_participant_renders(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "derivatives v1.0"
    for memory in ([], ["--mem-mb", "1"]):  # for which scans need not be read
        assert _bids(study, out, "participant", *memory) == 1
        assert "there is no model yet; run `siteless-bids" in capsys.readouterr().err
    assert not out.exists()
    quick = ["--epochs", "1", "--nprocs", "1", "-w", str(tmp_path / "work")]
    assert _bids(study, out, "group", *quick) == 0
    assert (out / "model" / "model.safetensors").is_file()
    assert (tmp_path / "work").is_dir()
    output = capsys.readouterr()
    assert "4 scans of 2 sites: 0 errors" in output.out
    words = ["participant", "--participant-label", "01", "--session-label", "a", "--n_cpus", "1"]
    assert _bids(study, out, *words, "-v") == 0
    assert "1 scan rendered as average" in capsys.readouterr().out
    [image] = out.rglob("*harmonized_dwi.nii.gz")
    assert image.name == "sub-01_ses-a_desc-harmonized_dwi.nii.gz"
    words += ["--gradients", "target", "--to"]
    assert _bids(study, out, *words, "b") == 1
    assert "holds another dataset (Scans rendered as average by" in capsys.readouterr().err
    other, model = tmp_path / "as b", out / "model" / "model.safetensors"
    assert _bids(study, other, *words, "b", "--model", str(model)) == 0
    [sidecar] = other.rglob("*desc-harmonized_dwi.json")
    assert json.loads(sidecar.read_text())["Siteless"]["Gradients"] == "target"
    with pytest.raises(SystemExit):
        _bids(study, out, "participant", "--gradiens", "target")
    validator = Path(sys.executable).with_name("bids-validator-deno")
    subprocess.run([validator, out], check=True)


def test_a_dataset_with_errors_is_not_learned_from(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(study / "data", tmp_path / "data")
    next((tmp_path / "data").rglob("*_dwi.bvec")).unlink()
    assert _bids(tmp_path, tmp_path / "out", "group", "--nprocs", "1") == 1
    assert "no .bvec file" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_processes_must_fit_into_memory(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _bids(study, tmp_path / "out", "group", "--mem-mb", "100") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "a process needs 7" in line
    assert "--mem-mb gives 100; give more" in line
