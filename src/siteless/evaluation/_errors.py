"""How far a map is from another, relative to it."""

from __future__ import annotations

import numpy as np

from siteless.acquisition import Array

# Of the mean: below it a voxel's own value is no measure of its error.
FLOOR = 0.1


def relative_errors(estimated: Array, observed: Array) -> dict[str, float]:
    """Return the errors of the paper, with what keeps voxels near zero from ruling them.

    Parameters
    ----------
    estimated, observed
        Shape (voxel,).

    Returns
    -------
    dict
        ``pe``, the mean of (estimated - observed) / observed; ``ape``, of its size; the medians of
        both; ``ape_floored``, where observed counts at least as a tenth of its mean; and ``cv``,
        the root mean square of estimated - observed over the mean of observed. Voxels of observed
        zero count in the last two alone: elsewhere they have no value.

    Examples
    --------
    >>> relative_errors(np.array([1.5, 1.5, 1.0]), np.array([1.0, 2.0, 0.0]))
    {'pe': 0.125, 'ape': 0.375, ..., 'ape_floored': 3.58..., 'cv': 0.70...}
    """
    estimated, observed = (np.asarray(one, dtype=float) for one in (estimated, observed))
    difference, mean = estimated - observed, observed.mean()
    lit = observed != 0
    relative = difference[lit] / observed[lit] if lit.any() else np.array([np.nan])
    floored = np.maximum(np.abs(observed), FLOOR * abs(mean))
    with np.errstate(divide="ignore", invalid="ignore"):  # a map of nothing but zeros
        return {
            "pe": float(relative.mean()),
            "ape": float(np.abs(relative).mean()),
            "pe_median": float(np.median(relative)),
            "ape_median": float(np.median(np.abs(relative))),
            "ape_floored": float((np.abs(difference) / floored).mean()),
            "cv": float(np.sqrt(np.square(difference).mean()) / mean),
        }
