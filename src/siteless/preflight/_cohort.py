"""Check a cohort: confounds, incomparable sites, duplicates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from siteless.acquisition import MIN_DIRECTIONS, same_shells, show_bs
from siteless.harmonics import common_bs, max_order
from siteless.preflight._design import design_problems
from siteless.preflight._facts import MIN_PEOPLE, ScanFacts, group_scans
from siteless.preflight._problem import Problem

_VOXEL_TOLERANCE = 0.01
# Origin of a site from the JSON sidecar.
SIDECAR = "JSON sidecar"


def cohort_problems(scans: Sequence[ScanFacts], dataset: Path, *, order: int = 8) -> list[Problem]:
    """Compare all scans of a dataset, and report problems, those of the design first.

    The dataset is the path of problems that concern no single file. Harmonics are to be fitted to
    the order.
    """
    return [
        *design_problems(scans, dataset),
        *_without_site(scans),
        *_doubtful_sites(scans, dataset),
        *_low_orders(scans, order),
        *_duplicates(scans),
        *_few_scans(scans, dataset),
        *_differing_shells(scans, dataset),
        *_differing_voxels(scans, dataset),
        *_differing_orientations(scans, dataset),
    ]


def _without_site(scans: Sequence[ScanFacts]) -> Iterable[Problem]:
    for scan in scans:
        if scan.site is None:
            yield Problem.error(
                "no-site",
                scan.path,
                "no site could be given to the scan: no table has a site column for it, and its "
                "sidecar does not name the scanner",
                "add a site column to participants.tsv, or name an entity: --site-from ses",
            )


def _doubtful_sites(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    """Report sites with similar names, or from different origins."""
    sites = sorted({scan.site for scan in scans if scan.site})
    for first, second in combinations(sites, 2):
        if first.lower() == second.lower():
            what = f"sites {first} and {second} differ in upper and lower case only"
            remedy = "spell them alike if they are one"
            yield Problem.warning("similar-sites", dataset, what, remedy)
    by_sidecar = [scan for scan in scans if scan.site and scan.site_origin == SIDECAR]
    others = [scan for scan in scans if scan.site and scan.site_origin != SIDECAR]
    if by_sidecar and others:
        what = (
            f"tables or names give {len(others)} scans a site, but {len(by_sidecar)} only their "
            f"sidecar: {by_sidecar[0].site}"
        )
        remedy = "give every scan a site in the same way, or these become sites of their own"
        yield Problem.warning("mixed-sites", by_sidecar[0].path, what, remedy)


def _low_orders(scans: Sequence[ScanFacts], order: int) -> Iterable[Problem]:
    """Report shells with too few directions for an order, once for all such scans."""
    kinds: defaultdict[str, list[ScanFacts]] = defaultdict(list)
    for scan in scans:
        sparse = [
            f"b={b:.0f} x {count}"
            for b, count in scan.shells or ()
            if count >= MIN_DIRECTIONS and max_order(count) < order
        ]
        if sparse:
            kinds[", ".join(sparse)].append(scan)
    for shells, members in kinds.items():
        lowest = min(max_order(count) for _, count in members[0].shells or ())
        what = f"too few directions for order {order}: {shells} ({_sites(members)})"
        remedy = f"order {lowest} is used for such scans"
        yield Problem.warning("low-order", members[0].path, what, remedy)


def _duplicates(scans: Sequence[ScanFacts]) -> Iterable[Problem]:
    first: dict[str, ScanFacts] = {}
    for scan in scans:
        if scan.fingerprint is None:
            continue
        twin = first.setdefault(scan.fingerprint, scan)
        if twin is not scan:
            same = f"the image holds the same signal as {twin.path}"
            what = "the image is listed twice" if twin.path == scan.path else same
            remedy = "remove one, or restore the scan that was overwritten"
            yield Problem.error("duplicate", scan.path, what, remedy)


def _few_scans(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    by_site = group_scans(scans, lambda scan: scan.site)
    for site, members in by_site.items():
        people = len({scan.subject for scan in members})
        if people < MIN_PEOPLE:
            count = "one person" if people == 1 else f"{people} people"
            yield Problem.warning(
                "few-scans",
                members[0].path,
                f"site {site} has scans of {count}; at least {MIN_PEOPLE} are needed to tell a "
                "site from its people",
                "add scans, or check that the label is spelled as elsewhere",
            )
    if len(by_site) == 1:
        what = f"every scan is from site {next(iter(by_site))}, so there is nothing to harmonize"
        remedy = "add another site, or tell sites apart with --site-from"
        yield Problem.warning("one-site", dataset, what, remedy)


def _differing_shells(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    read = [scan for scan in scans if scan.shells]
    kinds = _alike(read, lambda first, second: same_shells(first.bs, second.bs))
    sites = [{scan.site for scan in kind} for kind in kinds]
    mixed = sum(map(len, sites)) > len(set().union(*sites))
    common = None if mixed else common_bs(kind[0].bs for kind in kinds)
    remedy = "harmonize only scans of the same shells, or remove the shells not shared"
    if common:
        remedy = (
            f"signal will be interpolated at {show_bs(common)}; choose scans of the same shells "
            "if there are enough"
        )
    report = partial(
        Problem.warning if common else Problem.error, "differing-shells", remedy=remedy
    )
    yield from _odd_ones(kinds, dataset, report, lambda scan: f"shells {show_bs(scan.bs)}")


def _differing_voxels(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    def same(first: ScanFacts, second: ScanFacts) -> bool:
        sizes = first.voxel_size or (), second.voxel_size or ()
        return bool(np.allclose(*sizes, rtol=_VOXEL_TOLERANCE, atol=0))

    def describe(scan: ScanFacts) -> str:
        return "voxels of " + " x ".join(f"{side:.2f}" for side in scan.voxel_size or ())

    kinds = _alike([scan for scan in scans if scan.voxel_size], same)
    remedy = "resample all scans to one voxel size"
    report = partial(Problem.warning, "differing-voxels", remedy=remedy)
    yield from _odd_ones(kinds, dataset, report, describe)


def _differing_orientations(scans: Sequence[ScanFacts], dataset: Path) -> Iterable[Problem]:
    kinds = list(group_scans(scans, lambda scan: scan.orientation).values())
    remedy = "no harm to siteless, which works in scanner axes; check that it is intended"
    report = partial(Problem.warning, "differing-orientations", remedy=remedy)
    yield from _odd_ones(
        kinds, dataset, report, lambda scan: f"image axes stored as {scan.orientation}"
    )


def _odd_ones(
    kinds: list[list[ScanFacts]],
    dataset: Path,
    report: Callable[..., Problem],
    describe: Callable[[ScanFacts], str],
) -> Iterable[Problem]:
    """Report kinds of scans that differ from the majority, or all kinds without a majority."""
    if len(kinds) < 2:
        return
    ordered = sorted(kinds, key=len, reverse=True)
    usual = ordered[0]
    if len(usual) * 2 <= sum(map(len, kinds)):
        what = "; ".join(f"{describe(kind[0])} ({_sites(kind)})" for kind in ordered)
        yield report(path=dataset, what=f"scans differ: {what}")
        return
    for kind in ordered[1:]:
        most = f"{describe(usual[0])} in {len(usual)} others"
        what = f"{describe(kind[0])} ({_sites(kind)}), but {most}"
        yield report(path=kind[0].path, what=what)


def _alike(
    scans: Iterable[ScanFacts], same: Callable[[ScanFacts, ScanFacts], bool]
) -> list[list[ScanFacts]]:
    kinds: list[list[ScanFacts]] = []
    for scan in scans:
        for kind in kinds:
            if same(kind[0], scan):
                kind.append(scan)
                break
        else:
            kinds.append([scan])
    return kinds


def _sites(scans: Sequence[ScanFacts]) -> str:
    sites = sorted({str(scan.site) for scan in scans})
    return f"{len(scans)} of {', '.join(sites)}"
