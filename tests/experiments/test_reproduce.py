import csv
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siteless.cli import main
from siteless.experiments import _reproduce
from siteless.experiments._models import SCALES, ComparedModel, compared_models
from siteless.methods import Invariant
from travellers import SPLITS, write_travellers

SITES = ("p", "q", "r", "s")


def test_the_models_are_those_of_the_paper() -> None:
    models = list(compared_models(SITES, "p", SCALES["quick"]))
    methods = {model.method for model in models}
    for network in ("single", "multi"):
        ends = ("", ", lambda = 0", ", lambda = alpha = 0")
        assert {f"{network}{end}" for end in ends} <= methods
    assert {"scaled", "RISH"} <= methods
    pairs = [model.sites for model in models if model.method == "single"]
    assert pairs == [("p", "q"), ("p", "r"), ("p", "s")]
    weights = {
        model.method: model.learner.training
        for model in models
        if model.has_code and isinstance(model.learner, Invariant) and model.learner.training
    }
    assert weights["multi"].marginal > 0
    assert weights["multi"].prior > 0
    assert (weights["multi, lambda = 0"].marginal, weights["multi, lambda = 0"].prior) == (
        0,
        weights["multi"].prior,
    )
    both = weights["multi, lambda = alpha = 0"]
    assert (both.marginal, both.prior) == (0, 0)
    assert len({model.stem for model in models}) == len(models)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that learn next to nothing, one ablation, no registration and no fibres."""
    scale = replace(SCALES["quick"], updates=4, printed_updates=4, fibres=20)
    monkeypatch.setitem(SCALES, "quick", scale)

    def few(*arguments: Any) -> list[ComparedModel]:
        models = compared_models(*arguments)
        return [m for m in models if m.method != "RISH" and "alpha" not in m.method]

    monkeypatch.setattr(_reproduce, "compared_models", few)
    monkeypatch.setattr(_reproduce, "KINDS", ("signal", "maps", "leakage", "biology"))


@pytest.mark.usefixtures("brief")
def test_every_table_and_figure_is_there_and_nothing_is_done_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = ("train", "train", "val", "test", "test", "test")
    data = write_travellers(tmp_path / "data", dict(zip(SPLITS, splits, strict=True)))
    out = tmp_path / "experiment v1.0"
    words = ["reproduce", str(out), "--dataset", str(data), "--nprocs", "1"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == str(out / "results.md")
    page = (out / "results.md").read_text()
    for name in ("rmse", "systematic", "ape", "cv", "pe", "ablation", "posthoc", "leakage"):
        with (out / "tables" / f"{name}.tsv").open() as file:
            assert list(csv.DictReader(file, delimiter="\t")), name
    for name in ("rmse", "rmse_maps"):
        assert f"figures/{name}.png" in page
        assert (out / "figures" / f"{name}.png").stat().st_size > 10_000
    assert "| multi, lambda = 0 |" in page
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert main(words) == 0
    again = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert {path for path in again if again[path] != times.get(path)} == {out / "steps.tsv"}
    assert main([*words, "--seed", "1"]) == 1
    assert "the folder holds another experiment" in capsys.readouterr().err


def test_a_dataset_without_test_people_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_travellers(tmp_path / "data", {"01": "train", "02": "val"})
    words = ["reproduce", str(tmp_path / "out"), "--dataset", str(data)]
    assert main(words) == 1
    error = capsys.readouterr().err.strip()
    assert "found none for test" in error
    assert error.count("\n") == 0


def test_people_who_do_not_travel_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {"01": "train", "02": "train", "03": "val", "04": "test", "05": "test"}
    sites = {"04": "a", "05": "b"}
    data = write_travellers(tmp_path / "data", splits, sites=sites)
    assert main(["reproduce", str(tmp_path / "out"), "--dataset", str(data)]) == 1
    assert "expected a test person who was scanned at a, b" in capsys.readouterr().err


def test_a_mistyped_hub_claims_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_travellers(tmp_path / "data")
    words = ["reproduce", str(tmp_path / "out"), "--dataset", str(data), "--hub", "c"]
    assert main(words) == 1
    assert "choose another with --hub" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_models_depend_on_the_training_people(tmp_path: Path) -> None:
    keys = []
    for splits in (SPLITS, {**SPLITS, "03": "test", "05": "train"}):
        root = tmp_path / "data"
        write_travellers(root, splits)
        experiment = _reproduce._Experiment(tmp_path, root, SCALES["quick"], None, 0)
        keys.append([step.settings for step in experiment.steps() if step.name.startswith("fit")])
    assert all(first != second for first, second in zip(*keys, strict=True))


def test_a_folder_with_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert main(["reproduce", str(tmp_path)]) == 1
    assert "expected a new or empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_a_killed_experiment_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "siteless", "reproduce", str(out)]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    while len(list((out / "steps").glob("*.json"))) < 4:
        assert running.poll() is None
        time.sleep(0.5)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    done = {path: path.stat().st_mtime_ns for path in (out / "steps").glob("*.json")}
    assert main(command[3:]) == 0
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for name in ("rmse", "angle", "rmse_maps", "fods"):
        assert (out / "figures" / f"{name}.png").exists(), name
