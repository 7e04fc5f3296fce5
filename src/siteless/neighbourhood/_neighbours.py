"""Patches: a voxel, its six face neighbours and, optionally, means of wider surroundings.

The coefficients and means of each voxel are stored once; a patch consists of row indices. A
neighbour outside the brain is replaced by the centre of the patch, which looks like more of the
same tissue. A row of zeros would look like no tissue at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from nibabel.orientations import io_orientation
from numpy.typing import ArrayLike
from scipy import sparse

from siteless.acquisition import Array

# Steps from a voxel to itself and its neighbours along the world axes (or the image axes, without
# an affine).
FACES: tuple[tuple[int, int, int], ...] = (
    (0, 0, 0),
    (-1, 0, 0),
    (1, 0, 0),
    (0, -1, 0),
    (0, 1, 0),
    (0, 0, -1),
    (0, 0, 1),
)
# Bytes to average per block: allocators reuse memory of up to 32 MiB, and fresh pages would take
# as long as the sums.
_BLOCK_BYTES = 24 * 2**20


def index_neighbours(mask: ArrayLike, affine: ArrayLike | None = None) -> Array:
    """Return the row indices of every voxel's neighbours.

    With an affine they follow the image axes nearest to the world axes, so that the storage order
    of a scan does not reveal its site.

    They are rows of `Coefficients.values`, shape (voxel, neighbour), int32.

    Examples
    --------
    Two voxels side by side along x; all other neighbours are outside and become the centre:

    >>> index_neighbours(np.ones((2, 1, 1), dtype=bool))
    array([[0, 0, 1, 0, 0, 0, 0],
           [1, 0, 1, 1, 1, 1, 1]], dtype=int32)
    """
    mask = np.pad(np.asarray(mask, dtype=bool), 1)
    rows = np.full(mask.shape, -1, dtype=np.int32, order="F")
    rows.T[mask.T] = np.arange(np.count_nonzero(mask), dtype=np.int32)
    z, y, x = np.nonzero(mask.T)
    steps = np.array(FACES) if affine is None else FACES @ _image_steps(affine)
    table = np.stack([rows[x + dx, y + dy, z + dz] for dx, dy, dz in steps], axis=1)
    return np.where(table < 0, table[:, :1], table)


def _image_steps(affine: ArrayLike) -> Array:
    """Return the image step nearest to each world axis, rows of (3, 3)."""
    steps = np.zeros((3, 3), dtype=int)
    for image_axis, (world_axis, sign) in enumerate(io_orientation(affine)):
        steps[int(world_axis), image_axis] = int(sign)
    return steps


def surrounded(
    values: Array, neighbours: Array, wanted: Array, passes: Sequence[int]
) -> tuple[Array, Array]:
    """Return patches with additional means of increasingly wide surroundings.

    In a pass every voxel becomes the mean of its patch; after n passes the mean has a variance of
    2 n / 7 squared voxels along each axis.

    Means are taken after each of the ascending numbers of `passes`. Returned are values, in which
    rows of means follow those of voxels, and neighbours of the patches of wanted voxels (a mask of
    shape (voxel,)), with one more column for each number.

    Examples
    --------
    >>> row = index_neighbours(np.ones((2, 1, 1), dtype=bool))
    >>> values, patches = surrounded(np.array([[0.0], [7.0]]), row, np.array([True, False]), [1])
    >>> cut(values, patches)[:, -1]
    array([[1.]])
    """
    patches = neighbours[wanted]
    if not passes:
        return values, patches
    size = neighbours.shape[1]
    mean = neighbour_means(neighbours, np.full(size, 1 / size, dtype=values.dtype))
    means = np.empty((len(passes), len(patches), values.shape[1]), dtype=values.dtype)
    for block in channel_blocks(values):
        blurred = np.ascontiguousarray(values[:, block])
        for number, (before, after) in enumerate(pairwise((0, *passes))):
            for _ in range(after - before):
                blurred = mean @ blurred
            means[number, :, block] = blurred[wanted]
    further = len(neighbours) + np.arange(len(passes) * len(patches), dtype=patches.dtype)
    columns = further.reshape(len(passes), len(patches)).T
    return np.concatenate([values, *means]), np.hstack([patches, columns])


def neighbour_means(neighbours: Array, weights: Array) -> sparse.csr_array:
    """Return the matrix that replaces each voxel by a weighted sum of its neighbours."""
    count, size = neighbours.shape
    entries = np.tile(weights, count)
    ends = np.arange(0, neighbours.size + 1, size)
    return sparse.csr_array((entries, neighbours.ravel(), ends), shape=(count, count))


def channel_blocks(values: Array) -> Iterator[slice]:
    """Divide channels into blocks, so that each block reuses the memory of the last."""
    size = max(1, _BLOCK_BYTES // max(1, len(values) * values.itemsize))
    return (slice(first, first + size) for first in range(0, values.shape[1], size))


def cut(values: Array, neighbours: Array) -> Array:
    """Gather patches of coefficients, shape (patch, neighbour, channel)."""
    return values[neighbours]
