"""Fit models that are linear in the logarithm of the signal to many voxels at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from siteless.acquisition import Array

# Smallest signal of which a logarithm is taken, as in DIPY.
_LEAST_SIGNAL = 1e-4
# Regularizes under-determined directions; negligible compared with the data.
_RIDGE = 1e-12
# Smallest decay from which a diffusivity can be estimated, as in DIPY.
_LEAST_DECAY = 1e-6


@dataclass(frozen=True, eq=False)
class LogLinear:
    """A linear model of the log signal: a tensor, or a tensor and its kurtosis.

    The design matrix, shape (volume, parameter), has the six tensor elements first, in DIPY's
    order.
    """

    design: Array

    def fit(self, signal: Array) -> Array:
        """Return parameters, (voxel, parameter), of the signal, (voxel, volume).

        Least squares are weighted by the squared signal of an unweighted fit.
        """
        logs = np.log(np.maximum(signal, _LEAST_SIGNAL))
        expected = logs @ self._projection
        weights = np.exp(2 * (expected - expected.max(axis=1, keepdims=True)))
        squares = self._weighted_squares(weights)
        # Where the signal has decayed, weights nearly vanish: equations are scaled to unit
        # diagonal.
        sizes = np.sqrt(np.einsum("vnn->vn", squares))
        sizes[sizes == 0] = 1  # coplanar directions leave an element undetermined
        squares /= sizes[:, :, None] * sizes[:, None]
        squares += _RIDGE * np.eye(sizes.shape[1])
        moments = (weights * logs) @ self.design / sizes
        return np.linalg.solve(squares, moments[..., None])[..., 0] / sizes

    def frame(self, numbers: Array) -> tuple[Array, Array]:
        """Return eigenvalues and eigenvectors of the tensors, given parameters from `fit`.

        Eigenvalues have shape (voxel, 3), descending, mm2/s, above zero; eigenvectors are columns,
        shape (voxel, 3, 3).
        """
        from dipy.reconst.dti import from_lower_triangular

        values, vectors = np.linalg.eigh(from_lower_triangular(numbers[:, :6]))
        least = _LEAST_DECAY / -self.design.min()
        return np.maximum(values[:, ::-1], least), vectors[..., ::-1]

    @cached_property
    def _projection(self) -> Array:
        """Projection of the log signal to an unweighted fit, shape (volume, volume)."""
        return self.design @ np.linalg.pinv(self.design)

    def _weighted_squares(self, weights: Array) -> Array:
        """Return X'WX, shape (voxel, parameter, parameter), by computing one triangle."""
        count = self.design.shape[1]
        rows, columns = np.triu_indices(count)
        place = np.empty((count, count), dtype=int)
        place[rows, columns] = place[columns, rows] = np.arange(len(rows))
        return (weights @ (self.design[:, rows] * self.design[:, columns]))[:, place]
