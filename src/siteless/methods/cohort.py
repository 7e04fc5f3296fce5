"""The scans that a method learns from, and what tables say about the people in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles
from siteless.errors import DatasetError
from siteless.methods.patches import TrainingScan, TrainingSet
from siteless.population import Covariate, Design, covariate_columns

# A site with fewer people shows its people, not its scanner.
_LEAST_PEOPLE = 3
# Columns of the tables that explain people by default.
_USUAL_COVARIATES = ("age", "sex", "group")


@dataclass(frozen=True)
class Cohort:
    """Scans to learn from and to validate by, and what they share.

    Attributes
    ----------
    learning, validating
        Scans to learn from, and scans to choose the best weights by.
    left_out
        Scans without a shell.
    interpolated
        Scans whose shells differ from `shells`.
    sites
        Labels, in the order of the sites' numbers.
    shells
        b-values that all scans are brought to.
    order
        Highest degree of the harmonics.
    reference
        Scans that site effects are learned from; None for all.
    """

    learning: tuple[ScanFiles, ...]
    validating: tuple[ScanFiles, ...]
    left_out: tuple[ScanFiles, ...]
    interpolated: tuple[ScanFiles, ...]
    sites: tuple[str, ...]
    shells: tuple[float, ...]
    order: int
    reference: tuple[ScanFiles, ...] | None = None

    @property
    def scans(self) -> tuple[ScanFiles, ...]:
        """All that are read, those to learn from first."""
        return (*self.learning, *self.validating)

    def limited_to(self, scans: Collection[ScanFiles]) -> Cohort:
        """Return the cohort without the scans that are not among some."""
        kept = {scan.dwi for scan in scans}
        learning, validating = (
            tuple(scan for scan in group if scan.dwi in kept)
            for group in (self.learning, self.validating)
        )
        return replace(self, learning=learning, validating=validating)

    def design(self, covariates: Sequence[str] = ()) -> Design:
        """Return who was scanned where, of the scans to learn from."""
        reference = None
        if self.reference is not None:
            reference = np.array([scan in self.reference for scan in self.learning])
        return Design.of(
            [str(scan.site) for scan in self.learning],
            [scan.subject or scan.name for scan in self.learning],
            self.sites,
            columns_of(self.learning, covariates) if covariates else None,
            reference,
        )

    def training_set(
        self, scans: Sequence[TrainingScan], covariates: Sequence[str] = ()
    ) -> TrainingSet:
        """Return what a training is given, of the patches of `scans` in their order."""
        learning = len(self.learning)
        rows = columns_of(self.learning, covariates)
        names = [scan.name for scan in self.learning]
        return TrainingSet(
            scans[:learning],
            scans[learning:],
            self.sites,
            covariates=dict(zip(names, rows, strict=True)) if covariates else {},
            reference=None if self.reference is None else {s.name for s in self.reference},
        )


def site_numbers(scans: Sequence[ScanFiles], sites: Sequence[str]) -> list[int]:
    """Return the number of each scan's site."""
    return [list(sites).index(str(scan.site)) for scan in scans]


def require_people(
    scans: Sequence[ScanFiles], sites: Sequence[str], *, travelling: bool = False
) -> None:
    """Refuse sites with too few people to separate the scanner from them."""
    if travelling and not scans:
        raise DatasetError(
            "expected people who were scanned at two or more sites, found none",
            remedy="leave out --travelling",
        )
    least = 1 if travelling else _LEAST_PEOPLE
    for site in sites:
        people = {scan.subject for scan in scans if str(scan.site) == site}
        if len(people) < least:
            raise DatasetError(
                f"expected at least {least} training people of site {site}"
                f"{' who travelled' if travelling else ''}, found {len(people)}",
                remedy="give more (where tables have a split column, those of train count), name "
                "other --sites, or use another --method",
            )


def choose_covariates(cohort: Cohort, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to regress on: those asked for, or the usual ones where they are known.

    Raises
    ------
    DatasetError
        When a column is known for some scans only, or is asked for and the same for all.
    """
    scans = cohort.learning
    names = _USUAL_COVARIATES if asked is None else asked
    lacking = {n: [s for s in scans if s.attributes.get(n) in (None, "n/a")] for n in names}
    for name, some in lacking.items():
        if asked is not None and len(some) == len(scans):
            known = {column for scan in scans for column in scan.attributes}
            columns = sorted(known - {"subject", "site", "split", "session"})
            raise DatasetError(
                f"no table has the column {name!r}",
                remedy=f"choose --covariates of {', '.join(columns) or 'none'}",
            )
        if some and (asked is not None or len(some) < len(scans)):
            raise DatasetError(
                f"the {name} of {_people(some)} is unknown",
                remedy="add it to participants.tsv, or name other --covariates",
                path=some[0].dwi,
            )
    learned = learn_covariates(scans, [name for name in names if not lacking[name]])
    constant = [covariate.name for covariate in learned if not covariate.means]
    if constant and asked is not None:
        raise DatasetError(
            f"the {constant[0]} is the same for everybody", remedy="name other --covariates"
        )
    return tuple(covariate.name for covariate in learned if covariate.means)


def _people(scans: Sequence[ScanFiles]) -> str:
    people = sorted({f"sub-{scan.subject}" for scan in scans})
    return ", ".join(people[:5]) + (", ..." if len(people) > 5 else "")


def learn_covariates(scans: Sequence[ScanFiles], names: Sequence[str]) -> list[Covariate]:
    """Learn what columns of the tables hold."""
    return [Covariate.of(name, [scan.attributes[name] for scan in scans]) for name in names]


def columns_of(scans: Sequence[ScanFiles], names: Sequence[str]) -> Array:
    """Return the covariates of scans as numbers, shape (scan, column)."""
    return covariate_columns(learn_covariates(scans, names), [scan.attributes for scan in scans])
