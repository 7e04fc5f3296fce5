"""The design of a study: who was scanned where, with which covariates."""

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
    """The site, the participant and the covariates of each scan."""

    sites: Array  # index of each scan's site, shape (scan,)
    count: int  # number of sites
    people: Array  # index of each scan's participant, shape (scan,)
    covariates: Array  # centred, shape (scan, column)
    reference: Array  # scans from which site effects are estimated, shape (scan,), bool

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        people: Sequence[str],
        sites: Sequence[str],
        covariates: Array | None = None,
        reference: Array | None = None,
    ) -> Self:
        """Make a design from the site label and the participant of each scan."""
        numbers = np.array([list(sites).index(label) for label in labels])
        _, persons = np.unique(np.asarray(people), return_inverse=True)
        if covariates is None:
            covariates = np.zeros((len(numbers), 0))
        if reference is None:
            reference = np.ones(len(numbers), dtype=bool)
        return cls(numbers, len(sites), persons, covariates, reference)

    def part(self, chosen: Array) -> Self:
        """Return the design of a subset of scans, given a mask of shape (scan,)."""
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
        """Return for each scan the mean over its participant's scans, shape (scan,)."""
        sums = np.bincount(self.people, values)
        means: Array = (sums / np.bincount(self.people))[self.people]
        return means

    @property
    def of_reference(self) -> Self:
        """The design of the reference scans alone."""
        return self.part(self.reference)

    @property
    def is_connected(self) -> bool:
        """Whether travelling subjects connect all sites."""
        return not self.connections.any()

    @property
    def connections(self) -> Array:
        """Index of each site's group of sites connected by travelling subjects, shape (site,)."""
        visits = np.zeros((self.count, self.people.max() + 1), dtype=bool)
        visits[self.sites, self.people] = True
        _, groups = connected_components(csr_array(visits.astype(int) @ visits.T))
        return np.asarray(groups)

    @property
    def travelled(self) -> bool:
        """Whether any participant was scanned more than once."""
        return len(np.unique(self.people)) < len(self.people)

    @property
    def people_of_sites(self) -> Array:
        """Number of participants at each site, shape (site,)."""
        pairs = np.unique(np.column_stack([self.sites, self.people]), axis=0)
        return np.bincount(pairs[:, 0], minlength=self.count)

    @property
    def columns(self) -> Array:
        """The regressors: an indicator for each site, then covariates, shape (scan, column)."""
        return np.hstack([np.eye(self.count)[self.sites], self.covariates])
