"""Whether a study's design identifies site effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.population._design import Design

# Least within-site fraction of a covariate's variance that separates it from the site.
_LEAST_WITHIN = 0.1


def require_identifiable(
    design: Design, covariates: Mapping[str, Array], sites: Sequence[str]
) -> None:
    """Raise an error for a design that cannot separate scanners from participants.

    Travelling subjects who connect all sites separate them, whatever their covariates. Without
    them, no covariate may be nearly determined by the site; `covariates` holds the regressors of
    each by name, shape (scan, column).
    """
    empty = [s for n, s in enumerate(sites) if not (design.sites[design.reference] == n).any()]
    if empty:
        raise DatasetError(
            f"site {empty[0]} has no scan of the reference group",
            remedy="give another --reference, or leave the site out with --sites",
        )
    reference = design.of_reference
    if reference.is_connected:
        return
    if covariates and reference.people_of_sites.max() == 1:
        raise DatasetError(
            "each site has one person, who cannot be separated from the scanner",
            remedy="add people; or fit without covariates, which leaves all differences between "
            "sites that people may explain",
        )
    for name, columns in covariates.items():
        if _share_within(columns[design.reference], reference) < _LEAST_WITHIN:
            raise DatasetError(
                f"{name} and site cannot be separated: {name} hardly varies within sites, and "
                "nobody was scanned at several",
                remedy=f"add people whose {name} overlaps between sites, or leave {name} out "
                "with --covariates and accept that its effect is removed",
            )


def sites_of_one_person(design: Design, sites: Sequence[str]) -> list[str]:
    """Return the sites with a single participant who was scanned nowhere else."""
    found = []
    for number, label in enumerate(sites):
        visitors = np.unique(design.people[design.sites == number])
        visited = design.sites[np.isin(design.people, visitors)]
        if len(visitors) == 1 and (visited == number).all():
            found.append(label)
    return found


def _share_within(columns: Array, design: Design) -> float:
    """Return the fraction of the variance of columns that lies within sites."""
    total = np.square(columns - columns.mean(axis=0)).sum()
    means = [columns[design.sites == site].mean(axis=0) for site in range(design.count)]
    within = np.square(columns - np.stack(means)[design.sites]).sum()
    return float(within / total) if total else 1.0
