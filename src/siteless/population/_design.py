"""Who was scanned where, and what else is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

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
        Shape (scan, column); their means are zero in the reference group.
    """

    sites: Array
    count: int
    people: Array
    covariates: Array

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        people: Sequence[str],
        sites: Sequence[str],
        covariates: Array | None = None,
    ) -> Self:
        """Make a design from the site label and the person of each scan."""
        numbers = np.array([list(sites).index(label) for label in labels])
        _, persons = np.unique(np.asarray(people), return_inverse=True)
        if covariates is None:
            covariates = np.zeros((len(numbers), 0))
        return cls(numbers, len(sites), persons, covariates)

    @property
    def travelled(self) -> bool:
        """Whether somebody was scanned more than once."""
        return len(np.unique(self.people)) < len(self.people)

    @property
    def columns(self) -> Array:
        """The regressors: an indicator for each site, then covariates, shape (scan, column)."""
        return np.hstack([np.eye(self.count)[self.sites], self.covariates])
