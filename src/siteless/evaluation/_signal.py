"""How far signal is from another: voxel by voxel, and where noise has averaged out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from siteless.acquisition import Array, GradientTable, Scan
from siteless.harmonics import fit_coefficients, fit_noise, project

# mm, and voxels that a block must have.
BLOCK, LEAST_VOXELS = 10.0, 8
# Directions that differ by less, in degrees, and b-values, in s/mm2, are the same measurement.
_SAME_DIRECTION, _SAME_B = 0.1, 5.0
# s/mm2, that names of shells are rounded to.
_ROUND = 50


def match_volumes(scan: Scan, gradients: GradientTable) -> Scan:
    """Return a scan at the measurements of a table: as it is where they are its own.

    Otherwise harmonics are fitted to each shell and projected, each b0 is their mean, and signal
    outside the brain is zero.

    Raises
    ------
    GradientTableError
        When the table has a shell that the scan does not have.
    """
    if same_measurements(scan.gradients, gradients):
        return scan
    fitted = fit_coefficients(scan)
    signal = fitted.on_grid(project(fitted, gradients))
    return scan.with_signal(signal, gradients=gradients)


def same_measurements(first: GradientTable, second: GradientTable) -> bool:
    """Whether two tables have the same b-values and directions, volume by volume."""
    if len(first) != len(second) or (first.is_b0 != second.is_b0).any():
        return False
    weighted = ~first.is_b0
    cosines = np.abs((first.directions * second.directions).sum(axis=1))[weighted]
    near = cosines >= np.cos(np.radians(_SAME_DIRECTION))
    return bool(near.all() and np.allclose(first.b[weighted], second.b[weighted], atol=_SAME_B))


def evenly_spaced(values: Array, most: int) -> Array:
    """Return at most so many voxels, the first axis, evenly spaced."""
    chosen = np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int)
    return values[chosen]


def volume_groups(gradients: GradientTable) -> dict[str, Array]:
    """Return the volumes of b0 and of each shell, by name: ``b0``, ``b1200``.

    Names are rounded, so that a shell has the same in scans whose b-values differ a little.
    """
    shells = {f"b{_ROUND * round(s.b / _ROUND)}": s.volumes for s in gradients.shells}
    if len(shells) < len(gradients.shells):
        shells = {f"b{shell.b:.0f}": shell.volumes for shell in gradients.shells}
    return {"b0": np.flatnonzero(gradients.is_b0), **shells}


def voxel_rmse(given: Array, expected: Array) -> Array:
    """Return each voxel's root mean square error over volumes, the last axis."""
    return np.sqrt(np.square(given - expected).mean(axis=-1))


def block_means(where: Array, voxel_size: Array) -> sparse.csr_array:
    """Return means over blocks of 10 mm as a matrix, shape (block, voxel).

    Parameters
    ----------
    where
        Voxels, shape (x, y, z), bool; blocks with few of them are left out. They follow each
        other as in ``values[where]``.
    voxel_size
        Shape (3,), mm.
    """
    places = np.argwhere(where) * voxel_size // BLOCK
    _, block, count = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    block = block.ravel()
    means = sparse.csr_array((1 / count[block], (block, np.arange(len(block)))))
    return means[np.flatnonzero(count >= LEAST_VOXELS)]


def anisotropy(blocks: Array, groups: Mapping[str, Array]) -> float:
    """Return how much the strongest shell of block means differs between directions, over b0.

    Blocks hold enough voxels for noise to average out of the signal first: the spread of a noisy
    voxel's directions would be that of its noise too.

    Parameters
    ----------
    blocks
        Shape (block, volume).
    groups
        As `volume_groups` returns them.
    """
    b0, *_, strongest = groups.values()
    return float(blocks[:, strongest].std(axis=1).mean() / blocks[:, b0].mean())


def noise_level(scan: Scan, where: Array) -> float:
    """Estimate the standard deviation of a scan's noise in some voxels, shape (x, y, z).

    From how b0 volumes differ, when there are several; else from what harmonics leave over, which
    is too much where directions are few.
    """
    b0 = scan.signal[..., scan.gradients.is_b0][where]
    if b0.shape[1] > 1:
        variance = b0.var(axis=1, ddof=1, dtype=float)
    else:
        fitted = fit_noise(scan, fit_coefficients(scan)).variance.mean(axis=1)
        variance = fitted[where.T[scan.mask.T]].astype(float)
    return float(np.sqrt(max(variance.mean(), 0)))
