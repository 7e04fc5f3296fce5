import numpy as np
import pytest

from phantoms import make_gradients, make_scan
from siteless.acquisition import Scan
from siteless.harmonics import (
    FitName,
    fit_coefficients,
    fit_noise,
    fitting_matrix,
    noise_channels,
    rish,
    sh_basis,
)

SIGMA = 1000 / 15


@pytest.fixture(scope="module")
def scans() -> tuple[Scan, Scan]:
    """A noiseless scan, and the same with Gaussian noise."""
    clean = make_scan(make_gradients({1000: 30, 3000: 60}), snr=np.inf)
    noise = np.random.default_rng(0).normal(scale=SIGMA, size=clean.signal.shape)
    return clean, clean.with_signal(clean.signal + noise.astype(np.float32))


def test_the_noise_of_a_scan_is_separated_from_its_signal(scans: tuple[Scan, Scan]) -> None:
    _, noisy = scans
    noise = fit_noise(noisy, fit_coefficients(noisy, order=8))
    white = noisy.white_matter.T[noisy.mask.T]
    for voxels in (white, ~white):
        # Degrees above 4, which coherent fibres have at b=3000, count as noise.
        np.testing.assert_allclose(noise.variance[voxels].mean(axis=0), SIGMA**2, rtol=0.08)


@pytest.mark.parametrize("fit", ["laplace-beltrami", "pseudo-inverse"])
def test_energy_without_noise_is_that_of_the_noiseless_scan(
    scans: tuple[Scan, Scan], fit: FitName
) -> None:
    clean, noisy = scans
    coefficients = fit_coefficients(noisy, order=4, fit=fit)
    noise = fit_noise(noisy, coefficients)
    white = noisy.white_matter.T[noisy.mask.T]
    ours = ((rish(coefficients) - noise.energies) / noise.kept)[white].mean(axis=0)
    truth = rish(fit_coefficients(clean, order=4, fit="pseudo-inverse"))[white].mean(axis=0)
    np.testing.assert_allclose(ours, truth, rtol=0.03)
    biased = rish(coefficients)[white].mean(axis=0)
    assert np.abs(ours / truth - 1).max() < np.abs(biased / truth - 1).max()


def test_the_gain_is_the_energy_of_pure_noise(scans: tuple[Scan, Scan]) -> None:
    clean, _ = scans
    volumes = np.random.default_rng(1).normal(size=clean.signal.shape).astype(np.float32)
    coefficients = fit_coefficients(clean, order=6)
    pure = clean.with_signal(volumes)
    # The same matrices as for the scan: penalties are chosen from the signal.
    noise = fit_noise(clean, coefficients)
    for index, shell in enumerate(clean.gradients.shells):
        directions = clean.gradients.directions[shell.volumes]
        matrix = fitting_matrix(directions, order=6, penalty=coefficients.penalties[index])
        values = pure.volumes[np.ix_(shell.volumes, pure.voxels)].T @ matrix.T
        degrees = (np.square(values[:, _degree(degree)]) for degree in (0, 2, 4, 6))
        energies = [squares.sum(axis=1).mean() for squares in degrees]
        np.testing.assert_allclose(noise.gain[index], energies, rtol=0.1)


def _degree(degree: int) -> slice:
    start = degree * (degree - 1) // 2
    return slice(start, start + 2 * degree + 1)


def test_the_kept_share_of_a_signal_is_what_its_fit_shows(scans: tuple[Scan, Scan]) -> None:
    clean, _ = scans
    coefficients = fit_coefficients(clean, order=4)
    noise = fit_noise(clean, coefficients)
    degrees = np.repeat([0, 2, 4], [1, 5, 9])
    shell = clean.gradients.shells[0]
    directions = clean.gradients.directions[shell.volumes]

    matrix = fitting_matrix(directions, order=4, penalty=coefficients.penalties[0])
    for index, degree in enumerate((0, 2, 4)):
        kept = []
        for harmonic in np.flatnonzero(degrees == degree):
            back = matrix @ sh_basis(directions, 4)[:, harmonic]
            kept.append(np.square(back[degrees == degree]).sum())
        assert noise.kept[0, index] == pytest.approx(np.mean(kept), rel=1e-5)


