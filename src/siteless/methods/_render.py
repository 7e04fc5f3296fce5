"""Render a scan as a target site, with the model of any method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.errors import ModelError
from siteless.harmonics import (
    Coefficients,
    interpolated_bs,
    nearest_shells,
    project,
    projection_matrix,
    unused_bs,
)
from siteless.model import Model, SignalModel, Translation
from siteless.neighbourhood import index_neighbours

Outside = Literal["scaled", "unchanged"]
# mm. Voxels that are not rendered are scaled like rendered voxels within about this distance.
_REACH = 4.0
# Further away, where the smoothed mask is below this, the mean scale of the scan takes over.
_NEAR = 0.02


@dataclass(frozen=True, eq=False)
class Rendering:
    """A scan rendered as a site, with maps of its uncertainty.

    Maps have a volume for b0 and one for each shell, are in units of the rendered signal, and are
    zero where they do not apply.

    Attributes
    ----------
    scan
        Rendered scan, of the target site.
    spread
        Standard deviation estimated by the method (of the posterior of the code, or of residual
        noise), combined with that over sub-voxel positions of the head, shape (x, y, z, 1 +
        shell).
    change
        Root-mean-square difference, over directions, between the rendered scan and the scan at
        the target's level, shape (x, y, z, 1 + shell); zero where the scan is unchanged.
    rendered
        Voxels that were rendered, shape (x, y, z), bool.
    learned
        Voxels of the training tissue.
    unfamiliar
        Those of them that are out-of-distribution for the scan's site.
    unfamiliar_part
        Fraction of them that are unlike the training voxels, isolated ones too.
    levels
        Reference b0 intensities of the scan and of the target.
    interpolated, left_out
        b-values that were interpolated from others; and b-values of shells that the model lacks,
        whose volumes are left out.
    """

    scan: Scan
    spread: Array
    change: Array
    rendered: Array
    learned: Array
    unfamiliar: Array
    levels: tuple[float, float]
    interpolated: tuple[float, ...]
    left_out: tuple[float, ...]
    unfamiliar_part: float


def harmonize(
    model: Model,
    scan: Scan,
    site: str,
    *,
    gradients: GradientTable | None = None,
    outside: Outside = "scaled",
) -> Scan:
    """Render a scan as a site and return only the scan of `render`."""
    return render(model, scan, site, gradients=gradients, outside=outside).scan


def render(
    model: Model,
    scan: Scan,
    site: str,
    *,
    gradients: GradientTable | None = None,
    outside: Outside = "scaled",
) -> Rendering:
    """Render a scan as a site.

    Voxels that the method translates are rendered from their translation. In other voxels b0 and
    each shell are scaled by the ratio of rendered to measured signal in nearby rendered voxels,
    which avoids a step at the boundary; or they are left unchanged. The scan takes the typical
    reference b0 intensity of the target, except when the target is its own site.

    Parameters
    ----------
    model
        Model that knows the scan's site and the target, of a method that harmonizes scans.
    scan
        Scan with the model's shells, or with shells that support interpolation to them.
    site
        Target site, or ``average``.
    gradients
        Gradient table to render at, in world axes; by default that of the scan at the model's
        shells. With another table the signal outside the brain, which is not fitted, is zero. b0
        volumes are the rendered mean b0.
    outside
        Treatment of voxels that are not rendered: ``scaled`` or ``unchanged``.

    Returns
    -------
    Rendering
        Rendered scan and maps. The signal is finite, and not negative if the model keeps the noise
        floor and the scan has no negative signal.

    Raises
    ------
    ModelError
        When the method harmonizes maps only.
    """
    if not isinstance(model, SignalModel):
        raise ModelError(
            f"the method {model.card.method} gives maps, not scans",
            remedy="use `siteless harmonize`, or the model's harmonize_maps",
        )
    shells = [shell.b for shell in scan.gradients.shells], model.preparation.shells
    # Without a floor noise is below zero too; clipping would bias weak signals.
    is_positive = not any((volume[scan.voxels] < 0).any() for volume in scan.volumes)
    has_floor = model.preparation.noise_floor == "keep" and is_positive
    scan = model.prepare(scan)
    coefficients = model.preparation.coefficients(scan)
    translation = model.translate(scan, coefficients, site)
    translated = translation.coefficients
    if outside == "scaled":
        scales, usual = _scales(coefficients, translated, scan.voxel_size), translation.ratio
    else:
        scales = np.ones((1 + len(coefficients.bs), scan.mask.size), dtype=np.float32)
        usual = np.float32(1)
    table = scan.gradients if gradients is None else gradients
    volumes = _scaled(scan, coefficients, scales, gradients)
    volumes[:, np.flatnonzero(translated.mask.T)] = project(translated, table).T
    signal = _as_signal(volumes, scan.mask.shape, has_floor=has_floor)
    spread = np.hypot(translation.deviation, _deviation_within_voxel(translated))
    learned = model.preparation.where(scan)
    unfamiliar, unfamiliar_part = _unfamiliar(model, scan, translation, learned, coefficients)
    return Rendering(
        scan=scan.with_signal(signal, gradients=table, site=Site(site, origin="rendered")),
        spread=translated.on_grid(spread),
        change=_change(coefficients, translation, scales[:, scan.voxels] - usual),
        rendered=translated.mask,
        learned=learned,
        unfamiliar=unfamiliar,
        unfamiliar_part=unfamiliar_part,
        levels=translation.levels,
        interpolated=interpolated_bs(*shells),
        left_out=unused_bs(*shells),
    )


def _scales(coefficients: Coefficients, rendered: Coefficients, voxel_size: Array) -> Array:
    """Return the factors of b0 and each shell where nothing is rendered.

    They are smoothed ratios of rendered to measured means, shape (1 + shell, voxel), float32.
    """
    inside = rendered.mask.T[coefficients.mask.T]
    sigma = _REACH / voxel_size
    scales = np.empty((1 + len(coefficients.bs), coefficients.mask.size), dtype=np.float32)
    means = rendered.values[:, rendered.channels.means].clip(min=0)
    measured = coefficients.values[:, coefficients.channels.means].clip(min=0)[inside]
    for scale, after, before in zip(scales, means.T, measured.T, strict=True):
        near, mean = _NEAR * before.mean(), after.sum() / before.sum()
        above = ndimage.gaussian_filter(rendered.on_grid(after), sigma) + near * mean
        below = ndimage.gaussian_filter(rendered.on_grid(before), sigma) + near
        scale[:] = (above / below).T.ravel()
    return scales


def _scaled(
    scan: Scan, coefficients: Coefficients, scales: Array, gradients: GradientTable | None
) -> Array:
    """Scale the measured signal, or the fitted signal at other gradients, (volume, voxel)."""
    table = scan.gradients if gradients is None else gradients
    shells = 1 + nearest_shells(table, coefficients.bs)
    volumes = np.zeros((len(table), scan.mask.size), dtype=np.float32)
    mixing = projection_matrix(table, bs=coefficients.bs, order=coefficients.order)
    for number, (volume, shell) in enumerate(zip(volumes, shells, strict=True)):
        if gradients is None:
            np.multiply(scan.volumes[number], scales[shell], out=volume)
        else:
            volume[scan.voxels] = scales[shell, scan.voxels] * (
                coefficients.values @ mixing[:, number]
            )
    return volumes


def _as_signal(volumes: Array, shape: tuple[int, ...], *, has_floor: bool) -> Array:
    """Return volumes as a finite signal on the grid, not negative if it has a noise floor."""
    for volume in volumes:
        volume[~np.isfinite(volume)] = 0  # outside the brain there may be NaN
        if has_floor:
            np.maximum(volume, 0, out=volume)
    return volumes.T.reshape((*shape, len(volumes)), order="F")


def _change(coefficients: Coefficients, translation: Translation, shift: Array) -> Array:
    """Return the map of changes, given those of the scales in voxels that are not rendered."""
    translated = translation.coefficients
    mean_squares = coefficients.channels.mean_squares
    inside = translated.mask.T[coefficients.mask.T]
    change = np.sqrt(mean_squares(np.square(coefficients.values))) * np.abs(shift.T)
    difference = translated.values - translation.ratio * coefficients.values[inside]
    change[inside] = np.sqrt(mean_squares(np.square(difference)))
    return coefficients.on_grid(change)


def _unfamiliar(
    model: Model,
    scan: Scan,
    translation: Translation,
    learned: Array,
    coefficients: Coefficients,
) -> tuple[Array, float]:
    """Return the map of unfamiliar voxels, and the part that is unlike the training voxels."""
    flagged = translation.flagged
    if flagged is None:
        flagged = model.unfamiliar(scan, coefficients)
    unfamiliar = np.zeros(scan.mask.shape, dtype=bool)
    unfamiliar.T[learned.T] = flagged if translation.unfamiliar is None else translation.unfamiliar
    return unfamiliar, float(flagged.mean())


def _deviation_within_voxel(rendered: Coefficients) -> Array:
    """Return the standard deviation of the rendering within a voxel, shape (voxel, 1 + shell).

    The position of the voxel grid on the head is random. A uniform distribution over a voxel has a
    variance of 1/12; differences of face neighbours estimate the gradient of the signal.
    """
    neighbours = index_neighbours(rendered.mask)
    centre = neighbours[:, 0]
    variance = np.zeros((len(rendered.values), 1 + len(rendered.bs)), dtype=np.float32)
    for low, high in zip(neighbours.T[1::2], neighbours.T[2::2], strict=True):
        apart = (high != centre).astype(np.float32) + (low != centre)  # 1 at the edge
        slope = (rendered.values[high] - rendered.values[low]) / np.maximum(apart, 1)[:, None]
        variance += rendered.channels.mean_squares(np.square(slope)) / 12
    return np.sqrt(variance)
