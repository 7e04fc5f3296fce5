"""The expected magnitude of each volume, with little noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients, projection_matrix
from siteless.neighbourhood import diffuse

# mm2. Blur of the coefficients: nearby voxels of a tissue are alike, and share no noise.
_BLUR = 4.0
# Voxels for which all volumes are in memory.
_BLOCK = 16_384


@dataclass(frozen=True, eq=False)
class ExpectedMagnitudes:
    """The mean magnitudes of a scan's brain voxels over repetitions of the noise.

    Attributes
    ----------
    values
        Coefficients averaged over nearby voxels, shape (voxel, channel).
    mixing
        Matrix from coefficients to volumes, shape (channel, volume).
    """

    values: Array
    mixing: Array

    @classmethod
    def of(cls, scan: Scan, coefficients: Coefficients) -> Self:
        """Estimate the mean magnitudes from a scan's coefficients."""
        values = diffuse(coefficients.values, scan.mask, scan.voxel_size, _BLUR)
        bs, order = coefficients.bs, coefficients.order
        return cls(values, projection_matrix(scan.gradients, bs=bs, order=order))

    def blocks(
        self, rows: Array, volumes: slice | Array = slice(None)
    ) -> Iterator[tuple[Array, Array]]:
        """Yield some brain voxels and their mean magnitudes, (volume, voxel), block by block."""
        mixing = self.mixing[:, volumes].T
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            yield block, mixing @ self.values[block].T
