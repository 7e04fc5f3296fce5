"""Check a single scan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import ndimage

from siteless.acquisition import MIN_DIRECTIONS, Array, GradientTable, Scan, describe_shells
from siteless.harmonics import sh_basis
from siteless.preflight._coherence import find_axis_error
from siteless.preflight._problem import Problem

# Fractions of the brain. A few negative or empty voxels from interpolation are harmless.
_FEW = 1e-3
_FEW_CONSTANT = 1e-2
_MANY_NEGATIVE = 0.2
# mm. A thinner slab may have too few bundles to be certain about a table.
_THIN = 35.0
# Largest condition number of harmonics of order 2; well distributed directions have about 2.
_WORST_CONDITION = 50.0


def signal_problems(signal: Array, mask: Array, path: Path) -> list[Problem]:
    """Check the signal of an image, shape (x, y, z, volume), in its brain mask."""
    bad = flat = negative = 0
    lowest = 0.0
    first = signal.T[0][mask.T]
    constant = np.ones(first.shape, dtype=bool)
    for volume in signal.T:  # one at a time, to avoid a copy of the scan
        inside = volume[mask.T]
        bad += int(not np.isfinite(inside).all())
        inside = np.nan_to_num(inside, posinf=0, neginf=0)
        flat += int(np.ptp(inside) == 0)
        negative += int((inside < 0).sum())
        lowest = min(lowest, float(inside.min()))
        constant &= inside == first
    problems, volumes, part = [], signal.shape[3], negative / constant.size / signal.shape[3]
    if bad:
        what = f"{bad} of {volumes} volumes hold NaN or infinity in the brain"
        problems.append(
            Problem.error("not-finite", path, what, "repair the preprocessing that left them")
        )
    if flat:
        what = f"{flat} of {volumes} volumes hold one value throughout the brain"
        remedy = "remove them with their b-values and b-vectors, or convert the scan again"
        problems.append(Problem.error("constant-volume", path, what, remedy))
    elif constant.mean() > _FEW_CONSTANT:
        what = f"the signal is the same in every volume in {constant.mean():.1%} of the brain"
        remedy = "give a brain mask that lies within the field of view"
        problems.append(Problem.warning("constant-signal", path, what, remedy))
    if part > _FEW:
        what = f"{part:.1%} of brain values are negative, down to {lowest:.3g}"
        remedy = (
            "few come from spline interpolation, or where a noise floor was removed, as `siteless "
            "harmonize` does; many from a wrong scale or a phase image"
        )
        report = Problem.error if part > _MANY_NEGATIVE else Problem.warning
        problems.append(report("negative-signal", path, what, remedy))
    return problems


def mask_problems(mask: Array, path: Path) -> list[Problem]:
    """Check a brain mask for holes."""
    holes = np.count_nonzero(ndimage.binary_fill_holes(mask) & ~mask)
    if not holes:
        return []
    what = f"the brain mask has holes of {holes} voxels"
    remedy = "fill them, or leave the mask out and let siteless compute one"
    return [Problem.warning("mask-holes", path, what, remedy)]


def direction_problems(gradients: GradientTable, path: Path) -> list[Problem]:
    """Check for missing b0 and for shells whose directions do not support a tensor."""
    problems = []
    if not gradients.is_b0.any():
        remedy = "siteless needs at least one volume with b <= 50; leave the scan out"
        problems.append(Problem.error("no-b0", path, f"no b0 volume, found {gradients}", remedy))
    thin = [shell for shell in gradients.shells if len(shell) < MIN_DIRECTIONS]
    if thin:
        what = f"at least {MIN_DIRECTIONS} directions a shell are needed, found "
        what += describe_shells(thin)
        problems.append(Problem.error("few-directions", path, what, "remove these volumes"))
    for shell in gradients.shells:
        basis = sh_basis(gradients.directions[shell.volumes], 2)
        if len(shell) >= MIN_DIRECTIONS and np.linalg.cond(basis) > _WORST_CONDITION:
            what = f"the {len(shell)} directions of {shell} repeat themselves or lie in a plane"
            remedy = "correct the b-vectors; directions must spread over the sphere"
            problems.append(Problem.error("few-directions", path, what, remedy))
    return problems


def axis_problems(scan: Scan, path: Path) -> list[Problem]:
    """Check whether the axes of a gradient table, stored in `path`, fit the image."""
    in_world = path.suffix == ".b"
    wrong = find_axis_error(scan, np.eye(3) if in_world else None)
    if wrong is None:
        return []
    what = (
        f"the gradient table does not fit the image: {wrong} (with that corrected, fibres are "
        f"{wrong.gain:.2f} times as coherent)"
    )
    stored = "columns" if in_world else "lines"
    remedy = f"write {stored} {wrong.recipe} of the file as x, y, z, then check again"
    extent = np.ptp(np.nonzero(scan.mask), axis=1) * scan.voxel_size
    report = Problem.warning if extent.min() < _THIN else Problem.error
    return [report("gradient-axes", path, what, remedy)]
