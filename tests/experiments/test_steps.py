import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from siteless.experiments._steps import Step, run_steps
from siteless.pipelines import Run


def _steps(
    root: Path, log: list[str], *, setting: int = 1, fails: Sequence[str] = ()
) -> list[Step]:
    def step(name: str, *needs: str, **settings: Any) -> Step:
        def run(_: Run) -> None:
            log.append(name)
            if name in fails:
                raise KeyboardInterrupt
            (root / name).write_text(name)

        return Step(name, run, (root / name,), settings, needs)

    return [step("a", value=setting), step("b", "a"), step("c", "b"), step("other")]


def test_a_finished_step_is_not_done_again(tmp_path: Path) -> None:
    log: list[str] = []
    first = run_steps(_steps(tmp_path, log), tmp_path / "records", Run())
    second = run_steps(_steps(tmp_path, log), tmp_path / "records", Run())
    assert log == ["a", "b", "c", "other"]
    assert list(first) == list(second) == log
    assert {n: json.loads((tmp_path / f"records/{n}.json").read_text())["seconds"] for n in first}


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_steps(_steps(tmp_path, log, fails=["c"]), tmp_path / "records", Run())
    run_steps(_steps(tmp_path, log), tmp_path / "records", Run())
    assert log == ["a", "b", "c", "c", "other"]


def test_what_a_changed_step_leads_to_is_done_again_and_nothing_else(tmp_path: Path) -> None:
    log: list[str] = []
    run_steps(_steps(tmp_path, log), tmp_path / "records", Run())
    log.clear()
    run_steps(_steps(tmp_path, log, setting=2), tmp_path / "records", Run())
    assert log == ["a", "b", "c"]


@pytest.mark.parametrize("spoil", ["remove what it makes", "break its record"])
def test_a_step_whose_result_is_gone_is_done_again(tmp_path: Path, spoil: str) -> None:
    log: list[str] = []
    run_steps(_steps(tmp_path, log), tmp_path / "records", Run())
    log.clear()
    if spoil == "break its record":
        (tmp_path / "records" / "c.json").write_text("{")
    else:
        (tmp_path / "c").unlink()
    run_steps(_steps(tmp_path, log), tmp_path / "records", Run())
    assert log == ["c"]
