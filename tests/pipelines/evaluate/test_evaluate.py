import csv
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from scipy import stats

from phantoms import load_image, make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.acquisition import Array, Site
from siteless.bids import derivative_path, find_scans, read_scan, write_map, write_scan
from siteless.cli import main
from siteless.errors import DatasetError, SitelessError
from siteless.evaluation import (
    BEFORE,
    NOISE,
    RESCAN,
    Sample,
    intraclass_correlation,
    measure_leakage,
)
from siteless.evaluation._leakage import _learn, _Trained
from siteless.methods import Invariant, Rish, Scaled
from siteless.microstructure import compute_maps
from siteless.pipelines import (
    Derivatives,
    Evaluation,
    Run,
    Scoring,
    evaluate_dataset,
    fit_model,
    harmonize_dataset,
)
from siteless.pipelines.evaluate import pair_scans
from training_scans import QUICK
from travellers import SPLITS, write_travellers, write_visit

# Learned and scored alike: enough for what is measured over people.
EVERYBODY = {"01": "", "02": "", "03": "", "04": "", "05": "", "06": ""}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People at two sites, and their scans rendered as b by scaling."""
    root = tmp_path_factory.mktemp("cohort v1.0")
    data = write_travellers(root / "data")
    fit_model(data, root / "scaled.safetensors", Scaled(), run=Run(nprocs=1))
    harmonize_dataset(data, root / "scaled", root / "scaled.safetensors", "b", run=Run(nprocs=1))
    return root


def _perfect(data: Path, out: Path, *, sidecar: bool = True, sites: str = "a") -> Path:
    """Write scans of b as if a method had made them of those of a."""
    scans = {(f.subject, str(f.site)): f for f in find_scans(data).scans}
    for (who, site), files in scans.items():
        if site in sites:
            metadata = {"Siteless": {"TargetSite": "b"}} if sidecar else {}
            target = read_scan(scans[who, "b"])
            write_scan(target, files, out, metadata=metadata)
    return out


def _evaluate(
    data: Path,
    derivatives: Mapping[str, Sequence[Path]],
    out: Path,
    *,
    to: str | None = None,
    **scores: Any,
) -> Evaluation:
    return evaluate_dataset(
        data, Derivatives(derivatives, to), out, scoring=Scoring(**scores), run=Run(nprocs=1)
    )


def _rows(out: Path) -> list[dict[str, str]]:
    with (out / "scores.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_command_scores_test_people_and_writes_what_it_says(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = _times(cohort), tmp_path / "scores"
    words = ["evaluate", str(cohort / "data"), "--harmonized", str(cohort / "scaled")]
    kinds = ["--scores", "signal", "maps", "leakage", "biology"]
    assert main([*words, "--out", str(out), *kinds, "--nprocs", "1"]) == 0
    output = capsys.readouterr().out
    assert "scaled" in output
    assert "note: effect of age: an effect needs at least 3 people" in output
    assert max(map(len, output.partition("note")[0].splitlines())) <= 80
    rows = _rows(out)
    assert list(rows[0]) == ["subject", "task", "method", "region", "metric", "value"]
    assert {row["subject"] for row in rows} == {"05", "06", "n/a"}
    assert {row["method"] for row in rows} == {BEFORE, "scaled", NOISE}
    described = json.loads((out / "scores.json").read_text())
    assert set(described["metric"]["Levels"]) == {row["metric"] for row in rows}
    errors = {(r["method"], r["metric"]): float(r["value"]) for r in rows if r["task"] == "a>b"}
    assert errors["scaled", "rmse"] < 0.5 * errors[BEFORE, "rmse"]
    assert errors[NOISE, "rmse"] < errors["scaled", "rmse"]
    assert (out / "rmse.png").exists()
    image = out / "maps/scaled/to-b/sub-05/ses-a/dwi/sub-05_ses-a_desc-rmse_dwimap.nii.gz"
    values = load_image(image).get_fdata()
    of_person = [
        r for r in rows if (r["subject"], r["method"], r["metric"]) == ("05", "scaled", "rmse")
    ]
    assert float(of_person[0]["value"]) == pytest.approx(np.nanmean(values), rel=1e-4)
    assert _times(cohort) == before

    records = _times(out / "records")
    table = (out / "scores.tsv").read_bytes()
    assert main([*words, "--out", str(out), *kinds, "--nprocs", "1"]) == 0
    assert _times(out / "records") == records
    assert (out / "scores.tsv").read_bytes() == table


def test_only_maps_that_are_named_are_scored(cohort: Path, tmp_path: Path) -> None:
    words = ["evaluate", str(cohort / "data"), "--harmonized", str(cohort / "scaled")]
    words += ["--out", str(tmp_path / "s"), "--scores", "maps", "--maps", "md", "fa", "md"]
    assert main([*words, "--nprocs", "1", "--no-report"]) == 0
    assert {row["metric"].partition("_")[0] for row in _rows(tmp_path / "s")} == {"fa", "md"}


def test_the_target_itself_has_no_error(cohort: Path, tmp_path: Path) -> None:
    perfect = _perfect(cohort / "data", tmp_path / "perfect")
    kinds = ("signal", "maps")
    evaluation = _evaluate(cohort / "data", {"perfect": [perfect]}, tmp_path / "s", kinds=kinds)
    scores = {s.metric: s.value for s in evaluation.table.scores if s.method == "perfect"}
    errors = (
        "rmse",
        "rmse_b0",
        "rmse_b1200",
        "shell_error",
        "block_percent",
        "fa_cv",
        "md_ape",
        "mk_pe",
        "rtop_cv",
        "rtop_block_percent",
    )
    assert [scores[name] for name in errors] == pytest.approx([0.0] * len(errors), abs=1e-6)


@pytest.mark.usefixtures("mrtrix")
def test_the_target_itself_turns_no_fibre(cohort: Path, tmp_path: Path) -> None:
    perfect = _perfect(cohort / "data", tmp_path / "perfect")
    evaluation = _evaluate(
        cohort / "data",
        {"perfect": [perfect]},
        tmp_path / "s",
        kinds=["orientation"],
        fibres=40,
    )
    angles = [s.value for s in evaluation.table.scores if s.method == "perfect"]
    assert angles == pytest.approx([0.0] * 8, abs=1e-4)  # two people, four scores
    turned = [s.value for s in evaluation.table.select("angle_closest_median", method=BEFORE)]
    assert min(turned) > 0.1


def test_a_changed_scan_is_scored_again_and_no_other(cohort: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cohort / "scaled", tmp_path / "made")
    args = (cohort / "data", {"made": [copy]}, tmp_path / "s")
    _evaluate(*args, kinds=["signal"])
    before = _times(tmp_path / "s" / "records")
    [image] = copy.glob("sub-05/ses-a/dwi/*_dwi.nii.gz")
    loaded = load_image(image)
    nib.save(nib.Nifti1Image(1.1 * loaded.get_fdata(dtype=np.float32), loaded.affine), image)
    evaluation = _evaluate(*args, kinds=["signal"])
    after = _times(tmp_path / "s" / "records")
    changed = {
        path.relative_to(tmp_path / "s" / "records")
        for path in after
        if after[path] != before[path]
    }
    assert {path.parts[0] for path in changed} == {"made"}
    assert {path.name for path in changed if path.suffix == ".json"} == {"sub-05_ses-a_dwi.json"}
    scores = evaluation.table.select("rmse", method="made")
    assert {s.subject for s in scores} == {"05", "06"}
    assert max(scores, key=lambda s: s.value).subject == "05"


def test_without_pairs_the_rest_is_scored_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = {"01": "a", "02": "a", "03": "a", "04": "b", "05": "b", "06": "b"}
    data = write_travellers(tmp_path / "data", EVERYBODY, sites=sites)
    copy = shutil.copytree(data, tmp_path / "made")
    words = ["evaluate", str(data), "--harmonized", str(copy), "--to", "b"]
    assert main([*words, "--out", str(tmp_path / "s"), "--nprocs", "1"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "no person who is scored has a comparable scan at the target site" in output
    assert "agreement of sites on people" in output
    metrics = {row["metric"] for row in _rows(tmp_path / "s")}
    assert {"fa_mean", "fa_site_d", "fa_site_ks", "leakage_accuracy", "fa_age_slope"} <= metrics
    assert not any(metric.startswith(("rmse", "angle")) for metric in metrics)


def test_a_second_scan_gives_a_floor(tmp_path: Path) -> None:
    data = write_travellers(tmp_path / "data", {"01": "", "02": ""}, runs=(1, 2))
    copy = shutil.copytree(data, tmp_path / "made")
    evaluation = _evaluate(
        data, {"made": [copy]}, tmp_path / "s", kinds=["signal", "maps"], to="b"
    )
    floors = evaluation.table.select("rmse_percent", method=RESCAN)
    noise = evaluation.table.mean("rmse_percent", method=NOISE)
    assert np.mean([s.value for s in floors]) == pytest.approx(np.sqrt(2) * noise, rel=0.1)


def test_regions_of_labels_are_scored(cohort: Path, tmp_path: Path) -> None:
    scan = read_scan(find_scans(cohort / "data").scans[0])
    labels = np.zeros(scan.mask.shape, dtype=np.int16)
    labels[:10][scan.white_matter[:10]] = 3
    labels[10:][scan.white_matter[10:]] = 7
    path = tmp_path / "atlas_dseg.nii.gz"
    nib.save(nib.Nifti1Image(labels, scan.affine), path)
    write_table(tmp_path / "atlas_dseg.tsv", [{"index": 3, "name": "left"}])
    evaluation = _evaluate(
        cohort / "data",
        {"scaled": [cohort / "scaled"]},
        tmp_path / "s",
        kinds=["signal", "maps"],
        labels=path,
    )
    assert {s.region for s in evaluation.table.scores} == {"white-matter", "left", "label-7"}
    case = {"method": "scaled", "subject": "05", "task": "a>b"}
    both = [evaluation.table.mean("rmse", **case, region=region) for region in ("left", "label-7")]
    weights = [(labels == number).sum() for number in (3, 7)]
    assert np.average(both, weights=weights) == pytest.approx(
        evaluation.table.mean("rmse", **case)
    )


def _nothing_there(_: Path, root: Path) -> tuple[dict[str, list[Path]], str]:
    return {"gone": [root / "gone"]}, "there is no such folder"


def _of_other_people(_: Path, root: Path) -> tuple[dict[str, list[Path]], str]:
    return {
        "other": [write_travellers(root / "other", {"77": ""})]
    }, "no scan or map in the folder"


def _silent(cohort: Path, root: Path) -> tuple[dict[str, list[Path]], str]:
    folder = _perfect(cohort / "data", root / "silent", sidecar=False)
    return {"silent": [folder]}, "the site that its scans were rendered as is unknown"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--to", "nowhere"], "no scan is of site 'nowhere'; choose from a, b"),
        (["--to", "a"], "its scans say that they were rendered as b, not as a"),
        (["--labels", "none.nii.gz"], "there is no such file or folder"),
        (["--codes", "none"], "no code in the folder belongs to a scan of the dataset"),
        (["--maps", "fa", "--scores", "signal"], "--maps are for scores of maps or biology"),
        (["--codes", "x=y", "x=z"], "two folders of codes are called 'x'"),
        (["--out", "{file}"], "cannot write here"),
        (["--out", "{made}"], "the output is inside the dataset"),
    ],
)
def test_wrong_options_are_refused_by_a_line(
    cohort: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    problem: str,
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    given = [word.format(file=file, made=cohort / "scaled") for word in options]
    words = ["evaluate", str(cohort / "data"), "--harmonized", str(cohort / "scaled")]
    assert main([*words, "--out", str(tmp_path / "s"), *given, "--nprocs", "1"]) == 1
    error = capsys.readouterr().err.strip()
    assert problem in error
    assert error.count("\n") == 0


def test_directions_that_reveal_the_site_are_warned_of(cohort: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cohort / "data", tmp_path / "made")
    for who in SPLITS:
        gradients = make_gradients({1200: 24, 3000: 24})
        scan = make_scan(gradients, site=Site("a"))
        write_raw(scan, copy / f"sub-{who}/ses-a/dwi", f"sub-{who}_ses-a_dwi")
    evaluation = _evaluate(
        cohort / "data",
        {"made": [copy]},
        tmp_path / "s",
        kinds=["leakage"],
        to="b",
    )
    assert any(
        "how many directions scans have (42 to 50 volumes)" in note for note in evaluation.notes
    )


@pytest.mark.parametrize("plant", [_nothing_there, _of_other_people, _silent])
def test_what_cannot_be_scored_is_refused_by_a_line(
    cohort: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    plant: Callable[[Path, Path], tuple[dict[str, list[Path]], str]],
) -> None:
    harmonized, problem = plant(cohort, tmp_path)
    [(name, [folder])] = harmonized.items()
    words = ["evaluate", str(cohort / "data"), "--harmonized", f"{name}={folder}"]
    assert main([*words, "--out", str(tmp_path / "s"), "--nprocs", "1"]) == 1
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert problem in error
    assert str(folder) in error
    assert not (tmp_path / "s" / "scores.tsv").exists()


def test_scans_on_other_grids_are_not_compared(cohort: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cohort / "scaled", tmp_path / "made")
    for image in copy.glob("sub-05/ses-a/dwi/*.nii.gz"):
        loaded = load_image(image)
        affine = loaded.affine.copy()
        affine[0, 3] += 5
        nib.save(nib.Nifti1Image(np.asanyarray(loaded.dataobj), affine), image)
    evaluation = _evaluate(cohort / "data", {"made": [copy]}, tmp_path / "s", kinds=["signal"])
    assert any(
        "a>b: the person's scans are on different grids" in note for note in evaluation.notes
    )
    assert {s.subject for s in evaluation.table.select("rmse", method="made")} == {"06"}


@pytest.mark.parametrize(
    ("splits", "problem"),
    [(("train", "val"), "no test people"), (("train", "Test"), "expected train, val or test")],
)
def test_a_split_without_test_people_is_refused(
    tmp_path: Path, splits: tuple[str, str], problem: str
) -> None:
    data = write_travellers(tmp_path / "data", dict(zip(("01", "02"), splits, strict=True)))
    with pytest.raises(DatasetError, match=problem):
        pair_scans(find_scans(data).scans, Derivatives({"made": [data]}, to="b"))


@pytest.mark.parametrize("name", [BEFORE, NOISE, RESCAN, "../away", "a/b", ".hidden"])
def test_names_that_mean_something_else_are_refused(cohort: Path, name: str) -> None:
    with pytest.raises(DatasetError, match="a method cannot be called"):
        _evaluate(cohort / "data", {name: [cohort / "scaled"]}, cohort / "s")


def test_two_renderings_of_a_scan_are_not_one_method(cohort: Path, tmp_path: Path) -> None:
    again = shutil.copytree(cohort / "scaled", tmp_path / "again")
    derivatives = {"scaled": [cohort / "scaled", again]}
    with pytest.raises(DatasetError, match="two folders of the method scaled"):
        pair_scans(find_scans(cohort / "data").scans, Derivatives(derivatives))


def test_scans_of_one_file_name_are_kept_apart(cohort: Path, tmp_path: Path) -> None:
    rows = []
    for files in find_scans(cohort / "data").scans:
        folder = tmp_path / files.subject / str(files.site)
        folder.mkdir(parents=True)
        for path in (files.dwi, files.bval, files.bvec, files.mask, files.white_matter):
            assert path is not None
            end = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
            kind = {files.mask: "mask", files.white_matter: "wm"}.get(path, "dwi")
            shutil.copy(path, folder / f"{kind}{end}")
        facts = {"subject": files.subject, "site": files.site, "split": SPLITS[files.subject]}
        names = {"dwi": "dwi.nii.gz", "mask": "mask.nii.gz", "wm_mask": "wm.nii.gz"}
        rows.append(facts | {key: f"{files.subject}/{files.site}/{n}" for key, n in names.items()})
    manifest = write_table(tmp_path / "manifest.tsv", rows)
    kinds, derivatives = ("signal", "maps", "leakage", "biology"), {"scaled": [cohort / "scaled"]}
    listed = _evaluate(manifest, derivatives, tmp_path / "s", kinds=kinds)
    known = _evaluate(cohort / "data", derivatives, tmp_path / "t", kinds=kinds)
    metrics = [s[:5] for s in known.table.scores if "age" not in s.metric]
    assert [s[:5] for s in listed.table.scores if "age" not in s.metric] == metrics
    values = [s.value for s in known.table.scores if "age" not in s.metric]
    assert [s.value for s in listed.table.scores if "age" not in s.metric] == pytest.approx(values)


def test_scans_without_shells_are_left_out(cohort: Path, tmp_path: Path) -> None:
    data = shutil.copytree(cohort / "data", tmp_path / "data")
    scan = make_scan(make_gradients({}, b0=3), site=Site("b"))
    write_raw(scan, data / "sub-05/ses-b/dwi", "sub-05_ses-b_dir-PA_dwi")
    evaluation = _evaluate(
        data,
        {"scaled": [cohort / "scaled"]},
        tmp_path / "s",
        kinds=["signal", "maps"],
    )
    assert {s.subject for s in evaluation.table.select("rmse", method="scaled")} == {"05", "06"}


def _write_maps(data: Path, out: Path, change: Callable[[Array], Array]) -> Path:
    """Write FA of b as if a method that gives maps had made it of a."""
    scans = {(f.subject, str(f.site)): f for f in find_scans(data).scans}
    for (who, site), files in scans.items():
        if site == "a":
            target = read_scan(scans[who, "b"])
            values = change(compute_maps(target, ["fa"])["fa"])
            write_map(derivative_path(out, "harmonized_fa", files.entities), values, target.affine)
    return out


def test_maps_are_scored_where_there_is_no_scan(cohort: Path, tmp_path: Path) -> None:
    def with_a_hole(values: Array) -> Array:
        values[10, 11, 9] = np.nan
        return values

    maps_folder = _write_maps(cohort / "data", tmp_path / "maps", with_a_hole)
    evaluation = _evaluate(
        cohort / "data",
        {"maps": [maps_folder]},
        tmp_path / "s",
        kinds=["signal", "maps"],
        to="b",
    )
    assert evaluation.table.mean("fa_cv", method="maps") == pytest.approx(0, abs=1e-6)
    assert not evaluation.table.select("rmse", method="maps")


def test_maps_of_a_method_that_are_not_named_are_not_scored(cohort: Path, tmp_path: Path) -> None:
    maps_folder = _write_maps(cohort / "data", tmp_path / "maps", lambda values: values)
    evaluation = _evaluate(
        cohort / "data",
        {"maps": [maps_folder]},
        tmp_path / "s",
        kinds=["maps"],
        maps=["md"],
        to="b",
    )
    assert {score.method for score in evaluation.table.scores} == {BEFORE}


def _write_followed_up(root: Path) -> tuple[Path, dict[tuple[str, str], int]]:
    """Write people who were at a, at a again after two years, and a year later at b."""
    data = write_travellers(root / "data", {"01": "", "02": "", "03": "", "04": ""})
    visits: dict[tuple[str, str], int] = {}
    for number, who in enumerate(("01", "02", "03", "04")):
        person, ages = data / f"sub-{who}", [30 + 9 * number + step for step in (0, 2, 3)]
        for path in (person / "ses-a" / "dwi").iterdir():
            later = person / "ses-alater" / "dwi" / path.name.replace("ses-a", "ses-alater")
            later.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, later)
        sessions = dict(zip(("a", "alater", "b"), ages, strict=True))
        rows = [
            {"session_id": f"ses-{name}", "site": name[0], "age": age}
            for name, age in sessions.items()
        ]
        write_table(person / f"sub-{who}_sessions.tsv", rows)
        visits |= {(who, name): age for name, age in sessions.items()}
    return data, visits


def test_every_visit_has_an_age_and_a_mean_of_its_own(tmp_path: Path) -> None:
    data, ages = _write_followed_up(tmp_path)
    rng = np.random.default_rng(0)
    means = {key: 0.5 - 0.003 * age + 0.01 * rng.standard_normal() for key, age in ages.items()}
    for files in find_scans(data).scans:
        scan = read_scan(files)
        flat = np.full(scan.mask.shape, means[files.subject, files.entities["ses"]])
        write_map(
            derivative_path(tmp_path / "maps", "harmonized_fa", files.entities), flat, scan.affine
        )
    table = _evaluate(
        data,
        {"maps": [tmp_path / "maps"]},
        tmp_path / "s",
        kinds=["biology"],
        maps=["fa"],
        to="b",
    ).table
    scores = {s.metric: s.value for s in table.scores if s.subject == "n/a" and s.method == "maps"}
    line = stats.linregress(list(ages.values()), list(means.values()))
    assert scores["fa_age_slope"] == pytest.approx(line.slope, rel=1e-4)
    people = [[key for key in ages if key[0] == who] for who in ("01", "02", "03", "04")]
    slopes = [
        np.polyfit([ages[k] for k in visits], [means[k] for k in visits], 1)[0]
        for visits in people
    ]
    assert scores["fa_change_per_year"] == pytest.approx(np.mean(slopes), rel=1e-4)
    assert scores["fa_change_per_year_low"] < np.mean(slopes) < scores["fa_change_per_year_high"]
    first = np.array([[means[who, "a"], means[who, "b"]] for who in ("01", "02", "03", "04")])
    expected = intraclass_correlation(first).absolute
    assert scores["fa_icc_agreement"] == pytest.approx(expected, rel=1e-3)


def test_maps_on_another_grid_are_refused(cohort: Path, tmp_path: Path) -> None:
    maps_folder = _write_maps(cohort / "data", tmp_path / "maps", lambda values: values[1:])
    with pytest.raises(SitelessError, match="expected a map on the grid of"):
        _evaluate(
            cohort / "data",
            {"maps": [maps_folder]},
            tmp_path / "s",
            kinds=["maps"],
            to="b",
        )


def test_a_lesion_that_comes_later_is_scored(cohort: Path, tmp_path: Path) -> None:
    data = shutil.copytree(cohort / "data", tmp_path / "data")
    args = (data, {"scaled": [cohort / "scaled"]}, tmp_path / "s")
    kinds = ("maps", "biology")
    assert not _evaluate(*args, kinds=kinds).table.methods("md_contrast")
    scan = read_scan(find_scans(data).scans[0])
    lesion = np.zeros_like(scan.mask)
    lesion[tuple(np.argwhere(scan.white_matter)[40])] = True
    path = data / "derivatives/lesions/sub-05/dwi/sub-05_label-lesion_mask.nii.gz"
    write_mask(lesion, scan.affine, path)
    table = _evaluate(*args, kinds=kinds).table
    assert {s.subject for s in table.select("md_contrast", region="lesion")} == {"05"}
    assert set(table.methods("md_contrast")) == {BEFORE, "scaled"}


@pytest.mark.parametrize("spoil", ["maps are deleted", "other scores were begun"])
def test_partial_output_is_made_again(
    cohort: Path, tmp_path: Path, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (cohort / "data", {"scaled": [cohort / "scaled"]}, tmp_path / "s")
    first = _evaluate(*args, kinds=["signal", "leakage"])
    if spoil == "maps are deleted":
        shutil.rmtree(tmp_path / "s" / "maps")
    else:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("siteless.pipelines.evaluate._scan_scores.write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            _evaluate(*args, kinds=["signal"])
        monkeypatch.undo()
    assert _evaluate(*args, kinds=["signal", "leakage"]).table == first.table


def test_a_table_of_labels_that_is_none_is_refused(cohort: Path, tmp_path: Path) -> None:
    scan = read_scan(find_scans(cohort / "data").scans[0])
    path = tmp_path / "atlas_dseg.nii.gz"
    nib.save(nib.Nifti1Image(scan.white_matter.astype(np.int16), scan.affine), path)
    write_table(tmp_path / "atlas_dseg.tsv", [{"index": "first", "name": "left"}])
    derivatives = {"scaled": [cohort / "scaled"]}
    with pytest.raises(DatasetError, match="expected a whole number and a name"):
        _evaluate(cohort / "data", derivatives, tmp_path / "s", kinds=["maps"], labels=path)


@pytest.mark.parametrize(
    "method",
    [
        Scaled(),
        Rish(same_space=True),
        pytest.param(Rish(), marks=pytest.mark.slow, id="rish with registration"),
        Invariant(training=replace(QUICK, updates=10)),
    ],
    ids=lambda method: method.name,
)
def test_nobody_of_the_test_split_reaches_a_model(
    tmp_path: Path, method: Invariant | Rish | Scaled
) -> None:
    write_travellers(tmp_path / "first")
    write_travellers(tmp_path / "second")
    for who, split in SPLITS.items():
        if split == "test":
            for site in "ab":
                write_visit(tmp_path / "second", who, site, None, seed=999)
                image = (
                    tmp_path / f"second/sub-{who}/ses-{site}/dwi/sub-{who}_ses-{site}_dwi.nii.gz"
                )
                loaded = load_image(image)
                other = 7 * loaded.get_fdata(dtype=np.float32)
                nib.save(nib.Nifti1Image(other, loaded.affine), image)
    models = []
    for name in ("first", "second"):
        out = tmp_path / f"{name}.safetensors"
        fit_model(tmp_path / name, out, method, run=Run(nprocs=1))
        models.append(out.read_bytes())
    assert models[0] == models[1]


def test_nobody_of_the_test_split_reaches_an_adversary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_travellers(tmp_path / "data")
    seen: list[Sample] = []

    def spy(samples: Sequence[Sample], *rest: Any) -> _Trained:
        seen.extend(samples)
        return _learn(samples, *rest)

    monkeypatch.setattr("siteless.evaluation._leakage._learn", spy)
    _evaluate(data, {"made": [data]}, tmp_path / "s", kinds=["leakage"], to="b")
    assert {sample.subject for sample in seen} == {"01", "02", "03"}
    samples = [Sample(who, site, np.ones((3, 2))) for who in "123" for site in "ab"]
    with pytest.raises(DatasetError, match="nobody among the people tested"):
        measure_leakage(samples, training={"1", "2", "3"})
