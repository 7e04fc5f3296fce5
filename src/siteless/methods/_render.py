"""A scan and a target to a scan, by the model of any method."""

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
from siteless.methods.patches import index_neighbours
from siteless.model import Model, SignalModel

Outside = Literal["scaled", "unchanged"]
# mm. What is not rendered is scaled as what is rendered within about this distance.
_REACH = 4.0
# Further away, where the smoothed mask is below this, the mean scale of the scan takes over.
_NEAR = 0.02


@dataclass(frozen=True, eq=False)
class Rendering:
    """A scan rendered as a site, with what tells how far to trust it.

    Maps have a volume for b0 and one for each shell, are in units of the rendered signal, and are
    zero where they do not apply.

    Attributes
    ----------
    scan
        Of the target site.
    spread
        Standard deviation that the method tells (of the posterior of the code, or of the noise
        that is left), and over the positions that a head can have within a voxel, shape
        (x, y, z, 1 + shell).
    change
        Root-mean-square difference, over directions, between the rendered scan and the scan at
        the target's level, shape (x, y, z, 1 + shell); zero where a scan is left unchanged.
    rendered
        Voxels that were rendered, shape (x, y, z), bool.
    learned
        Voxels of the tissue that the model was learned from.
    unfamiliar
        Voxels among these that are unlike the training voxels of the scan's site.
    levels
        Of the scan and of the target: the median b0 of white matter.
    interpolated, left_out
        b-values whose volumes were acquired at others; and those of shells that the model does
        not have, whose volumes are left out.
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

    @property
    def unfamiliar_part(self) -> float:
        """Which part of the learned tissue is unfamiliar."""
        return float(self.unfamiliar.sum() / self.learned.sum())


def harmonize(
    model: Model,
    scan: Scan,
    site: str,
    *,
    gradients: GradientTable | None = None,
    outside: Outside = "scaled",
) -> Scan:
    """Return a scan as a site would show it: the scan of `render`."""
    return render(model, scan, site, gradients=gradients, outside=outside).scan


def render(
    model: Model,
    scan: Scan,
    site: str,
    *,
    gradients: GradientTable | None = None,
    outside: Outside = "scaled",
) -> Rendering:
    """Render a scan as a site would show it.

    Voxels that the model's method translates are rendered from their translation. The others are
    scaled, b0 and each shell by the ratio of rendered to measured signal in rendered voxels near
    by, so that there is no step at the boundary; or they are left as they are. A scan gets the
    typical level of the target, and keeps its own when the target is its own site.

    Parameters
    ----------
    model
        That knows the scan's site and the target; of a method that gives scans.
    scan
        Any scan with the model's shells, or with shells that tell the signal there.
    site
        To render the scan as, or ``average``.
    gradients
        In world axes, to render at; the scan's own by default, at the model's shells. With
        another table, signal outside the brain is zero, as no fit tells it. b0 volumes are the
        rendered mean b0.
    outside
        ``scaled`` or ``unchanged``: what is not rendered.

    Returns
    -------
    Rendering
        Its signal is finite, and nowhere below zero unless the scan's own is.

    Raises
    ------
    ModelError
        When the model's method gives maps alone.
    """
    if not isinstance(model, SignalModel):
        raise ModelError(
            f"the method {model.card.method} gives maps, not scans",
            remedy="use `siteless harmonize`, or the model's harmonize_maps",
        )
    shells = [shell.b for shell in scan.gradients.shells], model.preparation.shells
    # The noise of real-valued scans goes below zero; clipping would raise their weak signals.
    is_magnitude = not any((volume[scan.voxels] < 0).any() for volume in scan.volumes)
    scan = model.prepare(scan)
    own = model.preparation.coefficients(scan)
    made = model.translate(scan, own, site)
    translated, ratio = made.coefficients, np.float32(made.levels[1] / made.levels[0])
    scales = np.ones((1 + len(own.bs), scan.mask.size), dtype=np.float32)
    if outside == "scaled":
        scales = _scales(own, translated, scan.voxel_size)
    table = scan.gradients if gradients is None else gradients
    volumes = _scaled(scan, own, scales, gradients)
    volumes[:, np.flatnonzero(translated.mask.T)] = project(translated, table).T
    for volume in volumes:
        volume[~np.isfinite(volume)] = 0  # there may be NaN outside the brain
        if is_magnitude:
            np.maximum(volume, 0, out=volume)
    signal = volumes.T.reshape((*scan.mask.shape, len(table)), order="F")
    inside = translated.mask.T[scan.mask.T]
    shift = scales[:, scan.voxels] - (ratio if outside == "scaled" else 1)
    change = np.sqrt(own.channels.mean_squares(np.square(own.values))) * np.abs(shift.T)
    difference = translated.values - ratio * own.values[inside]
    change[inside] = np.sqrt(own.channels.mean_squares(np.square(difference)))
    learned = model.preparation.where(scan)
    unfamiliar = np.zeros(scan.mask.shape, dtype=bool)
    unfamiliar.T[learned.T] = (
        model.unfamiliar(scan, own) if made.unfamiliar is None else made.unfamiliar
    )
    return Rendering(
        scan=scan.with_signal(signal, gradients=table, site=Site(site, origin="rendered")),
        spread=translated.on_grid(np.hypot(made.spread, _spread_within_voxel(translated))),
        change=own.on_grid(change),
        rendered=translated.mask,
        learned=learned,
        unfamiliar=unfamiliar,
        levels=made.levels,
        interpolated=interpolated_bs(*shells),
        left_out=unused_bs(*shells),
    )


def _spread_within_voxel(rendered: Coefficients) -> Array:
    """Return the standard deviation over a voxel of what is rendered, shape (voxel, 1 + shell).

    Where a scanner places its voxels on the head is chance. A uniform distribution over a voxel
    has a variance of 1/12; differences of face neighbours tell how steep the signal is.
    """
    neighbours = index_neighbours(rendered.mask)
    centre = neighbours[:, 0]
    variance = np.zeros((len(rendered.values), 1 + len(rendered.bs)), dtype=np.float32)
    for low, high in zip(neighbours.T[1::2], neighbours.T[2::2], strict=True):
        apart = (high != centre).astype(np.float32) + (low != centre)  # 1 at the edge
        slope = (rendered.values[high] - rendered.values[low]) / np.maximum(apart, 1)[:, None]
        variance += rendered.channels.mean_squares(np.square(slope)) / 12
    return np.sqrt(variance)


def _scales(own: Coefficients, rendered: Coefficients, voxel_size: Array) -> Array:
    """Return what b0 and each shell are multiplied by where nothing is rendered.

    Returns
    -------
    Array
        Shape (1 + shell, voxel), float32: the ratio of rendered to measured means, smoothed.
    """
    inside = rendered.mask.T[own.mask.T]
    sigma = _REACH / voxel_size
    scales = np.empty((1 + len(own.bs), own.mask.size), dtype=np.float32)
    for scale, after, before in zip(
        scales, _means(rendered).T, _means(own)[inside].T, strict=True
    ):
        near, mean = _NEAR * before.mean(), after.sum() / before.sum()
        above = ndimage.gaussian_filter(rendered.on_grid(after), sigma) + near * mean
        below = ndimage.gaussian_filter(rendered.on_grid(before), sigma) + near
        scale[:] = (above / below).T.ravel()
    return scales


def _means(coefficients: Coefficients) -> Array:
    """Return the channels of b0 and of each shell's mean, shape (voxel, 1 + shell)."""
    return coefficients.values[:, coefficients.channels.means].clip(min=0)


def _scaled(
    scan: Scan, own: Coefficients, scales: Array, gradients: GradientTable | None
) -> Array:
    """Scale what was measured, or the fit where it is wanted at other gradients.

    Returns
    -------
    Array
        Shape (volume, voxel), float32.
    """
    table = scan.gradients if gradients is None else gradients
    shells = 1 + nearest_shells(table, own.bs)
    volumes = np.zeros((len(table), scan.mask.size), dtype=np.float32)
    mixing = projection_matrix(table, bs=own.bs, order=own.order)
    for number, (volume, shell) in enumerate(zip(volumes, shells, strict=True)):
        if gradients is None:
            np.multiply(scan.volumes[number], scales[shell], out=volume)
        else:
            volume[scan.voxels] = scales[shell, scan.voxels] * (own.values @ mixing[:, number])
    return volumes
