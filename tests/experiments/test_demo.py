import json
from pathlib import Path

import pytest

from siteless.cli import main
from siteless.errors import SitelessError
from siteless.experiments import run_demo


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(SitelessError, match="new or empty folder"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_demo_of_another_seed_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.json").write_text('{"seed": 1}')
    assert main(["demo", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "another seed" in line


@pytest.mark.slow
def test_a_demo_ends_in_a_report_and_nothing_is_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", str(tmp_path / "out")]) == 0
    *_, leak, error, distance, last = capsys.readouterr().out.splitlines()
    assert last == f"report: {tmp_path / 'out/report/index.html'}"
    assert all(name in line for line in (leak, error, distance) for name in ("siteless", "RISH"))
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    assert main(["demo", str(tmp_path / "out")]) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times
    steps = [json.loads(path.read_text()) for path in (tmp_path / "out/steps").iterdir()]
    assert len(steps) == 7
