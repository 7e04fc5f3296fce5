"""How much of the harmonics' energy is noise, and how much of the signal's the fit keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics._basis import coefficient_orders, count_coefficients, sh_basis
from siteless.harmonics._coefficients import Coefficients, rish
from siteless.harmonics._fit import fitting_matrix

# Voxels whose residuals are held at a time.
_BLOCK = 16_384
# Degrees of freedom that a shell's residual must have to tell its noise.
_LEAST_FREEDOM = 1.0
# Degrees 0, 2 and 4 hold nearly all signal; what a smooth fit takes from them it leaves over.
_DEGREES = 3
# Orders whose harmonics channels of noise are orthogonal to, and how many of these there are.
_FREE_OF, _CHANNELS = (2, 4, 6), 6
# Laplace-Beltrami weight that leaves enough over to tell noise by, whatever the fit's own is.
_SMOOTH = 2e-3


@dataclass(frozen=True, eq=False)
class FitNoise:
    """What a fit has made of noise and of signal.

    Attributes
    ----------
    variance
        Of the noise of a volume, shape (voxel, shell).
    gain
        Energy that noise of variance one has in the coefficients, shape (shell, degree).
    kept
        Part of a signal's energy that the fit keeps at each degree, shape (shell, degree).
    """

    variance: Array
    gain: Array
    kept: Array

    @property
    def energies(self) -> Array:
        """Expected energy of noise, to be compared with `rish`; shape (voxel, shell, degree)."""
        return self.variance[:, :, None] * self.gain


def fit_noise(scan: Scan, coefficients: Coefficients) -> FitNoise:
    """Tell the noise of a scan by what a smooth fit leaves over.

    A shell of as few directions as coefficients leaves nothing over; it has the noise of the
    other shells, or else that of repeated b0 volumes. With neither, the noise is taken to be as
    large as the signal above degree 2, which then has no energy of its own.

    Parameters
    ----------
    scan
        That was fitted.
    coefficients
        Of `fit_coefficients` for it.
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
    """Return combinations of a scan's volumes that have hardly any signal, (voxel, channel).

    They are orthogonal to the harmonics of a shell up to the highest degree that leaves any:
    degree 6 with 29 directions, 4 with 16, 2 with 7, where signal of degree 4 is left. Of several
    shells it is the one that leaves least signal, the weakest of equals. Noise is that of single
    volumes. With 6 directions or fewer there are no channels.
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
    """Return the highest degree whose harmonics leave some combination of directions."""
    return max((d for d in _FREE_OF if count_coefficients(d) < directions), default=0)


@dataclass(frozen=True, eq=False)
class _Fit:
    """What the fit of a shell does to noise of variance one and to signal of energy one.

    With noise of variance v and a signal of energies S the expected energy of degree l is
    kept_l S_l + gain_l v, and the expected sum of squares of what a smooth fit leaves over is
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
        same = degrees[:, None] == degrees  # what a degree leaves in another is not counted
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
        """Return the variance of noise, shape (voxel,); single voxels may be below zero."""
        lost = (self.lost / self.kept)[:_DEGREES].astype(np.float32)
        return (squares - energies[:, :_DEGREES] @ lost) / np.float32(self.freedom)


def _variance_of_b0(scan: Scan) -> Array | None:
    """Return the variance of repeated b0 volumes, shape (voxel,); None when there is one."""
    b0 = scan.volumes[np.ix_(np.flatnonzero(scan.gradients.is_b0), scan.voxels)]
    return b0.var(axis=0, ddof=1) if len(b0) > 1 else None


def _squared_residuals(scan: Scan, volumes: Array, residual: Array) -> Array:
    """Return the sum of squares of what a fit leaves over, shape (voxel,)."""
    left = residual.astype(np.float32)
    squares = np.empty(len(scan.voxels), dtype=np.float32)
    for start in range(0, len(squares), _BLOCK):
        block = slice(start, start + _BLOCK)
        over = left @ scan.volumes[np.ix_(volumes, scan.voxels[block])]
        squares[block] = np.square(over).sum(axis=0)
    return squares
