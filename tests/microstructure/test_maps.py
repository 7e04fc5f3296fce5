from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst.dki import DiffusionKurtosisModel
from dipy.reconst.dti import TensorModel
from dipy.reconst.mapmri import MapmriModel
from threadpoolctl import threadpool_limits

from phantoms import ONE_SHELL, make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan
from siteless.bids import NAMES
from siteless.errors import DatasetError, GradientTableError
from siteless.microstructure import MAPS, compute_maps, default_maps, require_maps

SMALL = (12, 12, 10)


def _dipy_table(gradients: GradientTable, volumes: Array | slice = slice(None)) -> GradientTable:
    b = np.where(gradients.is_b0, 0, gradients.b)[volumes]
    return gradient_table(b, bvecs=gradients.directions[volumes] * (b > 0)[:, None])


def _voxels_of(
    diffusivity: Array | Sequence[float], kurtosis: float = 0.0, b0: float = 500.0
) -> Scan:
    """Make a scan whose every voxel has one diffusivity along each axis (3,), without noise."""
    gradients = make_gradients()
    d = gradients.directions**2 @ np.asarray(diffusivity)
    bent = kurtosis * np.mean(diffusivity) ** 2 * gradients.b**2 / 6
    signal = np.broadcast_to(b0 * np.exp(-gradients.b * d + bent), (3, 2, 2, len(gradients)))
    brain = np.ones((3, 2, 2), dtype=bool)
    return Scan(signal, np.eye(4), gradients, brain, brain)


def test_tensor_maps_are_dipys() -> None:
    scan = make_scan(shape=SMALL)
    maps = compute_maps(scan, ["fa", "md"])
    used = scan.gradients.b < 1300
    fit = TensorModel(_dipy_table(scan.gradients, used), fit_method="LS").fit(
        scan.signal[scan.mask][:, used].astype(float)
    )
    np.testing.assert_allclose(maps["fa"][scan.mask], fit.fa, atol=1e-4)
    np.testing.assert_allclose(maps["md"][scan.mask], fit.md, rtol=1e-4)


def test_kurtosis_is_dipys() -> None:
    scan = make_scan(shape=SMALL)
    [mk] = compute_maps(scan, ["mk"]).values()
    fit = DiffusionKurtosisModel(_dipy_table(scan.gradients)).fit(scan.signal, mask=scan.mask)
    expected = fit.mk(min_kurtosis=0, max_kurtosis=3)[scan.mask]
    np.testing.assert_allclose(mk[scan.mask], expected, atol=1e-4)
    assert expected.std() > 0.01


@pytest.mark.parametrize("kurtosis", [0.0, 0.8])
def test_an_isotropic_voxel_has_the_kurtosis_that_it_was_given(kurtosis: float) -> None:
    maps = compute_maps(_voxels_of([0.5e-3] * 3, kurtosis), ["mk", "fa"])
    np.testing.assert_allclose(maps["mk"], kurtosis, atol=2e-3)
    np.testing.assert_allclose(maps["fa"], 0, atol=2e-3)


def test_strong_shells_do_not_count_for_kurtosis() -> None:
    shells = {1000: 20, 2500: 20, 9000: 20}
    scan = make_scan(make_gradients(shells), shape=SMALL)
    weaker = scan.gradients.b < 3000
    table = make_gradients({1000: 20, 2500: 20})
    less = replace(scan, signal=scan.signal[..., weaker], gradients=table)
    np.testing.assert_array_equal(
        compute_maps(scan, ["mk"])["mk"], compute_maps(less, ["mk"])["mk"]
    )


def test_gaussian_diffusion_has_its_closed_forms() -> None:
    diffusivity = np.array([0.4e-3, 0.4e-3, 1.2e-3])
    maps = compute_maps(_voxels_of(diffusivity), ["rtop", "fa", "md"])
    mean = diffusivity.mean()
    fa = np.sqrt(1.5 * ((diffusivity - mean) ** 2).sum() / (diffusivity**2).sum())
    np.testing.assert_allclose(maps["fa"], fa, rtol=1e-3)
    np.testing.assert_allclose(maps["md"], mean, rtol=1e-3)
    # A Gaussian has 1 / sqrt(det(4 pi D t)), at t = 1 / (4 pi^2).
    np.testing.assert_allclose(maps["rtop"], np.pi**1.5 / np.sqrt(diffusivity.prod()), rtol=0.06)


def test_return_to_origin_is_dipys() -> None:
    scan = make_scan(shape=(5, 4, 4))
    [rtop] = compute_maps(scan, ["rtop"]).values()
    model = MapmriModel(
        _dipy_table(scan.gradients),
        radial_order=4,
        laplacian_regularization=True,
        laplacian_weighting=0.05,
    )
    expected = [model.fit(row).rtop() for row in scan.signal[scan.mask].astype(float)]
    np.testing.assert_allclose(rtop[scan.mask], expected, rtol=1e-4)


def test_maps_are_on_the_grid_within_range_and_the_same_for_any_threads() -> None:
    scan = make_scan(shape=SMALL, snr=4)
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            results.append(compute_maps(scan, ["mk", "md", "fa"]))
    assert list(results[0]) == ["mk", "md", "fa"]
    for name, values in results[0].items():
        assert values.shape == SMALL
        assert values.dtype == np.float32
        assert not values[~scan.mask].any()
        assert values.min() >= MAPS[name].lowest
        assert values.max() <= MAPS[name].highest
        np.testing.assert_array_equal(values, results[1][name])


def test_voxels_without_signal_are_zero() -> None:
    scan = _voxels_of([0.5e-3] * 3)
    signal = scan.signal.copy()
    signal[0] = 0
    for name, values in compute_maps(scan.with_signal(signal), ["fa", "md", "mk"]).items():
        assert not values[0].any(), name


def test_maps_that_shells_do_not_support_are_refused() -> None:
    single = make_gradients(ONE_SHELL)
    require_maps(["fa", "md"], single)
    for name in ("mk", "rtop"):
        with pytest.raises(GradientTableError, match=f"{name} needs at least 2 shells, found b=1"):
            require_maps(["fa", name], single)
    with pytest.raises(GradientTableError, match="a shell of at least 15 directions"):
        compute_maps(make_scan(make_gradients({700: 8, 1400: 10}), shape=SMALL), ["mk"])
    with pytest.raises(DatasetError, match="there is no map 'ad'; choose from fa, md, mk, rtop"):
        require_maps(["fa", "ad"], single)
    with pytest.raises(DatasetError, match="no map is named"):
        require_maps([], single)
    assert default_maps(single) == ("fa", "md")
    assert default_maps(make_gradients()) == ("fa", "md", "mk")


def test_every_map_has_a_name_to_be_written_by() -> None:
    assert {f"harmonized_{name}" for name in MAPS} <= set(NAMES)