def _few_directions(b0: int, sigma: float = 25.0) -> Scan:
    """Make a scan whose shell has no more directions than coefficients."""
    clean = make_scan(make_gradients({1000: 6}, b0=b0), snr=np.inf)
    noise = np.random.default_rng(2).normal(scale=sigma, size=clean.signal.shape)
    return clean.with_signal(clean.signal + noise.astype(np.float32))


def test_a_shell_that_leaves_nothing_over_has_the_noise_of_b0() -> None:
    scan = _few_directions(b0=3)
    noise = fit_noise(scan, fit_coefficients(scan, order=2))
    assert noise.variance.mean() == pytest.approx(25.0**2, rel=0.05)


def test_without_repeated_b0_it_has_the_noise_of_other_shells() -> None:
    clean = make_scan(make_gradients({1000: 6, 2000: 40}, b0=1), snr=np.inf)
    noise = np.random.default_rng(2).normal(scale=25, size=clean.signal.shape)
    scan = clean.with_signal(clean.signal + noise.astype(np.float32))
    fitted = fit_noise(scan, fit_coefficients(scan, order=2))
    np.testing.assert_array_equal(fitted.variance[:, 0], fitted.variance[:, 1])


@pytest.mark.parametrize("fit", ["laplace-beltrami", "pseudo-inverse"])
def test_without_either_high_degrees_have_no_energy(fit: FitName) -> None:
    scan = make_scan(make_gradients({1000: 12}, b0=1))
    coefficients = fit_coefficients(scan, order=4, fit=fit)
    high = rish(coefficients)[:, 0, 2:].sum(axis=1)
    left = high - fit_noise(scan, coefficients).energies[:, 0, 2:].sum(axis=1)
    assert high.min() > 0
    np.testing.assert_allclose(left, 0, atol=1e-3 * high.mean())


def test_without_high_degrees_no_noise_is_estimated() -> None:
    scan = make_scan(make_gradients({1000: 6}, b0=1))
    assert not fit_noise(scan, fit_coefficients(scan, order=2)).variance.any()


@pytest.mark.parametrize("sigmas", [(12.0, 40.0), (5.0, 30.0)])
def test_scans_of_different_noise_show_the_same_energy(sigmas: tuple[float, float]) -> None:
    """Else their noise would be taken for a difference of sites."""
    clean = make_scan(make_gradients({1000: 30, 3000: 30}), snr=np.inf)
    white = clean.white_matter.T[clean.mask.T]
    energies = []
    for sigma in sigmas:
        noise = np.random.default_rng(3).normal(scale=sigma, size=clean.signal.shape)
        scan = clean.with_signal(clean.signal + noise.astype(np.float32))
        coefficients = fit_coefficients(scan, order=8)
        fitted = fit_noise(scan, coefficients)
        energies.append(
            ((rish(coefficients) - fitted.energies) / fitted.kept)[white].mean(axis=0)[:, :3]
        )
    np.testing.assert_allclose(energies[0], energies[1], rtol=0.05)


@pytest.mark.parametrize("directions", [12, 30, 60])
def test_channels_of_noise_hold_noise_of_one_volume_and_no_signal(directions: int) -> None:
    clean = make_scan(make_gradients({1000: directions, 3000: 30}), snr=np.inf)
    signal = noise_channels(clean)
    noise = np.random.default_rng(4).normal(scale=20.0, size=clean.signal.shape)
    channels = noise_channels(clean.with_signal(clean.signal + noise.astype(np.float32)))
    np.testing.assert_allclose((channels - signal).std(), 20.0, rtol=0.02)
    # 12 directions leave degree 4, of which this phantom has much.
    assert np.square(signal).mean() < (4 if directions == 12 else 0.1) * 20.0**2


def test_noise_is_taken_from_the_shell_that_leaves_least_signal() -> None:
    scan = make_scan(make_gradients({500: 6, 1000: 12, 2000: 30, 3000: 30}), snr=np.inf)
    shells = [scan.gradients.shells[index].volumes for index in (2, 3)]
    for volumes, changes in zip(shells, (True, False), strict=True):
        signal = scan.signal.copy()
        signal[..., volumes] *= 1.5
        channels = noise_channels(scan.with_signal(signal))
        assert np.allclose(channels, noise_channels(scan)) != changes


def test_few_directions_leave_no_channel_of_noise() -> None:
    assert noise_channels(_few_directions(b0=3)).shape[1] == 0
