import csv
import json
import shutil
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from lessons import QUICK
from phantoms import write_table
from siteless.bids import find_scans, read_scan, write_scan
from siteless.cli import main
from siteless.errors import DatasetError
from siteless.evaluation import Sample, measure_leakage
from siteless.evaluation._leakage import _learn
from siteless.pipelines import evaluate_dataset, fit_model, harmonize_dataset
from siteless.pipelines._contest import BEFORE, set_contest
from siteless.pipelines._judge import NOISE, RESCAN
from travellers import SPLITS, write_travellers, write_visit

# Learned and scored alike: enough for what is measured over people.
EVERYBODY = {"01": "", "02": "", "03": "", "04": ""}


@pytest.fixture(scope="module")
def contest(tmp_path_factory):
    """People at two sites, and their scans rendered as b by scaling."""
    root = tmp_path_factory.mktemp("contest v1.0")
    data = write_travellers(root / "data")
    fit_model(data, root / "scaled.safetensors", method="scaled", nprocs=1)
    harmonize_dataset(data, root / "scaled", root / "scaled.safetensors", "b", nprocs=1)
    return root


def _perfect(data, out, *, sidecar=True, sites="a"):
    """Write scans of b as if a method had made them of those of a."""
    scans = {(f.subject, str(f.site)): f for f in find_scans(data).scans}
    for (who, site), files in scans.items():
        if site in sites:
            told = {"Siteless": {"TargetSite": "b"}} if sidecar else {}
            target = read_scan(scans[who, "b"])
            write_scan(target, files, out, metadata=told)
    return out


