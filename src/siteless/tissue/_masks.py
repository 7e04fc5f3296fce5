"""Compute masks for scans that have none."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array, GradientTable
from siteless.errors import MaskError
from siteless.tissue._tensor import fit_tensor

WHITE_MATTER_FA = 0.25
# mm2/s. Faster diffusion indicates cerebrospinal fluid.
WHITE_MATTER_MD = 1.2e-3

# mm. Gaps in a thresholded brain that are narrower than twice this are closed.
_CLOSING = 10.0

BRAIN_MASK_METHOD = (
    f"computed: DIPY median_otsu of the mean b0, largest part, closed by {_CLOSING:.0f} mm, "
    "holes of each slice filled"
)
WHITE_MATTER_METHOD = (
    f"computed: FA >= {WHITE_MATTER_FA} and MD <= {WHITE_MATTER_MD} mm2/s in the brain, one voxel "
    "from its edge, parts of at least 10 voxels"
)


def brain_mask(b0: Array, voxel_size: Array) -> Array:
    """Find the brain in a mean b0 image.

    The signal is low far from the receive coils, so a threshold alone loses the deep brain;
    closing and filling slice by slice recover it. The voxel size is in mm.
    """
    from dipy.segment.mask import median_otsu

    if np.ptp(b0) == 0 or not np.isfinite(b0).any():
        raise MaskError("the mean b0 holds one value, so no brain can be found in it")
    _, bright = median_otsu(np.nan_to_num(b0), median_radius=2, numpass=2)
    mask = _close(_largest_part(bright), voxel_size)
    for axis in range(3):
        slices = [ndimage.binary_fill_holes(plane) for plane in np.moveaxis(mask, axis, 0)]
        mask = np.stack(slices, axis=axis)
    return mask


def white_matter_mask(signal: Array, gradients: GradientTable, brain: Array) -> Array:
    """Find white matter by anisotropy, from signal of shape (x, y, z, volume).

    The outer layer of the brain is excluded: partial volume and motion make it look anisotropic.
    """
    inner = ndimage.binary_erosion(brain)
    volumes = signal.T.reshape(signal.shape[3], -1)
    tensor = fit_tensor(volumes, np.flatnonzero(inner.T), gradients)
    mask = np.zeros(brain.shape, dtype=bool)
    mask.T[inner.T] = (tensor.fa >= WHITE_MATTER_FA) & (tensor.md <= WHITE_MATTER_MD)
    parts, _ = ndimage.label(mask)
    return np.asarray(mask & (np.bincount(parts.ravel())[parts] >= 10), dtype=bool)


def _largest_part(mask: Array) -> Array:
    parts, count = ndimage.label(mask)
    if count == 0:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray(parts == np.argmax(sizes), dtype=bool)


def _close(mask: Array, voxel_size: Array) -> Array:
    """Close a mask with a ball in mm, by distance transforms that are fast for large balls."""
    margins = np.ceil(_CLOSING / voxel_size).astype(int) + 1
    padded = np.pad(mask, [(margin, margin) for margin in margins])
    grown = ndimage.distance_transform_edt(~padded, sampling=voxel_size) <= _CLOSING
    closed = ndimage.distance_transform_edt(grown, sampling=voxel_size) > _CLOSING
    inner = tuple(slice(margin, -margin) for margin in margins)
    return np.asarray(closed[inner] | mask, dtype=bool)
