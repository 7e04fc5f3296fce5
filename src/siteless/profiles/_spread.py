"""Blurring of voxels within a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.special import ive

from siteless.acquisition import Array
from siteless.patches import index_neighbours

# Of the series of the exponential; for a step of norm one the next term is 1 / 9!.
_TERMS = 8


def diffuse(values: Array, mask: Array, voxel_size: Array, variance: float) -> Array:
    """Blur voxels by a point spread of a variance, mm2 along each axis.

    Heat is let flow between the voxels of the mask: exp(variance / 2 L) of their values, where L
    is the Laplacian of the grid. Far from the border that is the discrete Gaussian, which adds
    variances exactly, even where it is narrower than a voxel; nothing flows over the border, so
    that sums stay.

    Parameters
    ----------
    values
        Shape (voxel, channel), the voxels in the order of `Coefficients`.
    mask
        Shape (x, y, z), bool.
    voxel_size
        Shape (3,), mm.
    variance
        Zero or more.
    """
    if not variance:
        return values
    flow = _laplacian(mask, voxel_size) * np.float32(variance / 2)
    steps = math.ceil(np.abs(flow.diagonal()).max() * 2)
    blurred = values
    for _ in range(steps):
        term = blurred
        for power in range(1, _TERMS + 1):
            term = (flow @ term) * np.float32(1 / (steps * power))
            blurred = blurred + term
    return blurred


def covariance_of_noise(variance: float, voxel_size: Array, lags: Sequence[int]) -> Array:
    """Return the covariance that white noise of variance one has after `diffuse`.

    Parameters
    ----------
    variance
        That noise was blurred by, mm2.
    voxel_size
        Shape (3,), mm.
    lags
        In voxels.

    Returns
    -------
    Array
        Between voxels that lie so far apart along an axis, shape (axis, lag).
    """
    # A kernel's autocorrelation is the kernel of twice the variance.
    kernels = ive([0, *lags], 2 * variance / np.square(voxel_size)[:, None])
    own, other = kernels[:, 0], kernels[:, 1:]
    covariances: Array = other * (own.prod() / own)[:, None]
    return covariances


def _laplacian(mask: Array, voxel_size: Array) -> sparse.csr_array:
    """Return the Laplacian of a mask's voxels, in 1 / mm2; neighbours outside are the centre."""
    neighbours = index_neighbours(mask)
    count = len(neighbours)
    weights = np.repeat(1 / np.square(voxel_size), 2)  # two neighbours along each axis
    entries = np.concatenate([[-weights.sum()], weights]).astype(np.float32)
    rows = np.repeat(np.arange(count, dtype=np.int32), len(entries))
    return sparse.csr_array(
        (np.tile(entries, count), (rows, neighbours.ravel())), shape=(count, count)
    )
