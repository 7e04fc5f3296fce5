"""Whether a voxel is like those that a model has learned from.

A voxel is described by its mean b0 and by each shell's rotation-invariant energies, as logarithms
and in units of the scan's level. How far it is from the training voxels of its site is
Mahalanobis's distance. The signal is judged, not its code: an encoder may not see what it has not
learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array
from siteless.harmonics import Channels

# Part of the training voxels that lie beyond the limit.
RARE = 1e-3
# Degrees 0, 2 and 4: higher ones are mostly noise.
_DEGREES = 3
# Below these parts of the scan's level there is noise alone.
_DARK = 1e-3
# Keeps a feature that hardly varies from deciding: a variance of logarithms.
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Typical:
    """How the training voxels of a site are distributed.

    Attributes
    ----------
    mean
        Of each feature.
    precision
        Inverse of the features' covariance, a row for each.
    limit
        Distance that all but one voxel in a thousand of the training scans are below.
    """

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    limit: float

    @classmethod
    def of(cls, samples: Sequence[Array], order: int) -> Self:
        """Learn from voxels' coefficients, shape (voxel, channel) each, in units of the level."""
        features = np.concatenate([_features(values, order) for values in samples])
        mean, ridge = features.mean(axis=0), _LEAST_VARIANCE * np.eye(features.shape[1])
        precision = np.linalg.inv(np.cov(features.T) + ridge)
        limit = float(np.quantile(_distance(features - mean, precision), 1 - RARE))
        return cls(tuple(mean.tolist()), tuple(map(tuple, precision.tolist())), limit)

    def is_unlike(self, values: Array, order: int) -> Array:
        """Whether voxels with these coefficients are beyond the limit, shape (voxel,), bool."""
        offset = _features(values, order) - np.array(self.mean)
        return _distance(offset, np.array(self.precision)) > self.limit


def _features(values: Array, order: int) -> Array:
    """Return logarithms of amplitudes, shape (voxel, 1 + shell * degree)."""
    energies = Channels.of(values, order).energies(values)[:, :, :_DEGREES]
    amplitudes = np.sqrt(energies.reshape(len(values), -1))
    features = np.column_stack([values[:, 0], amplitudes]).astype(float)
    return np.log(np.maximum(features, _DARK))


def _distance(offset: Array, precision: Array) -> Array:
    """Return Mahalanobis's distance of each row, shape (voxel,)."""
    return np.sqrt(np.einsum("vi,vi->v", offset @ precision, offset))
