"""The expected magnitude of each volume, with little noise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients, projection_matrix
from siteless.neighbourhood import diffuse

# mm2. Blur of the coefficients: nearby voxels of a tissue are alike, and share no noise.
_BLUR = 4.0
# Voxels for which all volumes are in memory.
_BLOCK = 16_384


def expected_magnitudes(
    scan: Scan, coefficients: Coefficients, every: int = 1
) -> Iterator[tuple[Array, Array]]:
    """Yield brain voxels and their expected magnitudes, (volume, voxel), block by block.

    Voxels are rows of the coefficients; only `every` so many are taken.
    """
    values = diffuse(coefficients.values, scan.mask, scan.voxel_size, _BLUR)
    bs, order = coefficients.bs, coefficients.order
    mixing = projection_matrix(scan.gradients, bs=bs, order=order)
    rows = np.arange(0, len(values), every)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        yield block, mixing.T @ values[block].T
