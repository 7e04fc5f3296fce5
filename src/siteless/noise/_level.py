"""Estimate the noise of a scan from the residual of a smooth fit."""

from __future__ import annotations

from dataclasses import replace

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
# One voxel in so many shows how magnitudes vary nearby.
_EVERY = 4


def estimate_noise(
    scan: Scan, coefficients: Coefficients, expected: ExpectedMagnitudes, *, coils: int = 1
) -> Scan:
    """Return the scan with a map of its noise, unless its volumes do not belong together.

    The map is the standard deviation of the noise in the real part of one receive channel, smooth
    over the brain. A residual varies less where the magnitude is near its floor, which the
    estimate takes into account. Correlation between voxels does not bias it, but denoising and
    averaging do: they reduce noise and leave the floor.

    Parameters
    ----------
    scan
        Scan as acquired.
    coefficients, expected
        Its coefficients and expected magnitudes.
    coils
        Number of independent channels that are combined by their sum of squares.
    """
    # The weakest shell is the farthest from the floor, and a fit shows nearly all of its signal.
    weakest = fit_noise(scan, coefficients).variance[:, 0]
    everywhere = _Smoothing(scan, np.ones(len(weakest), dtype=bool))
    variance = everywhere(np.nan_to_num(weakest)).clip(min=0)
    rows, volumes = np.arange(0, len(weakest), _EVERY), scan.gradients.shells[0].volumes
    magnitudes = np.hstack([block for _, block in expected.blocks(rows, volumes)])
    nearby = _Smoothing(scan, np.isin(np.arange(len(weakest)), rows))
    sigma = np.sqrt(variance)
    for _ in range(_TURNS):
        sigma = np.sqrt(variance / nearby(_usual(magnitudes, sigma[rows], Magnitude(coils))))
    if np.median(coefficients.b0) < _LEAST_SNR * np.median(sigma):
        return scan
    return replace(scan, noise=on_grid(sigma.astype(np.float32), scan.mask))


def _usual(expected: Array, sigma: Array, magnitude: Magnitude) -> Array:
    """Return the mean variance of magnitudes over that of the noise, shape (voxel,)."""
    least = np.finfo(np.float32).tiny
    signal = magnitude.signal(expected / np.maximum(sigma, least).astype(np.float32))
    return np.asarray(magnitude.variance(signal).mean(axis=0))


class _Smoothing:
    """Averages values of some brain voxels over nearby ones, for all brain voxels."""

    def __init__(self, scan: Scan, rows: Array) -> None:
        self.mask, self.rows = scan.mask, rows
        self.sigma = _WIDTH / np.sqrt(8 * np.log(2)) / scan.voxel_size
        self.weight = self._sum(np.ones(np.count_nonzero(rows)))

    def __call__(self, values: Array) -> Array:
        """Return averages at all brain voxels."""
        return self._sum(values) / self.weight

    def _sum(self, values: Array) -> Array:
        everywhere = np.zeros(len(self.rows))
        everywhere[self.rows] = values
        grid = ndimage.gaussian_filter(on_grid(everywhere, self.mask), self.sigma, mode="constant")
        return np.asarray(grid.T[self.mask.T])
