"""A patch is a voxel and its six face neighbours, and may hold means of what surrounds them.

Each voxel's coefficients are stored once, and so are means; a patch is row numbers. A neighbour
outside the brain is replaced by the patch's own centre: it then looks like more of the same
tissue, where a row of zeros would look like nothing that a scanner measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from nibabel.orientations import io_orientation
from numpy.typing import ArrayLike
from scipy import sparse

from siteless.acquisition import Array

# Steps from a voxel to its neighbours along the axes of the world (or of the image, without an
# affine); the voxel itself comes first.
FACES: tuple[tuple[int, int, int], ...] = (
    (0, 0, 0),
    (-1, 0, 0),
    (1, 0, 0),
    (0, -1, 0),
    (0, 1, 0),
    (0, 0, -1),
    (0, 0, 1),
)
# Of values that are averaged at a time: allocators use memory of up to 32 MiB again, and fresh
# pages take as long as the sums.
_BLOCK_BYTES = 24 * 2**20


def index_neighbours(mask: ArrayLike, affine: ArrayLike | None = None) -> Array:
    """Return the row numbers of every voxel's neighbours.

    With an affine they are in the order of the axes of the world, as near as the image's axes
    come to them: how a scan is stored must not tell its site.

    Parameters
    ----------
    mask
        Brain, shape (x, y, z). Voxels are numbered as in `Coefficients`, x fastest.
    affine
        Voxel to world (RAS+), shape (4, 4).

    Returns
    -------
    Array
        Shape (voxel, neighbour), int32: rows of `Coefficients.values`.

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
    """Return the step in the image that is nearest to each axis of the world, rows of (3, 3)."""
    steps = np.zeros((3, 3), dtype=int)
    for image_axis, (world_axis, sign) in enumerate(io_orientation(affine)):
        steps[int(world_axis), image_axis] = int(sign)
    return steps


def surrounded(
    values: Array, neighbours: Array, wanted: Array, passes: Sequence[int]
) -> tuple[Array, Array]:
    """Return patches that also hold means of wider and wider surroundings.

    In a pass every voxel becomes the mean of its patch; after n passes the mean has a variance of
    2 n / 7 squared voxels along each axis.

    Parameters
    ----------
    values, neighbours
        As for `cut`, of all voxels.
    wanted
        Voxels whose patches are returned, shape (voxel,), bool.
    passes
        After which means are taken, ascending.

    Returns
    -------
    values, neighbours
        The first with rows of means after those of voxels; the second of the wanted patches, with
        a column more for each of the passes.

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
    """Return the matrix that makes of every voxel a weighted sum of its neighbours.

    Parameters
    ----------
    neighbours
        Row numbers, shape (voxel, neighbour).
    weights
        Of the neighbours, shape (neighbour,).
    """
    count, size = neighbours.shape
    entries = np.tile(weights, count)
    ends = np.arange(0, neighbours.size + 1, size)
    return sparse.csr_array((entries, neighbours.ravel(), ends), shape=(count, count))


def channel_blocks(values: Array) -> Iterator[slice]:
    """Part the channels of many voxels, so that memory of one block is used again for the next."""
    size = max(1, _BLOCK_BYTES // max(1, len(values) * values.itemsize))
    return (slice(first, first + size) for first in range(0, values.shape[1], size))


def cut(values: Array, neighbours: Array) -> Array:
    """Gather patches.

    Parameters
    ----------
    values
        Shape (voxel, channel).
    neighbours
        Rows of `index_neighbours`, shape (patch, neighbour).

    Returns
    -------
    Array
        Shape (patch, neighbour, channel).
    """
    return values[neighbours]


def stitch(patches: Array) -> Array:
    """Keep the centre of each patch: the voxel that has all its neighbours in view.

    Parameters
    ----------
    patches
        Shape (patch, neighbour, channel).

    Returns
    -------
    Array
        Shape (patch, channel), in the order the patches were cut.
    """
    return patches[:, 0]
