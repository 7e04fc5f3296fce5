import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst.dti import TensorModel
from scipy import ndimage

from phantoms import make_gradients, make_scan
from siteless.errors import GradientTableError
from siteless.tissue import brain_mask, fit_tensor, white_matter_mask


@pytest.mark.filterwarnings("ignore")
def test_tensor_is_dipys() -> None:
    scan = make_scan(make_gradients({1000: 30}), snr=50)
    voxels = np.flatnonzero(scan.white_matter.T)
    volumes = scan.volumes[:, voxels]
    table = gradient_table(scan.gradients.b, bvecs=scan.gradients.directions)
    expected = TensorModel(table, fit_method="OLS").fit(volumes.T)
    ours = fit_tensor(scan.volumes, voxels, scan.gradients)
    np.testing.assert_allclose(ours.fa, expected.fa, atol=1e-4)
    np.testing.assert_allclose(ours.md, expected.md, atol=1e-7)
    cosine = np.abs(np.sum(ours.principal * expected.evecs[..., 0], axis=1))
    np.testing.assert_allclose(cosine[expected.fa > 0.3], 1, atol=1e-4)


def test_strong_shells_are_left_out_when_there_are_weak_ones() -> None:
    both = make_scan(make_gradients({1000: 30, 3000: 30}), snr=np.inf)
    weak = make_scan(make_gradients({1000: 30}), snr=np.inf)
    inside = np.flatnonzero(weak.white_matter.T)
    np.testing.assert_allclose(
        fit_tensor(both.volumes, inside, both.gradients).fa,
        fit_tensor(weak.volumes, inside, weak.gradients).fa,
    )


def test_tensor_without_enough_directions_is_refused() -> None:
    scan = make_scan(make_gradients({1000: 5}))
    with pytest.raises(GradientTableError, match="at least 6 directions, found 2 b0, b=1000 x 5"):
        fit_tensor(scan.volumes, scan.voxels, scan.gradients)


def test_brain_is_found_though_its_middle_is_dark() -> None:
    scan = make_scan()
    grid = np.moveaxis(np.indices(scan.mask.shape), 0, -1) @ scan.affine[:3, :3].T
    radius = np.linalg.norm(grid + scan.affine[:3, 3], axis=-1)
    shaded = scan.signal[..., :2].mean(axis=-1) * np.where(radius < 8, 0.05, 1.0)
    estimated = brain_mask(shaded, scan.voxel_size)
    overlap = 2 * np.sum(estimated & scan.mask) / (estimated.sum() + scan.mask.sum())
    assert estimated[radius < 8].all()
    assert overlap > 0.85
    assert not (ndimage.binary_fill_holes(estimated) & ~estimated).any()


def test_white_matter_is_found() -> None:
    scan = make_scan()
    estimated = white_matter_mask(scan.signal, scan.gradients, scan.mask)
    inner = ndimage.binary_erosion(scan.mask)
    assert np.mean(estimated[scan.white_matter & inner]) > 0.9
    assert np.mean(estimated[inner & ~scan.white_matter]) < 0.1
    assert not estimated[~inner].any()
