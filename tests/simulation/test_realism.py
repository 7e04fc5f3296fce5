"""Numbers that a diffusion researcher would accept."""

import subprocess

import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst.dki import DiffusionKurtosisModel

from phantoms import write_mask, write_raw
from siteless.acquisition import Scan
from siteless.simulation import make_anatomy, scan_person
from siteless.tissue import fit_tensor


@pytest.fixture(scope="module")
def fine(person):
    return make_anatomy(person, voxel_size=3.0)


@pytest.fixture(scope="module")
def scans(person, fine, scanners):
    pairs = [(site, 1) for site in scanners] + [("prisma30", 2)]
    return {pair: scan_person(person, fine, scanners[pair[0]], run=pair[1]) for pair in pairs}


def _white(fine):
    return np.flatnonzero(fine.mask.T)[fine.tissue[:, 0] > 0.7]


def _volumes(scan):
    return scan.signal.T.reshape(len(scan.gradients), -1)


def _fa(scan, fine):
    return fit_tensor(_volumes(scan), _white(fine), scan.gradients).fa


@pytest.mark.parametrize("site", ["prisma30", "prisma60", "connectom30", "connectom60"])
def test_anisotropy_diffusivity_and_noise(scans, fine, scanners, site):
    scan = scans[site, 1]
    tensor = fit_tensor(_volumes(scan), _white(fine), scan.gradients)
    assert 0.40 < tensor.fa.mean() < 0.55
    assert 0.65e-3 < tensor.md.mean() < 0.85e-3
    b0 = _volumes(scan)[np.ix_(np.flatnonzero(scan.gradients.is_b0), _white(fine))]
    snr = b0.mean() / (1000 * scanners[site].gain / scanners[site].snr)
    assert 20 < snr < 40


@pytest.mark.filterwarnings("ignore")
def test_kurtosis(scans, fine):
    scan = scans["prisma60", 1]
    table = gradient_table(scan.gradients.b, bvecs=scan.gradients.directions)
    some = _volumes(scan)[:, _white(fine)[::60]].T.astype(float)
    fitted = DiffusionKurtosisModel(table, fit_method="WLS").fit(some)
    assert 0.8 < np.median(fitted.mk(min_kurtosis=0, max_kurtosis=3)) < 1.3


def test_sites_differ_by_a_few_per_cent_and_more_than_rescans(scans, fine):
    means = [_fa(scans[pair], fine).mean() for pair in scans if pair[1] == 1]
    assert 0.02 < np.ptp(means) / np.mean(means) < 0.15
    first, again, other = (
        _fa(scans[pair], fine) for pair in (("prisma30", 1), ("prisma30", 2), ("prisma60", 1))
    )
    assert np.mean(np.abs(first - again)) < 0.8 * np.mean(np.abs(first - other))
    assert abs(first.mean() - again.mean()) < 0.1 * abs(first.mean() - other.mean())


@pytest.mark.usefixtures("mrtrix")
def test_mrtrix_finds_ordered_responses(scans, fine, tmp_path):
    scan = scans["prisma30", 1]
    whole = Scan(scan.signal, fine.affine, scan.gradients, mask=fine.mask, white_matter=fine.mask)
    image = write_raw(whole, tmp_path, "s", dtype=np.float32)
    write_mask(fine.mask, fine.affine, tmp_path / "mask.nii.gz")
    command = ["dwi2response", "dhollander", image.name, "wm.txt", "gm.txt", "csf.txt"]
    options = ["-fslgrad", "s.bvec", "s.bval", "-mask", "mask.nii.gz", "-quiet"]
    subprocess.run([*command, *options], cwd=tmp_path, check=True, capture_output=True)
    white, grey, fluid = (
        np.loadtxt(tmp_path / f"{name}.txt", ndmin=2) for name in ("wm", "gm", "csf")
    )
    assert white[0, 0] < grey[0, 0] < fluid[0, 0]
    decay = [response[-1, 0] / response[0, 0] for response in (white, grey, fluid)]
    assert decay[0] > decay[1] > decay[2]
    assert white[-1, 1] < -0.2 * white[-1, 0]
