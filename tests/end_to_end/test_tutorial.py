"""The notebook of the tutorial runs from top to bottom."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text())["cells"]


def test_code_runs(cells: list[dict[str, Any]], tmp_path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    checks = """
assert rendered.site.label == "connectom60"
assert abs(brightness(rendered) / brightness(there) - 1) < 0.1
assert abs(brightness(scan) / brightness(there) - 1) > 0.1
"""
    # One thread, as two wait for each other where other tests run beside this one.
    places = {"MPLBACKEND": "Agg", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code + checks]
    process = subprocess.run(
        command, env=os.environ | places, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert "prisma30: " in process.stdout


def test_no_output_is_stored(cells: list[dict[str, Any]]) -> None:
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
