"""Numbers that a diffusion researcher would accept."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst.dki import DiffusionKurtosisModel

from phantoms import write_mask, write_raw
from siteless.acquisition import Array, Scan
from siteless.simulation import Anatomy, Person, Scanner, SimulatedScan, make_anatomy, scan_person
from siteless.tissue import fit_tensor


@pytest.fixture(scope="module")
def fine(person: Person) -> Anatomy:
    return make_anatomy(person, voxel_size=3.5)


@pytest.fixture(scope="module")
def scans(
    person: Person, fine: Anatomy, scanners: dict[str, Scanner]
) -> dict[tuple[str, int], SimulatedScan]:
    pairs = [(site, 1) for site in scanners] + [("prisma30", 2)]
    return {pair: scan_person(person, fine, scanners[pair[0]], run=pair[1]) for pair in pairs}


def _white(fine: Anatomy) -> Array:
    return np.flatnonzero(fine.mask.T)[fine.tissue[:, 0] > 0.7]


def _volumes(scan: SimulatedScan) -> Array:
    return scan.signal.T.reshape(len(scan.gradients), -1)


def _fa(scan: SimulatedScan, fine: Anatomy) -> Array:
    return fit_tensor(_volumes(scan), _white(fine), scan.gradients).fa


@pytest.mark.parametrize("site", ["prisma30", "prisma60", "connectom30", "connectom60"])
def test_anisotropy_diffusivity_and_noise(
    scans: dict[tuple[str, int], SimulatedScan], fine: Anatomy, site: str
) -> None:
    scan = scans[site, 1]
    tensor = fit_tensor(_volumes(scan), _white(fine), scan.gradients)
    assert 0.40 < tensor.fa.mean() < 0.55
    assert 0.65e-3 < tensor.md.mean() < 0.85e-3
    b0 = np.ix_(np.flatnonzero(scan.gradients.is_b0), _white(fine))
    clean = scan.clean.T.reshape(len(scan.gradients), -1)[b0]
    assert 20 < clean.mean() / (_volumes(scan)[b0] - clean).std() < 40


@pytest.mark.filterwarnings("ignore")
def test_kurtosis(scans: dict[tuple[str, int], SimulatedScan], fine: Anatomy) -> None:
    scan = scans["prisma60", 1]
    table = gradient_table(scan.gradients.b, bvecs=scan.gradients.directions)
    some = _volumes(scan)[:, _white(fine)[::60]].T.astype(float)
    fitted = DiffusionKurtosisModel(table, fit_method="WLS").fit(some)
    assert 0.8 < np.median(fitted.mk(min_kurtosis=0, max_kurtosis=3)) < 1.3


def test_sites_differ_by_a_few_per_cent_and_more_than_rescans(
    scans: dict[tuple[str, int], SimulatedScan], fine: Anatomy
) -> None:
    means = {pair: _fa(scans[pair], fine).mean() for pair in scans}
    sites = [mean for (_, run), mean in means.items() if run == 1]
    assert 0.02 < np.ptp(sites) / np.mean(sites) < 0.15
    rescan = abs(means["prisma30", 1] - means["prisma30", 2])
    assert rescan < 0.1 * np.ptp(sites)


def test_equal_protocols_on_two_scanners_differ_where_their_fields_do(
    scans: dict[tuple[str, int], SimulatedScan], fine: Anatomy
) -> None:
    """The receive field shows in b0 and the coils in MD, far above a rescan; FA hardly changes."""

    def maps(pair: tuple[str, int]) -> tuple[Array, Array]:
        scan = scans[pair]
        tensor = fit_tensor(_volumes(scan), _white(fine), scan.gradients)
        b0 = _volumes(scan)[np.ix_(np.flatnonzero(scan.gradients.is_b0), _white(fine))].mean(
            axis=0
        )
        return b0 / b0.mean(), tensor.md

    first, again, other = map(maps, (("prisma30", 1), ("prisma30", 2), ("connectom30", 1)))
    for name, (values, rescanned, elsewhere) in zip(
        ["b0", "md"], zip(first, again, other, strict=True), strict=True
    ):
        outer = np.linalg.norm(fine.position[fine.tissue[:, 0] > 0.7], axis=1) > 55
        site = abs(np.mean(elsewhere[outer]) / np.mean(values[outer]) - 1)
        rescan = abs(np.mean(rescanned[outer]) / np.mean(values[outer]) - 1)
        assert site > 3 * rescan, name


@pytest.mark.usefixtures("mrtrix")
def test_mrtrix_finds_ordered_responses(
    scans: dict[tuple[str, int], SimulatedScan], fine: Anatomy, tmp_path: Path
) -> None:
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
