"""A scan: one diffusion acquisition of one participant at one site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from siteless.acquisition._array import Array
from siteless.acquisition._gradients import GradientTable
from siteless.errors import GradientTableError, MaskError, SignalError, SitelessError

# mm. Two grids agree when corresponding image corners are no further apart than this.
GRID_TOLERANCE = 0.1


def grid_offset(first: Array, second: Array, shape: Sequence[int]) -> float:
    """Return the largest distance between an image's corners under two affines, in mm."""
    corners = np.array([[*corner, 1] for corner in np.ndindex(2, 2, 2)]) * [*shape, 1]
    return float(np.linalg.norm(corners @ (first - second).T, axis=1).max())


def on_grid(values: Array, mask: Array) -> Array:
    """Place values of a mask's voxels, shape (voxel, ...), on the image grid, zero outside it."""
    grid = np.zeros((*mask.shape[::-1], *values.shape[1:]), dtype=values.dtype)
    grid[mask.T] = values
    return grid.swapaxes(0, 2)  # z y x ... -> x y z ...


def require_finite(signal: Array, mask: Array) -> None:
    """Raise an error if the brain contains NaN or infinity."""
    bad = [not np.isfinite(volume[mask.T]).all() for volume in signal.T]
    if any(bad):
        raise SignalError(
            f"{sum(bad)} of {len(bad)} volumes hold NaN or infinity in the brain",
            remedy="repair the preprocessing that left them",
        )


@dataclass(frozen=True)
class Site:
    """A scanner and its protocol, identified by a label.

    Sites with the same label are equal.

    Examples
    --------
    >>> Site("prisma30", origin="participants.tsv") == Site("prisma30")
    True
    """

    label: str
    origin: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, eq=False, repr=False)
class Scan:
    """A diffusion signal with its geometry, gradients, masks and site.

    Parameters
    ----------
    signal
        Shape (x, y, z, volume), float32, finite where masked; volumes in the order of the file.
    affine
        Voxel to world (RAS+, mm), shape (4, 4).
    gradients
        b-value and b-vector of each volume.
    mask
        Brain, shape (x, y, z), bool.
    white_matter
        White matter within the brain, shape (x, y, z), bool.
    site
        Where the scan was acquired; None if unknown.
    name
        Name of the scan in messages.
    mask_origin, white_matter_origin
        Path of the mask, or how it was computed.

    Examples
    --------
    >>> gradients = GradientTable([0, 1000], [[0, 0, 0], [1, 0, 0]])
    >>> brain = np.ones((4, 4, 2), dtype=bool)
    >>> scan = Scan(np.ones((4, 4, 2, 2)), np.eye(4), gradients, brain, brain)
    >>> scan.volumes.shape
    (2, 32)
    >>> scan.with_signal(2 * scan.signal).signal.max()
    np.float32(2.0)
    """

    signal: Array
    affine: Array
    gradients: GradientTable
    mask: Array
    white_matter: Array
    site: Site | None = None
    name: str = "scan"
    mask_origin: str = "given"
    white_matter_origin: str = "given"

    def __repr__(self) -> str:
        shape = " x ".join(str(size) for size in self.signal.shape[:3])
        return f"<Scan {self.name}: {shape} voxels, {self.gradients}, site {self.site}>"

    def __post_init__(self) -> None:
        signal = np.asarray(self.signal, dtype=np.float32, order="F")  # NIfTI order
        object.__setattr__(self, "signal", signal)
        object.__setattr__(self, "affine", np.asarray(self.affine, dtype=float))
        for name in ("mask", "white_matter"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=bool))
        self._require_consistent()

    def _require_consistent(self) -> None:
        if self.signal.ndim != 4:
            raise SitelessError(
                f"a scan has 4 dimensions (x, y, z, volume), got shape {self.signal.shape}"
            )
        if self.signal.shape[3] != len(self.gradients):
            raise GradientTableError(
                f"{self.signal.shape[3]} volumes need as many b-values, got {len(self.gradients)}",
                remedy="convert the scan again, or remove the volumes that have no gradient",
            )
        if self.affine.shape != (4, 4):
            raise SitelessError(f"an affine has shape (4, 4), got {self.affine.shape}")
        for name, mask in (("brain", self.mask), ("white-matter", self.white_matter)):
            if mask.shape != self.signal.shape[:3]:
                raise MaskError(
                    f"the {name} mask must have the scan's shape {self.signal.shape[:3]}, "
                    f"got {mask.shape}",
                    remedy="resample the mask to the scan",
                )
        if not self.mask.any():
            raise MaskError("the brain mask is empty", remedy="make a mask, or leave it out")
        if (self.white_matter & ~self.mask).any():
            raise MaskError("white matter must lie in the brain", remedy="correct the masks")
        require_finite(self.signal, self.mask)

    @property
    def voxel_size(self) -> Array:
        """Distance between voxel centres along each axis, shape (3,), mm."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)

    @property
    def volumes(self) -> Array:
        """The signal as (volume, voxel), x fastest: the order of a NIfTI file, without a copy."""
        return self.signal.T.reshape(self.signal.shape[3], -1)

    @cached_property
    def voxels(self) -> Array:
        """Brain voxels as positions along the second axis of `volumes`, ascending."""
        return np.flatnonzero(self.mask.T)

    @property
    def positions(self) -> Array:
        """World coordinates of the brain voxels, shape (voxel, 3), mm."""
        place = np.array(np.unravel_index(self.voxels, self.mask.shape, order="F")).T
        return place @ self.affine[:3, :3].T + self.affine[:3, 3]

    def require_grid(self, shape: Sequence[int], affine: Array, *, what: str, remedy: str) -> None:
        """Raise an error unless an image of this shape and affine is on the grid of the scan."""
        grid = self.mask.shape
        if tuple(shape) != grid or grid_offset(affine, self.affine, grid) > GRID_TOLERANCE:
            raise MaskError(
                f"expected {what} on the grid of {self.name}, {grid} voxels, found another of "
                f"{tuple(shape)}",
                remedy=remedy,
            )

    def with_signal(
        self, signal: Array, *, gradients: GradientTable | None = None, site: Site | None = None
    ) -> Self:
        """Return the scan with another signal and, optionally, another gradient table or site."""
        return replace(
            self,
            signal=signal,
            gradients=self.gradients if gradients is None else gradients,
            site=self.site if site is None else site,
        )
