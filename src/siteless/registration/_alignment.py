"""Voxel grids in world space, and alignments between the spaces of two images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Self

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array
from siteless.errors import SitelessError


@dataclass(frozen=True, eq=False)
class Grid:
    """A voxel grid in world space.

    The affine maps voxels to the world (RAS+, mm); it may be oblique and of either handedness.

    Examples
    --------
    >>> Grid((4, 5, 6), np.diag([-2.0, 2, 3, 1])).voxel_size
    array([2., 2., 3.])
    """

    shape: tuple[int, int, int]
    affine: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "affine", np.asarray(self.affine, dtype=float))
        if len(self.shape) != 3 or min(self.shape) < 1:
            raise SitelessError(f"a grid has three sizes of at least 1, got {self.shape}")
        if self.affine.shape != (4, 4) or not np.isfinite(self.affine).all():
            raise SitelessError(f"an affine has finite numbers of shape (4, 4), got {self.affine}")
        if np.linalg.matrix_rank(self.affine[:3, :3]) < 3:
            raise SitelessError(
                f"the affine {self.affine[:3, :3].tolist()} puts all voxels in one plane",
                remedy="convert the scan again",
            )

    @property
    def voxel_size(self) -> Array:
        """Distance between voxel centres along each axis, shape (3,), mm."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)

    @property
    def centres(self) -> Array:
        """World coordinates of the voxel centres, shape (3, x, y, z), mm."""
        return apply(self.affine, np.indices(self.shape, dtype=float))

    def crop(self, first: Array, last: Array) -> Grid:
        """Return the grid between two voxels, both included; they may lie outside this grid."""
        sizes = np.asarray(last) - first + 1
        affine = self.affine.copy()
        affine[:3, 3] = apply(self.affine, np.asarray(first, dtype=float)[:, None])[:, 0]
        return Grid((int(sizes[0]), int(sizes[1]), int(sizes[2])), affine)


def resample_grid(grid: Grid, voxel_size: float) -> Grid:
    """Return a grid of isotropic voxels along the world axes over a grid's field of view.

    The orientation of the result does not depend on that of the grid. The new voxels cover the old
    ones, and both grids have the same centre.

    Examples
    --------
    >>> resample_grid(Grid((4, 4, 5), np.diag([-3.0, 3, 3, 1])), 2.0).shape
    (6, 6, 8)
    """
    edges = [(-0.5, size - 0.5) for size in grid.shape]
    corners = apply(grid.affine, np.array(list(product(*edges))).T)
    low, high = corners.min(axis=1), corners.max(axis=1)
    # A thousandth of a voxel is rounding error of the affine.
    sizes = np.maximum(np.ceil((high - low) / voxel_size - 1e-3), 1).astype(int)
    affine = np.diag([voxel_size, voxel_size, voxel_size, 1.0])
    affine[:3, 3] = (low + high) / 2 - voxel_size * (sizes - 1) / 2
    return Grid((int(sizes[0]), int(sizes[1]), int(sizes[2])), affine)


@dataclass(frozen=True, eq=False)
class Warp:
    """A smooth displacement field and its inverse, in mm, shape (3, x, y, z), float32."""

    grid: Grid
    forward: Array
    backward: Array


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """An alignment of two images.

    A point of the static image's world is displaced by the warp, if there is one, and then
    mapped by the affine to the moving image's world (mm). By default both share a world.

    Examples
    --------
    >>> coarse, fine = Grid((3, 3, 3), np.eye(4)), Grid((5, 5, 5), np.diag([0.5, 0.5, 0.5, 1]))
    >>> ramp = np.broadcast_to(np.arange(3.0), (3, 3, 3))
    >>> Alignment(coarse, fine).to_static(ramp)[2, 2]
    array([0. , 0.5, 1. , 1.5, 2. ], dtype=float32)
    """

    moving: Grid
    static: Grid
    affine: Array = field(default_factory=lambda: np.eye(4))
    warp: Warp | None = None

    def __repr__(self) -> str:
        kind = "affine" if self.warp is None else "diffeomorphic"
        return f"<Alignment of {self.moving.shape} to {self.static.shape}, {kind}>"

    @property
    def arrays(self) -> dict[str, Array]:
        """Arrays to store; with the two grids they define the alignment."""
        if self.warp is None:
            return {"affine": self.affine}
        warp = {"grid": self.warp.grid.affine, "forward": self.warp.forward}
        return {"affine": self.affine, **warp, "backward": self.warp.backward}

    @classmethod
    def from_arrays(cls, moving: Grid, static: Grid, arrays: Mapping[str, Array]) -> Self:
        """Make an alignment of two grids from stored arrays."""
        warp = None
        if "forward" in arrays:
            _, x, y, z = arrays["forward"].shape
            grid = Grid((x, y, z), arrays["grid"])
            warp = Warp(grid, arrays["forward"], arrays["backward"])
        return cls(moving, static, arrays["affine"], warp)

    def points_in_moving(self, points: Array) -> Array:
        """Map points (mm) of the static world to the moving one, shape (3, ...)."""
        if self.warp is not None:
            points = points + _displacement(self.warp.grid, self.warp.forward, points)
        return apply(self.affine, points)

    def points_in_static(self, points: Array) -> Array:
        """Map points (mm) of the moving world to the static one, shape (3, ...)."""
        points = apply(np.linalg.inv(self.affine), points)
        if self.warp is not None:
            points = points + _displacement(self.warp.grid, self.warp.backward, points)
        return points

    def to_static(self, values: Array) -> Array:
        """Resample values of the moving grid, shape (x, y, z) or (x, y, z, feature).

        They are interpolated linearly, as float32, and zero beyond the moving grid.
        """
        return _interpolate(values, self.moving, self.points_in_moving(self.static.centres))

    def to_moving(self, values: Array) -> Array:
        """Resample values of the static grid to the moving one: the inverse of `to_static`."""
        return _interpolate(values, self.static, self.points_in_static(self.moving.centres))


def apply(affine: Array, points: Array) -> Array:
    """Apply an affine, shape (4, 4), to points, shape (3, ...)."""
    # The rounding of BLAS may depend on its number of threads, that of einsum does not.
    turned = np.einsum("ij,j...->i...", affine[:3, :3], points)
    return turned + affine[:3, 3].reshape(3, *(1,) * (points.ndim - 1))


def _displacement(grid: Grid, field: Array, points: Array) -> Array:
    """Interpolate a displacement, shape (3, x, y, z), at points, extending its edge values."""
    voxels = apply(np.linalg.inv(grid.affine), points)
    return np.stack([ndimage.map_coordinates(c, voxels, order=1, mode="nearest") for c in field])


def _interpolate(values: Array, grid: Grid, points: Array) -> Array:
    """Interpolate values of a grid at points, shape (3, x, y, z)."""
    if values.shape[:3] != grid.shape or values.ndim not in (3, 4):
        raise SitelessError(
            f"values on a grid of {grid.shape} have that shape, with or without features, "
            f"got {values.shape}"
        )
    voxels = apply(np.linalg.inv(grid.affine), points)
    features = values.reshape(*grid.shape, -1)
    out = np.empty((*points.shape[1:], features.shape[3]), dtype=np.float32)
    for index in range(features.shape[3]):
        # Values fade to zero within a voxel of the edge, so rounding cannot drop an edge voxel.
        ndimage.map_coordinates(
            features[..., index], voxels, out[..., index], order=1, mode="grid-constant"
        )
    return out.reshape(*points.shape[1:], *values.shape[3:])
