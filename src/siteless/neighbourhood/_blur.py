"""Blur voxels within a mask."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ive

from siteless.acquisition import Array
from siteless.neighbourhood._neighbours import channel_blocks, index_neighbours, neighbour_means

# Smaller terms of the series do not change a float32.
_LEAST_TERM = 1e-8
# Smallest number of computed terms.
_FEW_TERMS = 12


def diffuse(values: Array, mask: Array, voxel_size: Array, variance: float) -> Array:
    """Blur voxels by a point-spread function of a variance, mm2 along each axis.

    The blur is diffusion within the mask, exp(variance / 2 L), where L is the Laplacian of the
    grid. Far from the border it is the discrete Gaussian, whose variances add exactly even if
    narrower than a voxel; nothing crosses the border, so sums are preserved. Values of the mask's
    voxels have the shape (voxel, channel), in the order of `Coefficients`; voxel sizes are in mm.
    """
    if not variance:
        return values
    weights = np.repeat(1 / np.square(voxel_size), 2)  # two neighbours along each axis
    # The Laplacian is d (M - 1), M the weighted mean of neighbours, whose eigenvalues are within
    # [-1, 1]; there exp(a (M - 1)) is a short series of Chebyshev polynomials of M.
    reach = variance / 2 * weights.sum()
    shares = (weights / weights.sum()).astype(np.float32)
    mean = neighbour_means(index_neighbours(mask)[:, 1:], shares)
    twice = mean * np.float32(2)
    terms = 2 * ive(np.arange(_FEW_TERMS + 4 * math.ceil(reach)), reach).astype(np.float32)
    further = terms[2:][terms[2:] > _LEAST_TERM]
    blurred = np.empty_like(values)
    for block in channel_blocks(values):
        before = np.ascontiguousarray(values[:, block])
        last = mean @ before
        total = before * (terms[0] / 2) + last * terms[1]
        for term in further:
            before, last = last, twice @ last - before
            total += last * term
        blurred[:, block] = total
    return blurred
