"""The atlas that is deformed into every simulated person.

Tissue comes from the MNI152 maps that nilearn ships. Fibres are the field lines of harmonic
potentials, like a current through a conductor between two electrodes. The potential is fixed at
two ends of a fibre system, and white matter between them conducts. Its gradient passes through
bottlenecks, such as the callosum and the internal capsule, and fans out to the cortex. Three
systems give up to three fibre populations per voxel.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse.linalg import cg
from threadpoolctl import threadpool_limits

from siteless.acquisition import Array

SYSTEMS = ("commissural", "projection", "association")
# Density of each system in typical white matter, so that the corona radiata is not dominated by
# the callosum where they cross.
_STRENGTH = (1.0, 2.0, 1.0)
# mm. Resolution of the potentials; that of the tissue maps is 1 mm.
_RESOLUTION = 2


@dataclass(frozen=True, eq=False)
class Atlas:
    """Tissue and fibres in MNI152 space; affines are from voxels to MNI152 mm, shape (4, 4)."""

    # Fractions of white matter, grey matter and fluid, shape (x, y, z, 3), at 1 mm; they sum to
    # one in the brain and to zero outside.
    tissue: Array
    tissue_affine: Array
    flux: Array  # direction times density of each fibre system, shape (x, y, z, system, 3)
    flux_affine: Array


@cache
def load_atlas() -> Atlas:
    """Read the tissue maps and solve for the fibres; the result is cached."""
    tissue, tissue_affine = _read_tissue()
    coarse, affine = _coarser(tissue, tissue_affine)
    with threadpool_limits(1):  # sums over several threads round differently
        fields = [_flux(*ends) for ends in _fibre_systems(coarse, affine)]
    white = coarse[..., 0] > 0.3
    lengths = [np.linalg.norm(field, axis=-1) for field in fields]
    typical = [np.median(length[white & (length > 0)]) for length in lengths]
    scales = np.divide(_STRENGTH, typical)
    flux = _fill(np.stack(fields, axis=3) * scales[:, None], ~white)
    return Atlas(tissue, tissue_affine, flux.astype(np.float32), affine)


def _read_tissue() -> tuple[Array, Array]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nilearn warns of future versions
        from nilearn import datasets

        white = datasets.load_mni152_wm_template(resolution=1)
        grey = datasets.load_mni152_gm_template(resolution=1)
        brain = datasets.load_mni152_brain_mask(resolution=1)
    parts = np.stack([image.get_fdata(dtype=np.float32) for image in (white, grey)], axis=-1)
    parts /= np.maximum(parts.sum(axis=-1, keepdims=True), 1)
    fluid = 1 - parts.sum(axis=-1, keepdims=True)
    inside = brain.get_fdata()[..., None] > 0
    return np.where(inside, np.concatenate([parts, fluid], axis=-1), 0), white.affine


def _coarser(maps: Array, affine: Array) -> tuple[Array, Array]:
    """Average maps of shape (x, y, z, map) over blocks of voxels."""
    n = _RESOLUTION
    x, y, z = (size // n for size in maps.shape[:3])
    blocks = maps[: x * n, : y * n, : z * n].reshape(x, n, y, n, z, n, -1)
    moved = affine.copy()
    moved[:3, :3] *= n
    moved[:3, 3] += affine[:3, :3] @ np.full(3, (n - 1) / 2)
    return blocks.mean(axis=(1, 3, 5)), moved


def _fibre_systems(tissue: Array, affine: Array) -> list[tuple[Array, Array, Array]]:
    """Return each system's conductance and its two ends, in MNI152 mm anatomy."""
    grid = np.moveaxis(np.indices(tissue.shape[:3]), 0, -1)
    x, y, z = np.moveaxis(grid @ affine[:3, :3].T + affine[:3, 3], -1, 0)
    white = tissue[..., 0]
    brain = tissue.sum(axis=-1) > 0
    cortex = (white > 0.4) & (white < 0.9) & (ndimage.gaussian_filter(tissue[..., 1], 1) > 0.35)
    stem = brain & (z < -8) & (np.abs(x) < 16) & (y < -10) & (y > -46)
    cerebellum = (z < -12) & ((y < -46) | (np.abs(x) > 14) & (y < -36))
    conducting = np.where(white > 0.1, white**2, 0)

    # Only the callosum crosses the midline.
    across = conducting * (z > -16) * ~((np.abs(x) < 4) & (z < 3))
    hemisphere = cortex & (np.abs(x) > 12)
    # From the brain stem, which is half grey in the maps, up to the cortex of each side.
    upward = np.maximum(conducting, 0.3 * stem) * ~cerebellum * ~((np.abs(x) < 2.1) & (z > -4))
    forward = conducting * ~stem * ~cerebellum * (np.abs(x) > 10)
    return [
        (across, hemisphere & (x < 0), hemisphere & (x > 0)),
        (upward, (upward > 0) & (z < -56) & (np.abs(x) < 16), cortex & (z > 40)),
        (forward, cortex & (y < -70), cortex & (y > 35)),
    ]


