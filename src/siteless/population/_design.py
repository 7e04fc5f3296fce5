"""Who was scanned where, and what else is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from siteless.acquisition import Array


@dataclass(frozen=True, eq=False)
class Design:
    """The site, the person and the covariates of each scan.

    Attributes
    ----------
    sites
        Number of each scan's site, shape (scan,).
    count
        Number of sites.
    people
        Number of the person in each scan, shape (scan,).
    covariates
        Shape (scan, column).
    reference
        Scans that site effects are estimated from, shape (scan,), bool.
    """

    sites: Array
    count: int
    people: Array
    covariates: Array
    reference: Array

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        people: Sequence[str],
        sites: Sequence[str],
        covariates: Array | None = None,
        reference: Array | None = None,
    ) -> Self:
        """Make a design from the site label and the person of each scan."""
        numbers = np.array([list(sites).index(label) for label in labels])
        _, persons = np.unique(np.asarray(people), return_inverse=True)
        if covariates is None:
            covariates = np.zeros((len(numbers), 0))
        if reference is None:
            reference = np.ones(len(numbers), dtype=bool)
        return cls(numbers, len(sites), persons, covariates, reference)

    def part(self, chosen: Array) -> Self:
        """Return the design of some scans, chosen by a mask of shape (scan,)."""
        _, people = np.unique(self.people[chosen], return_inverse=True)
        return replace(
            self,
            sites=self.sites[chosen],
            people=people,
            covariates=self.covariates[chosen],
            reference=self.reference[chosen],
        )

    def beside(self, columns: Array) -> Self:
        """Return the design with further covariates, shape (scan, column)."""
        return replace(self, covariates=np.hstack([self.covariates, columns]))

    def means_of_people(self, values: Array) -> Array:
        """Give each scan the mean of its person's values, shape (scan,)."""
        sums = np.bincount(self.people, values)
        means: Array = (sums / np.bincount(self.people))[self.people]
        return means

    @property
    def of_reference(self) -> Self:
        """The design of the reference scans alone."""
        return self.part(self.reference)

    @property
    def is_connected(self) -> bool:
        """Whether people who travelled connect every site with every other."""
        return not self.connections.any()

    @property
    def connections(self) -> Array:
        """Number of the group of each site, which people who travelled connect, shape (site,)."""
        visits = np.zeros((self.count, self.people.max() + 1), dtype=bool)
        visits[self.sites, self.people] = True
        _, groups = connected_components(csr_array(visits.astype(int) @ visits.T))
        return np.asarray(groups)

    @property
    def travelled(self) -> bool:
        """Whether somebody was scanned more than once."""
        return len(np.unique(self.people)) < len(self.people)

    @property
    def people_of_sites(self) -> Array:
        """Number of people at each site, shape (site,)."""
        pairs = np.unique(np.column_stack([self.sites, self.people]), axis=0)
        return np.bincount(pairs[:, 0], minlength=self.count)

    @property
    def columns(self) -> Array:
        """The regressors: an indicator for each site, then covariates, shape (scan, column)."""
        return np.hstack([np.eye(self.count)[self.sites], self.covariates])
