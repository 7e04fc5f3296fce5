"""What can be wrong with one scan that could be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import ndimage

from siteless.acquisition import MIN_DIRECTIONS, Array, GradientTable, Scan, describe_shells
from siteless.harmonics import max_order
from siteless.preflight._coherence import find_axis_error
from siteless.preflight._problem import Problem, Severity

# Parts of the brain. Interpolation leaves a few negative or empty voxels that do no harm.
_FEW = 1e-3
_FEW_CONSTANT = 1e-2


def signal_problems(signal: Array, mask: Array, path: Path) -> list[Problem]:
    """Look for signal that no scanner measures.

    Parameters
    ----------
    signal
        Shape (x, y, z, volume).
    mask
        Brain, shape (x, y, z).
    path
        The image.
    """
    volumes = signal.T[:, mask.T]
    finite = np.isfinite(volumes)
    if not finite.all():
        bad = np.flatnonzero(~finite.all(axis=1))
        what = f"{(~finite).sum()} brain values in {len(bad)} volumes are NaN or infinite"
        return [_error("not-finite", path, what, "repair the preprocessing that left them")]
    found = []
    lowest, highest = volumes.min(axis=1), volumes.max(axis=1)
    if len(flat := np.flatnonzero(lowest == highest)):
        what = f"volume {flat[0]} is constant in the brain ({len(flat)} of {len(volumes)} are)"
        remedy = "remove the volume with its b-value and b-vector, or convert again"
        found.append(_error("constant-volume", path, what, remedy))
    elif (constant := np.ptp(volumes, axis=0) == 0).mean() > _FEW_CONSTANT:
        what = f"the signal is the same in every volume in {constant.mean():.1%} of the brain"
        remedy = "check that the brain mask lies within the field of view"
        found.append(_warning("constant-signal", path, what, remedy))
    if (negative := (volumes < 0).mean()) > _FEW:
        what = f"{negative:.1%} of brain values are negative, down to {lowest.min():.3g}"
        remedy = "expected from spline interpolation; they are set to zero before logarithms"
        found.append(_warning("negative-signal", path, what, remedy))
    return found


def mask_problems(mask: Array, path: Path) -> list[Problem]:
    """Look for holes in a brain mask that was given."""
    holes = np.count_nonzero(ndimage.binary_fill_holes(mask) & ~mask)
    if not holes:
        return []
    remedy = "fill them, or leave the mask out and let siteless compute one"
    return [_warning("mask-holes", path, f"the brain mask has holes of {holes} voxels", remedy)]


def direction_problems(gradients: GradientTable, order: int, path: Path) -> list[Problem]:
    """Look for missing b0 and for shells with too few directions for an order of harmonics."""
    found = []
    if not gradients.is_b0.any():
        remedy = "siteless needs at least one volume with b <= 50; leave the scan out"
        found.append(_error("no-b0", path, f"no b0 volume, found {gradients}", remedy))
    thin = [shell for shell in gradients.shells if len(shell) < MIN_DIRECTIONS]
    if thin:
        what = (
            f"expected at least {MIN_DIRECTIONS} directions a shell, found {describe_shells(thin)}"
        )
        found.append(_error("few-directions", path, what, "remove these volumes"))
    sparse = [shell for shell in gradients.shells if max_order(len(shell)) < order]
    if sparse and not thin:
        what = f"too few directions for order {order}: {describe_shells(sparse)}"
        remedy = f"order {min(max_order(len(shell)) for shell in sparse)} is used instead"
        found.append(_warning("low-order", path, what, remedy))
    return found


def axis_problems(scan: Scan, path: Path) -> list[Problem]:
    """Look for a gradient table whose axes do not fit the image."""
    wrong = find_axis_error(scan)
    if wrong is None:
        return []
    what = (
        f"the gradient table does not fit the image: {wrong} (with that mended, fibres are "
        f"{wrong.gain:.2f} times as coherent)"
    )
    return [_error("gradient-axes", path, what, "correct the b-vectors, then check again")]


def _error(code: str, path: Path, what: str, remedy: str) -> Problem:
    return Problem(code, Severity.ERROR, path, what, remedy)


def _warning(code: str, path: Path, what: str, remedy: str) -> Problem:
    return Problem(code, Severity.WARNING, path, what, remedy)
