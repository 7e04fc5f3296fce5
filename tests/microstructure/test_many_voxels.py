"""Kurtosis and return to the origin of many voxels at once: what DIPY finds one by one."""

from dataclasses import replace

import numpy as np
import pytest
from dipy.core.gradients import gradient_table
from dipy.reconst.dki import DiffusionKurtosisModel
from dipy.reconst.mapmri import MapmriModel
from threadpoolctl import threadpool_limits

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan
from siteless.microstructure import MAPS, compute_maps

SHELLS = [
    {1200: 30, 3000: 30},
    {500: 16, 1000: 20},
    {700: 20, 1500: 32, 3000: 45},
]
TENSORS = [  # mm2/s
    (0.7e-3, 0.7e-3, 0.7e-3),
    (1.2e-3, 0.4e-3, 0.4e-3),
    (0.9e-3, 0.9e-3, 0.4e-3),
    (1.1e-3, 0.7e-3, 0.4e-3),
]


def _noisy_scan(shells: dict[int, int], snr: int) -> Scan:
    """Make a noisy scan with every level of kurtosis: each voxel holds two diffusivities."""
    scan = make_scan(make_gradients(shells), shape=(6, 6, 5), snr=np.inf)
    rng = np.random.default_rng(5)
    slow = rng.uniform(0, 0.7, size=(*scan.mask.shape, 1))
    signal = (1 - slow) * scan.signal + slow * 1000 * np.exp(-scan.gradients.b * 0.2e-3)
    noise = rng.normal(scale=1000 / snr, size=(2, *signal.shape))
    return scan.with_signal(np.hypot(signal + noise[0], noise[1]))


def _gaussian_scan(diffusivity: tuple[float, float, float], gradients: GradientTable) -> Scan:
    """Make a noiseless scan of one tensor, its axes turned against those of the table."""
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    decay = (gradients.directions @ turn) ** 2 @ np.asarray(diffusivity)
    brain = np.ones((2, 2, 1), dtype=bool)
    signal = np.broadcast_to(700 * np.exp(-gradients.b * decay), (*brain.shape, len(gradients)))
    return Scan(signal, np.eye(4), gradients, brain, brain)


def _one_by_one(scan: Scan) -> tuple[GradientTable, Array]:
    """Return DIPY's table, and the signal of the brain, shape (voxel, volume)."""
    b = np.where(scan.gradients.is_b0, 0, scan.gradients.b)
    table = gradient_table(b, bvecs=scan.gradients.directions * (b > 0)[:, None])
    return table, scan.signal[scan.mask].astype(float)


def _dipy_rtop(scan: Scan) -> Array:
    table, signal = _one_by_one(scan)
    model = MapmriModel(
        table, radial_order=4, laplacian_regularization=True, laplacian_weighting=0.05
    )
    return np.array([model.fit(row).rtop() for row in signal])


def _dipy_mk(scan: Scan) -> Array:
    table, signal = _one_by_one(scan)
    return DiffusionKurtosisModel(table).fit(signal).mk(min_kurtosis=0, max_kurtosis=3)


@pytest.mark.parametrize("snr", [30, 6])
@pytest.mark.parametrize("shells", SHELLS, ids=str)
def test_return_to_origin_is_dipys_in_each_voxel(shells: dict[int, int], snr: int) -> None:
    scan = _noisy_scan(shells, snr)
    expected = _dipy_rtop(scan)
    ours = compute_maps(scan, ["rtop"])["rtop"][scan.mask]
    np.testing.assert_allclose(ours, expected.clip(0, MAPS["rtop"].highest), rtol=1e-6)
    assert expected.std() > 0.1 * expected.mean()


@pytest.mark.parametrize("snr", [30, 6])
@pytest.mark.parametrize("shells", SHELLS, ids=str)
def test_kurtosis_is_dipys_in_each_voxel(shells: dict[int, int], snr: int) -> None:
    scan = _noisy_scan(shells, snr)
    expected = _dipy_mk(scan)
    ours = compute_maps(scan, ["mk"])["mk"][scan.mask]
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    assert expected.std() > 0.1


@pytest.mark.parametrize("diffusivity", TENSORS, ids=str)
@pytest.mark.parametrize("shells", [SHELLS[0], SHELLS[2]], ids=str)
def test_a_gaussian_has_its_closed_forms(
    shells: dict[int, int], diffusivity: tuple[float, float, float]
) -> None:
    maps = compute_maps(_gaussian_scan(diffusivity, make_gradients(shells)), ["mk", "rtop"])
    np.testing.assert_allclose(maps["mk"], 0, atol=1e-5)
    time = 1 / (4 * np.pi**2)
    closed = 1 / np.sqrt((4 * np.pi * time) ** 3 * np.prod(diffusivity))
    # Two or three shells and the penalty on roughness allow no better.
    np.testing.assert_allclose(maps["rtop"], closed, rtol=0.06)


