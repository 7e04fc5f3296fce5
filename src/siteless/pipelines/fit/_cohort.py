"""Choose the cohort of a fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from siteless.acquisition import GradientTable, same_b, same_shells, show_bs
from siteless.bids import ScanFiles, ScanSelection, read_gradient_table
from siteless.errors import DatasetError, GradientTableError
from siteless.harmonics import common_bs, common_order
from siteless.methods.cohort import Cohort
from siteless.model import AVERAGE

# Without a split column, one participant in this many is held out for validation.
_VALIDATION = 10


def choose_cohort(selection: ScanSelection, *, validate: bool, seed: int) -> Cohort:
    """Choose the training and validation scans; raise an error for incompatible ones."""
    study = selection.find()
    chosen = study.scans
    tables = [read_gradient_table(scan) for scan in chosen]
    weighted = [scan for scan, table in zip(chosen, tables, strict=True) if table.shells]
    bs, order = _common_shells(weighted, [table for table in tables if table.shells], study.root)
    labels = list(dict.fromkeys(str(scan.site) for scan in weighted))  # in the order of scans
    if AVERAGE in labels:
        raise DatasetError(
            f"a site is called {AVERAGE!r}, which is the name of the mean of sites",
            remedy="rename it",
            path=study.root,
        )
    if len(labels) < 2:
        raise DatasetError(
            f"expected scans of at least two sites, found {', '.join(labels)} only",
            remedy="name other --sites"
            if selection.sites
            else "tell sites apart, e.g. with --site-from",
            path=study.root,
        )
    learning, validating = _split(weighted, validate=validate, seed=seed, root=study.root)
    left_out = tuple(scan for scan in chosen if scan not in weighted)
    read = [*learning, *validating]
    other = tuple(
        s
        for s in read
        if not same_shells([shell.b for shell in read_gradient_table(s).shells], bs)
    )
    return Cohort(tuple(learning), tuple(validating), left_out, other, tuple(labels), bs, order)


def _common_shells(
    scans: Sequence[ScanFiles], tables: Sequence[GradientTable], root: Path
) -> tuple[tuple[float, ...], int]:
    """Return the common b-values of scans, to which they may be interpolated, and the order."""
    if not scans:
        raise DatasetError("no scan has a shell", remedy="give diffusion scans", path=root)
    bs = [tuple(shell.b for shell in table.shells) for table in tables]
    of_site = {
        str(scan.site): scan_bs for scan, scan_bs in zip(scans[::-1], bs[::-1], strict=True)
    }
    chosen = common_bs(of_site.values())
    for scan, scan_bs in zip(scans, bs, strict=True):
        expected = of_site[str(scan.site)] if chosen else bs[0]
        if not same_shells(scan_bs, expected):
            raise GradientTableError(
                f"expected shells of {show_bs(expected)} as in {scans[bs.index(expected)].name}, "
                f"found {show_bs(scan_bs)}",
                remedy="choose scans of the same shells, e.g. with --bids-filter-file",
                path=scan.dwi,
            )
    every = np.concatenate(bs)
    typical = (np.median(every[same_b(every, b)]) for b in chosen or ())
    return tuple(round(float(b), 1) for b in typical), common_order(tables)


def _split(
    scans: Sequence[ScanFiles], *, validate: bool, seed: int, root: Path
) -> tuple[list[ScanFiles], list[ScanFiles]]:
    """Split scans by the tables' ``split`` column, or else hold out one participant in ten.

    Without validation all scans are for training, or those that the column selects.
    """
    splits = [scan.attributes.get("split") for scan in scans]
    unknown = [word for word in splits if word not in (None, "train", "val", "test")]
    if unknown:
        raise DatasetError(
            f"expected train, val or test in the split column, found {unknown[0]!r}",
            remedy="correct it",
            path=root,
        )
    if any(splits):
        learning = [scan for scan, split in zip(scans, splits, strict=True) if split == "train"]
        validating = [scan for scan, split in zip(scans, splits, strict=True) if split == "val"]
    else:
        chosen = _validating_people(scans, seed) if validate else set()
        learning = [scan for scan in scans if scan.subject not in chosen]
        validating = [scan for scan in scans if scan.subject in chosen]
    lost = {str(scan.site) for scan in scans} - {str(scan.site) for scan in learning}
    if lost:
        raise DatasetError(
            f"no scan of site {min(lost)} is there to train on",
            remedy="mark people as train in the split column of participants.tsv",
            path=root,
        )
    return learning, validating if validate else []


def _validating_people(scans: Sequence[ScanFiles], seed: int) -> set[str]:
    """Draw validation participants, but never the last one of a site."""
    people = sorted({scan.subject for scan in scans})
    sites = {str(scan.site) for scan in scans}
    chosen: set[str] = set()
    for person in np.random.default_rng(seed).permutation(people):
        left = {str(scan.site) for scan in scans if scan.subject not in chosen | {person}}
        if len(chosen) < max(1, len(people) // _VALIDATION) and left == sites:
            chosen.add(str(person))
    return chosen


def with_reference(cohort: Cohort, reference: Mapping[str, Collection[str]]) -> Cohort:
    """Return a cohort with a reference group, from which site effects are learned.

    Parameters
    ----------
    cohort
        Cohort of a fit.
    reference
        Values of the reference group by table column, such as ``{"group": ["control"]}``.

    Raises
    ------
    DatasetError
        When a column does not exist, or nobody has such a value.
    """
    kept = cohort.learning
    for column, values in reference.items():
        known = {scan.attributes.get(column) for scan in cohort.learning} - {None, "n/a"}
        kept = tuple(scan for scan in kept if scan.attributes.get(column) in values)
        if not kept:
            columns = ", ".join(sorted(map(str, known))[:5]) or "no such column"
            raise DatasetError(
                f"expected a reference group with {column}={','.join(values)}, found {columns}",
                remedy="give --reference COLUMN=VALUE with a column of participants.tsv",
            )
    without = set(cohort.sites) - {str(scan.site) for scan in kept}
    if without:
        raise DatasetError(
            f"site {min(without)} has no scan of the reference group",
            remedy="give another --reference, or leave the site out with --sites",
        )
    return replace(cohort, reference=kept)
