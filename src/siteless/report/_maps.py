"""Maps of scores: a row for each task, a column for each method, one scale for all."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from siteless.acquisition import Array
from siteless.report._style import HEIGHT, WIDTH, inner_names, picture, require_some, say_empty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable


def draw_maps(
    panels: Mapping[str, Mapping[str, Array]],
    path: Path,
    *,
    label: str,
    voxel_size: tuple[float, float],
    anatomy: Mapping[str, Array] | None = None,
) -> None:
    """Draw slices of a score for each task and method, with one scale for all.

    Parameters
    ----------
    panels
        Slices by task and method, shape (x, y), x to the right and y upward; NaN without a score.
        A task may lack methods.
    path
        Path of the PNG.
    label
        Name of the score, with its unit.
    voxel_size
        Distance between voxel centres along x and y, mm.
    anatomy
        Anatomical slice for each task, shown where there is no score, shape (x, y), any unit.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    require_some((_finite(shown) for row in panels.values() for shown in row.values()), path)
    methods = inner_names(panels)
    sizes = np.array([shown.shape for row in panels.values() for shown in row.values()])
    span = sizes.max(axis=0) * np.asarray(voxel_size, dtype=float)
    tall = min(0.82 * WIDTH / len(methods) * span[1] / span[0], (HEIGHT - 0.5) / len(panels))
    scale = ScalarMappable(Normalize(0, shared_limit(panels)), "viridis")
    with picture(path, height=len(panels) * tall + 0.5, layout="compressed") as figure:
        axes = figure.subplots(len(panels), len(methods), squeeze=False)
        for line, (task, row) in zip(axes, panels.items(), strict=True):
            behind = None if anatomy is None else anatomy.get(task)
            for panel, method in zip(line, methods, strict=True):
                panel.set(
                    xlim=(0, span[0]), ylim=(0, span[1]), xticks=[], yticks=[], aspect="equal"
                )
                panel.spines[:].set_visible(False)
                _draw_panel(panel, row.get(method), behind, voxel_size, scale)
            line[0].set_ylabel(_wrap(task, tall))
        for panel, method in zip(axes[0], methods, strict=True):
            panel.set_title(_wrap(method, tall * span[0] / span[1]), loc="center")
        _draw_length(axes[-1, 0], span)
        shape = {"shrink": 0.6, "aspect": 30} if len(panels) > 2 else {"aspect": 15}
        figure.colorbar(scale, ax=axes, label=label, extend="max", **shape)


def shared_limit(panels: Mapping[str, Mapping[str, Array]]) -> float:
    """Return the 99th percentile of finite values in all panels.

    Examples
    --------
    >>> there, back = np.arange(60.0), np.arange(60.0, 101.0)
    >>> float(shared_limit({"a > b": {"scaled": there}, "b > a": {"scaled": back}}))
    99.0
    """
    values = [_finite(shown) for row in panels.values() for shown in row.values()]
    return float(np.percentile(np.concatenate(values), 99)) or 1.0  # a scale needs a length


def _finite(values: Array) -> Array:
    return values[np.isfinite(values)]


def _wrap(name: str, inches: float) -> str:
    letters = int(inches * 72 / 4.8)  # width of a letter of 7.5 points with its margin
    return textwrap.fill(name, max(letters, 8), break_long_words=False)


def _draw_panel(
    panel: Axes,
    values: Array | None,
    anatomy: Array | None,
    voxel_size: tuple[float, float],
    scale: ScalarMappable,
) -> None:
    if anatomy is not None:
        # Light greys, which differ from the colours of the map.
        high = 3 * np.percentile(_finite(anatomy), 99)
        _show(panel, anatomy, voxel_size, cmap="gray_r", vmin=0, vmax=high)
    if values is not None and np.isfinite(values).any():
        _show(panel, values, voxel_size, cmap=scale.cmap, norm=scale.norm)
    else:
        say_empty(panel)


def _show(panel: Axes, values: Array, voxel_size: tuple[float, float], **colours: Any) -> None:
    right, top = np.asarray(values.shape) * np.asarray(voxel_size)
    limits = panel.axis()
    place: dict[str, Any] = {"origin": "lower", "extent": (0, right, 0, top)}
    panel.imshow(values.T, interpolation="nearest", **place, **colours)
    panel.axis(limits)


def _draw_length(panel: Axes, span: Array) -> None:
    """Draw a scale bar of at most half the panel."""
    lengths = np.array([1, 2, 5, 10, 20, 50, 100])
    length = lengths[lengths <= max(span[0] / 2, 1)].max()
    below = panel.get_xaxis_transform()
    line: dict[str, Any] = {"color": "black", "clip_on": False, "solid_capstyle": "butt"}
    panel.plot([0, length], [-0.03, -0.03], transform=below, **line)
    panel.text(0, -0.06, f"{length} mm", transform=below, va="top", fontsize=7)
