"""Return-to-origin probability by MAP-MRI: DIPY's fit, for many voxels at once.

The signal is a sum of products of Hermite functions along the axes of the voxel's tensor, scaled
by its eigenvalues, and is fitted with a penalty on its Laplacian. DIPY multiplies a function of
order n by i^-n; here the resulting signs are part of the constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.microstructure._log_linear import LogLinear

# Two or three shells do not support radial order 6: the RTOP of a noiseless Gaussian then has an
# error of up to 30 %. With order 4 and this Laplacian weight the error is at most 6 %.
_RADIAL_ORDER, _LAPLACIAN = 4, 0.05
# mm2/s. Smaller eigenvalues are raised to this, or to the largest if that is smaller.
_LEAST_DIFFUSIVITY = 1e-4
# Voxels per block, whose functions then stay in the cache.
_BLOCK = 256


@dataclass(frozen=True, eq=False)
class _Functions:
    """Constants of the products of Hermite functions."""

    orders: Array  # along each axis, shape (function, 3)
    without_weighting: Array  # values at b = 0, shape (function,)
    at_origin: Array  # return-to-origin probabilities for scales of 1/sqrt(2 pi)
    # Integrals of products of second derivatives along axes j and k, for scales of 1, shape
    # (3, 3, function, function).
    roughness: Array


def return_to_origin(signal: Array, table: Any) -> Array:
    """Fit MAP-MRI and return the return-to-origin probability, mm^-3.

    It has shape (voxel,), is that of a diffusion time of 1/(4 pi^2) s, and zero where there is no
    signal. The signal has shape (voxel, volume); the DIPY table has b0 and at least two shells.
    """
    from dipy.reconst.dti import design_matrix

    model, functions = LogLinear(design_matrix(table)), _functions()
    weighting = table.bvecs * np.sqrt(2 * table.bvals)[:, None]
    probability = np.empty(len(signal))
    for start in range(0, len(signal), _BLOCK):
        block = signal[start : start + _BLOCK].astype(float)
        diffusivities, axes = model.frame(model.fit(block))
        raised = np.minimum(np.maximum(diffusivities, _LEAST_DIFFUSIVITY), diffusivities[:, :1])
        x = (axes * np.sqrt(raised)[:, None]).swapaxes(1, 2) @ weighting.T
        scales = np.sqrt(raised / (2 * np.pi**2))
        probability[start : start + _BLOCK] = _return(block, x, scales, functions)
    return probability


def _return(signal: Array, x: Array, scales: Array, functions: _Functions) -> Array:
    """Fit functions with a penalty and return the return-to-origin probability.

    Arguments of the Hermite functions along each axis are `x`, shape (voxel, 3, volume), and
    `scales` are those of the axes, shape (voxel, 3), mm.
    """
    values = _evaluate(x, functions.orders)
    squares = np.square(scales)
    pairs = squares[:, :, None] * squares[:, None] / scales.prod(axis=1)[:, None, None]
    laplacian = np.tensordot(pairs, functions.roughness)
    normal = values @ values.swapaxes(1, 2) + _LAPLACIAN * laplacian
    coefficients = np.linalg.solve(normal, values @ signal[..., None])[..., 0]
    b0 = coefficients @ functions.without_weighting
    origin = coefficients @ functions.at_origin / ((2 * np.pi) ** 1.5 * scales.prod(axis=1))
    return np.divide(origin, b0, out=np.zeros_like(b0), where=b0 != 0)


def _evaluate(x: Array, orders: Array) -> Array:
    """Multiply Hermite functions of the three axes, shape (voxel, function, volume)."""
    x = np.ascontiguousarray(x.swapaxes(0, 1))
    hermite = [np.ones_like(x), np.sqrt(2) * x]
    for n in range(1, _RADIAL_ORDER):
        hermite.append(
            (np.sqrt(2) * x * hermite[n] - np.sqrt(n) * hermite[n - 1]) / np.sqrt(n + 1)
        )
    gaussian = np.exp(-np.square(x).sum(axis=0) / 2)
    first = [polynomial[0] * gaussian for polynomial in hermite]
    values = np.empty((x.shape[1], len(orders), x.shape[2]))
    for function, (i, j, k) in enumerate(orders):
        np.multiply(first[i] * hermite[j][1], hermite[k][2], out=values[:, function])
    return values


@cache
def _functions() -> _Functions:
    from dipy.reconst.mapmri import b_mat, mapmri_index_matrix

    orders = mapmri_index_matrix(_RADIAL_ORDER)
    signs, sizes = (-1.0) ** (orders.sum(axis=1) // 2), b_mat(orders)
    roughness = [[_derived_along(j, k, orders) for k in range(3)] for j in range(3)]
    return _Functions(orders, signs * sizes, sizes, np.outer(signs, signs) * roughness)


def _derived_along(j: int, k: int, orders: Array) -> Array:
    """Integrate products of second derivatives, along axis j and along axis k."""
    from dipy.reconst.mapmri import mapmri_STU_reg_matrices

    both, either, neither = mapmri_STU_reg_matrices(_RADIAL_ORDER)
    factors = [neither] * 3
    factors[j] = factors[k] = both if j == k else either
    pairs = zip(factors, orders.T, strict=True)
    return np.prod([integrals[n[:, None], n] for integrals, n in pairs], axis=0)
