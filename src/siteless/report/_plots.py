"""Plots as plain HTML: positions in per cent, so that a page lays them out for any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from siteless.acquisition import Array

_TICKS = 5
# Margin on either side, as a fraction of the range of values.
_MARGIN = 0.04


@dataclass(frozen=True)
class Axis:
    """The axis of a plot, from one end to the other."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float] | Array) -> Axis:
        """Return an axis that covers all finite values.

        Examples
        --------
        >>> Axis.around([0.0, 1.0, float("nan")])
        Axis(low=-0.04, high=1.04)
        """
        known = np.asarray(values, dtype=float)
        known = known[np.isfinite(known)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        margin = _MARGIN * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - margin, high + margin)

    def at(self, value: float) -> float:
        """Return the position of a value, in per cent of the axis."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    @cached_property
    def ticks(self) -> list[tuple[float, str]]:
        """Positions in per cent, with their labels."""
        from matplotlib.ticker import MaxNLocator

        values = MaxNLocator(_TICKS).tick_values(self.low, self.high)
        step = values[1] - values[0]
        decimals = max(0, int(np.ceil(-np.log10(step) - 1e-9)))
        decimals += not np.isclose(step, round(step, decimals))
        inside = [value for value in values if self.low <= value <= self.high]
        return [(self.at(value), f"{value + 0.0:.{decimals}f}") for value in inside]


@dataclass(frozen=True)
class Dot:
    """A value with its tooltip."""

    value: float
    tooltip: str


@dataclass(frozen=True)
class Strip:
    """A row of dots."""

    label: str
    dots: tuple[Dot, ...]
    kind: str = "after"  # style-sheet class, which sets the colour
    heading: str = ""  # above this and the following rows
    mark: float | None = None  # value to mark by a line, such as chance

    @property
    def values(self) -> Array:
        """Finite values of the dots."""
        return np.array([dot.value for dot in self._known], dtype=float)

    @property
    def lowest(self) -> Dot:
        """The dot with the lowest finite value."""
        return min(self._known, key=lambda dot: dot.value)

    @property
    def highest(self) -> Dot:
        """The dot with the highest finite value."""
        return max(self._known, key=lambda dot: dot.value)

    @property
    def _known(self) -> list[Dot]:
        return [dot for dot in self.dots if np.isfinite(dot.value)]

    @property
    def mean(self) -> float:
        """Mean of the values, NaN if there are none."""
        return float(self.values.mean()) if self.values.size else float("nan")


@dataclass(frozen=True)
class StripPlot:
    """Rows of dots on one scale, from top to bottom."""

    title: str
    label: str  # of the axis, with its unit
    strips: tuple[Strip, ...]
    mark: str = ""  # meaning of the marks

    @cached_property
    def axis(self) -> Axis:
        """The scale."""
        values = [value for strip in self.strips for value in strip.values]
        marks = [strip.mark for strip in self.strips if strip.mark is not None]
        return Axis.around([*values, *marks])


@dataclass(frozen=True)
class Cloud:
    """Points of one kind, with a line through them."""

    label: str
    points: tuple[tuple[float, float, str], ...]  # horizontal and vertical values, and tooltips
    kind: str  # style-sheet class
    line: tuple[float, float]  # intercept and slope


@dataclass(frozen=True)
class ScatterPlot:
    """Clouds of points on common scales."""

    title: str
    labels: tuple[str, str]
    clouds: tuple[Cloud, ...]

    @cached_property
    def x(self) -> Axis:
        """The horizontal scale."""
        return Axis.around([point[0] for cloud in self.clouds for point in cloud.points])

    @cached_property
    def y(self) -> Axis:
        """The vertical scale."""
        return Axis.around([point[1] for cloud in self.clouds for point in cloud.points])

    def ends(self, cloud: Cloud) -> tuple[float, float, float, float]:
        """Return the ends of a cloud's line, in per cent from the upper left."""
        xs = [point[0] for point in cloud.points]
        intercept, slope = cloud.line
        ends = [(x, intercept + slope * x) for x in (min(xs), max(xs))]
        (x1, y1), (x2, y2) = [(self.x.at(x), round(100 - self.y.at(y), 2)) for x, y in ends]
        return x1, y1, x2, y2


@dataclass(frozen=True)
class Curve:
    """A distribution of values."""

    label: str
    density: tuple[float, ...]  # in equal bins over the axis
    kind: str  # style-sheet class


@dataclass(frozen=True)
class CurvePlot:
    """Distributions side by side: a panel for each group of curves, on common scales."""

    title: str
    label: str  # of the axis, with its unit
    ends: tuple[float, float]  # of the axis
    panels: Mapping[str, tuple[Curve, ...]]

    @cached_property
    def axis(self) -> Axis:
        """The scale."""
        return Axis(*self.ends)

    @cached_property
    def highest(self) -> float:
        """Highest density of all curves."""
        return max(max(c.density) for curves in self.panels.values() for c in curves) or 1.0

    def path(self, curve: Curve) -> str:
        """Return the points of a curve, in per cent from the upper left."""
        bins = len(curve.density)
        return " ".join(
            f"{100 * (place + 0.5) / bins:.1f},{98 - 94 * value / self.highest:.1f}"
            for place, value in enumerate(curve.density)
        )
