"""Training data of a scan, made once and stored on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.errors import SitelessError
from siteless.harmonics import Coefficients, nearest_shells, projection_matrix
from siteless.model import Preparation
from siteless.neighbourhood import index_neighbours, surrounded
from siteless.storage import cache_key, map_arrays, save_arrays
from siteless.tissue import white_matter_level

# Fraction of the scan's level below which voxels are not used.
_DARK = 0.05


@dataclass(frozen=True, eq=False)
class TrainingScan:
    """Coefficients and signal of training voxels, in units of the scan's level.

    Attributes
    ----------
    site, name, subject
        Site, name and participant of the scan.
    order
        lmax of the harmonics.
    level
        Reference b0 intensity of the scan.
    shape, affine
        Shape of the grid, and its voxel-to-world matrix (RAS+, mm), 16 numbers by rows.
    values
        Coefficients of centres, neighbours and means of surroundings, (row, channel), float32.
    neighbours
        Rows of `values` in each patch, the centre first, shape (patch, neighbour), int32.
    voxels
        Indices of the centres on the grid, x fastest, ascending, shape (patch,), int32.
    signal
        Mean b0 and the other volumes of the centres, shape (patch, 1 + volume), float32.
    mixing
        Matrix from coefficients to signal, shape (channel, 1 + volume), float32.
    shell
        Shell of each column of the signal: 0 for b0, then 1, 2, ...
    """

    site: str
    name: str
    subject: str
    order: int
    level: float
    shape: tuple[int, int, int]
    affine: tuple[float, ...]
    values: Array
    neighbours: Array
    voxels: Array
    signal: Array
    mixing: Array
    shell: Array

    def __post_init__(self) -> None:
        for name in ("shape", "affine"):  # JSON turns tuples into lists
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @cached_property
    def content(self) -> str:
        """Hash of all fields."""
        return cache_key(*(getattr(self, field.name) for field in fields(self)))


def store_scan(scan: TrainingScan, path: Path) -> None:
    """Write a scan to a file, completely or not at all."""
    values = {field.name: getattr(scan, field.name) for field in fields(scan)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in values.items() if name not in arrays}
    save_arrays(path, arrays, {"scan": json.dumps(plain), "content": scan.content})


def is_stored(path: Path) -> bool:
    """Whether a file contains an intact scan."""
    try:
        scan, content = _open(path)
        return scan.content == content
    except (SitelessError, ValueError, KeyError, TypeError):
        return False


def open_scan(path: Path) -> TrainingScan:
    """Map a stored scan into memory, as cohorts may be larger than memory."""
    return _open(path)[0]


def _open(path: Path) -> tuple[TrainingScan, str]:
    arrays, labels = map_arrays(path)
    return TrainingScan(**(json.loads(labels["scan"]) | arrays)), labels["content"]


def make_training_scan(
    scan: Scan,
    coefficients: Coefficients,
    preparation: Preparation,
    *,
    choose: Callable[[Array], Array] | None = None,
) -> TrainingScan:
    """Gather the training data of a prepared scan, given its coefficients."""
    level = white_matter_level(scan)
    return gather_patches(scan, coefficients.values, preparation, level=level, choose=choose)


def evenly_spaced(voxels: Array, *, most: int) -> Array:
    """Return at most `most` voxels of a list, evenly spaced."""
    return voxels[:: max(1, math.ceil(len(voxels) / most))]


def same_places(voxels: Array, *, most: int) -> Array:
    """Return at most `most` voxels, nearly the same ones for scans on the same grid.

    Examples
    --------
    >>> here, there = np.arange(0, 900), np.arange(100, 1000)
    >>> first, second = same_places(here, most=90), same_places(there, most=90)
    >>> len(first), len(np.intersect1d(first, second)) > 60
    (90, True)
    """
    scattered = (voxels.astype(np.uint64) * np.uint64(2654435761)) % np.uint64(2**32)
    return np.sort(voxels[np.argsort(scattered, kind="stable")[:most]])


def gather_patches(
    scan: Scan,
    values: Array,
    preparation: Preparation,
    *,
    level: float,
    surroundings: Sequence[int] = (),
    correction: Array | None = None,
    choose: Callable[[Array], Array] | None = None,
) -> TrainingScan:
    """Gather the training data of a scan: its signal, and the coefficients to render it from.

    Both are divided by the level. A `correction` of coefficients is added to the signal, the
    `surroundings` are passes of `surrounded`, and `choose` selects centres by their voxel indices.
    """
    values, is_b0 = values / np.float32(level), scan.gradients.is_b0
    b0 = scan.volumes[np.ix_(np.flatnonzero(is_b0), scan.voxels)].mean(axis=0)
    inside = preparation.where(scan).T[scan.mask.T] & (values[:, 0] > _DARK)
    if choose is not None:
        inside &= np.isin(scan.voxels, choose(scan.voxels[inside]))
    neighbours = index_neighbours(scan.mask, scan.affine)
    values, patches = surrounded(values, neighbours, inside, surroundings)
    rows, compact = np.unique(patches, return_inverse=True)
    volumes = np.flatnonzero(~is_b0)
    weighted = scan.volumes[np.ix_(volumes, scan.voxels[inside])].T
    only_b0 = np.eye(values.shape[1], 1, dtype=np.float32)
    bs, order = preparation.shells, preparation.order
    projection = projection_matrix(scan.gradients, bs=bs, order=order)
    mixing = np.hstack([only_b0, projection[:, volumes]])
    signal = np.column_stack([b0[inside], weighted])
    if correction is not None:
        signal += correction[inside] @ mixing
    return TrainingScan(
        site=str(scan.site),
        name=scan.name,
        subject="",
        order=order,
        level=level,
        shape=scan.mask.shape,
        affine=tuple(scan.affine.ravel().tolist()),
        values=values[rows],
        neighbours=compact.reshape(patches.shape).astype(np.int32),
        voxels=scan.voxels[inside].astype(np.int32),
        signal=signal / np.float32(level),
        mixing=mixing,
        shell=np.concatenate([[0], 1 + nearest_shells(scan.gradients, bs)[volumes]]),
    )
