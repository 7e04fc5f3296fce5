"""Fitting harmonics to the signal, one matrix product a shell.

Both fits are linear: coefficients = matrix x signal, where the matrix depends on the directions
and, for the regularised fit, on one number chosen from the scan itself.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from siteless.acquisition import Array, Scan, Shell
from siteless.errors import GradientTableError
from siteless.harmonics._basis import coefficient_orders, max_order, sh_basis
from siteless.harmonics._coefficients import Coefficients

FitName = Literal["laplace-beltrami", "pseudo-inverse"]
FITS: tuple[FitName, ...] = get_args(FitName)

# Voxels fitted at a time: the signal of one shell then stays in a core's cache.
_BLOCK = 8192
# Voxels that the penalty is chosen from; more change it in the third digit only.
_SAMPLE = 20_000
_PENALTIES = np.logspace(-6, 0, 61)


def fit_coefficients(
    scan: Scan, *, order: int | None = None, fit: FitName = "laplace-beltrami"
) -> Coefficients:
    """Fit every shell of a scan in its brain mask.

    Parameters
    ----------
    scan
        Directions are taken in world axes, so scans of any obliquity agree.
    order
        Highest degree; by default 8, or less when a shell has too few directions for it.
    fit
        ``laplace-beltrami`` penalises rough fits, with a weight per shell by generalised
        cross-validation; ``pseudo-inverse`` is the minimum-norm least-squares fit of the paper.
    """
    shells = scan.gradients.shells
    if not shells or not scan.gradients.is_b0.any():
        raise GradientTableError(
            f"expected b0 volumes and at least one shell, found {scan.gradients}",
            remedy="leave the scan out",
        )
    if order is None:
        order = min(8, *(max_order(len(shell)) for shell in shells))
    penalties = tuple(
        choose_penalty(scan, shell, order=order) if fit == "laplace-beltrami" else 0.0
        for shell in shells
    )
    matrices = [
        fitting_matrix(scan.gradients.directions[shell.volumes], order=order, penalty=penalty)
        for shell, penalty in zip(shells, penalties, strict=True)
    ]
    return Coefficients(
        values=_apply(scan, shells, matrices),
        mask=scan.mask,
        bs=tuple(shell.b for shell in shells),
        order=order,
        penalties=penalties,
    )


def fitting_matrix(directions: ArrayLike, *, order: int, penalty: float) -> Array:
    """Return the matrix from a shell's signal to its coefficients.

    With basis B and L = diag(l(l + 1))^2 it is (B'B + penalty L)^-1 B', as in DIPY, where the
    penalty is called ``smooth``; without a penalty it is the pseudo-inverse of B.

    Returns
    -------
    Array
        Shape (coefficient, direction), float32.
    """
    basis = sh_basis(directions, order)
    if penalty == 0:
        return np.linalg.pinv(basis).astype(np.float32)
    return np.linalg.solve(basis.T @ basis + penalty * _roughness(order), basis.T).astype(
        np.float32
    )


def choose_penalty(scan: Scan, shell: Shell, *, order: int) -> float:
    """Choose a shell's Laplace-Beltrami weight by generalised cross-validation.

    The weight minimises n |(I - H) s|^2 / tr(I - H)^2 summed over white matter, where H is the
    matrix from the measured to the fitted signal. Only the second moments of the signal enter,
    so trying many weights costs no more than trying one.
    """
    inside = scan.white_matter if scan.white_matter.any() else scan.mask
    voxels = np.flatnonzero(inside.T)
    voxels = voxels[:: max(1, len(voxels) // _SAMPLE)]
    signal = scan.volumes[np.ix_(shell.volumes, voxels)]
    moments = (signal @ signal.T).astype(float)
    basis = sh_basis(scan.gradients.directions[shell.volumes], order)
    scores = [_cross_validation(basis, moments, _roughness(order) * p) for p in _PENALTIES]
    return float(_PENALTIES[int(np.argmin(scores))])


def _cross_validation(basis: Array, moments: Array, roughness: Array) -> float:
    hat = basis @ np.linalg.solve(basis.T @ basis + roughness, basis.T)
    residual = np.eye(len(hat)) - hat
    return float(np.sum((residual @ moments) * residual) / np.trace(residual) ** 2)


def _roughness(order: int) -> Array:
    degrees = coefficient_orders(order).astype(float)
    return np.diag((degrees * (degrees + 1)) ** 2)


def _apply(scan: Scan, shells: tuple[Shell, ...], matrices: list[Array]) -> Array:
    """Multiply each shell's signal by its matrix, block by block of neighbouring voxels."""
    volumes = scan.volumes
    inside = scan.mask.T.ravel()
    b0 = np.flatnonzero(scan.gradients.is_b0)
    values = np.empty((len(scan.voxels), 1 + sum(len(m) for m in matrices)), dtype=np.float32)
    filled = 0
    for start in range(0, len(inside), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows = values[filled : filled + np.count_nonzero(inside[block])]
        filled += len(rows)
        rows[:, 0] = _masked(volumes[b0, block], inside[block]).mean(axis=0)
        column = 1
        for shell, matrix in zip(shells, matrices, strict=True):
            signal = _masked(volumes[shell.volumes, block], inside[block])
            np.matmul(signal.T, matrix.T, out=rows[:, column : column + len(matrix)])
            column += len(matrix)
    return values


def _masked(signal: Array, inside: Array) -> Array:
    return signal if inside.all() else signal[:, inside]
