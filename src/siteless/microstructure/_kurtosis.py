"""Compute the mean kurtosis of many voxels at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.microstructure._log_linear import LogLinear

_BLOCK = 1024


def mean_kurtosis(signal: Array, table: Any) -> Array:
    """Fit the kurtosis model by weighted least squares and return the mean kurtosis.

    The signal has shape (voxel, volume); the DIPY table has b0 and at least two shells. The mean,
    shape (voxel,), is unbounded, and zero where an eigenvalue is zero.
    """
    from dipy.reconst import dki
    from dipy.reconst.utils import dki_design_matrix

    model = LogLinear(dki_design_matrix(table))
    kurtosis = np.empty(len(signal))
    for start in range(0, len(signal), _BLOCK):
        block = slice(start, start + _BLOCK)
        numbers = model.fit(signal[block].astype(float))
        values, vectors = model.frame(numbers)
        elements = numbers[:, 6:21] / np.square(values.mean(axis=1, keepdims=True))
        fitted = np.hstack([values, vectors.reshape(-1, 9), elements])
        kurtosis[block] = dki.mean_kurtosis(fitted, min_kurtosis=None, max_kurtosis=None)
    return kurtosis
