"""Scans of people, from five vendors, as conversion left them."""

import subprocess
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

from phantoms import load_image, write_table
from siteless.acquisition import GradientTable
from siteless.bids import find_scans, read_gradient_table, read_scan, write_scan
from siteless.harmonics import fit_coefficients, project, rish
from siteless.pipelines import CheckReport, check_dataset
from siteless.preflight import AxisError, find_axis_error

WRONG = {"canon_ap_badz": "z has the wrong sign", "canon_sagittal_badx": "x has the wrong sign"}


@pytest.fixture(scope="module")
def manifest(realscans: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = sorted(realscans.glob("*.nii.gz"))
    rows = [
        {"subject": n, "site": image.name.split("_")[0], "dwi": image}
        for n, image in enumerate(images)
    ]
    return write_table(tmp_path_factory.mktemp("real") / "scans.tsv", rows)


@pytest.fixture(scope="module")
def report(manifest: Path) -> CheckReport:
    return check_dataset(manifest)


def test_the_wrong_tables_are_named_with_their_axis_and_no_other(report: CheckReport) -> None:
    problems = {p.path.stem: p.what for p in report.problems if p.code == "gradient-axes"}
    assert set(problems) == set(WRONG)
    for name, axis in WRONG.items():
        assert axis in problems[name]


@pytest.mark.slow
def test_each_of_24_tables_is_judged_right_on_every_scan(manifest: Path) -> None:
    corrections = {
        name: AxisError((0, 1, 2), "xyz".index(axis[0]), 1.0) for name, axis in WRONG.items()
    }
    changes = [AxisError(o, f, 1.0) for o, f in product(permutations(range(3)), (None, 0, 1, 2))]
    for scan in map(read_scan, find_scans(manifest).scans):
        bvals, bvecs = scan.gradients.to_fsl(scan.affine)
        right = bvecs @ corrections.get(scan.name, changes[0]).matrix.T
        for change in changes:
            stored = right @ np.linalg.inv(change.matrix).T
            table = GradientTable.from_fsl(bvals, stored, scan.affine)
            error = find_axis_error(replace(scan, gradients=table))
            if change is changes[0]:
                assert error is None, scan.name
            else:
                assert error is not None, (scan.name, str(change))
                assert np.array_equal(error.matrix, change.matrix), (scan.name, str(change))


def test_weak_volumes_are_b0_as_scanners_store_them(manifest: Path) -> None:
    scans = find_scans(manifest).scans
    counts = {files.name: read_gradient_table(files).is_b0.sum() for files in scans}
    assert counts.pop("philips_elition") == 5
    assert set(counts.values()) == {1}


def test_no_scan_is_refused(report: CheckReport) -> None:
    assert {problem.code for problem in report.errors} == {"gradient-axes", "differing-shells"}


@pytest.mark.parametrize("name", ["siemens_2axis", "uih_pa_rotated", "philips_elition"])
def test_a_fit_explains_the_signal_that_was_measured(manifest: Path, name: str) -> None:
    [files] = [files for files in find_scans(manifest).scans if files.name == name]
    scan = read_scan(files)
    coefficients = fit_coefficients(scan)
    fitted = project(coefficients, scan.gradients).T
    measured = scan.volumes[:, scan.voxels]
    weighted = ~scan.gradients.is_b0
    residual = np.median(np.abs(fitted - measured)[weighted])
    assert residual < 0.15 * np.median(measured[weighted])


def test_reading_and_writing_keeps_signal_and_table(manifest: Path, tmp_path: Path) -> None:
    for files in find_scans(manifest).scans[::4]:
        image = write_scan(read_scan(files), files, tmp_path / files.name)
        stem = str(image).removesuffix(".nii.gz")
        for end in ("bval", "bvec"):
            source = np.loadtxt(getattr(files, end))
            np.testing.assert_allclose(np.loadtxt(f"{stem}.{end}"), source, atol=2e-6)


@pytest.mark.usefixtures("mrtrix")
@pytest.mark.parametrize("name", ["siemens_2axis", "uih_pa_rotated"])
def test_energies_are_those_of_mrtrix(
    realscans: Path, manifest: Path, tmp_path: Path, name: str
) -> None:
    [files] = [files for files in find_scans(manifest).scans if files.name == name]
    scan = read_scan(files)
    stem = str(realscans / name)
    table = ["-fslgrad", f"{stem}.bvec", f"{stem}.bval"]
    words = ["amp2sh", "-quiet", "-lmax", "4", *table, f"{stem}.nii.gz", "sh.nii"]
    subprocess.run(words, cwd=tmp_path, check=True)
    words = ["sh2power", "-quiet", "-spectrum", "sh.nii", "power.nii"]
    subprocess.run(words, cwd=tmp_path, check=True)
    theirs = load_image(tmp_path / "power.nii").get_fdata().transpose(2, 1, 0, 3)[scan.mask.T]
    ours = rish(fit_coefficients(scan, order=4, fit="pseudo-inverse"))[:, 0]
    # MRtrix3 gives the mean square over the sphere, which is the sum of squares over its 4 pi.
    np.testing.assert_allclose(ours / (4 * np.pi), theirs, rtol=1e-4, atol=1e-4 * theirs.mean())
