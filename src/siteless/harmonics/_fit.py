"""Fit spherical harmonics to the signal, with one matrix product per shell.

Both fits are linear: coefficients = matrix x signal, where the matrix depends on the directions
and, for the regularised fit, on a penalty weight chosen from the scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from threadpoolctl import ThreadpoolController

from siteless.acquisition import MIN_DIRECTIONS, Array, GradientTable, Scan, Shell, count_axes
from siteless.errors import GradientTableError
from siteless.harmonics._basis import coefficient_orders, max_order, sh_basis
from siteless.harmonics._coefficients import Coefficients

FitName = Literal["laplace-beltrami", "pseudo-inverse"]
FITS: tuple[FitName, ...] = get_args(FitName)

_HIGHEST_ORDER = 8
# Degrees up to this one are fitted without a penalty, which would shrink them in noise.
_HIGHEST_FREE = 2
# Voxels per block, so that the signal of one shell stays in a core's cache.
_BLOCK = 8192
# Voxels for choosing the penalty: far more than the second moments of a shell need.
_SAMPLE = 2_000
_PENALTIES = np.logspace(-6, 0, 61)


def fit_coefficients(
    scan: Scan, *, order: int | None = None, fit: FitName = "laplace-beltrami"
) -> Coefficients:
    """Fit every shell of a scan within its brain mask.

    Parameters
    ----------
    scan
        Scan to fit. Directions are in world axes, so oblique scans are comparable.
    order
        Highest degree; by default 8, or less when a shell has too few directions.
    fit
        ``laplace-beltrami`` penalises rough fits, with a weight per shell by generalised
        cross-validation; ``pseudo-inverse`` is the minimum-norm least-squares fit of the paper.
    """
    if fit not in FITS:
        raise ValueError(f"fit is one of {', '.join(FITS)}, got {fit!r}")
    shells = scan.gradients.shells
    if not shells or not scan.gradients.is_b0.any():
        raise GradientTableError(
            f"expected b0 volumes and at least one shell, found {scan.gradients}",
            remedy="leave the scan out",
        )
    directions = [scan.gradients.directions[shell.volumes] for shell in shells]
    if min(map(count_axes, directions)) < MIN_DIRECTIONS:
        raise GradientTableError(
            f"a shell needs at least {MIN_DIRECTIONS} directions, found {scan.gradients}",
            remedy="remove the volumes of shells with fewer",
        )
    if order is None:
        order = common_order([scan.gradients])
    with _threads() as threads:
        penalties = [0.0] * len(shells)
        if fit == "laplace-beltrami":
            sample = _sample(scan)
            penalties = [
                choose_penalty(sample[shell.volumes], vectors, order=order)
                for shell, vectors in zip(shells, directions, strict=True)
            ]
        matrices = [
            fitting_matrix(vectors, order=order, penalty=penalty)
            for vectors, penalty in zip(directions, penalties, strict=True)
        ]
        values = _apply(scan, shells, matrices, threads)
    return Coefficients(
        values=values,
        mask=scan.mask,
        bs=tuple(shell.b for shell in shells),
        order=order,
        penalties=tuple(penalties),
    )


def common_order(tables: Sequence[GradientTable]) -> int:
    """Return the highest order that all shells of gradient tables support, at most 8."""
    counts = [count_axes(t.directions[shell.volumes]) for t in tables for shell in t.shells]
    return min(_HIGHEST_ORDER, *map(max_order, counts))


def fitting_matrix(directions: ArrayLike, *, order: int, penalty: float) -> Array:
    """Return the matrix from a shell's signal to its coefficients.

    With basis B and L = diag(l(l + 1))^2 above degree 2, it is (B'B + penalty L)^-1 B'; without a
    penalty it is the pseudo-inverse of B. Unlike in DIPY, degrees 0 and 2 are not penalised: they
    contain the mean signal and nearly all anisotropy, and a penalty would shrink FA. The shape is
    (coefficient, direction), float32.
    """
    basis = sh_basis(directions, order)
    if penalty == 0:
        return np.linalg.pinv(basis).astype(np.float32)
    matrix = np.linalg.solve(basis.T @ basis + penalty * _roughness(order), basis.T)
    return matrix.astype(np.float32)


def choose_penalty(signal: Array, directions: ArrayLike, *, order: int) -> float:
    """Choose a shell's Laplace-Beltrami weight by generalised cross-validation.

    The weight minimises |(I - H) s|^2 / tr(I - H)^2 summed over voxels, where H maps the measured
    to the fitted signal, given as (direction, voxel). It is 0 if no degree is penalised.
    """
    if order <= _HIGHEST_FREE:
        return 0.0
    signal = signal.astype(float)
    scores = _cross_validation(sh_basis(directions, order), signal @ signal.T, _roughness(order))
    return float(_PENALTIES[int(np.argmin(scores))])


def _sample(scan: Scan) -> Array:
    """Return the signal of some white-matter voxels, shape (volume, voxel)."""
    inside = scan.white_matter if scan.white_matter.any() else scan.mask
    voxels = np.flatnonzero(inside.T)
    return scan.volumes[:, voxels[:: max(1, len(voxels) // _SAMPLE)]]


def _cross_validation(basis: Array, moments: Array, roughness: Array) -> Array:
    """Score each penalty from the second moments of the signal, shape (direction, direction).

    In modes V that diagonalise B'B and L together, V'B'BV = diag(m) and V'LV = diag(1 - m), so
    that H = BV diag(d) V'B' with d = 1 / (m + penalty (1 - m)): one decomposition serves all
    penalties.
    """
    gram = basis.T @ basis
    seen, modes = eigh(gram, gram + roughness)
    seen = seen.clip(0, 1)  # part of each mode that the directions determine
    gain = 1 / (seen + _PENALTIES[:, None] * (1 - seen))
    response = basis @ modes
    energy = np.einsum("dm,de,em->m", response, moments, response, optimize=True)
    residual = np.trace(moments) - (2 * gain - seen * gain**2) @ energy
    return residual / (len(basis) - gain @ seen) ** 2


def _roughness(order: int) -> Array:
    degrees = coefficient_orders(order).astype(float)
    return np.diag(np.where(degrees > _HIGHEST_FREE, degrees * (degrees + 1), 0) ** 2)


def _apply(
    scan: Scan, shells: tuple[Shell, ...], matrices: list[Array], threads: ThreadPoolExecutor
) -> Array:
    """Multiply each shell's signal by its matrix, in blocks of neighbouring voxels."""
    volumes = scan.volumes
    b0 = np.flatnonzero(scan.gradients.is_b0)
    values = np.empty((len(scan.voxels), 1 + sum(map(len, matrices))), dtype=np.float32)

    def fit_block(start: int) -> None:
        first, last = np.searchsorted(scan.voxels, (start, start + _BLOCK))
        block, rows = slice(start, start + _BLOCK), values[first:last]
        inside = scan.voxels[first:last] - start
        rows[:, 0] = _columns(volumes[b0, block], inside).mean(axis=0)
        column = 1
        for shell, matrix in zip(shells, matrices, strict=True):
            signal = _columns(volumes[shell.volumes, block], inside)
            np.matmul(signal.T, matrix.T, out=rows[:, column : column + len(matrix)])
            column += len(matrix)

    list(threads.map(fit_block, range(0, volumes.shape[1], _BLOCK)))  # raises what a block raised
    return values


def _columns(signal: Array, inside: Array) -> Array:
    return signal if len(inside) == signal.shape[1] else signal.take(inside, axis=1)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Provide as many threads as BLAS may use, with single-threaded BLAS in each.

    Copying and allocating memory take as long as multiplying, so they run on all cores too, and
    the result does not depend on the number of cores.
    """
    blas = _blas()
    count = max((library.num_threads for library in blas.lib_controllers), default=1)
    with blas.limit(limits=1), ThreadPoolExecutor(count) as threads:
        yield threads


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
