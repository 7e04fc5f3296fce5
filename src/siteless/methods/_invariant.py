"""The learned method: encode a scan, render its code as the target site."""

from __future__ import annotations

from typing import Literal

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.harmonics import fit_coefficients, project
from siteless.model import Model

Outside = Literal["scaled", "unchanged"]


def harmonize(
    model: Model,
    scan: Scan,
    site: str,
    *,
    gradients: GradientTable | None = None,
    outside: Outside = "scaled",
) -> Scan:
    """Render a scan as a site would show it.

    Voxels of the tissue that the model has learned are rendered from their codes. The others are
    multiplied by the ratio of the target site's typical level to the scan's, or left as they are.

    Parameters
    ----------
    model
        That knows the scan's site and the target.
    scan
        Any scan with the model's shells.
    site
        To render the scan as.
    gradients
        In world axes, to render at; the scan's own by default. b0 volumes are the rendered mean
        b0. With another table, signal outside the brain is zero, as no fit tells it.
    outside
        ``scaled`` or ``unchanged``: what is not rendered.

    Returns
    -------
    Scan
        Of the target site; finite, and nowhere below zero.
    """
    codes = model.encode(scan)
    rendered = model.decode(codes, site)
    ratio = model.card.sites[site] / codes.level if outside == "scaled" else 1.0
    if gradients is None:
        volumes = scan.volumes * np.float32(ratio)
    else:
        volumes = _projected(model, scan, gradients) * np.float32(ratio)
    table = scan.gradients if gradients is None else gradients
    volumes[:, np.flatnonzero(codes.where.T)] = project(rendered, table).T
    shape = (*scan.mask.shape, len(table))
    signal = np.maximum(volumes, 0, out=volumes).T.reshape(shape, order="F")
    return scan.with_signal(signal, gradients=table, site=Site(site, origin="rendered"))


def _projected(model: Model, scan: Scan, gradients: GradientTable) -> Array:
    """Return the scan's own fit at other gradients, shape (volume, voxel), zero outside brain."""
    own = fit_coefficients(scan, order=model.card.order, fit=model.card.fit)
    volumes = np.zeros((len(gradients), scan.mask.size), dtype=np.float32)
    volumes[:, scan.voxels] = project(own, gradients).T
    return volumes
