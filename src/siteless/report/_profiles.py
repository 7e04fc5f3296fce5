"""Pictures of global site effects."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from siteless.acquisition import show_bs
from siteless.model import SiteFields
from siteless.population import NUMBERS, SiteVerdict
from siteless.report._style import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Number of points along an axis of the pictures.
_POINTS = 60
_DPI = 120


def draw_profiles(fields: SiteFields, bs: tuple[float, ...], path: Path) -> None:
    """Draw the fields of sites to a file."""
    save_figure(_figure(fields, bs), path, dpi=_DPI)


def profiles_url(fields: SiteFields, bs: tuple[float, ...]) -> str:
    """Return the picture of `draw_profiles` as a data URL, for a page."""
    return _url(_figure(fields, bs))


def expected_errors_url(verdicts: Sequence[SiteVerdict]) -> str:
    """Draw the expected error of site effects against participants per site, for a page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    panel = figure.subplots()
    for verdict in verdicts:
        errors = 100 * np.array(verdict.expected_errors)
        (line,) = panel.plot(NUMBERS, errors, label=verdict.site)
        panel.plot(verdict.people, 100 * verdict.error, "o", color=line.get_color())
    panel.set_xscale("log")
    panel.set_xticks(NUMBERS, [str(number) for number in NUMBERS])
    panel.minorticks_off()
    panel.set(xlabel="people a site", ylabel="standard error, %", ylim=(0, None))
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    return _url(figure)


def _url(figure: Figure) -> str:
    png = BytesIO()
    figure.savefig(png, dpi=_DPI, format="png", metadata={"Software": None})
    return f"data:image/png;base64,{b64encode(png.getvalue()).decode()}"


def _figure(fields: SiteFields, bs: tuple[float, ...]) -> Figure:
    """Draw the fields of sites in the axial plane through the middle of the brain.

    Rows are sites, labelled with the blur of their scans; columns are amplitudes of b0 and,
    relative to it, of degrees 0 and 2 of each shell. All share a scale.
    """
    from matplotlib.figure import Figure

    names = ["b0", *(f"{show_bs((b,))}, degree {degree}" for b in bs for degree in (0, 2))]
    low, high = fields.box
    x, y = (np.linspace(low[axis], high[axis], _POINTS) for axis in (0, 1))
    plane = np.stack([*np.meshgrid(x, y), np.full((_POINTS,) * 2, (low + high)[2] / 2)], axis=-1)
    places = plane.reshape(-1, 3)
    shown = 100 * fields.changes(places).reshape(len(fields.sites), _POINTS, _POINTS, -1)
    most = max(1.0, float(np.percentile(np.abs(shown), 99)))
    figure = Figure(figsize=(2 * len(names) + 1.2, 2 * len(shown) + 0.6), layout="constrained")
    panels = figure.subplots(len(shown), len(names), squeeze=False)
    for site, blur, row, of_site in zip(fields.sites, fields.blurs, panels, shown, strict=True):
        row[0].set_ylabel(f"{site}\nblurred by {blur:.1f} mm²", fontsize=9)
        for panel, image in zip(row, np.moveaxis(of_site, -1, 0), strict=True):
            drawn = panel.imshow(
                image,
                origin="lower",
                cmap="RdBu_r",
                vmin=-most,
                vmax=most,
                interpolation="nearest",
            )
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
    for name, panel in zip(names, panels[0], strict=True):
        panel.set_title(name, fontsize=9)
    figure.colorbar(drawn, ax=panels, shrink=0.8, label="more than the mean of sites, %")
    return figure
