"""Relative errors between maps."""

from __future__ import annotations

import numpy as np

from siteless.acquisition import Array

# Fraction of the mean below which a voxel's value is not a meaningful scale of its error.
FLOOR = 0.1


def relative_errors(estimated: Array, observed: Array) -> dict[str, float]:
    """Return the errors of the paper, and variants that are robust to voxels near zero.

    Parameters
    ----------
    estimated, observed
        Maps, shape (voxel,).

    Returns
    -------
    dict
        ``pe``, the mean of (estimated - observed) / observed; ``ape``, of its absolute value; the
        medians of both; ``ape_floored``, where observed is at least a tenth of its mean; and
        ``cv``, the root mean square of estimated - observed over the mean of observed. Voxels
        where observed is zero count only in the last two.

    Examples
    --------
    >>> relative_errors(np.array([1.5, 1.5, 1.0]), np.array([1.0, 2.0, 0.0]))
    {'pe': 0.125, 'ape': 0.375, ..., 'ape_floored': 3.58..., 'cv': 0.70...}
    """
    estimated, observed = (np.asarray(values, dtype=float) for values in (estimated, observed))
    difference, mean = estimated - observed, observed.mean()
    lit = observed != 0
    relative = difference[lit] / observed[lit] if lit.any() else np.array([np.nan])
    floored = np.maximum(np.abs(observed), FLOOR * abs(mean))
    with np.errstate(divide="ignore", invalid="ignore"):  # a map of zeros
        return {
            "pe": float(relative.mean()),
            "ape": float(np.abs(relative).mean()),
            "pe_median": float(np.median(relative)),
            "ape_median": float(np.median(np.abs(relative))),
            "ape_floored": float((np.abs(difference) / floored).mean()),
            "cv": float(np.sqrt(np.square(difference).mean()) / mean),
        }
