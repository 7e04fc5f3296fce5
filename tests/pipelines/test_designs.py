"""Who was scanned where decides what can be learned; anything else is an error of one line."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from phantoms import make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.cli import main
from siteless.methods import Invariant, load_model
from siteless.methods.invariant import InvariantModel
from siteless.pipelines import Run, fit_model
from training_scans import QUICK, SHELLS


def _write_visits(root: Path, visits: Sequence[tuple[str, str, dict[str, object]]]) -> Path:
    """Write a phantom for each visit: a person, a site, and columns of the table."""
    rows: list[dict[str, object]] = []
    for person, site, columns in visits:
        scan = make_scan(make_gradients(SHELLS, seed=10), seed=len(rows))
        stem = f"{person}{site}"
        image = write_raw(scan, root, stem)
        mask = write_mask(scan.mask, scan.affine, root / f"{stem}_mask.nii.gz")
        white = write_mask(scan.white_matter, scan.affine, root / f"{stem}_wm.nii.gz")
        row = {"subject": person, "site": site, "dwi": image.name, "split": "train"}
        rows.append(row | {"mask": mask.name, "wm_mask": white.name} | columns)
    return write_table(root / "scans.tsv", rows)


def _people(
    column: str, at_a: Sequence[object], at_b: Sequence[object]
) -> list[tuple[str, str, dict[str, object]]]:
    return [
        (f"{site}{number}", site, {column: value})
        for site, values in (("a", at_a), ("b", at_b))
        for number, value in enumerate(values)
    ]


def _fit(manifest: Path, out: Path, *words: str) -> int:
    return main(["fit", str(manifest), "--model", str(out), "--nprocs", "1", *words])


@pytest.mark.parametrize(
    ("column", "at_a", "at_b"),
    [
        ("age", (20, 22, 24), (60, 62, 64)),
        ("sex", "FFF", "MMM"),
        ("group", ["control"] * 3, ["patient"] * 3),
    ],
)
def test_what_follows_from_the_site_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    at_a: Sequence[object],
    at_b: Sequence[object],
) -> None:
    manifest = _write_visits(tmp_path / "data", _people(column, at_a, at_b))
    assert _fit(manifest, tmp_path / "m.safetensors") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"{column} and site cannot be separated" in line
    assert "--covariates" in line
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_people_who_travelled_separate_age_and_site(tmp_path: Path) -> None:
    visits = _people("age", (20, 22), (60, 62))
    visits += [("x", site, {"age": 40}) for site in "ab"]
    manifest = _write_visits(tmp_path / "data", visits)
    model = fit_model(
        manifest, tmp_path / "m.safetensors", Invariant(training=QUICK), run=Run(nprocs=1)
    )
    assert model.card.settings["covariates"] == ["age"]


def test_a_covariate_that_is_constant_at_one_site_is_used(tmp_path: Path) -> None:
    manifest = _write_visits(tmp_path / "data", _people("group", "ccpp", "pppp"))
    model = fit_model(
        manifest, tmp_path / "m.safetensors", Invariant(training=QUICK), run=Run(nprocs=1)
    )
    assert model.card.settings["covariates"] == ["group"]


def test_a_covariate_that_some_lack_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write_visits(tmp_path / "data", _people("age", (20, 30, 40), (20, "n/a", 40)))
    assert _fit(manifest, tmp_path / "m.safetensors") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "age of sub-b1" in line
    assert "--covariates" in line


def test_one_person_at_a_site_is_warned_of_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write_visits(tmp_path / "data", _people("age", (30,), (30,)))
    model = fit_model(
        manifest, tmp_path / "m.safetensors", Invariant(training=QUICK), run=Run(nprocs=1)
    )
    assert isinstance(model, InvariantModel)
    assert model.profiles is not None
    assert not model.profiles.field.weights.any()
    assert _fit(manifest, tmp_path / "s.safetensors", "--method", "scaled") == 0
    warnings = capsys.readouterr().err
    assert "site a has one person, who was scanned nowhere else" in warnings
    assert "site b has one person" in warnings


def test_site_effects_are_learned_from_the_reference_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write_visits(tmp_path / "data", _people("group", "ccpp", "cccp"))
    words = ("--reference", "group=c", "--method", "scaled")
    assert _fit(manifest, tmp_path / "m.safetensors", *words) == 0
    summary = load_model(tmp_path / "m.safetensors").card.summary
    assert summary["reference"] == {"group": ["c"]}
    assert summary["training_scans"] == {"a": 2, "b": 3}
    model = fit_model(
        manifest,
        tmp_path / "n.safetensors",
        Invariant(training=QUICK, reference={"group": ["c"]}, covariates=[]),
        run=Run(nprocs=1),
    )
    assert model.card.summary["training_scans"] == {"a": 4, "b": 4}  # the network sees everybody
    assert model.card.summary["reference"] == {"group": ["c"]}
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["group=x"], "expected a reference group with group=x, found c, p"),
        (["hand=left"], "expected a reference group with hand=left, found no such column"),
        (["group=c"], "site b has no scan of the reference group"),
        (["group=c", "--method", "unchanged"], "the method unchanged has no --reference"),
    ],
)
def test_reference_groups_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    manifest = _write_visits(tmp_path / "data", _people("group", "ccp", "ppp"))
    assert _fit(manifest, tmp_path / "m.safetensors", "--reference", *words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
