import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from lessons import QUICK, SHELLS
from phantoms import make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.bids import find_scans, read_scan
from siteless.cli import main
from siteless.model import load_model
from siteless.pipelines import fit_model, harmonize_dataset


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two people at two sites, as a BIDS dataset, and a model of them beside it."""
    root = tmp_path_factory.mktemp("study v1.0")
    data = root / "data"
    for person in ("01", "02"):
        rows = [{"session_id": f"ses-{site}", "site": site} for site in "ab"]
        write_table(data / f"sub-{person}" / f"sub-{person}_sessions.tsv", rows)
        for site in "ab":
            folder = data / f"sub-{person}" / f"ses-{site}" / "dwi"
            stem = f"sub-{person}_ses-{site}"
            scan = make_scan(make_gradients(SHELLS, seed="ab".index(site)), seed=int(person))
            write_raw(scan, folder, f"{stem}_dwi")
            write_mask(scan.mask, scan.affine, folder / f"{stem}_desc-brain_mask.nii.gz")
            write_mask(scan.white_matter, scan.affine, folder / f"{stem}_label-WM_mask.nii.gz")
    fit_model(data, root / "m.safetensors", settings=replace(QUICK, updates=40), nprocs=1)
    return root


def _times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_every_scan_is_rendered_and_said_how(study, tmp_path, capsys):
    before = _times(study)
    out = tmp_path / "as b"
    words = ["harmonize", str(study / "data"), str(out), "--model", str(study / "m.safetensors")]
    assert main([*words, "--to", "b", "--nprocs", "2"]) == 0
    assert f"4 scans rendered as b: {out}" in capsys.readouterr().out
    image = out / "sub-01/ses-a/dwi/sub-01_ses-a_desc-harmonized_dwi.nii.gz"
    source = nib.load(study / "data/sub-01/ses-a/dwi/sub-01_ses-a_dwi.nii.gz")
    assert nib.load(image).shape == source.shape
    np.testing.assert_allclose(nib.load(image).affine, source.affine, atol=1e-5)
    told = json.loads(image.with_name(image.name.replace(".nii.gz", ".json")).read_text())
    assert told["Siteless"]["Model"] == load_model(study / "m.safetensors").identity
    assert told["Siteless"]["SourceSite"] == "a"
    assert told["Siteless"]["TargetSite"] == "b"
    scans = find_scans(out, site_from="ses").scans
    assert len(scans) == 4
    assert read_scan(scans[0]).gradients.shells
    assert _times(study) == before

    written = _times(out)
    assert main([*words, "--to", "b"]) == 0
    assert "0 scans rendered as b, 4 there already" in capsys.readouterr().out
    images = {path: time for path, time in written.items() if path.name.endswith(".nii.gz")}
    assert {path: time for path, time in _times(out).items() if path in images} == images
    assert main([*words, "--to", "a"]) == 0
    assert "4 scans rendered as a" in capsys.readouterr().out
    assert main([*words, "--to", "a", "--force", "--sites", "a"]) == 0
    assert "2 scans rendered as a" in capsys.readouterr().out


def test_one_and_two_processes_give_the_same_bytes(study, tmp_path):
    for number in (1, 2):
        harmonize_dataset(
            study / "data", tmp_path / str(number), study / "m.safetensors", "a", nprocs=number
        )
    first, second = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*.nii.gz")}
        for root in (tmp_path / "1", tmp_path / "2")
    )
    assert first == second
    assert len(first) == 4


def test_a_scan_that_fails_is_named_and_the_others_are_done(study, tmp_path, capsys):
    import shutil

    data = tmp_path / "data"
    shutil.copytree(study / "data", data)
    broken = data / "sub-01/ses-a/dwi/sub-01_ses-a_dwi.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-3000])
    (data / "sub-02/ses-b/dwi/sub-02_ses-b_dwi.bvec").unlink()
    out = tmp_path / "out"
    words = ["harmonize", str(data), str(out), "--model", str(study / "m.safetensors")]
    assert main([*words, "--to", "b", "--nprocs", "1"]) == 1
    shown = capsys.readouterr()
    assert "2 scans rendered as b, 2 failed" in shown.out
    told = [line for line in shown.err.splitlines() if line.startswith("siteless: ")]
    assert len(told) == 2
    assert str(broken) in told[0]
    assert "no .bvec file" in told[1]
    assert len(list(out.rglob("*_dwi.nii.gz"))) == 2
    assert not list(out.rglob(".siteless-*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "c"], "the model does not know the site 'c'; choose of a, b"),
        (["--to", "a", "--sites", "z"], "no scan is of site 'z'; choose of a, b"),
        (["--to", "a", "--participant-label", "09"], "no scan has sub-09"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(study, tmp_path, capsys, words, message):
    out = tmp_path / "out"
    start = ["harmonize", str(study / "data"), str(out), "--model", str(study / "m.safetensors")]
    assert main([*start, *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not out.exists()
