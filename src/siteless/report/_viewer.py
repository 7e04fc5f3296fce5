"""A viewer of volumes side by side, for a page that opens from disk."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.report._niivue import PACKAGE, find_niivue
from siteless.report._style import inner_names
from siteless.report._volume import (
    Box,
    Volume,
    bounding_box,
    draw_still,
    encode_volume,
    move_affine,
)

PLANES = ("axial", "coronal", "sagittal")
# Number of colours between which the page interpolates, in colour bars and maps alike.
_STOPS = 17
# Fraction of a frame that a still fills, as in the viewer.
_SHARE = 0.9
_CONVENTION = "The left of a picture is the left of the person (sagittal: the back of the head)."


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
            scales = {(panels[name].low, panels[name].high) for name in _twins(panels)}
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
    style = f"<style>\n{_page_file('viewer.css')}</style>"
    niivue = find_niivue()
    if niivue is None:
        return "\n".join([style, *_stills(scans)])
    module = _pack(niivue)
    return "\n".join(
        [
            style,
            '<div class="viewer" id="siteless-viewer">',
            *_controls(scans),
            *_panels(scans),
            f'<p class="viewer-note">{_CONVENTION} <span class="viewer-hint">',
            "Click in a picture to move all of them. Shown by NiiVue.</span></p>",
            "</div>",
            *_data(scans),
            f'<script type="text/plain" id="siteless-niivue">{module}</script>',
            f'<script type="module">\n{_page_file("viewer.js")}</script>\n',
        ]
    )


@lru_cache(1)
def _pack(source: str) -> str:
    """Compress a module, once for all pages of a process."""
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode()


def _twins(panels: Mapping[str, Volume]) -> list[str]:
    return [
        name for name in ("before", "after") if name in panels and not panels[name].is_coloured
    ]


def _page_file(name: str) -> str:
    return files("siteless.report").joinpath("page", name).read_text(encoding="utf-8")


def _controls(scans: Sequence[ViewedScan]) -> Iterator[str]:
    quantities = list(scans[0].maps)
    names = [scan.name for scan in scans]
    yield '<fieldset class="viewer-controls" disabled><legend>What to see</legend>'
    yield _choice("scan", "Scan", names, hidden=len(scans) == 1)
    yield _choice("quantity", "Map", quantities)
    yield '<span class="viewer-planes" role="radiogroup" aria-label="Plane">'
    for number, plane in enumerate(PLANES):
        checked = "" if number else " checked"
        box = f'<input type="radio" name="viewer-plane" value="{number}"{checked}>'
        yield f"<label>{box} {plane}</label>"
    yield "</span>"
    yield '<span class="viewer-slice"><label for="viewer-slice">Slice</label>'
    yield '<input type="range" name="slice" id="viewer-slice" min="0" max="1" step="any">'
    yield '<span class="viewer-where" aria-hidden="true"></span></span>'
    yield "</fieldset>"
    yield '<p class="viewer-status" role="status"></p>'
    yield "<noscript><p>Moving through slices needs JavaScript.</p></noscript>"


def _choice(name: str, label: str, choices: Sequence[str], *, hidden: bool = False) -> str:
    options = "".join(
        f'<option value="{escape(choice) if name == "quantity" else number}">{escape(choice)}'
        "</option>"
        for number, choice in enumerate(choices)
    )
    hide = " hidden" if hidden else ""
    return f'<label{hide}>{label} <select name="{name}">{options}</select></label>'


def _panels(scans: Sequence[ViewedScan]) -> Iterator[str]:
    first, box = next(iter(scans[0].maps.values())), scans[0].box
    names = inner_names({f"{s.name} {q}": v for s in scans for q, v in s.maps.items()})
    yield f'<div class="viewer-panels" style="--panels: {len(names)}">'
    for panel in names:
        yield _figure(panel, first.get(panel), box)
    yield "</div>"


def _figure(panel: str, volume: Volume | None, box: Box) -> str:
    """Return a panel with the middle axial slice, hidden if there is no volume."""
    still = "" if volume is None else _image(volume, box, panel)
    letters = "".join(f"<b>{letter}</b>" for letter in "LRAP")
    return (
        f'<figure data-panel="{escape(panel)}"{" hidden" if volume is None else ""}>'
        f'<div class="viewer-frame">{still}{letters}</div>'
        f"<figcaption>{_caption(panel, volume)}</figcaption></figure>"
    )


def _caption(panel: str, volume: Volume | None) -> str:
    name = f'<span class="viewer-name">{escape(panel)}</span> <span class="viewer-value"></span>'
    return name + f'<span class="viewer-bar">{_bar(volume)}</span>'


def _bar(volume: Volume | None) -> str:
    """Return the colour bar of a volume."""
    if volume is None or volume.is_coloured:
        return "" if volume is None else f"<span>{escape(volume.unit)}</span>"
    low, high = (_number(value) for value in (volume.low, volume.high))
    colours = ", ".join(_palette(volume.colours))
    return (
        f'<span>{low}</span><i style="background: linear-gradient(to right, {colours})"></i>'
        f"<span>{high} {escape(volume.unit)}</span>"
    )


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def _image(volume: Volume, box: Box, panel: str) -> str:
    picture, *sides = draw_still(volume, box)
    width, height = (f"{_SHARE * side / max(sides):.1%}" for side in sides)
    return (
        f'<img alt="{escape(panel)}, middle slice" style="width: {width}; height: {height}" '
        f'src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
    )


def _stills(scans: Sequence[ViewedScan]) -> Iterator[str]:
    yield '<div class="viewer"><p class="viewer-status" role="status">'
    yield "These are still pictures. To move through slices, install the viewer with "
    yield f"<code>pip install {PACKAGE}</code> and write the report again.</p>"
    for scan in scans:
        box = scan.box
        for quantity, panels in scan.maps.items():
            yield f"<h4>{escape(scan.name)}: {escape(quantity)}</h4>"
            yield f'<div class="viewer-panels" style="--panels: {len(panels)}">'
            yield from (_figure(panel, volume, box) for panel, volume in panels.items())
            yield "</div>"
    yield f'<p class="viewer-note">{_CONVENTION}</p></div>\n'


def _data(scans: Sequence[ViewedScan]) -> Iterator[str]:
    described = []
    for number, scan in enumerate(scans):
        # A volume with several quantities is embedded once.
        distinct = list({id(volume): volume for volume in scan.volumes}.values())
        places = {id(v): f"siteless-volume-{number}-{place}" for place, v in enumerate(distinct)}
        for volume in distinct:
            data = base64.b64encode(encode_volume(volume, scan.box)).decode()
            yield f'<script type="text/plain" id="{places[id(volume)]}">{data}</script>'
        maps = {
            quantity: {
                panel: _describe(v) | {"data": places[id(v)]} for panel, v in panels.items()
            }
            for quantity, panels in scan.maps.items()
        }
        described.append(
            {"name": scan.name, "maps": maps} | _extent(scan.volumes[0].affine, scan.box)
        )
    palettes = {v.colours: _palette(v.colours) for scan in scans for v in scan.volumes}
    text = json.dumps({"scans": described, "palettes": palettes}, separators=(",", ":"))
    # A name might contain the end of the script.
    text = text.replace("<", "\\u003c")
    yield f'<script type="application/json" id="siteless-volumes">{text}</script>'


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
