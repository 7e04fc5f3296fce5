import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from phantoms import RENDER, load_image, make_gradients, make_scan, write_raw, write_table
from siteless.bids import ScanSelection, find_scans, read_scan
from siteless.cli import main
from siteless.errors import ModelError, OutputError
from siteless.methods import Invariant, Scaled, load_model
from siteless.pipelines import Run, fit_model, harmonize_dataset, write_report
from training_scans import QUICK


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_every_scan_is_rendered_and_described(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _times(study)
    out = tmp_path / "as b"
    words = [*RENDER, str(study / "data"), str(out), "--model", str(study / "m.safetensors")]
    assert main([*words, "--to", "b", "--nprocs", "1"]) == 0
    assert f"4 scans rendered as b: {out}" in capsys.readouterr().out
    image = out / "sub-01/ses-a/dwi/sub-01_ses-a_desc-harmonized_dwi.nii.gz"
    source = load_image(study / "data/sub-01/ses-a/dwi/sub-01_ses-a_dwi.nii.gz")
    assert load_image(image).shape == source.shape
    np.testing.assert_allclose(load_image(image).affine, source.affine, atol=1e-5)
    sidecar = json.loads(image.with_name(image.name.replace(".nii.gz", ".json")).read_text())
    assert sidecar["Siteless"]["Model"] == load_model(study / "m.safetensors").identity
    assert sidecar["Siteless"]["SourceSite"] == "a"
    assert sidecar["Siteless"]["TargetSite"] == "b"
    assert sidecar["Sources"] == ["bids:source:sub-01/ses-a/dwi/sub-01_ses-a_dwi.nii.gz"]
    described = json.loads((out / "dataset_description.json").read_text())
    assert described["DatasetLinks"] == {"source": (study / "data").as_uri()}
    scans = find_scans(out, site_from="ses").scans
    assert len(scans) == 4
    back = read_scan(scans[0])
    assert back.gradients.shells
    np.testing.assert_array_equal(
        back.white_matter, read_scan(find_scans(study / "data").scans[0]).white_matter
    )
    assert _times(study) == before

    written = _times(out)
    assert main([*words, "--to", "b"]) == 0
    assert "0 scans rendered as b, 4 there already" in capsys.readouterr().out
    images = {path: time for path, time in written.items() if path.name.endswith(".nii.gz")}
    assert {path: time for path, time in _times(out).items() if path in images} == images
    assert main([*words, "--to", "b", "--force", "--sites", "a"]) == 0
    assert "2 scans rendered as b" in capsys.readouterr().out
    image.with_name(image.name.replace("_dwi.nii.gz", "_dwi.bvec")).unlink()
    assert main([*words, "--to", "b"]) == 0
    assert "1 scan rendered as b, 3 there already" in capsys.readouterr().out
    assert main([*words, "--to", "a"]) == 1
    assert "the folder holds another dataset (Scans rendered as b by" in capsys.readouterr().err


def test_the_report_shows_what_the_model_has_learned_of_sites(study: Path, tmp_path: Path) -> None:
    model, out = study / "m.safetensors", tmp_path / "out"
    words = ["harmonize", study / "data", out, "--model", model, "--to", "b", "--nprocs", "1"]
    assert main([*map(str, words), "--site", "a"]) == 0
    title = "What each site does to all of a brain"
    assert title in (out / "report" / "index.html").read_text()
    page = write_report(
        ScanSelection(study / "data", sites=["a"]), [out], tmp_path / "pages", run=Run(nprocs=1)
    )
    assert title not in page.read_text()
    other = tmp_path / "other.safetensors"
    fit_model(study / "data", other, Scaled(), run=Run(nprocs=1))
    with pytest.raises(ModelError, match="rendered by another model"):
        write_report(
            ScanSelection(study / "data", sites=["a"]),
            [out],
            tmp_path / "no",
            model=other,
            run=Run(nprocs=1),
        )
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["dwi.nii.gz", "dwi.bvec", "desc-brain_mask.nii.gz"])
def test_a_scan_is_rendered_again_when_a_file_of_it_changes(
    study: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(study / "data", tmp_path / "data")
    again = partial(
        harmonize_dataset, tmp_path / "data", tmp_path / "out", study / "m.safetensors", "b"
    )
    assert len(again(run=Run(nprocs=1)).written) == 4
    changed = tmp_path / "data" / "sub-02" / "ses-a" / "dwi" / f"sub-02_ses-a_{name}"
    os.utime(changed, ns=(1, 1))
    report = again(run=Run(nprocs=1))
    assert [path.name for path in report.written] == ["sub-02_ses-a_desc-harmonized_dwi.nii.gz"]
    assert len(report.skipped) == 3


def test_no_other_dataset_is_written_into(study: Path, tmp_path: Path) -> None:
    model = study / "m.safetensors"
    shutil.copytree(study / "data", tmp_path / "raw")
    description = tmp_path / "raw" / "dataset_description.json"
    description.write_text('{"Name": "raw", "BIDSVersion": "1.10.0"}')
    rows = [
        {"subject": "01", "session": "a", "site": "a", "dwi": path}
        for path in (tmp_path / "raw").rglob("sub-01_ses-a_dwi.nii.gz")
    ]
    manifest = write_table(tmp_path / "raw" / "scans.tsv", rows)
    before = _times(tmp_path)
    with pytest.raises(OutputError, match="the output would lie among the scans"):
        harmonize_dataset(manifest, tmp_path / "raw", model, "b", run=Run(nprocs=1))
    shutil.copytree(tmp_path / "raw", tmp_path / "raw" / "derivatives" / "prep")
    inner = tmp_path / "raw" / "derivatives" / "prep"
    before = _times(tmp_path)
    for data, out in ((inner, tmp_path / "raw"), (tmp_path / "raw", inner)):
        with pytest.raises(OutputError):
            harmonize_dataset(data, out, model, "b", run=Run(nprocs=1))
    assert _times(tmp_path) == before


def test_one_and_two_processes_give_the_same_bytes(study: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        harmonize_dataset(
            study / "data",
            tmp_path / str(number),
            study / "m.safetensors",
            "a",
            run=Run(nprocs=number),
        )
    first, second = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*.nii.gz")}
        for root in (tmp_path / "1", tmp_path / "2")
    )
    assert first == second
    assert len(first) == 4 * 6  # the scan, three maps and two masks


def test_other_gradients_are_rendered_at_and_written(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "sub-01/ses-a/dwi/sub-01_ses-a_desc-harmonized_dwi"
    words = [*RENDER, str(study / "data"), str(tmp_path), "--model"]
    words += [str(study / "m.safetensors"), "--to", "b", "--participant-label", "01"]
    model = load_model(study / "m.safetensors")
    assert main([*words, "--gradients", "target"]) == 0
    scan = read_scan(find_scans(tmp_path, site_from="ses").scans[0])
    np.testing.assert_allclose(scan.gradients.bvecs, model.protocol("b").bvecs, atol=1e-6)
    assert json.loads((tmp_path / f"{name}.json").read_text())["Siteless"]["Gradients"] == "target"

    given = tmp_path / "given.bval", tmp_path / "given.bvec"
    table = make_gradients({1200: 7}, b0=1)
    bvals, bvecs = table.bvals, table.bvecs
    np.savetxt(given[0], bvals[None], fmt="%g")
    np.savetxt(given[1], bvecs.T, fmt="%.7f")
    assert main([*words, "--gradients", *map(str, given)]) == 0
    assert "2 scans rendered" in capsys.readouterr().out
    assert load_image(tmp_path / f"{name}.nii.gz").shape[3] == 8
    np.testing.assert_allclose(np.loadtxt(tmp_path / f"{name}.bvec"), bvecs.T, atol=1e-6)
    np.savetxt(given[0], np.where(bvals > 0, 700, 0)[None], fmt="%g")
    assert main([*words, "--gradients", *map(str, given)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "given.bval" in line
    assert "b=700" in line


def test_maps_say_where_and_how_much(study: Path, tmp_path: Path) -> None:
    harmonize_dataset(
        study / "data", tmp_path, study / "m.safetensors", "average", run=Run(nprocs=1)
    )
    folder = tmp_path / "sub-01" / "ses-a" / "dwi"
    volumes = ["b0", "b=1200", "b=3000"]
    for name in ("desc-harmonized_stat-std_dwimap", "desc-change_dwimap"):
        image = load_image(folder / f"sub-01_ses-a_{name}.nii.gz")
        assert json.loads((folder / f"sub-01_ses-a_{name}.json").read_text())["Volumes"] == volumes
        assert image.shape[3] == 3
        assert image.get_fdata().max() > 0
    mask = load_image(folder / "sub-01_ses-a_desc-unfamiliar_mask.nii.gz")
    sidecar = json.loads((folder / "sub-01_ses-a_desc-harmonized_dwi.json").read_text())
    measures = sidecar["SitelessFound"]
    # Isolated voxels are unlike the training scans too, but are rendered from their codes.
    assert mask.get_fdata().sum() <= measures["Unfamiliar"] * measures["RenderedVoxels"] * (
        1 + 1e-6
    )
    assert mask.get_data_dtype() == np.uint8


def test_the_names_of_sites_decide_nothing(study: Path, tmp_path: Path) -> None:
    """Exchange them in the tables, learn again, and render as the average: nothing changes."""
    swapped = tmp_path / "data"
    shutil.copytree(study / "data", swapped)
    for table in swapped.rglob("*_sessions.tsv"):
        rows = [{"session_id": f"ses-{s}", "site": o} for s, o in zip("ab", "ba", strict=True)]
        write_table(table, rows)
    quick = replace(QUICK, updates=40)
    fit_model(swapped, tmp_path / "m.safetensors", Invariant(training=quick), run=Run(nprocs=1))
    for data, model, out in (
        (study / "data", study / "m.safetensors", tmp_path / "1"),
        (swapped, tmp_path / "m.safetensors", tmp_path / "2"),
    ):
        report = harmonize_dataset(data, out, model, "average", run=Run(nprocs=1))
        assert len(report.written) == 4
    for image in (tmp_path / "1").rglob("*.nii.gz"):
        other = tmp_path / "2" / image.relative_to(tmp_path / "1")
        ours, theirs = load_image(image).get_fdata(), load_image(other).get_fdata()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-3)


def test_a_scan_unlike_those_that_were_learned_is_warned_of(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(study / "data", data)
    image = data / "sub-01/ses-a/dwi/sub-01_ses-a_dwi.nii.gz"
    original = load_image(image)
    noise = np.random.default_rng(0).normal(scale=300, size=original.shape)
    noisy = np.hypot(original.get_fdata() + noise, noise[::-1])
    nib.Nifti1Image(noisy.astype(np.int16), original.affine).to_filename(image)
    words = [*RENDER, str(data), str(tmp_path / "out"), "--model"]
    words += [str(study / "m.safetensors"), "--to", "b", "--site", "a", "--nprocs", "1"]
    for there in ("2 scans rendered as b:", "0 scans rendered as b, 2 there already:"):
        assert main(words) == 0
        output = capsys.readouterr()
        assert there in output.out
        [line] = [row for row in output.err.splitlines() if "warning" in row]
        assert "sub-01_ses-a_desc-harmonized_dwi.nii.gz" in line
        assert "look at sub-01_ses-a_desc-unfamiliar_mask.nii.gz" in line


def test_a_scan_that_fails_is_named_and_the_others_are_done(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(study / "data", data)
    broken = data / "sub-01/ses-a/dwi/sub-01_ses-a_dwi.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-3000])
    (data / "sub-02/ses-b/dwi/sub-02_ses-b_dwi.bvec").unlink()
    out = tmp_path / "out"
    words = [*RENDER, str(data), str(out), "--model", str(study / "m.safetensors")]
    assert main([*words, "--to", "b", "--nprocs", "1"]) == 1
    output = capsys.readouterr()
    assert "2 scans rendered as b, 2 failed" in output.out
    messages = [line for line in output.err.splitlines() if line.startswith("siteless: ")]
    assert len(messages) == 2
    assert str(broken) in messages[0]
    assert "no .bvec file" in messages[1]
    assert len(list(out.rglob("*_dwi.nii.gz"))) == 2
    assert not list(out.rglob(".siteless-*"))


def test_an_error_of_all_scans_is_reported_once(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"subject": f"0{n}", "site": "a", "dwi": write_raw(make_scan(), tmp_path, f"{n}")}
        for n in range(3)
    ]
    other = write_table(tmp_path / "other.tsv", rows)
    words = [*RENDER, str(other), str(tmp_path / "out"), "--to", "b", "--nprocs", "1"]
    assert main([*words, "--model", str(study / "m.safetensors"), "--site", "a"]) == 0
    for number in range(3):
        bval = tmp_path / f"{number}.bval"
        bval.write_text(bval.read_text().replace("3000", "2000"))
    assert main([*words, "--model", str(study / "m.safetensors")]) == 1
    output = capsys.readouterr()
    [line] = [line for line in output.err.splitlines() if line.startswith("siteless: ")]
    assert "the signal at b=1200, b=3000, found b=1200, b=2000" in line
    assert line.endswith("(and so for all 3 scans)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "c"], "the model does not know the site 'c'; choose from a, b, or average"),
        (["--to", "a", "--gradients", "mine"], "--gradients is own, target, or a .bval and"),
        (["--to", "average", "--gradients", "target"], "no gradient table of its own"),
        (["--to", "a", "--gradients", "x.bval", "x.bvec"], "x.bval: there is no such file"),
        (["--to", "a", "--dask", "tcp://127.0.0.1:1"], "no Dask scheduler answers at tcp://127"),
        (["--to", "a", "--dask", "node1"], "expected the address of a Dask scheduler or its file"),
        (["--to", "a", "--sites", "z"], "no scan is of site 'z'; choose from a, b"),
        (["--to", "a", "--participant-label", "09"], "no scan has sub-09"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / "out"
    start = [*RENDER, str(study / "data"), str(out), "--model", str(study / "m.safetensors")]
    assert main([*start, *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not out.exists()
