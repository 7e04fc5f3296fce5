"""Summary of a scan before and after, for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# A scan is flagged if the correlation of white-matter voxels before and after is less than this,
# or so many robust standard deviations below that of other scans.
_LEAST_LIKENESS, _OUTLYING = 0.7, 4.0
# Largest fraction of rendered voxels that may be out-of-distribution.
_MOST_UNFAMILIAR = 0.01


@dataclass(frozen=True)
class ScanSummary:
    """White-matter summary of a scan.

    Attributes
    ----------
    name, subject, site
        Labels of the scan.
    to
        Site that it was rendered as.
    age
        Age of the participant, years; None if unknown.
    before, after
        Means of maps, by name.
    curves
        Distributions of maps before and after, by name: densities in bins over the usual range in
        `SCALES`.
    likeness
        Correlation of voxels before and after, by map.
    change
        Root-mean-square change of the signal relative to its level, in per cent of b0; None if
        unknown.
    unfamiliar
        Fraction of rendered voxels that are out-of-distribution; None if unknown.
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
    """How a map is displayed: name, unit, and ranges in that unit."""

    title: str
    unit: str
    factor: float  # from the map's unit to the displayed one
    ends: tuple[float, float]
    usual: tuple[float, float]  # of most voxels of white matter
    difference: float  # largest on the scale of differences


SCALES = {
    "fa": Scale("FA", "", 1.0, (0.0, 1.0), (0.0, 1.0), 0.2),
    "md": Scale("MD", "10⁻³ mm²/s", 1e3, (0.0, 3.0), (0.4, 1.2), 0.4),
    "mk": Scale("MK", "", 1.0, (0.0, 2.0), (0.2, 1.8), 0.4),
    "rtop": Scale("RTOP", "10⁵ mm⁻³", 1e-5, (0.0, 10.0), (0.0, 8.0), 2.0),
}


def flag_scans(summaries: Sequence[ScanSummary]) -> dict[str, tuple[str, ...]]:
    """Return the names of flagged scans with the reasons, the worst first."""
    least = _least_likeness(summaries)
    reasons = {scan.name: tuple(_reasons(scan, least)) for scan in summaries}
    flagged = [scan for scan in summaries if reasons[scan.name]]
    worst = sorted(flagged, key=lambda scan: (-(scan.unfamiliar or 0), *scan.likeness.values()))
    return {scan.name: reasons[scan.name] for scan in worst}


def _least_likeness(summaries: Sequence[ScanSummary]) -> dict[str, float]:
    """Return the correlation below which a scan is flagged, by map."""
    least = {}
    for name in dict.fromkeys(name for scan in summaries for name in scan.likeness):
        values = np.array([scan.likeness[name] for scan in summaries if name in scan.likeness])
        values = values[np.isfinite(values)]
        if values.size:
            middle = np.median(values)
            deviation = 1.4826 * np.median(np.abs(values - middle))
            least[name] = max(_LEAST_LIKENESS, float(middle - _OUTLYING * max(deviation, 0.01)))
    return least


def _reasons(scan: ScanSummary, least: Mapping[str, float]) -> Iterator[str]:
    if scan.unfamiliar is not None and scan.unfamiliar > _MOST_UNFAMILIAR:
        yield f"{100 * scan.unfamiliar:.1f} % of voxels unlike the training scans"
    for name, value in scan.likeness.items():
        if not np.isfinite(value):
            yield f"{SCALES[name].title} is the same everywhere, or no number"
        elif value < least[name]:
            yield f"correlation of {SCALES[name].title} before and after is only {value:.3f}"
