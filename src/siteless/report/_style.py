"""The style of pictures, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from siteless.acquisition import Array
from siteless.errors import OutputError
from siteless.storage import staged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 17 / 2.54  # inches: the text of an A4 page
HEIGHT = 23 / 2.54
DPI = 200
# The colour-blind safe palette of Okabe and Ito, with grey for black, which would hide lines.
COLOURS = ("#999999", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")
_STYLE = {
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # names may contain dollar signs
}


@contextmanager
def picture(
    path: Path,
    *,
    height: float,
    layout: Literal["constrained", "compressed"] = "constrained",
    dpi: int = DPI,
) -> Iterator[Figure]:
    """Provide a figure of page width to draw on, and write it when the block ends.

    The height is in inches. The layout "compressed" is for panels of a fixed shape.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    # Based on matplotlib's defaults, so that a user's settings do not change the picture.
    with style.context(["default", _STYLE]):
        figure = Figure(figsize=(WIDTH, height), layout=layout)
        yield figure
        save_figure(figure, path, dpi=dpi)


def save_figure(figure: Figure, path: Path, *, dpi: int) -> None:
    """Write a figure as PNG, completely or not at all."""
    with staged(path.parent) as stage:
        figure.savefig(stage / path.name, dpi=dpi, format="png", metadata={"Software": None})


def inner_names(table: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the inner keys of a table, each once, as they appear.

    Examples
    --------
    >>> inner_names({"a > b": {"scaled": 1}, "b > a": {"unchanged": 2, "scaled": 3}})
    ['scaled', 'unchanged']
    """
    return list(dict.fromkeys(name for row in table.values() for name in row))


def require_some(arrays: Iterable[Array], path: Path) -> None:
    """Raise an error if there is no value to draw."""
    if not any(values.size for values in arrays):
        raise OutputError(
            "nothing to draw: no value is finite", remedy="check what was scored", path=path
        )


def say_empty(panel: Axes, height: float = 0.5) -> None:
    """Label a panel without values, at a height between 0 and 1."""
    place: dict[str, Any] = {"transform": panel.transAxes, "ha": "center", "va": "center"}
    panel.text(0.5, height, "no values", color="0.35", **place)


def count_panels(panels: int) -> tuple[int, int]:
    """Return the numbers of rows and columns for a number of panels.

    Examples
    --------
    >>> [count_panels(panels) for panels in range(1, 8)]
    [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 3), (3, 3)]
    """
    columns = 2 if panels == 4 else min(panels, 3)
    return -(-panels // columns), columns
