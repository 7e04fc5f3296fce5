"""Box plots of voxel scores: a panel for each task, a row for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from siteless.acquisition import Array
from siteless.report._style import (
    COLOURS,
    count_panels,
    inner_names,
    picture,
    require_some,
    say_empty,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PERCENTILES = (5, 25, 50, 75, 95)
_BOX: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.6}
_LINE: dict[str, Any] = {"color": "black", "linewidth": 0.8}
_FLOOR: dict[str, Any] = {**_LINE, "linestyle": (0, (4, 2))}
_MARK: dict[str, Any] = {"ls": "none", "marker": "D", "ms": 3.5, "mfc": "white", "mec": "black"}


def draw_boxes(
    values: Mapping[str, Mapping[str, Array]],
    path: Path,
    *,
    label: str,
    floors: Mapping[str, float] | None = None,
    marked: float | None = None,
) -> None:
    """Draw the distribution of a score over voxels for each task and method.

    Panels share both axes. Boxes are labelled by method, so colours are redundant.

    Parameters
    ----------
    values
        Voxel scores by task and method, any shape; non-finite values are ignored. A task may lack
        methods.
    path
        Path of the PNG.
    label
        Name of the score, with its unit.
    floors
        Noise floor of the score, for some or all tasks.
    marked
        A percentile to mark beyond those of the boxes, 0 to 100.
    """
    methods = inner_names(values)
    floors = {task: floor for task, floor in (floors or {}).items() if task in values}
    shares = _PERCENTILES if marked is None else (*_PERCENTILES, marked)
    boxes = {
        task: {method: percentiles(scores, shares) for method, scores in row.items()}
        for task, row in values.items()
    }
    require_some((box for row in boxes.values() for box in row.values()), path)
    rows, columns = count_panels(len(values))
    with picture(path, height=rows * (0.45 + 0.19 * len(methods)) + 0.5) as figure:
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for panel, (task, row) in zip(axes.flat, boxes.items(), strict=False):
            _draw_task(panel, row, methods)
            panel.set_title(task)
            if task in floors:
                panel.axvline(floors[task], zorder=1.5, **_FLOOR)
        for unused in axes.flat[len(values) :]:
            unused.set_visible(False)
            axes[-2, unused.get_subplotspec().colspan.start].tick_params(labelbottom=True)
        axes[0, 0].set_xlim(_limits(boxes, floors))
        figure.supxlabel(label, fontsize=7.5)
        _draw_key(figure, marked, with_floor=bool(floors))


def percentiles(values: Array, shares: Sequence[float] = _PERCENTILES) -> Array:
    """Return percentiles of finite values, shape (share,); shape (0,) if there are none.

    Examples
    --------
    >>> percentiles(np.arange(101.0))
    array([ 5., 25., 50., 75., 95.])
    >>> percentiles(np.array([np.nan]))
    array([], dtype=float64)
    """
    scores = np.asarray(values, dtype=float).ravel()
    scores = scores[np.isfinite(scores)]
    return np.percentile(scores, shares) if scores.size else scores


def _draw_task(panel: Axes, boxes: Mapping[str, Array], methods: list[str]) -> None:
    drawn = [n for n, method in enumerate(methods) if boxes.get(method, np.empty(0)).size]
    if drawn:
        _draw_rows(panel, np.array(drawn), np.stack([boxes[methods[n]] for n in drawn]))
    panel.set_yticks(range(len(methods)), methods)
    panel.set_ylim(len(methods) - 0.4, -0.6)  # the first method on top
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x", color="0.88", linewidth=0.5)
    panel.set_axisbelow(True)
    for n in set(range(len(methods))).difference(drawn):
        say_empty(panel, 1 - (n + 0.6) / (len(methods) + 0.2))


def _draw_rows(panel: Axes, rows: Array, boxes: Array) -> None:
    """Draw boxes, shape (row, percentile), at their heights, shape (row,)."""
    low, left, middle, right, high, *mark = boxes.T
    panel.hlines(rows, low, high, zorder=2, **_LINE)
    colours = [COLOURS[n % len(COLOURS)] for n in rows]
    panel.barh(rows, right - left, left=left, height=0.62, color=colours, zorder=3, **_BOX)
    panel.vlines(middle, rows - 0.31, rows + 0.31, color="black", linewidth=1.8, zorder=4)
    for values in mark:
        panel.plot(values, rows, zorder=5, **_MARK)


def _limits(
    boxes: Mapping[str, Mapping[str, Array]], floors: Mapping[str, float]
) -> tuple[float, float]:
    """Return the range of all values, from zero if that is near."""
    ends = [box for row in boxes.values() for box in row.values()]
    ends.append(np.array(list(floors.values()), dtype=float))
    low, high = np.concatenate(ends).min(), np.concatenate(ends).max()
    margin = 0.04 * ((high - low) or 1.0)
    return 0.0 if 0 <= low < high / 2 else low - margin, high + margin


def _draw_key(figure: Figure, marked: float | None, *, with_floor: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Line2D([], [], label="median", ls="none", marker="|", ms=8, mew=1.8, mec="black"),
        Patch(facecolor="0.85", label="percentiles 25 to 75", **_BOX),
        Line2D([], [], label="percentiles 5 to 95", **_LINE),
    ]
    if marked is not None:
        handles.append(Line2D([], [], label=f"percentile {marked:g}", **_MARK))
    if with_floor:
        handles.append(Line2D([], [], label="noise floor", **_FLOOR))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
