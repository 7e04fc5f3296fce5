"""Signal errors: in voxels, and in blocks where noise averages out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from siteless.acquisition import Array, GradientTable, Scan
from siteless.harmonics import fit_coefficients, fit_noise, project

# Size of a block, mm, and its least number of voxels.
BLOCK, LEAST_VOXELS = 10.0, 8
# Tolerances of equal measurements: degrees between directions, s/mm2 between b-values.
_SAME_DIRECTION, _SAME_B = 0.1, 5.0
# s/mm2. Names of shells are rounded to this.
_ROUND = 50


def match_volumes(scan: Scan, gradients: GradientTable) -> Scan:
    """Return a scan at the measurements of a gradient table, whose shells it must have.

    A scan with these measurements is unchanged. Otherwise harmonics are fitted to each shell and
    projected, each b0 is the mean b0, and the signal outside the brain is zero.
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
    """Return at most `most` evenly spaced voxels, along the first axis."""
    chosen = np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int)
    return values[chosen]


def volume_groups(gradients: GradientTable) -> dict[str, Array]:
    """Return the volumes of b0 and of each shell by name, such as ``b0`` and ``b1200``.

    Names are rounded, so that similar b-values have the same name.
    """
    shells = {f"b{_ROUND * round(s.b / _ROUND)}": s.volumes for s in gradients.shells}
    if len(shells) < len(gradients.shells):
        shells = {f"b{shell.b:.0f}": shell.volumes for shell in gradients.shells}
    return {"b0": np.flatnonzero(gradients.is_b0), **shells}


def voxel_rmse(signal: Array, expected: Array) -> Array:
    """Return each voxel's root mean square error over volumes, the last axis."""
    return np.sqrt(np.square(signal - expected).mean(axis=-1))


def block_means(where: Array, voxel_size: Array) -> sparse.csr_array:
    """Return means over blocks of 10 mm as a matrix, shape (block, voxel).

    Voxels are those of a mask, shape (x, y, z), in the order of ``values[where]``; blocks with few
    of them are left out. The voxel size is in mm.
    """
    places = np.argwhere(where) * voxel_size // BLOCK
    _, block, count = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    block = block.ravel()
    means = sparse.csr_array((1 / count[block], (block, np.arange(len(block)))))
    return means[np.flatnonzero(count >= LEAST_VOXELS)]


def anisotropy(blocks: Array, groups: Mapping[str, Array]) -> float:
    """Return the standard deviation of the strongest shell over directions, relative to b0.

    It is computed from block means, shape (block, volume), in which noise averages out: noise
    would add to the standard deviation of single voxels.
    """
    b0, *_, strongest = groups.values()
    return float(blocks[:, strongest].std(axis=1).mean() / blocks[:, b0].mean())


def noise_level(scan: Scan, where: Array) -> float:
    """Estimate the standard deviation of a scan's noise in a mask, shape (x, y, z).

    It is estimated from differences between b0 volumes, or with a single one from residuals of
    harmonics, which overestimate it if there are few directions.
    """
    b0 = scan.signal[..., scan.gradients.is_b0][where]
    if b0.shape[1] > 1:
        variance = b0.var(axis=1, ddof=1, dtype=float)
    else:
        fitted = fit_noise(scan, fit_coefficients(scan)).variance.mean(axis=1)
        variance = fitted[where.T[scan.mask.T]].astype(float)
    return float(np.sqrt(max(variance.mean(), 0)))
