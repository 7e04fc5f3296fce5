"""Encode maps as small images for the viewer, and as still pictures."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass
from typing import Any, TypeAlias

import nibabel as nib
import numpy as np

from siteless.acquisition import Array

Box: TypeAlias = tuple[slice, slice, slice]
# The viewer's shader treats a shorter scale as empty.
_SHORTEST_SCALE = 1e-4
# Number of levels, besides level 0 for outside.
_LEVELS = 254
_RGB = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])


@dataclass(frozen=True, eq=False)
class Volume:
    """A map with its display settings.

    Attributes
    ----------
    data
        Values, shape (x, y, z), NaN (or a displayed 0) outside the brain; or colours between 0 and
        1, shape (x, y, z, 3).
    affine
        Voxel to world, mm, shape (4, 4).
    low, high
        Values at the ends of the scale.
    unit
        Unit of the values, in which the scale must exceed 1e-4; or meaning of the colours.
    colours
        matplotlib colormap from `low` to `high`.
    """

    data: Array
    affine: Array
    low: float = 0.0
    high: float = 1.0
    unit: str = ""
    colours: str = "gray"

    def __post_init__(self) -> None:
        shape = self.data.shape
        if self.data.ndim != 3 and (self.data.ndim != 4 or shape[3] != 3):
            raise ValueError(f"expected data of shape (x, y, z) or (x, y, z, 3), got {shape}")
        if self.high - self.low < _SHORTEST_SCALE:
            raise ValueError(
                f"a scale must be {_SHORTEST_SCALE} long or more, got {self.low} to {self.high}; "
                "choose another unit"
            )

    @property
    def is_coloured(self) -> bool:
        """Whether voxels contain colours, not values."""
        return self.data.ndim == 4

    @property
    def shown(self) -> Array:
        """Visible voxels, shape (x, y, z)."""
        seen = np.isfinite(self.data) & (self.data != 0)
        return seen.any(axis=3) if self.is_coloured else seen


def bounding_box(shown: Array) -> Box:
    """Return the bounding box of visible voxels; the whole of an empty image.

    Examples
    --------
    >>> shown = np.zeros((4, 4, 4), dtype=bool)
    >>> shown[1:3, 2, 3] = True
    >>> bounding_box(shown)
    (slice(1, 3, None), slice(2, 3, None), slice(3, 4, None))
    """
    if not shown.any():
        shown = np.ones_like(shown)
    ends = [np.flatnonzero(shown.any(axis=others))[[0, -1]] for others in ((1, 2), (0, 2), (0, 1))]
    x, y, z = (slice(int(first), int(last) + 1) for first, last in ends)
    return x, y, z


def move_affine(affine: Array, box: Box) -> Array:
    """Return the affine of a cropped image.

    Examples
    --------
    >>> box = (slice(1, 3), slice(2, 3), slice(0, 4))
    >>> move_affine(np.diag([2.0, 2.0, 2.0, 1.0]), box)[:3, 3]
    array([2., 4., 0.])
    """
    moved = np.array(affine, dtype=float)
    moved[:3, 3] += moved[:3, :3] @ [side.start for side in box]
    return moved


def encode_volume(volume: Volume, box: Box | None = None) -> bytes:
    """Encode a volume as NIfTI with one byte per voxel, or three for colours.

    It is cropped to a box, by default that of visible voxels. Values beyond the scale are clipped,
    and missing values are one level below the lowest. Equal volumes give equal bytes of gzip.
    """
    box = bounding_box(volume.shown) if box is None else box
    cut = np.ascontiguousarray(_levels(volume)[box])
    if volume.is_coloured:
        cut = cut.view(_RGB)[..., 0]
    head = _header(volume, cut, move_affine(volume.affine, box))
    image = head.binaryblock + bytes(4) + cut.tobytes(order="F")
    return gzip.compress(image, 9, mtime=0)


def draw_still(volume: Volume, box: Box) -> tuple[bytes, float, float]:
    """Draw the middle axial slice as PNG, left on the left, one pixel per voxel.

    Also returned are its width and height, mm.
    """
    from matplotlib import colormaps
    from matplotlib.image import imsave

    image = nib.Nifti1Image(_levels(volume)[box], move_affine(volume.affine, box))
    ordered = nib.as_closest_canonical(image)
    levels = np.asarray(ordered.dataobj)
    flat = np.flip(levels[:, :, levels.shape[2] // 2].swapaxes(0, 1), axis=0)
    if not volume.is_coloured:
        colours = colormaps[volume.colours]((flat - 1.0) / _LEVELS, bytes=True)[..., :3]
        flat = np.where(flat[..., None] > 0, colours, 0)
    file, unsigned = io.BytesIO(), dict[str, Any](Software=None)
    imsave(file, np.ascontiguousarray(flat, dtype=np.uint8), metadata=unsigned)
    width, height = (levels.shape[:2] * nib.affines.voxel_sizes(ordered.affine)[:2]).tolist()
    return file.getvalue(), width, height


def _levels(volume: Volume) -> Array:
    """Return levels, 0 for missing values, or colours, shape (x, y, z, 3); uint8."""
    if volume.is_coloured:
        return np.rint(255 * np.nan_to_num(volume.data).clip(0, 1)).astype(np.uint8)
    placed = np.rint((volume.data - volume.low) / _step(volume)) + 1
    return np.where(np.isfinite(placed), placed.clip(1, _LEVELS + 1), 0).astype(np.uint8)


def _step(volume: Volume) -> float:
    return (volume.high - volume.low) / _LEVELS


def _header(volume: Volume, levels: Array, affine: Array) -> nib.Nifti1Header:
    head = nib.Nifti1Header()
    head.set_data_shape(levels.shape)
    head.set_data_dtype(levels.dtype)
    head.set_zooms(nib.affines.voxel_sizes(affine))
    head.set_qform(affine, code="scanner", strip_shears=True)
    head.set_sform(affine, code="scanner")
    head.set_xyzt_units("mm")
    head["magic"], head["vox_offset"] = b"n+1", 352
    if not volume.is_coloured:
        # The scale of the viewer starts at level 0, which it leaves clear.
        head["scl_slope"] = _step(volume)
        head["scl_inter"] = head["cal_min"] = volume.low - _step(volume)
        head["cal_max"] = volume.high
    return head
