"""Whether scans can show what a site does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.population._design import Design

# Part of a covariate's variance that must lie within sites to separate the two.
_LEAST_WITHIN = 0.1


def require_identifiable(
    design: Design, covariates: Mapping[str, Array], sites: Sequence[str]
) -> None:
    """Refuse a design in which nothing separates the scanner from who was scanned.

    People who travelled between all sites separate them, whatever their covariates are.

    Parameters
    ----------
    design
        Who was scanned where.
    covariates
        Columns of each covariate by its name, shape (scan, column).
    sites
        Labels.

    Raises
    ------
    DatasetError
        When a site has no reference scan, or a covariate nearly follows from the site.
    """
    empty = [s for n, s in enumerate(sites) if not (design.sites[design.reference] == n).any()]
    if empty:
        raise DatasetError(
            f"site {empty[0]} has no scan of the reference group",
            remedy="give another --reference, or leave the site out with --sites",
        )
    own = design.of_reference
    if own.is_connected:
        return
    for name, columns in covariates.items():
        if _share_within(columns[design.reference], own) < _LEAST_WITHIN:
            raise DatasetError(
                f"{name} and site cannot be separated: {name} hardly varies within sites, and "
                "nobody was scanned at several",
                remedy=f"add people whose {name} overlaps between sites, or leave {name} out "
                "with --covariates and accept that its effect is removed",
            )


def sites_of_one_person(design: Design, sites: Sequence[str]) -> list[str]:
    """Return the sites with a single person who was scanned nowhere else."""
    visits = {p: set(design.sites[design.people == p].tolist()) for p in np.unique(design.people)}
    people = {
        site: [p for p, seen in visits.items() if site in seen] for site in range(len(sites))
    }
    return [
        sites[site] for site, own in people.items() if len(own) == 1 and len(visits[own[0]]) == 1
    ]


def _share_within(columns: Array, design: Design) -> float:
    """Return the part of the variance of columns that lies within sites."""
    total = np.square(columns - columns.mean(axis=0)).sum()
    means = [columns[design.sites == site].mean(axis=0) for site in range(design.count)]
    within = np.square(columns - np.stack(means)[design.sites]).sum()
    return float(within / total) if total else 1.0
