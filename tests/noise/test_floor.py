"""The mean over repetitions of the noise is the independent reference throughout."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, Scan
from siteless.harmonics import Channels, fit_coefficients
from siteless.model import Preparation
from siteless.noise import ExpectedMagnitudes, estimate_noise, is_magnitude, remove_floor

SIGMA = 60.0
SHAPE = (28, 30, 26)


def _clean() -> Scan:
    return make_scan(make_gradients({1000: 30, 3000: 45}), shape=SHAPE, snr=np.inf)


def _magnitude(clean: Scan, sigma: Array | float, seed: int = 0, coils: int = 1) -> Scan:
    rng, squares = np.random.default_rng(seed), np.zeros_like(clean.signal)
    for _ in range(coils):
        for part in (clean.signal / np.float32(np.sqrt(coils)), 0):
            noise = rng.standard_normal(clean.signal.shape, dtype=np.float32)
            squares += np.square(part + noise * np.asarray(sigma, dtype=np.float32))
    return clean.with_signal(np.sqrt(squares))


def _expected(scan: Scan) -> ExpectedMagnitudes:
    return ExpectedMagnitudes.of(scan, fit_coefficients(scan))


def _noise(noisy: Scan, coils: int = 1) -> Array:
    sigma = estimate_noise(noisy, fit_coefficients(noisy), _expected(noisy), coils=coils)
    assert sigma is not None
    return sigma


def _cleaned(noisy: Scan, coils: int = 1) -> Scan:
    return remove_floor(noisy, _expected(noisy), _noise(noisy, coils), coils=coils)


def _inside(scan: Scan, width: int = 2) -> Array:
    """Voxels of grey matter away from all edges, where the blur mixes nothing."""
    grey = ndimage.binary_erosion(scan.mask & ~scan.white_matter, iterations=width)
    return np.asarray(grey.T[scan.mask.T])


@pytest.mark.parametrize("coils", [1, 4])
@pytest.mark.parametrize("sigma", [30.0, 60.0])
def test_noise_of_a_magnitude_is_estimated_in_spite_of_its_floor(sigma: float, coils: int) -> None:
    noisy = _magnitude(_clean(), sigma, coils=coils)
    # Degrees above 4, which coherent fibres have, count as noise.
    assert np.median(_noise(noisy, coils)) == pytest.approx(sigma, rel=0.07)


def test_noise_that_varies_in_space_is_mapped() -> None:
    clean = _clean()
    sigma = np.linspace(30, 70, SHAPE[0])[:, None, None, None] * np.ones(clean.signal.shape)
    noisy = _magnitude(clean, sigma)
    ratio = _noise(noisy) / sigma[..., 0].T[noisy.mask.T]
    assert np.median(np.abs(ratio - 1)) < 0.05


def test_correlated_noise_is_not_underestimated() -> None:
    clean = _clean()
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((2, *clean.signal.shape), dtype=np.float32)
    noise = ndimage.gaussian_filter(noise, (0, 0.7, 0.7, 0.7, 0))
    noise *= SIGMA / noise.std()
    noisy = clean.with_signal(np.hypot(clean.signal + noise[0], noise[1]))
    assert np.median(_noise(noisy)) == pytest.approx(SIGMA, rel=0.08)


@pytest.mark.parametrize("coils", [1, 4])
def test_the_mean_over_repetitions_is_the_signal(coils: int) -> None:
    """Before, b=3000 of grey matter is 10 % (one channel) and 60 % (four) too high."""
    clean = _clean()
    seeds = range(4)
    inside = clean.voxels[_inside(clean)]
    shell = clean.gradients.shells[1].volumes
    runs = [_magnitude(clean, SIGMA, seed, coils) for seed in seeds]
    before, after = (
        np.mean([scan.volumes[np.ix_(shell, inside)] for scan in scans])
        / clean.volumes[np.ix_(shell, inside)].mean()
        for scans in (runs, [_cleaned(run, coils) for run in runs])
    )
    assert before > 1.05
    assert after == pytest.approx(1, abs=0.02)


def test_anisotropy_is_that_without_noise() -> None:
    """Of degree 2 at b=3000 the floor takes several per cent away."""
    clean = make_scan(make_gradients({1000: 30, 3000: 45}), shape=SHAPE, snr=np.inf)
    direction = clean.gradients.directions @ [0.6, 0.0, 0.8]
    fibre = np.exp(-clean.gradients.b * (0.3e-3 + 1.4e-3 * direction**2))
    clean = clean.with_signal(1000 * clean.mask[..., None] * fibre.astype("f4"))
    noisy = _magnitude(clean, 40.0)
    truth = fit_coefficients(clean, order=4).values
    shown = Channels(4, 2).shell(1)
    degree = np.flatnonzero(Channels(4, 2).degrees[shown] == 2) + shown.start

    def amplitude(scan: Scan) -> float:
        values = fit_coefficients(scan, order=4).values
        across = (values[:, degree] * truth[:, degree]).sum()
        return float(across / np.square(truth[:, degree]).sum())

    assert amplitude(noisy) < 0.97
    assert amplitude(_cleaned(noisy)) == pytest.approx(1, abs=0.03)


def test_single_measurements_keep_their_noise() -> None:
    clean = _clean()
    noisy, b0 = _magnitude(clean, SIGMA), clean.gradients.is_b0
    inside = np.ix_(np.flatnonzero(b0), clean.voxels[_inside(clean)])
    before, after = (
        np.std((scan.volumes - clean.volumes)[inside]) for scan in (noisy, _cleaned(noisy))
    )
    assert after == pytest.approx(before, rel=0.01)


def test_a_scan_without_noise_stays() -> None:
    clean = _clean()
    quiet = np.zeros(len(clean.voxels), np.float32)
    assert np.array_equal(remove_floor(clean, _expected(clean), quiet).signal, clean.signal)


def test_real_valued_scans_are_told_from_interpolated_magnitudes() -> None:
    clean = _clean()
    noise = np.random.default_rng(0).normal(scale=SIGMA, size=clean.signal.shape)
    assert not is_magnitude(clean.with_signal(clean.signal + noise))
    interpolated = _magnitude(clean, SIGMA)
    x, y, z = np.argwhere(clean.mask)[100]
    interpolated.signal[x, y, z, -1] = -0.5
    assert is_magnitude(interpolated)


def test_a_scan_whose_volumes_do_not_belong_together_has_no_known_noise() -> None:
    clean = _clean()
    shuffled = np.random.default_rng(0).permuted(clean.signal[clean.mask], axis=1)
    broken = clean.signal.copy()
    broken[clean.mask] = shuffled + 300 * np.random.default_rng(1).random(shuffled.shape)
    scan = clean.with_signal(broken)
    assert estimate_noise(scan, fit_coefficients(scan), _expected(scan)) is None


def test_a_voxel_far_from_all_others_has_the_usual_noise() -> None:
    noisy = _magnitude(_clean(), SIGMA)
    mask, signal = noisy.mask.copy(), noisy.signal.copy()
    mask[0, 0, 0], signal[0, 0, 0] = True, signal[tuple(np.argwhere(noisy.mask)[500])]
    sigma = _noise(replace(noisy, mask=mask, signal=signal))
    assert np.isfinite(sigma).all()
    assert sigma.min() > 0.7 * SIGMA


def test_a_shell_of_few_directions_does_not_decide() -> None:
    clean = make_scan(make_gradients({300: 6, 1000: 30, 3000: 45}), shape=SHAPE, snr=np.inf)
    assert np.median(_noise(_magnitude(clean, SIGMA))) == pytest.approx(SIGMA, rel=0.15)


def _preparation(**changes: Any) -> Preparation:
    return Preparation((1000.0, 3000.0), 6, "laplace-beltrami", "white-matter", **changes)


def test_a_prepared_scan_has_no_floor_and_keeps_what_lies_beyond_the_brain() -> None:
    clean = _clean()
    noisy = _magnitude(clean, SIGMA)
    signal = noisy.signal.copy()
    signal[~noisy.mask] = np.nan
    prepared = _preparation(noise_floor="remove").cleaned(noisy.with_signal(signal))
    np.testing.assert_array_equal(prepared.signal[noisy.mask], _cleaned(noisy).signal[noisy.mask])
    assert np.isnan(prepared.signal[~noisy.mask]).all()
    assert _preparation().cleaned(noisy) is noisy


def test_nothing_is_subtracted_from_real_valued_scans_that_are_denoised() -> None:
    clean = _clean()
    noise = np.random.default_rng(0).normal(scale=SIGMA, size=clean.signal.shape)
    real = clean.with_signal(clean.signal + noise)
    denoiser = f"DIPY mppca {version('dipy')}"
    kept, removed = (
        _preparation(denoiser=denoiser, noise_floor=floor).cleaned(real).signal
        for floor in ("keep", "remove")
    )
    assert np.array_equal(kept, removed)


def test_denoised_magnitudes_lose_their_floor_too() -> None:
    clean = _clean()
    denoiser = f"DIPY mppca {version('dipy')}"
    shell, inside = clean.gradients.shells[1].volumes, clean.voxels[_inside(clean)]
    ratios = [
        _preparation(denoiser=denoiser, noise_floor=floor)
        .cleaned(_magnitude(clean, SIGMA))
        .volumes[np.ix_(shell, inside)]
        .mean()
        / clean.volumes[np.ix_(shell, inside)].mean()
        for floor in ("keep", "remove")
    ]
    assert ratios[0] > 1.05
    assert ratios[1] == pytest.approx(1, abs=0.03)
