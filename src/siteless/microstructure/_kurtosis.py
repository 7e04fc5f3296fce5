"""Compute the mean kurtosis of many voxels at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.microstructure._log_linear import LogLinear

_BLOCK = 1024


def mean_kurtosis(signal: Array, table: Any) -> Array:
    """Fit the kurtosis model by weighted least squares and return the mean kurtosis.

    Parameters
    ----------
    signal
        Diffusion signal, shape (voxel, volume).
    table
        DIPY gradient table with b0 and at least two shells.

    Returns
    -------
    Array
        Mean kurtosis, shape (voxel,), unbounded; zero where an eigenvalue is zero.
    """
    from dipy.reconst import dki
    from dipy.reconst.utils import dki_design_matrix

    model = LogLinear(dki_design_matrix(table))
    kurtosis = np.empty(len(signal))
    for start in range(0, len(signal), _BLOCK):
        block = slice(start, start + _BLOCK)
        fitted = _dipy_parameters(model, model.fit(signal[block].astype(float)))
        kurtosis[block] = dki.mean_kurtosis(fitted, min_kurtosis=None, max_kurtosis=None)
    return kurtosis


def _dipy_parameters(model: LogLinear, numbers: Array) -> Array:
    """Return eigenvalues, eigenvectors and kurtosis tensor, shape (voxel, 27)."""
    values, vectors = model.frame(numbers)
    kurtosis = numbers[:, 6:21] / np.square(values.mean(axis=1, keepdims=True))
    return np.hstack([values, vectors.reshape(-1, 9), kurtosis])
