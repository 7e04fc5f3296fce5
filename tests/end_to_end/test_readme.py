"""What the README shows runs as it is written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from phantoms import ONE_SHELL, make_gradients, make_scan, write_raw

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    scan = make_scan(make_gradients(ONE_SHELL))
    for session in ("a", "b"):
        stem = f"sub-01_ses-{session}_dwi"
        write_raw(scan, folder / "my_study" / "sub-01" / f"ses-{session}" / "dwi", stem)
    return folder


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_python_runs(folder):
    [code] = _blocks("python")
    checks = "assert signal.shape == (len(coefficients.values), len(scan.gradients))"
    command = [sys.executable, "-c", f"{code}\n{checks}"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def test_siteless_commands_run(folder):
    lines = [line for block in _blocks("console") for line in block.splitlines()]
    commands = [line.split() for line in lines if line.startswith("siteless")]
    assert ["siteless", "check", "my_study"] in commands
    for _, *words in commands:
        shown = subprocess.run(
            [sys.executable, "-m", "siteless", *words], cwd=folder, capture_output=True, text=True
        )
        assert "Traceback" not in shown.stderr
        assert shown.stdout


def test_make_commands_are_there():
    makefile = (README.parent / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", README.read_text(), flags=re.MULTILINE)
    assert set(targets) >= {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:.*## ", makefile, flags=re.MULTILINE)
