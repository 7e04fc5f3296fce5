"""Detect voxels that are out-of-distribution for a model.

A voxel is described by its mean b0 and by each shell's rotation-invariant energies, as logarithms
in units of the scan's level. Its Mahalanobis distance to the training voxels of its site is
compared with a limit. The signal is tested rather than its latent code, as an encoder may ignore
features it was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array
from siteless.harmonics import Channels

# Fraction of the training voxels beyond the limit.
RARE = 1e-3
# Degrees 0, 2 and 4; higher ones are mostly noise.
_DEGREES = 3
# Amplitudes below this fraction of the scan's level are noise.
_DARK = 1e-3
# Added to variances of logarithms, so that a nearly constant feature does not dominate.
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Typical:
    """The distribution of a site's training voxels.

    Attributes
    ----------
    mean
        Mean of each feature.
    precision
        Inverse covariance of the features, by rows.
    limit
        Distance that one in a thousand training voxels exceeds.
    """

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    limit: float

    @classmethod
    def of(cls, samples: Sequence[Array], order: int) -> Self:
        """Estimate from coefficients in units of the level, shape (voxel, channel) each."""
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
    """Return log amplitudes, shape (voxel, 1 + shell * degree)."""
    energies = Channels.of(values, order).energies(values)[:, :, :_DEGREES]
    amplitudes = np.sqrt(energies.reshape(len(values), -1))
    features = np.column_stack([values[:, 0], amplitudes]).astype(float)
    return np.log(np.maximum(features, _DARK))


def _distance(offset: Array, precision: Array) -> Array:
    """Return the Mahalanobis distance of each row, shape (voxel,)."""
    return np.sqrt(np.einsum("vi,vi->v", offset @ precision, offset))
