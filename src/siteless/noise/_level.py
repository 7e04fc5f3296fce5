"""Estimate the noise of a scan from the residual of a smooth fit."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array, Scan, on_grid
from siteless.harmonics import Coefficients, fit_noise
from siteless.noise._expected import ExpectedMagnitudes
from siteless.noise._magnitude import Magnitude

# mm. Full width at half maximum over which variances are averaged.
_WIDTH = 12.0
# Iterations of the variance of magnitudes, which depends on the signal over the noise.
_TURNS = 3
# Where b0 is weaker, relative to the residual, volumes do not belong together.
_LEAST_SNR = 3.0
# Directions that leave a residual beside the harmonics up to degree 2.
_MANY = 12
# Least sum of weights of nearby voxels.
_LEAST_WEIGHT = 1e-6
# One voxel in so many shows how magnitudes vary nearby.
_EVERY = 4


def estimate_noise(
    scan: Scan, coefficients: Coefficients, expected: ExpectedMagnitudes, *, coils: int = 1
) -> Array | None:
    """Estimate the standard deviation of the noise in the real part of one receive channel.

    It is smooth over the brain. A residual varies less where the magnitude is near its floor,
    which the estimate takes into account. Correlation of the noise between voxels does not bias
    it. Denoising and interpolating magnitudes do, as they lower the residual and leave the floor.

    Parameters
    ----------
    scan
        Scan as acquired.
    coefficients, expected
        Its coefficients and expected magnitudes.
    coils
        Effective number of channels that are combined by their sum of squares.

    Returns
    -------
    Array or None
        Standard deviation at the brain's voxels, shape (voxel,), float32; None if the residual is
        so large that the volumes do not belong together.
    """
    shell = _chosen_shell(scan)
    variance = fit_noise(scan, coefficients).variance[:, shell]
    everywhere = _Smoothing(scan, np.ones(len(variance), dtype=bool))
    variance = everywhere(variance).clip(min=0)
    rows = np.arange(0, len(variance), _EVERY)
    volumes = scan.gradients.shells[shell].volumes
    magnitudes = np.hstack([block for _, block in expected.blocks(rows, volumes)])
    nearby = _Smoothing(scan, np.isin(np.arange(len(variance)), rows))
    sigma, magnitude = np.sqrt(variance), Magnitude(coils)
    for _ in range(_TURNS):
        sigma = np.sqrt(variance / nearby(_usual(magnitudes, sigma[rows], magnitude)))
    if np.median(coefficients.b0) < _LEAST_SNR * np.median(sigma):
        return None
    return sigma.astype(np.float32)


def _chosen_shell(scan: Scan) -> int:
    """Return the weakest shell of many directions, or that of most.

    The weakest is the farthest from the floor, and a fit shows nearly all of its signal.
    """
    counts = [len(shell.volumes) for shell in scan.gradients.shells]
    many = [index for index, count in enumerate(counts) if count >= _MANY]
    return many[0] if many else int(np.argmax(counts))


def _usual(expected: Array, sigma: Array, magnitude: Magnitude) -> Array:
    """Return the mean variance of magnitudes over that of the noise, shape (voxel,)."""
    least = np.finfo(np.float32).tiny
    with np.errstate(over="ignore"):  # without noise any signal is far above it
        signal = magnitude.signal(expected / np.maximum(sigma, least).astype(np.float32))
    return np.asarray(magnitude.variance(signal).mean(axis=0))


class _Smoothing:
    """Averages values of some brain voxels over nearby ones, for all brain voxels."""

    def __init__(self, scan: Scan, rows: Array) -> None:
        self.mask, self.rows = scan.mask, rows
        self.sigma = _WIDTH / np.sqrt(8 * np.log(2)) / scan.voxel_size
        self.weight = self._sum(np.ones(np.count_nonzero(rows)))

    def __call__(self, values: Array) -> Array:
        """Return averages at all brain voxels; that of all where none of the voxels is near."""
        near = self.weight > _LEAST_WEIGHT
        sums = np.divide(
            self._sum(values), self.weight, where=near, out=np.zeros_like(self.weight)
        )
        return np.where(near, sums, values.mean())

    def _sum(self, values: Array) -> Array:
        everywhere = np.zeros(len(self.rows))
        everywhere[self.rows] = values
        grid = ndimage.gaussian_filter(on_grid(everywhere, self.mask), self.sigma, mode="constant")
        return np.asarray(grid.T[self.mask.T])
