"""The scans that a method learns from, and the covariates of their participants."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles
from siteless.errors import DatasetError
from siteless.methods.patches import TrainingScan
from siteless.methods.training import TrainingSet
from siteless.population import Covariate, Design, covariate_columns

# With fewer participants, a site cannot be separated from them.
_LEAST_PEOPLE = 3
# Table columns that are covariates by default.
_USUAL_COVARIATES = ("age", "sex", "group")


@dataclass(frozen=True)
class Cohort:
    """Training and validation scans, and their common properties.

    Attributes
    ----------
    learning, validating
        Training scans, and held-out scans for choosing the best weights.
    left_out, interpolated
        Scans without a shell, and scans whose shells differ from `shells`.
    sites
        Labels of the sites, in the order of their indices.
    shells, order
        b-values that all scans are interpolated to, and lmax of the harmonics.
    reference
        Scans from which site effects are learned; None for all.
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
        """All scans, training scans first."""
        return (*self.learning, *self.validating)

    def limited_to(self, scans: Collection[ScanFiles]) -> Cohort:
        """Restrict the cohort to some scans."""
        kept = {scan.dwi for scan in scans}
        return replace(
            self,
            learning=tuple(scan for scan in self.learning if scan.dwi in kept),
            validating=tuple(scan for scan in self.validating if scan.dwi in kept),
        )

    def design(self, covariates: Sequence[str] = ()) -> Design:
        """Return the design of the training scans."""
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
        """Return a training set from the patches of all `scans`, in their order."""
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
    """Return the index of each scan's site."""
    return [list(sites).index(str(scan.site)) for scan in scans]


def require_people(
    scans: Sequence[ScanFiles], sites: Sequence[str], *, travelling: bool = False
) -> None:
    """Raise an error for sites with too few participants to separate the scanner from them."""
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


def choose_covariates(cohort: Cohort, requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the covariates: the requested ones, or the usual ones where they are known.

    Columns must be known for all scans or none, and requested ones must vary.
    """
    scans = cohort.learning
    names = _USUAL_COVARIATES if requested is None else requested
    lacking = {n: [s for s in scans if s.attributes.get(n) in (None, "n/a")] for n in names}
    for name, missing in lacking.items():
        if requested is not None and len(missing) == len(scans):
            known = {column for scan in scans for column in scan.attributes}
            columns = sorted(known - {"subject", "site", "split", "session"})
            raise DatasetError(
                f"no table has the column {name!r}",
                remedy=f"choose --covariates of {', '.join(columns) or 'none'}",
            )
        if missing and (requested is not None or len(missing) < len(scans)):
            people = sorted({f"sub-{scan.subject}" for scan in missing})
            some = ", ".join(people[:5]) + (", ..." if len(people) > 5 else "")
            raise DatasetError(
                f"the {name} of {some} is unknown",
                remedy=f"add the {name}, or name other --covariates (alone for none)",
                path=missing[0].dwi,
            )
    learned = learn_covariates(scans, [name for name in names if not lacking[name]])
    constant = [covariate.name for covariate in learned if not covariate.means]
    if constant and requested is not None:
        raise DatasetError(
            f"the {constant[0]} is the same for everybody", remedy="name other --covariates"
        )
    return tuple(covariate.name for covariate in learned if covariate.means)


def learn_covariates(scans: Sequence[ScanFiles], names: Sequence[str]) -> list[Covariate]:
    """Learn the encoding of table columns."""
    return [Covariate.of(name, [scan.attributes[name] for scan in scans]) for name in names]


def columns_of(scans: Sequence[ScanFiles], names: Sequence[str]) -> Array:
    """Return the regressors of scans, shape (scan, column)."""
    return covariate_columns(learn_covariates(scans, names), [scan.attributes for scan in scans])
