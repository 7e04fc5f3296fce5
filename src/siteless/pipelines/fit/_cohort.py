"""Choose the cohort of a fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from siteless.acquisition import GradientTable, same_b, same_shells, show_bs
from siteless.bids import ScanFiles, ScanSelection
from siteless.errors import DatasetError, GradientTableError, errors_at
from siteless.harmonics import common_bs, common_order
from siteless.methods import Method
from siteless.methods.base import ComparesGroups
from siteless.methods.cohort import Cohort
from siteless.model import AVERAGE
from siteless.pipelines._choice import read_splits, with_shells

# Without a split column, one participant in this many is held out for validation.
_VALIDATION = 10


def choose_cohort(selection: ScanSelection, method: Method, seed: int) -> Cohort:
    """Choose the scans that a method learns from; raise an error for incompatible ones."""
    study = selection.find()
    with errors_at(study.root):
        cohort = _cohort_of(study.scans, selection, validate=method.validates, seed=seed)
    if not (isinstance(method, ComparesGroups) and method.reference):
        return cohort
    reference = _reference(cohort, method.reference)
    # A method that is not trained iteratively uses no other scans.
    learning = cohort.learning if method.validates else reference
    return replace(cohort, learning=learning, reference=reference)


def _cohort_of(
    scans: Sequence[ScanFiles], selection: ScanSelection, *, validate: bool, seed: int
) -> Cohort:
    tables = with_shells(scans)
    weighted = [files for files, _ in tables]
    bs, order = _common_shells(tables)
    labels = list(dict.fromkeys(str(scan.site) for scan in weighted))  # in the order of scans
    if AVERAGE in labels:
        raise DatasetError(
            f"a site is called {AVERAGE!r}, which is the name of the mean of sites",
            remedy="rename it",
        )
    if len(labels) < 2:
        remedy = "tell sites apart, e.g. with --site-from"
        raise DatasetError(
            f"expected scans of at least two sites, found {', '.join(labels)} only",
            remedy="name other --sites" if selection.sites else remedy,
        )
    learning, validating = _split(weighted, validate=validate, seed=seed)
    left_out = tuple(scan for scan in scans if scan not in weighted)
    shells = {files.dwi: [shell.b for shell in table.shells] for files, table in tables}
    other = tuple(s for s in (*learning, *validating) if not same_shells(shells[s.dwi], bs))
    return Cohort(tuple(learning), tuple(validating), left_out, other, tuple(labels), bs, order)


def _common_shells(
    tables: Sequence[tuple[ScanFiles, GradientTable]],
) -> tuple[tuple[float, ...], int]:
    """Return the common b-values of scans, to which they may be interpolated, and the order."""
    if not tables:
        raise DatasetError("no scan has a shell", remedy="give diffusion scans")
    bs = [tuple(shell.b for shell in table.shells) for _, table in tables]
    of_site: dict[str, tuple[float, ...]] = {}
    for (scan, _), scan_bs in zip(tables, bs, strict=True):
        of_site.setdefault(str(scan.site), scan_bs)
    chosen = common_bs(of_site.values())
    for (scan, _), scan_bs in zip(tables, bs, strict=True):
        expected = of_site[str(scan.site)] if chosen else bs[0]
        if not same_shells(scan_bs, expected):
            raise GradientTableError(
                f"expected shells of {show_bs(expected)} as in "
                f"{tables[bs.index(expected)][0].name}, found {show_bs(scan_bs)}",
                remedy="choose scans of the same shells, e.g. with --bids-filter-file",
                path=scan.dwi,
            )
    every = np.concatenate(bs)
    typical = (np.median(every[same_b(every, b)]) for b in chosen or ())
    return tuple(round(float(b), 1) for b in typical), common_order([table for _, table in tables])


def _split(
    scans: Sequence[ScanFiles], *, validate: bool, seed: int
) -> tuple[list[ScanFiles], list[ScanFiles]]:
    """Split scans by the tables' ``split`` column, or else hold out one participant in ten.

    Without validation all scans are for training, or those that the column selects.
    """
    splits = read_splits(scans)
    if not any(splits):
        chosen = _validating_people(scans, seed) if validate else set()
        splits = ["val" if scan.subject in chosen else "train" for scan in scans]
    learning = [scan for scan, split in zip(scans, splits, strict=True) if split == "train"]
    validating = [scan for scan, split in zip(scans, splits, strict=True) if split == "val"]
    lost = {str(scan.site) for scan in scans} - {str(scan.site) for scan in learning}
    if lost:
        raise DatasetError(
            f"no scan of site {min(lost)} is there to train on",
            remedy="mark people as train in the split column of participants.tsv",
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


def _reference(cohort: Cohort, groups: Mapping[str, Collection[str]]) -> tuple[ScanFiles, ...]:
    """Return the training scans of a group, from values by table column."""
    kept = cohort.learning
    for column, values in groups.items():
        kept = tuple(scan for scan in kept if scan.attributes.get(column) in values)
        if not kept:
            known = {scan.attributes.get(column) for scan in cohort.learning} - {None, "n/a"}
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
    return kept
