"""Read the files of a scan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import (
    GRID_TOLERANCE,
    Array,
    GradientTable,
    Scan,
    grid_offset,
    require_finite,
)
from siteless.bids._dataset import ScanFiles
from siteless.bids._gradient_files import read_gradients
from siteless.bids._nifti import read_header, read_signal
from siteless.bids._tables import read_json
from siteless.errors import GradientTableError, MaskError, UnreadableFileError, errors_at
from siteless.storage import cache_key, size_and_time
from siteless.tissue import BRAIN_MASK_METHOD, WHITE_MATTER_METHOD, brain_mask, white_matter_mask


def read_scan(files: ScanFiles) -> Scan:
    """Read a scan; missing masks are computed, and the scan records how.

    Raises
    ------
    SitelessError
        When a file is missing or invalid; the error names it.
    """
    signal, affine = read_volumes(files)
    gradients = read_gradients(files, affine, signal.shape[3])
    with errors_at(files.dwi):
        brain, brain_origin = read_brain_mask(files, signal, affine, gradients)
        require_finite(signal, brain)
        if files.white_matter is not None:
            white = read_mask(files.white_matter, brain.shape, affine)
            white_origin = str(files.white_matter)
        else:
            white = white_matter_mask(signal, gradients, brain)
            white_origin = WHITE_MATTER_METHOD
        return Scan(
            signal,
            affine,
            gradients,
            mask=brain,
            white_matter=white & brain,
            site=files.site,
            name=files.name,
            mask_origin=brain_origin,
            white_matter_origin=white_origin,
        )


def read_gradient_table(files: ScanFiles) -> GradientTable:
    """Read a scan's gradient table without its signal."""
    header, affine = read_header(files.dwi)
    shape = header.get_data_shape()
    return read_gradients(files, affine, shape[3] if len(shape) > 3 else 1)


def fingerprint(files: ScanFiles) -> str:
    """Return a hash of the names, sizes and modification times of a scan's files."""
    parts = (
        *(files.dwi, files.bval, files.bvec, files.world_table),
        *(files.mask, files.white_matter, *files.sidecars),
    )
    return cache_key([size_and_time(path) for path in parts if path is not None], str(files.site))


def read_volumes(files: ScanFiles) -> tuple[Array, Array]:
    """Read a scan's signal, shape (x, y, z, volume), and its affine."""
    signal, affine = read_signal(files.dwi)
    if signal.ndim != 4:
        raise UnreadableFileError(
            f"expected 4 dimensions (x, y, z, volume), found shape {signal.shape}",
            remedy="give the image that the b-values are of, not a mean or a map",
            path=files.dwi,
        )
    return signal, affine


def read_sidecar(files: ScanFiles) -> dict[str, Any]:
    """Merge the JSON files that apply to a scan; more specific files take precedence."""
    merged: dict[str, Any] = {}
    for path in files.sidecars:
        merged |= read_json(path)
    return merged


def read_brain_mask(
    files: ScanFiles, signal: Array, affine: Array, gradients: GradientTable
) -> tuple[Array, str]:
    """Read the brain mask or compute it from the mean b0; return it with its origin."""
    if files.mask is not None:
        return read_mask(files.mask, signal.shape[:3], affine), str(files.mask)
    if not gradients.is_b0.any():
        raise GradientTableError(
            f"expected at least one b0 volume to find the brain in, found {gradients}",
            remedy="give a mask, or leave the scan out",
        )
    b0 = signal[..., gradients.is_b0].mean(axis=3)
    return brain_mask(b0, np.linalg.norm(affine[:3, :3], axis=0)), BRAIN_MASK_METHOD


def read_mask(path: Path, shape: tuple[int, ...], affine: Array) -> Array:
    """Read a mask on a scan's grid; probabilities are thresholded at one half."""
    values, mask_affine = read_signal(path)
    values = values.reshape(values.shape[:3]) if values[..., :1].size == values.size else values
    if values.shape != shape:
        raise MaskError(
            f"expected the scan's grid of {shape} voxels, found {values.shape}",
            remedy="resample the mask to the scan",
            path=path,
        )
    if (offset := grid_offset(mask_affine, affine, shape)) > GRID_TOLERANCE:
        raise MaskError(
            f"expected the scan's grid, but the affines place voxels {offset:.1f} mm apart",
            remedy="resample the mask to the scan",
            path=path,
        )
    mask: Array = values >= 0.5
    if not mask.any():
        raise MaskError("the mask is empty", remedy="make it again, or leave it out", path=path)
    return mask
