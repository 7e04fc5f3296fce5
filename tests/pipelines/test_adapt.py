from pathlib import Path

import numpy as np
import pytest

from phantoms import make_gradients, make_scan, write_raw, write_table
from siteless.acquisition import Scan
from siteless.bids import ScanSelection, find_scans, read_scan
from siteless.cli import main
from siteless.methods import Invariant, Scaled, harmonize, load_model
from siteless.methods.invariant import InvariantModel
from siteless.pipelines import Run, adapt_model, fit_model
from training_scans import QUICK, write_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = ["train", "train", "val", "test"]
    root = tmp_path_factory.mktemp("a study v1.0")
    return write_study(root, sites="abc", split=splits)


@pytest.fixture(scope="module")
def known(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "known.safetensors"
    fit_model(
        ScanSelection(study, sites=["a", "b"]), out, Invariant(training=QUICK), run=Run(nprocs=1)
    )
    return out


@pytest.fixture(scope="module")
def adapted(known: Path, study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapt") / "a model.safetensors"
    adapt_model(known, study, out, site="c", run=Run(nprocs=1))
    return out


def _scan(study: Path, subject: str, site: str) -> Scan:
    files = find_scans(study).scans
    return read_scan(next(f for f in files if (f.subject, str(f.site)) == (subject, site)))


def test_the_new_site_is_learned_from_its_training_scans_alone(adapted: Path) -> None:
    card = load_model(adapted).card
    assert list(card.sites) == ["a", "b", "c"]
    assert card.summary["training_scans"] == {"a": 2, "b": 2, "c": 2}
    assert card.summary["adapted_sites"] == {"c": {"seed": 0}}
    assert len(card.sites["c"].bvals) == len(card.sites["a"].bvals)
    model = load_model(adapted)
    assert isinstance(model, InvariantModel)
    assert model.profiles is not None
    assert model.profiles.sites == ("a", "b", "c")


def test_scans_are_rendered_as_the_new_site_and_from_it(adapted: Path, study: Path) -> None:
    model = load_model(adapted)
    for subject, source, target in (("3", "a", "c"), ("3", "c", "b"), ("3", "c", "average")):
        scan = _scan(study, subject, source)
        rendered = harmonize(model, scan, target, gradients=scan.gradients)
        error = np.sqrt(np.square(rendered.signal - scan.signal)[scan.white_matter].mean())
        assert error < 0.3 * scan.signal[scan.white_matter].mean()


def test_what_the_model_renders_as_other_sites_stays(
    adapted: Path, known: Path, study: Path
) -> None:
    scan = _scan(study, "3", "a")
    before, after = (harmonize(load_model(path), scan, "b").signal for path in (known, adapted))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("nprocs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_scans_give_the_same_bytes(
    adapted: Path, known: Path, study: Path, tmp_path: Path, nprocs: int
) -> None:
    """Several processes are slow here; test_fit.py tests them quickly."""
    adapt_model(known, study, tmp_path / "again.safetensors", site="c", run=Run(nprocs=nprocs))
    assert (tmp_path / "again.safetensors").read_bytes() == adapted.read_bytes()


def test_the_command_shows_the_model(
    known: Path, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new.safetensors"
    words = ["adapt", known, study, "--site", "c", "--out", out, "--nprocs", "1"]
    assert main([str(word) for word in words]) == 0
    assert "c: level" in capsys.readouterr().out
    assert main(["info", str(out)]) == 0


def _of_other_shells(root: Path) -> Path:
    rows = []
    for number in range(2):
        scan = make_scan(make_gradients({700: 20}), seed=number)
        rows.append(
            {"subject": number, "site": "c", "dwi": write_raw(scan, root, f"s{number}").name}
        )
    return write_table(root / "scans.tsv", rows)


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ("a", "the model knows the site a already"),
        ("average", "the model knows the site average already"),
        ("nowhere", "nowhere"),
    ],
)
def test_wrong_sites_are_an_error_in_one_line(
    known: Path,
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    site: str,
    message: str,
) -> None:
    out = tmp_path / "new.safetensors"
    words = ["adapt", str(known), str(study), "--site", site, "--out", str(out)]
    assert main(words) == 1
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_other_shells_are_refused(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    words = [
        "adapt",
        known,
        _of_other_shells(root),
        "--site",
        "c",
        "--out",
        tmp_path / "m.safetensors",
    ]
    assert main([str(word) for word in words]) == 1
    assert "the signal at b=1200, b=3000, found b=700" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_model_without_codes_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled = tmp_path / "scaled.safetensors"
    fit_model(ScanSelection(study, sites=["a", "b"]), scaled, Scaled(), run=Run(nprocs=1))
    words = ["adapt", scaled, study, "--site", "c", "--out", tmp_path / "new.safetensors"]
    assert main([str(word) for word in words]) == 1
    assert "a model of the method scaled cannot learn another site" in capsys.readouterr().err


def test_a_model_that_is_there_is_kept(
    adapted: Path, known: Path, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = adapted.read_bytes()
    words = ["adapt", known, study, "--site", "c", "--out", adapted]
    assert main([str(word) for word in words]) == 1
    assert "the model is there already" in capsys.readouterr().err
    assert adapted.read_bytes() == before