def _rows(out):
    with (out / "scores.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def _times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_command_scores_test_people_and_writes_what_it_says(contest, tmp_path, capsys):
    before, out = _times(contest), tmp_path / "scores"
    words = ["evaluate", str(contest / "data"), "--harmonized", str(contest / "scaled")]
    kinds = ["--scores", "signal", "maps", "leakage", "biology"]
    assert main([*words, "--out", str(out), *kinds, "--nprocs", "1"]) == 0
    told = capsys.readouterr().out
    assert "scaled" in told
    assert "not scored: effect of age: an effect needs at least 3 people" in told
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
    values = nib.load(image).get_fdata()
    own = [r for r in rows if (r["subject"], r["method"], r["metric"]) == ("05", "scaled", "rmse")]
    assert float(own[0]["value"]) == pytest.approx(np.nanmean(values), rel=1e-4)
    assert _times(contest) == before

    records = _times(out / "records")
    table = (out / "scores.tsv").read_bytes()
    assert main([*words, "--out", str(out), *kinds, "--nprocs", "1"]) == 0
    assert _times(out / "records") == records
    assert (out / "scores.tsv").read_bytes() == table


def test_the_target_itself_has_no_error(contest, tmp_path):
    perfect = _perfect(contest / "data", tmp_path / "perfect")
    kinds = ("signal", "maps")
    found = evaluate_dataset(
        contest / "data", {"perfect": [perfect]}, tmp_path / "s", kinds=kinds, nprocs=1
    )
    own = {s.metric: s.value for s in found.table.scores if s.method == "perfect"}
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
    assert [own[name] for name in errors] == pytest.approx([0.0] * len(errors), abs=1e-6)


@pytest.mark.usefixtures("mrtrix")
def test_the_target_itself_turns_no_fibre(contest, tmp_path):
    perfect = _perfect(contest / "data", tmp_path / "perfect")
    found = evaluate_dataset(
        contest / "data",
        {"perfect": [perfect]},
        tmp_path / "s",
        kinds=["orientation"],
        fibres=40,
        nprocs=1,
    )
    angles = [s.value for s in found.table.scores if s.method == "perfect"]
    assert angles == pytest.approx([0.0] * 8, abs=1e-4)  # two people, four scores
    turned = [s.value for s in found.table.select("angle_closest_median", method=BEFORE)]
    assert min(turned) > 0.1


def test_a_changed_scan_is_scored_again_and_no_other(contest, tmp_path):
    made = shutil.copytree(contest / "scaled", tmp_path / "made")
    args = (contest / "data", {"made": [made]}, tmp_path / "s")
    evaluate_dataset(*args, kinds=["signal"], nprocs=1)
    before = _times(tmp_path / "s" / "records")
    [image] = made.glob("sub-05/ses-a/dwi/*_dwi.nii.gz")
    loaded = nib.load(image)
    nib.save(nib.Nifti1Image(1.1 * loaded.get_fdata(dtype=np.float32), loaded.affine), image)
    found = evaluate_dataset(*args, kinds=["signal"], nprocs=1)
    after = _times(tmp_path / "s" / "records")
    changed = {
        path.relative_to(tmp_path / "s" / "records")
        for path in after
        if after[path] != before[path]
    }
    assert {path.parts[0] for path in changed} == {"made"}
    assert {path.name for path in changed if path.suffix == ".json"} == {"sub-05_ses-a_dwi.json"}
    own = found.table.select("rmse", method="made")
    assert {s.subject for s in own} == {"05", "06"}
    assert max(own, key=lambda s: s.value).subject == "05"


def test_without_pairs_the_rest_is_scored_and_said(tmp_path, capsys):
    sites = {"01": "a", "02": "a", "03": "b", "04": "b"}
    data = write_travellers(tmp_path / "data", EVERYBODY, sites=sites)
    made = shutil.copytree(data, tmp_path / "made")
    words = ["evaluate", str(data), "--harmonized", str(made), "--to", "b"]
    assert main([*words, "--out", str(tmp_path / "s"), "--nprocs", "1"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "no person who is scored has a comparable scan at the target site" in told
    assert "agreement of sites on people" in told
    metrics = {row["metric"] for row in _rows(tmp_path / "s")}
    assert {"fa_mean", "fa_site_d", "fa_site_ks", "leakage_accuracy", "fa_age_slope"} <= metrics
    assert not any(metric.startswith(("rmse", "angle")) for metric in metrics)


def test_a_second_scan_gives_a_floor(tmp_path):
    data = write_travellers(tmp_path / "data", {"01": "", "02": ""}, runs=(1, 2))
    made = shutil.copytree(data, tmp_path / "made")
    found = evaluate_dataset(
        data, {"made": [made]}, tmp_path / "s", kinds=["signal", "maps"], to="b", nprocs=1
    )
    floors = found.table.select("rmse_percent", method=RESCAN)
    noise = found.table.mean("rmse_percent", method=NOISE)
    assert np.mean([s.value for s in floors]) == pytest.approx(np.sqrt(2) * noise, rel=0.1)


def test_regions_of_labels_are_scored(contest, tmp_path):
    scan = read_scan(find_scans(contest / "data").scans[0])
    labels = np.zeros(scan.mask.shape, dtype=np.int16)
    labels[:10][scan.white_matter[:10]] = 3
    labels[10:][scan.white_matter[10:]] = 7
    path = tmp_path / "atlas_dseg.nii.gz"
    nib.save(nib.Nifti1Image(labels, scan.affine), path)
    write_table(tmp_path / "atlas_dseg.tsv", [{"index": 3, "name": "left"}])
    found = evaluate_dataset(
        contest / "data",
        {"scaled": [contest / "scaled"]},
        tmp_path / "s",
        kinds=["signal", "maps"],
        labels=path,
        nprocs=1,
    )
    assert {s.region for s in found.table.scores} == {"white-matter", "left", "label-7"}
    one = {"method": "scaled", "subject": "05", "task": "a>b"}
    both = [found.table.mean("rmse", **one, region=region) for region in ("left", "label-7")]
    weights = [(labels == number).sum() for number in (3, 7)]
    assert np.average(both, weights=weights) == pytest.approx(found.table.mean("rmse", **one))


def _nothing_there(_, root):
    return {"gone": [root / "gone"]}, "there is no such folder"


def _of_other_people(_, root):
    return {
        "other": [write_travellers(root / "other", {"77": ""})]
    }, "no scan or map in the folder"


def _silent(contest, root):
    made = _perfect(contest / "data", root / "silent", sidecar=False)
    return {"silent": [made]}, "nothing tells the site"


@pytest.mark.parametrize("plant", [_nothing_there, _of_other_people, _silent])
def test_what_cannot_be_scored_is_refused_by_a_line(contest, tmp_path, capsys, plant):
    harmonized, problem = plant(contest, tmp_path)
    [(name, [folder])] = harmonized.items()
    words = ["evaluate", str(contest / "data"), "--harmonized", f"{name}={folder}"]
    assert main([*words, "--out", str(tmp_path / "s"), "--nprocs", "1"]) == 1
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert problem in error
    assert str(folder) in error
    assert not (tmp_path / "s" / "scores.tsv").exists()


def test_scans_on_other_grids_are_not_compared(contest, tmp_path):
    made = shutil.copytree(contest / "scaled", tmp_path / "made")
    for image in made.glob("sub-05/ses-a/dwi/*.nii.gz"):
        loaded = nib.load(image)
        affine = loaded.affine.copy()
        affine[0, 3] += 5
        nib.save(nib.Nifti1Image(np.asanyarray(loaded.dataobj), affine), image)
    found = evaluate_dataset(
        contest / "data", {"made": [made]}, tmp_path / "s", kinds=["signal"], nprocs=1
    )
    assert any("a>b: the person's scans are on different grids" in note for note in found.notes)
    assert {s.subject for s in found.table.select("rmse", method="made")} == {"06"}


def test_a_split_without_test_people_is_refused(tmp_path):
    data = write_travellers(tmp_path / "data", {"01": "train", "02": "train"})
    made = shutil.copytree(data, tmp_path / "made")
    found = set_contest(find_scans(data).scans, {"made": [made]}, to="b")
    assert found.training is None
    assert len(found.scored) == len(found.judged)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "scaled"},
        {"method": "rish", "same_space": True},
        {"settings": replace(QUICK, updates=10)},
    ],
    ids=lambda options: options.get("method", "network"),
)
def test_nobody_of_the_test_split_reaches_a_model(tmp_path, options):
    write_travellers(tmp_path / "first")
    write_travellers(tmp_path / "second")
    for who, split in SPLITS.items():
        if split == "test":
            for site in "ab":
                write_visit(tmp_path / "second", who, site, None, seed=999)
                image = (
                    tmp_path / f"second/sub-{who}/ses-{site}/dwi/sub-{who}_ses-{site}_dwi.nii.gz"
                )
                loaded = nib.load(image)
                other = 7 * loaded.get_fdata(dtype=np.float32)
                nib.save(nib.Nifti1Image(other, loaded.affine), image)
    models = []
    for name in ("first", "second"):
        out = tmp_path / f"{name}.safetensors"
        fit_model(tmp_path / name, out, nprocs=1, **options)
        models.append(out.read_bytes())
    assert models[0] == models[1]


def test_nobody_of_the_test_split_reaches_an_adversary(tmp_path, monkeypatch):
    data = write_travellers(tmp_path / "data")
    seen = []

    def spy(samples, *rest):
        seen.extend(samples)
        return _learn(samples, *rest)

    monkeypatch.setattr("siteless.evaluation._leakage._learn", spy)
    evaluate_dataset(data, {"made": [data]}, tmp_path / "s", kinds=["leakage"], to="b", nprocs=1)
    assert {sample.subject for sample in seen} == {"01", "02", "03"}
    samples = [Sample(who, site, np.ones((3, 2))) for who in "123" for site in "ab"]
    with pytest.raises(DatasetError, match="nobody among the people tested"):
        measure_leakage(samples, training={"1", "2", "3"})
