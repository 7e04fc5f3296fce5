"""Models that are linear in the logarithm of the signal, fitted to many voxels at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from siteless.acquisition import Array

# In units of the signal, as DIPY has it: the logarithm of less is that of this.
_LEAST_SIGNAL = 1e-4
# Keeps equations solvable where directions do not tell all numbers; far below what data tell.
_RIDGE = 1e-12
# As DIPY has it: of a diffusion so slow that no volume decays by more, nothing is known.
_LEAST_DECAY = 1e-6


@dataclass(frozen=True, eq=False)
class LogLinear:
    """A model of the signal's logarithm: of a tensor, or of a tensor and its kurtosis.

    Attributes
    ----------
    design
        Shape (volume, number), the tensor's six numbers first, in DIPY's order.
    """

    design: Array

    def fit(self, signal: Array) -> Array:
        """Fit by least squares, weighted by the square of what an unweighted fit expects.

        Parameters
        ----------
        signal
            Shape (voxel, volume).

        Returns
        -------
        Array
            Shape (voxel, number), in the units of the design.
        """
        logs = np.log(np.maximum(signal, _LEAST_SIGNAL))
        expected = logs @ self._projection
        weights = np.exp(2 * (expected - expected.max(axis=1, keepdims=True)))
        squares = self._weighted_squares(weights)
        # Where the signal is all but gone, so are the weights: numbers are of very unequal size.
        sizes = np.sqrt(np.einsum("vnn->vn", squares))
        sizes[sizes == 0] = 1  # directions in a plane do not see across it
        squares /= sizes[:, :, None] * sizes[:, None]
        squares += _RIDGE * np.eye(sizes.shape[1])
        moments = (weights * logs) @ self.design / sizes
        return np.linalg.solve(squares, moments[..., None])[..., 0] / sizes

    def frame(self, numbers: Array) -> tuple[Array, Array]:
        """Return eigenvalues and eigenvectors of the fitted tensors.

        Parameters
        ----------
        numbers
            Shape (voxel, number), of a fit.

        Returns
        -------
        tuple
            Shape (voxel, 3), descending, mm2/s, all above zero; and (voxel, 3, 3), columns.
        """
        from dipy.reconst.dti import from_lower_triangular

        values, vectors = np.linalg.eigh(from_lower_triangular(numbers[:, :6]))
        least = _LEAST_DECAY / -self.design.min()
        return np.maximum(values[:, ::-1], least), vectors[..., ::-1]

    @cached_property
    def _projection(self) -> Array:
        """From logarithms to those of an unweighted fit, shape (volume, volume)."""
        return self.design @ np.linalg.pinv(self.design)

    def _weighted_squares(self, weights: Array) -> Array:
        """Return X'WX, shape (voxel, number, number), of which half is computed."""
        count = self.design.shape[1]
        rows, columns = np.triu_indices(count)
        place = np.empty((count, count), dtype=int)
        place[rows, columns] = place[columns, rows] = np.arange(len(rows))
        return (weights @ (self.design[:, rows] * self.design[:, columns]))[:, place]