def _flux(conductance: Array, start: Array, end: Array) -> Array:
    """Solve div(conductance grad potential) = 0, zero at the start and one at the end.

    Returns the gradient times the root of the conductance, shape (x, y, z, 3).
    """
    inside = conductance > 0
    fixed = (start | end)[inside]
    potential = end[inside].astype(float)
    laplacian = _laplacian(conductance)
    free = laplacian[~fixed][:, ~fixed] + sparse.identity(int((~fixed).sum())) * 1e-8
    solution, failed = cg(
        free,
        -laplacian[~fixed][:, fixed] @ potential[fixed],
        rtol=1e-8,
        maxiter=5000,
        M=sparse.diags(1 / free.diagonal()),
    )
    if failed:
        raise RuntimeError("the fibre potentials did not converge")
    potential[~fixed] = solution
    grid = np.full(conductance.shape, np.nan)
    grid[inside] = potential
    return _gradient(grid) * np.sqrt(conductance)[..., None]


def _laplacian(conductance: Array) -> sparse.csr_matrix:
    """Return the graph Laplacian of the conducting voxels and their face neighbours."""
    inside = conductance > 0
    number = np.full(conductance.shape, -1)
    number[inside] = np.arange(inside.sum())
    rows, columns, weights = [], [], []
    for axis in range(3):
        first, second = _neighbours(number, axis)
        both = (first >= 0) & (second >= 0)
        weight = np.minimum(*_neighbours(conductance, axis))
        rows.append(first[both])
        columns.append(second[both])
        weights.append(weight[both])
    edges = (np.concatenate(rows), np.concatenate(columns))
    size = int(inside.sum())
    one_way = sparse.coo_matrix((np.concatenate(weights), edges), shape=(size, size))
    adjacency = (one_way + one_way.T).tocsr()
    return (sparse.diags(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency).tocsr()


def _gradient(potential: Array) -> Array:
    """Return differences along each axis between neighbours that are not NaN."""
    gradient = np.zeros((*potential.shape, 3))
    for axis in range(3):
        step = np.diff(potential, axis=axis)
        known = np.isfinite(step)
        total, count = np.zeros((2, *potential.shape))
        for steps, counts in zip(_neighbours(total, axis), _neighbours(count, axis), strict=True):
            steps += np.where(known, step, 0)
            counts += known
        gradient[..., axis] = total / np.maximum(count, 1)
    return gradient


def _neighbours(values: Array, axis: int) -> tuple[Array, Array]:
    """Return views of all voxels but the last, and of their next neighbours, along an axis."""
    moved = np.moveaxis(values, axis, 0)
    return np.moveaxis(moved[:-1], 0, axis), np.moveaxis(moved[1:], 0, axis)


def _fill(flux: Array, missing: Array) -> Array:
    """Replace the flux of missing voxels, and of those without fibres, by the nearest one."""
    empty = missing | (np.square(flux).sum(axis=(3, 4)) == 0)
    nearest = ndimage.distance_transform_edt(empty, return_distances=False, return_indices=True)
    return flux[tuple(nearest)]
