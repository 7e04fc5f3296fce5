"""A viewer of volumes side by side, for a page that opens from disk."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np
from markupsafe import Markup

from siteless.acquisition import Array
from siteless.report._niivue import PACKAGE, find_niivue
from siteless.report._page import render_page
from siteless.report._style import inner_names
from siteless.report._volume import (
    Box,
    Volume,
    bounding_box,
    draw_still,
    encode_volume,
    move_affine,
)

# Number of colours between which the page interpolates, in colour bars and maps alike.
_STOPS = 17
# Fraction of a frame that a still fills, as in the viewer.
_SHARE = 0.9


@dataclass(frozen=True, eq=False)
class ViewedScan:
    """Maps of a scan, to view side by side.

    Attributes
    ----------
    name
        Name of the scan, for example "sub-01, leeds".
    maps
        Volumes by quantity ("FA", "fibre directions"), then by panel ("before", "after",
        "difference", "uncertainty"); all on one grid, and before and after with one scale.
    """

    name: str
    maps: Mapping[str, Mapping[str, Volume]]

    def __post_init__(self) -> None:
        if not self.volumes:
            raise ValueError(f"{self.name}: there is no map to see")
        shapes = {volume.data.shape[:3] for volume in self.volumes}
        affines = [volume.affine for volume in self.volumes]
        if len(shapes) > 1 or not all(np.allclose(affine, affines[0]) for affine in affines):
            raise ValueError(f"{self.name}: maps of one scan must be on one grid, got {shapes}")
        for quantity, panels in self.maps.items():
            twins = [panels[name] for name in ("before", "after") if name in panels]
            scales = {(twin.low, twin.high) for twin in twins if not twin.is_coloured}
            if len(scales) > 1:
                raise ValueError(f"{quantity}: before and after need one scale, got {scales}")

    @property
    def volumes(self) -> list[Volume]:
        """All volumes, in order."""
        return [volume for panels in self.maps.values() for volume in panels.values()]

    @cached_property
    def box(self) -> Box:
        """Bounding box of the visible voxels of all volumes."""
        return bounding_box(reduce(np.logical_or, [volume.shown for volume in self.volumes]))


def viewer_html(scans: Sequence[ViewedScan]) -> str:
    """Return the HTML of a viewer: controls, panels, data and the viewer module.

    It is self-contained. Colours follow the page's `--ink`, `--panel`, `--line` and `--accent`, if
    defined. Without the package that bundles NiiVue it has still pictures, and a line on what to
    install.

    Parameters
    ----------
    scans
        Scans to show, at least one.

    Returns
    -------
    str
        HTML, for a page with a single viewer.
    """
    niivue = find_niivue()
    live = {} if niivue is None else _embed(scans)
    return render_page(
        "viewer.html",
        scans=scans,
        panels=inner_names({f"{s.name} {q}": v for s in scans for q, v in s.maps.items()}),
        bar=_bar,
        still=_still,
        package=PACKAGE,
        niivue=None if niivue is None else _pack(niivue),
        **live,
    )


@lru_cache(1)
def _pack(source: str) -> str:
    """Compress a module, once for all pages of a process."""
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


def _bar(volume: Volume) -> Markup:
    """Return the colour bar of a volume."""
    if volume.is_coloured:
        return Markup("<span>{}</span>").format(volume.unit)
    low, high = (
        f"{value:.3g}".replace("-", "\N{MINUS SIGN}") for value in (volume.low, volume.high)
    )
    return Markup(
        '<span>{}</span><i style="background: linear-gradient(to right, {})"></i>'
        "<span>{} {}</span>"
    ).format(low, ", ".join(_palette(volume.colours)), high, volume.unit)


def _still(volume: Volume, box: Box) -> dict[str, str]:
    """Return the size of a still picture in its frame, and its data."""
    picture, *sides = draw_still(volume, box)
    width, height = (f"{_SHARE * side / max(sides):.1%}" for side in sides)
    return {"width": width, "height": height, "data": base64.b64encode(picture).decode()}


def _embed(scans: Sequence[ViewedScan]) -> dict[str, Any]:
    """Return encoded volumes by the names of their elements, and their description as JSON."""
    volumes, described = {}, []
    for number, scan in enumerate(scans):
        # A volume with several quantities is embedded once.
        distinct = list({id(volume): volume for volume in scan.volumes}.values())
        names = {id(v): f"siteless-volume-{number}-{place}" for place, v in enumerate(distinct)}
        for volume in distinct:
            encoded = base64.b64encode(encode_volume(volume, scan.box))
            volumes[names[id(volume)]] = encoded.decode()
        maps = {
            quantity: {panel: _describe(v) | {"data": names[id(v)]} for panel, v in panels.items()}
            for quantity, panels in scan.maps.items()
        }
        described.append(
            {"name": scan.name, "maps": maps} | _extent(scan.volumes[0].affine, scan.box)
        )
    palettes = {v.colours: _palette(v.colours) for scan in scans for v in scan.volumes}
    text = json.dumps({"scans": described, "palettes": palettes}, separators=(",", ":"))
    # A name might contain the end of the script.
    return {"volumes": volumes, "description": Markup(text.replace("<", "\\u003c"))}


def _describe(volume: Volume) -> dict[str, Any]:
    scale = {"low": float(volume.low), "high": float(volume.high), "unit": volume.unit}
    return {"bar": _bar(volume), "colours": None if volume.is_coloured else volume.colours} | scale


def _extent(affine: Array, box: Box) -> dict[str, list[float]]:
    """Return the positions of a box's first and last slices along each world axis, mm."""
    moved = move_affine(affine, box)
    ends = np.array([[0, side.stop - side.start - 1] for side in box])
    corners = np.stack(np.meshgrid(*ends, indexing="ij"), axis=-1).reshape(-1, 3)
    world = corners @ moved[:3, :3].T + moved[:3, 3]
    # The image axis nearest to each world axis determines the distance between slices.
    steps = np.abs(moved[:3, :3]).max(axis=1)
    parts = {"low": world.min(axis=0), "high": world.max(axis=0), "step": steps}
    return {name: np.round(part, 3).tolist() for name, part in parts.items()}


def _palette(colours: str) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps[colours](np.linspace(0, 1, _STOPS))]
