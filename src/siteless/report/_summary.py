"""What a report tells of one scan, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# A map whose voxels go less with those before than this, in white matter, is worth a look; and
# one that goes so many robust standard deviations less than those of other scans.
_LEAST_LIKENESS, _OUTLYING = 0.7, 4.0
# Part of the rendered voxels that are unlike the training scans of their site.
_MOST_UNFAMILIAR = 0.01


@dataclass(frozen=True)
class Portrait:
    """Numbers of a scan, in white matter.

    Attributes
    ----------
    name, subject, site
        Of the scan.
    to
        The site that it was rendered as.
    age
        Of the person, years; None where no table tells.
    before, after
        Means of maps, by name.
    curves
        How voxels of maps are distributed before and after, by name: densities in bins between
        the usual values of `SCALES`.
    likeness
        Correlation of voxels before and after, by map.
    change
        Root-mean-square change of the signal beyond that of its level, in per cent of b0; None
        where no map tells.
    unfamiliar
        Part of rendered voxels that are unlike the training scans of their site; None where no
        sidecar tells.
    """

    name: str
    subject: str
    site: str
    to: str
    age: float | None
    before: Mapping[str, float]
    after: Mapping[str, float]
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    likeness: Mapping[str, float]
    change: float | None
    unfamiliar: float | None


@dataclass(frozen=True)
class Scale:
    """How a map is shown.

    Attributes
    ----------
    title, unit
        What people read.
    factor
        From the map's own unit.
    ends
        Of the scale, in the unit shown.
    usual
        What most voxels of white matter have.
    difference
        Largest that is told from others.
    """

    title: str
    unit: str
    factor: float
    ends: tuple[float, float]
    usual: tuple[float, float]
    difference: float


SCALES = {
    "fa": Scale("FA", "", 1.0, (0.0, 1.0), (0.0, 1.0), 0.2),
    "md": Scale("MD", "10⁻³ mm²/s", 1e3, (0.0, 3.0), (0.4, 1.2), 0.4),
    "mk": Scale("MK", "", 1.0, (0.0, 2.0), (0.2, 1.8), 0.4),
    "rtop": Scale("RTOP", "10⁵ mm⁻³", 1e-5, (0.0, 10.0), (0.0, 8.0), 2.0),
}


def flag(portraits: Sequence[Portrait]) -> dict[str, tuple[str, ...]]:
    """Say which scans to look at, and why, by name; the worst first."""
    least = _least_likeness(portraits)
    found = {one.name: tuple(_reasons(one, least)) for one in portraits}
    flagged = [one for one in portraits if found[one.name]]
    worst = sorted(flagged, key=lambda one: (-(one.unfamiliar or 0), *one.likeness.values()))
    return {one.name: found[one.name] for one in worst}


def _least_likeness(portraits: Sequence[Portrait]) -> dict[str, float]:
    """Return the correlation below which a scan stands out, by map."""
    found = {}
    for name in dict.fromkeys(name for one in portraits for name in one.likeness):
        values = np.array([one.likeness[name] for one in portraits if name in one.likeness])
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        middle = np.median(values)
        spread = 1.4826 * np.median(np.abs(values - middle))
        found[name] = max(_LEAST_LIKENESS, float(middle - _OUTLYING * max(spread, 0.01)))
    return found


def _reasons(one: Portrait, least: Mapping[str, float]) -> Iterator[str]:
    if one.unfamiliar is not None and one.unfamiliar > _MOST_UNFAMILIAR:
        yield f"{100 * one.unfamiliar:.1f} % of voxels unlike the training scans"
    for name, value in one.likeness.items():
        if not np.isfinite(value):
            yield f"{SCALES[name].title} is the same everywhere, or no number"
        elif value < least[name]:
            yield f"correlation of {SCALES[name].title} before and after is only {value:.3f}"
