"""Register two images: centres of mass, rigid, affine, diffeomorphic."""

from __future__ import annotations

import warnings

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array
from siteless.errors import SignalError
from siteless.registration._alignment import Alignment, Grid, Warp, apply, resample_grid

# mm. Fixed resolutions of registration bound its run time.
_AFFINE_VOXEL_SIZE = 5.0
_WARP_VOXEL_SIZE = 2.5
# mm. Margin around the brain.
_MARGIN = 12.5
# mm. Unit of length of affine registration: about a brain's radius, so that a unit of translation
# moves voxels as far as a unit of rotation or scale, which conditions the optimizer.
_LENGTH = 60.0
# DIPY's VerbosityLevels.NONE.
_SILENT = 0
# Voxels.
_CC_RADIUS = 4


def register_affine(
    moving: Array, moving_grid: Grid, static: Array, static_grid: Grid
) -> Alignment:
    """Find the affine alignment of images of brains, zero outside the brain and positive inside.

    Centres of mass initialize a rigid and then an affine registration, which maximize the mutual
    information of all voxels. A constant image raises a `SignalError`, as do NaN and infinity.
    """
    for image in (moving, static):
        _require_image(image)
    affine = _optimize_affine(
        *_on_work_grid(moving, moving_grid, _AFFINE_VOXEL_SIZE),
        *_on_work_grid(static, static_grid, _AFFINE_VOXEL_SIZE),
    )
    return Alignment(moving_grid, static_grid, affine)


def register(moving: Array, moving_grid: Grid, static: Array, static_grid: Grid) -> Alignment:
    """Find the alignment of two images: affine, then diffeomorphic (SyN, local correlation)."""
    affine = register_affine(moving, moving_grid, static, static_grid).affine
    static_work, work = _on_work_grid(static, static_grid, _WARP_VOXEL_SIZE)
    moving_work = _to_work(moving, Alignment(moving_grid, work, affine))
    warp = _optimize_warp(moving_work, static_work, work)
    return Alignment(moving_grid, static_grid, affine, warp)


def overlap(a: Array, b: Array) -> float:
    """Return the Dice coefficient of two masks: 1 when they are equal, 0 when disjoint.

    Examples
    --------
    >>> overlap(np.array([True, True, False]), np.array([True, False, False]))
    0.666...
    """
    total = np.count_nonzero(a) + np.count_nonzero(b)
    return float(2 * np.count_nonzero(a & b) / total) if total else 0.0


def correlation(a: Array, b: Array, mask: Array) -> float:
    """Return Pearson's correlation of two images in a mask, 0 when one is constant there.

    Examples
    --------
    >>> ramp = np.arange(4.0)
    >>> correlation(ramp, 3 - ramp, ramp >= 0)
    -1.0
    """
    first, second = (np.asarray(image[mask], dtype=float) for image in (a, b))
    if first.size == 0:
        return 0.0
    first, second = first - first.mean(), second - second.mean()
    scale = np.sqrt(np.square(first).sum() * np.square(second).sum())
    return float((first * second).sum() / scale) if scale > 0 else 0.0


def _require_image(image: Array) -> None:
    if not np.isfinite(image).all() or np.ptp(image) == 0:
        kind = "constant" if np.isfinite(image).all() else "not finite"
        raise SignalError(
            f"expected an image of a brain to register, found one that is {kind}",
            remedy="check the scan and its brain mask",
        )


def _on_work_grid(image: Array, grid: Grid, voxel_size: float) -> tuple[Array, Grid]:
    """Resample an image to a grid along the world axes, around its nonzero voxels."""
    margin = np.ceil(_MARGIN / grid.voxel_size).astype(int)
    (parts,) = ndimage.find_objects((image != 0).astype(np.uint8))
    first, last = (np.array([getattr(part, end) for part in parts]) for end in ("start", "stop"))
    work = resample_grid(grid.crop(first - margin, last - 1 + margin), voxel_size)
    return _to_work(image, Alignment(grid, work)), work


def _to_work(image: Array, alignment: Alignment) -> Array:
    """Resample an image to a coarser grid, smoothed to avoid aliasing."""
    excess = np.maximum(
        alignment.static.voxel_size[0] ** 2 - np.square(alignment.moving.voxel_size), 0
    )
    width = np.sqrt(excess / (8 * np.log(2))) / alignment.moving.voxel_size
    smooth = ndimage.gaussian_filter(image.astype(np.float32), width, mode="constant")
    return alignment.to_static(smooth)


def _centre(image: Array, affine: Array) -> Array:
    """Return the translation of an image's centre of mass to the origin."""
    centre = apply(affine, np.array(ndimage.center_of_mass(np.abs(image))))
    shift = np.eye(4)
    shift[:3, 3] = -centre
    return shift


def _optimize_affine(moving: Array, moving_grid: Grid, static: Array, static_grid: Grid) -> Array:
    """Return the affine from the static world to the moving one, shape (4, 4)."""
    from dipy.align.imaffine import AffineRegistration, MutualInformationMetric
    from dipy.align.transforms import AffineTransform3D, RigidTransform3D

    scale = np.diag([1 / _LENGTH] * 3 + [1.0])
    from_static = scale @ _centre(static, static_grid.affine)
    from_moving = scale @ _centre(moving, moving_grid.affine)
    estimate = np.eye(4)
    for transform in (RigidTransform3D(), AffineTransform3D()):
        registration = AffineRegistration(
            metric=MutualInformationMetric(nbins=32, sampling_proportion=None),
            level_iters=[100, 50],
            factors=[2, 1],
            sigmas=[1.0, 0.0],
            verbosity=_SILENT,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimate = registration.optimize(
                static,
                moving,
                transform,
                None,
                static_grid2world=from_static @ static_grid.affine,
                moving_grid2world=from_moving @ moving_grid.affine,
                starting_affine=estimate,
            ).affine
    return np.linalg.inv(from_moving) @ estimate @ from_static


def _optimize_warp(moving: Array, static: Array, grid: Grid) -> Warp:
    """Return the displacement between two images on one grid."""
    from dipy.align.imwarp import SymmetricDiffeomorphicRegistration
    from dipy.align.metrics import CCMetric

    # At every level, which halves the image, few slices must still be wider than the window.
    levels = int(np.log2(min(grid.shape) / (2 * _CC_RADIUS + 2))) + 1
    registration = SymmetricDiffeomorphicRegistration(
        CCMetric(3, sigma_diff=3.0, radius=_CC_RADIUS),
        level_iters=[20, 20, 5][-levels:],
    )
    registration.verbosity = _SILENT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mapping = registration.optimize(
            static, moving, static_grid2world=grid.affine, moving_grid2world=grid.affine
        )
    fields = (mapping.get_forward_field(), mapping.get_backward_field())
    return Warp(grid, *(np.ascontiguousarray(np.moveaxis(field, -1, 0)) for field in fields))