def test_extreme_voxels_are_dipys() -> None:
    scan = _gaussian_scan(TENSORS[1], make_gradients())
    b = scan.gradients.b
    signal = scan.signal.copy()
    signal[0, 0] = 500 * np.exp(-b * 0.03e-3)  # slower than DIPY's least scale
    signal[0, 1] = 500 * (b == 0)
    signal[1, 0] = 500 * np.exp(-b * 3e-3)
    signal[1, 1] = 500 * np.random.default_rng(0).random(len(b))
    scan = scan.with_signal(signal)
    maps = compute_maps(scan, ["mk", "rtop"])
    expected = _dipy_rtop(scan).clip(0, MAPS["rtop"].highest)
    np.testing.assert_allclose(maps["rtop"][scan.mask], expected, rtol=1e-5)
    np.testing.assert_allclose(maps["mk"][scan.mask], _dipy_mk(scan), atol=1e-4)


def test_a_small_b_is_none() -> None:
    scan = _noisy_scan(SHELLS[0], 20)
    bvals, bvecs = scan.gradients.bvals.copy(), scan.gradients.bvecs.copy()
    bvals[0], bvecs[0] = 15, [0, 0.6, 0.8]
    weighted = replace(scan, gradients=GradientTable(bvals, bvecs))
    assert weighted.gradients.is_b0[0]
    maps = compute_maps(weighted, ["mk", "rtop"])
    for name, values in compute_maps(scan, ["mk", "rtop"]).items():
        np.testing.assert_array_equal(maps[name], values)


def test_units_of_the_signal_do_not_matter() -> None:
    scan = _noisy_scan(SHELLS[0], 20)
    names = ["mk", "rtop"]
    plain, scaled = (compute_maps(scan.with_signal(k * scan.signal), names) for k in (1, 0.037))
    for name in names:
        np.testing.assert_allclose(plain[name], scaled[name], rtol=1e-4, atol=1e-5)


def test_axes_of_the_scanner_do_not_matter() -> None:
    scan = _noisy_scan(SHELLS[0], 20)
    turn, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))
    table = GradientTable(scan.gradients.bvals, scan.gradients.bvecs @ turn)
    turned = compute_maps(replace(scan, gradients=table), ["mk", "rtop"])
    for name, values in compute_maps(scan, ["mk", "rtop"]).items():
        np.testing.assert_allclose(turned[name], values, rtol=1e-4, atol=1e-5)


def test_a_voxel_does_not_depend_on_the_others() -> None:
    scan = make_scan(snr=15)
    mask = scan.mask & (np.random.default_rng(0).random(scan.mask.shape) < 0.1)
    few = replace(scan, mask=mask, white_matter=scan.white_matter & mask)
    of_part = compute_maps(few, ["mk", "rtop"])
    for name, values in compute_maps(scan, ["mk", "rtop"]).items():
        np.testing.assert_allclose(of_part[name][mask], values[mask], rtol=1e-5, atol=1e-6)


def test_the_number_of_threads_does_not_change_a_byte() -> None:
    scan = make_scan(snr=15)
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            results.append(compute_maps(scan, ["rtop", "mk"]))
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name])


def test_voxels_without_diffusion_are_finite() -> None:
    scan = _gaussian_scan(TENSORS[1], make_gradients())
    signal = scan.signal.copy()
    signal[0, 0] = 0
    signal[0, 1] = 500
    signal[1, 0] = np.where(scan.gradients.is_b0, 500, 0)
    signal[1, 1] = 100 * np.exp(scan.gradients.b * 1e-4)
    maps = compute_maps(scan.with_signal(signal), ["mk", "rtop"])
    for values in maps.values():
        assert np.isfinite(values).all()
        assert values[0, 0, 0] == 0
    assert maps["mk"][0, 1, 0] == 0
    assert maps["mk"][1, 1, 0] == 0


def test_directions_in_a_plane_leave_maps_finite() -> None:
    scan = _noisy_scan(SHELLS[0], 20)
    angles = np.linspace(0, np.pi, len(scan.gradients), endpoint=False)
    flat = np.stack([np.cos(angles), np.sin(angles), np.zeros_like(angles)], axis=1)
    table = GradientTable(scan.gradients.bvals, flat * (scan.gradients.bvals > 0)[:, None])
    for values in compute_maps(replace(scan, gradients=table), ["mk", "rtop"]).values():
        assert np.isfinite(values).all()
