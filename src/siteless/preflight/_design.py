"""Check a study's design for confounds of covariates, or of change over time, with the site."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import permutations
from pathlib import Path

import numpy as np
from scipy import stats

from siteless.errors import DatasetError
from siteless.population import Covariate, Design, covariate_columns, require_identifiable
from siteless.preflight._facts import MIN_PEOPLE, ScanFacts, group_scans
from siteless.preflight._problem import Problem

_SIGNIFICANT = 0.01
# Years. Scans that are closer in time belong to one visit: travelling takes some weeks.
_APART = 0.25
_DAYS_PER_YEAR = 365.25
# Number of pairs of sites to report.
_SHOWN = 3
# A number or a category.
_Value = float | str


def design_problems(scans: Sequence[ScanFacts], dataset: Path) -> list[Problem]:
    """Report what keeps people and sites from being separated, in all scans of a dataset."""
    sited = [scan for scan in scans if scan.site is not None]
    return [
        *_confounds(sited, dataset),
        *_unknown_covariates(sited, dataset),
        *_confounded_change(sited, dataset),
    ]


def _confounds(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    """Report age, sex or group if it differs between sites, or if a fit rejects it."""
    for name, read in _COVARIATES.items():
        values_by_site = _by_site(scans, name, read)
        refused = len(values_by_site) >= 2 and _is_refused(name, scans)
        if refused or _differ([values for values in values_by_site.values() if len(values) >= 2]):
            shown = [f"{_show(values)} at {site}" for site, values in values_by_site.items()]
            what = f"{name} is confounded with site: {', '.join(shown)}"
            remedy = (
                f"siteless fit will refuse {name} unless people travel between the sites: add "
                f"people whose {name} overlaps, or leave it out with --covariates and accept that "
                "its effect is removed"
                if refused
                else "harmonize matched groups, or a true difference between people may be removed"
            )
            yield Problem.warning("confound", dataset, what, remedy)


def _unknown_covariates(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    """Report age, sex or group if it is known for some of those to learn from only."""
    learning = _learning(scans)
    for name in _COVARIATES:
        unknown = [s for s in learning if s.attributes.get(name) in (None, "", "n/a")]
        if 0 < len(unknown) < len(learning):
            people = sorted({f"sub-{scan.subject}" for scan in unknown})
            some = ", ".join(people[:_SHOWN]) + (", ..." if len(people) > _SHOWN else "")
            yield Problem.warning(
                "unknown-covariate",
                dataset,
                f"{name} is known for some people only, and not for {some}",
                f"siteless fit will refuse this: add the {name}, or name other --covariates",
            )


def _learning(scans: Sequence[ScanFacts]) -> Sequence[ScanFacts]:
    """Return the scans to learn from: those of the training split, or all without splits."""
    has_splits = {scan.attributes.get("split") for scan in scans} != {None}
    return [s for s in scans if not has_splits or s.attributes.get("split") == "train"]


def _by_site(
    scans: Iterable[ScanFacts], name: str, read: Callable[[str], _Value | None]
) -> dict[str, list[_Value]]:
    """Return a value of each participant by site, from the first scan with one."""
    people: dict[tuple[str, str], _Value] = {}
    for scan in scans:
        value = read(scan.attributes.get(name, ""))
        if scan.site is not None and value is not None:
            people.setdefault((scan.site, scan.subject), value)
    values_by_site: defaultdict[str, list[_Value]] = defaultdict(list)
    for (site, _), value in people.items():
        values_by_site[site].append(value)
    return values_by_site


def _number(text: str) -> float | None:
    """Read a number; ages above a limit are often given as ``89+``."""
    cut = text.removesuffix("+")
    return float(cut) if cut.replace(".", "", 1).isdecimal() else None


# Default covariates of a fit, and how their cells are parsed.
_COVARIATES: Mapping[str, Callable[[str], _Value | None]] = {
    "age": _number,
    "sex": lambda text: text[:1].upper() or None,
    "group": lambda text: text or None,
}


def _differ(sites: Sequence[Sequence[_Value]]) -> bool:
    """Whether sites differ significantly."""
    if len(sites) < 2:
        return False
    words = set().union(*sites)
    if isinstance(sites[0][0], float):
        if all(len(set(values)) == 1 for values in sites):  # an F test would divide by zero
            return len(words) > 1
        return bool(stats.f_oneway(*map(np.array, sites)).pvalue < _SIGNIFICANT)
    counts = np.array([[list(values).count(word) for word in words] for values in sites])
    if len(words) < 2:
        return False
    enough = counts.sum(axis=1).min() >= MIN_PEOPLE
    if enough and (np.count_nonzero(counts, axis=1) == 1).all():
        return True
    return bool(stats.chi2_contingency(counts).pvalue < _SIGNIFICANT)


def _show(values: Sequence[_Value]) -> str:
    numbers = [value for value in values if isinstance(value, float)]
    if numbers:
        people = "1 person" if len(numbers) == 1 else f"{len(numbers)} people"
        return f"mean {np.mean(numbers):.0f} ({min(numbers):.0f} to {max(numbers):.0f}, {people})"
    return " and ".join(f"{n} {word}" for word, n in sorted(Counter(values).items()))


def _is_refused(name: str, scans: Sequence[ScanFacts]) -> bool:
    """Whether a fit rejects a covariate that is nearly determined by the site."""
    learning = _learning(scans)
    if not learning or any(name not in scan.attributes for scan in learning):
        return False
    labels = [str(scan.site) for scan in learning]
    sites = sorted(set(labels))
    rows = [scan.attributes for scan in learning]
    try:
        columns = covariate_columns([Covariate.of(name, [row[name] for row in rows])], rows)
    except DatasetError:  # not a problem of the design
        return False
    design = Design.of(labels, [scan.subject for scan in learning], sites)
    try:
        require_identifiable(design, {name: columns}, sites)
    except DatasetError:
        return True
    return False


def _confounded_change(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    """Report pairs of sites that everybody visited in one order, without follow-up at either.

    Visits of both sites at the same or unknown times do not count.
    """
    people = [_visits(own) for own in group_scans(scans, lambda scan: scan.subject).values()]
    times = [item for visits in people for item in visits.items()]
    followed = {site for site, (first, last) in times if last - first >= _APART}
    moves = []
    sites = sorted({str(scan.site) for scan in scans} - followed)
    for first, second in permutations(sites, 2):
        both = [visits for visits in people if first in visits and second in visits]
        ordered = all(visits[second][0] - visits[first][1] >= _APART for visits in both)
        if ordered and len(both) >= MIN_PEOPLE:
            who = f"all {len(both)} people seen at {first} and {second}"
            moves.append(f"{who} were at {first} first")
    if moves:
        more = f", and {len(moves) - _SHOWN} more pairs of sites" if len(moves) > _SHOWN else ""
        yield Problem.warning(
            "confounded-change",
            dataset,
            f"change over time cannot be separated from the scanner: {', '.join(moves[:_SHOWN])}"
            f"{more}, and nobody was followed up at any of these sites",
            "follow some people up on one scanner, or scan some on both within weeks; otherwise "
            "do not read a change between the sites as one of the brain",
        )


def _visits(scans: Sequence[ScanFacts]) -> dict[str, tuple[float, float]]:
    """Return a participant's first and last time at each site, years; NaN if unknown."""
    times = next(filter(None, (_times(scans, *column) for column in _TIMES.items())), None)
    visits: dict[str, tuple[float, float]] = {}
    for scan, time in zip(scans, times or [np.nan] * len(scans), strict=True):
        first, last = visits.get(str(scan.site), (time, time))
        visits[str(scan.site)] = (min(first, time), max(last, time))
    return visits


def _times(
    scans: Sequence[ScanFacts], column: str, read: Callable[[str], float | None]
) -> list[float] | None:
    """Return a participant's times in years, if a column distinguishes several visits."""
    read_all = [read(scan.attributes.get(column, "")) for scan in scans]
    times = [time for time in read_all if time is not None]
    return times if len(times) == len(scans) and np.ptp(times) >= _APART else None


def _date(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).toordinal() / _DAYS_PER_YEAR
    except ValueError:
        return None


_TIMES: Mapping[str, Callable[[str], float | None]] = {
    "years": _number,
    "age": _number,
    "acq_time": _date,
}
