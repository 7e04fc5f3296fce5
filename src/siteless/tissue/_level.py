"""Tissue masks, and the reference b0 intensity that defines a scan's units."""

from __future__ import annotations

from typing import Literal

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.errors import SignalError

Tissue = Literal["white-matter", "brain"]


def tissue_mask(scan: Scan, tissue: Tissue) -> Array:
    """Return the voxels of a tissue, shape (x, y, z), bool."""
    return scan.white_matter if tissue == "white-matter" else scan.mask


def white_matter_level(scan: Scan) -> float:
    """Return the reference b0 intensity of a scan: the median b0 of its white matter."""
    voxels = np.flatnonzero(scan.white_matter.T)
    b0 = scan.volumes[np.ix_(np.flatnonzero(scan.gradients.is_b0), voxels)]
    level = float(np.median(b0.mean(axis=0))) if b0.size else 0.0
    if not level > 0:
        raise SignalError(
            f"expected white matter with a b0 above zero, found {len(voxels)} voxels of level "
            f"{level:g}",
            remedy="give a white-matter mask, or leave the scan out",
        )
    return level
