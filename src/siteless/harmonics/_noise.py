"""Noise energy of harmonics, and the part of the signal's energy that a fit retains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics._basis import coefficient_orders, count_coefficients, sh_basis
from siteless.harmonics._coefficients import Coefficients, rish
from siteless.harmonics._fit import fitting_matrix

# Voxels per block of residuals.
_BLOCK = 16_384
# Degrees of freedom that a shell's residual needs for a noise estimate.
_LEAST_FREEDOM = 1.0
# Degrees 0, 2 and 4 hold nearly all signal, whose smoothed part enters the residual.
_DEGREES = 3
# Noise channels are orthogonal to harmonics up to one of these orders; their largest number.
_FREE_OF, _CHANNELS = (2, 4, 6), 6
# Smallest Laplace-Beltrami weight for estimating noise; it leaves a large enough residual.
_SMOOTH = 2e-3


@dataclass(frozen=True, eq=False)
class FitNoise:
    """Effect of a fit on noise and on signal."""

    variance: Array  # noise variance of a volume, shape (voxel, shell)
    gain: Array  # energy of unit-variance noise in the coefficients, shape (shell, degree)
    kept: Array  # part of the signal's energy that the fit retains, shape (shell, degree)

    @property
    def energies(self) -> Array:
        """Expected energy of noise, comparable to `rish`; shape (voxel, shell, degree)."""
        return self.variance[:, :, None] * self.gain


def fit_noise(scan: Scan, coefficients: Coefficients) -> FitNoise:
    """Estimate the noise of a scan that was fitted from the residual of a smooth fit.

    A shell with as few directions as coefficients has no residual; it is assigned the noise of the
    other shells or of repeated b0 volumes. With neither, all energy above degree 2 is attributed
    to noise.
    """
    energies = rish(coefficients)
    variance = np.full(energies.shape[:2], np.nan, dtype=np.float32)
    gain, kept = np.empty((2, *energies.shape[1:]), dtype=np.float32)
    for index, shell in enumerate(scan.gradients.shells):
        directions = scan.gradients.directions[shell.volumes]
        fit = _Fit.of(directions, coefficients.order, coefficients.penalties[index])
        gain[index], kept[index] = fit.gain, fit.kept
        if fit.freedom >= _LEAST_FREEDOM:
            squares = _squared_residuals(scan, shell.volumes, fit.residual)
            variance[:, index] = fit.variance(squares, energies[:, index])
    known = np.isfinite(variance).all(axis=0)
    if not known.all():
        others = variance[:, known].mean(axis=1) if known.any() else _variance_of_b0(scan)
        least = np.finfo(np.float32).tiny
        high = energies[:, ~known, 2:].sum(axis=2) / (gain[~known, 2:].sum(axis=1) + least)
        variance[:, ~known] = high if others is None else others[:, None]
    return FitNoise(variance, gain, kept)


def noise_channels(scan: Scan) -> Array:
    """Return combinations of a scan's volumes with hardly any signal, (voxel, channel).

    They are orthogonal to the harmonics of one shell up to the highest possible degree: 6 with 29
    directions, 4 with 16, 2 with 7, where signal of degree 4 remains. The shell that leaves the
    least signal is used, or the weakest such shell. Noise has the variance of single volumes. With
    6 directions or fewer there are no channels.
    """
    shells = scan.gradients.shells
    volumes = max(shells, key=lambda s: (_free_degree(len(s.volumes)), -s.b)).volumes
    degree = _free_degree(len(volumes))
    if not degree:
        return np.empty((len(scan.voxels), 0), dtype=np.float32)
    signal = sh_basis(scan.gradients.directions[volumes], degree)
    everything, _ = np.linalg.qr(signal, mode="complete")
    mixing = everything[:, signal.shape[1] :][:, -_CHANNELS:].T.astype(np.float32)
    channels = np.empty((len(mixing), len(scan.voxels)), dtype=np.float32)
    for start in range(0, len(scan.voxels), _BLOCK):
        block = slice(start, start + _BLOCK)
        channels[:, block] = mixing @ scan.volumes[np.ix_(volumes, scan.voxels[block])]
    return channels.T


def _free_degree(directions: int) -> int:
    """Return the highest degree whose harmonics do not span all directions."""
    return max((d for d in _FREE_OF if count_coefficients(d) < directions), default=0)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Response of a shell's fit to noise of unit variance and signal of unit energy.

    With noise of variance v and a signal of energies S the expected energy of degree l is
    kept_l S_l + gain_l v, and the expected residual sum of squares of a smooth fit is
    square_sum(residual) v + sum_l lost_l S_l. Both are linear, and so is their solution for v.
    """

    residual: Array
    gain: Array
    kept: Array
    lost: Array

    @classmethod
    def of(cls, directions: Array, order: int, penalty: float) -> Self:
        basis = sh_basis(directions, order)
        fitting = fitting_matrix(directions, order=order, penalty=penalty).astype(float)
        smooth = fitting_matrix(directions, order=order, penalty=max(penalty, _SMOOTH))
        degrees = coefficient_orders(order)
        starts = np.flatnonzero(np.diff(degrees, prepend=-1))
        sizes = np.diff(starts, append=len(degrees))
        residual = np.eye(len(basis)) - basis @ smooth.astype(float)
        same = degrees[:, None] == degrees  # leakage between degrees is not counted
        kept = np.square(np.where(same, fitting @ basis, 0)).sum(axis=0)
        lost = np.square(residual @ basis).sum(axis=0)
        return cls(
            residual=residual,
            gain=np.add.reduceat(np.square(fitting).sum(axis=1), starts),
            kept=np.add.reduceat(kept, starts) / sizes,
            lost=np.add.reduceat(lost, starts) / sizes,
        )

    @property
    def freedom(self) -> float:
        low = slice(_DEGREES)
        taken = self.lost[low] * self.gain[low] / self.kept[low]
        return float(np.square(self.residual).sum() - taken.sum())

    def variance(self, squares: Array, energies: Array) -> Array:
        """Return the variance of noise, shape (voxel,); it may be negative in single voxels."""
        lost = (self.lost / self.kept)[:_DEGREES].astype(np.float32)
        return (squares - energies[:, :_DEGREES] @ lost) / np.float32(self.freedom)


def _variance_of_b0(scan: Scan) -> Array | None:
    """Return the variance over b0 volumes, shape (voxel,); None if there is only one."""
    b0 = scan.volumes[np.ix_(np.flatnonzero(scan.gradients.is_b0), scan.voxels)]
    return b0.var(axis=0, ddof=1) if len(b0) > 1 else None


def _squared_residuals(scan: Scan, volumes: Array, residual: Array) -> Array:
    """Return the residual sum of squares, shape (voxel,)."""
    left = residual.astype(np.float32)
    squares = np.empty(len(scan.voxels), dtype=np.float32)
    for start in range(0, len(squares), _BLOCK):
        block = slice(start, start + _BLOCK)
        over = left @ scan.volumes[np.ix_(volumes, scan.voxels[block])]
        squares[block] = np.square(over).sum(axis=0)
    return squares
