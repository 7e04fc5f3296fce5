"""Participant variables from tables, as columns of a regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array
from siteless.errors import DatasetError

# Distinct values that a spline requires, and the percentiles of its knots.
_LEAST_VALUES, _KNOTS = 20, (10, 50, 90)


@dataclass(frozen=True)
class Covariate:
    """A column of a table, as encoded from the training scans."""

    name: str
    # Categories, sorted; empty for a numeric covariate.
    words: tuple[str, ...]
    # Means of its regressors: the value and, with knots, a spline term; or an indicator for each
    # category but the first. Empty when it was the same for everybody.
    means: tuple[float, ...]
    # Three knots of a natural cubic spline; empty for a linear effect.
    knots: tuple[float, ...] = ()

    @classmethod
    def of(cls, name: str, values: Sequence[str]) -> Self:
        """Learn the encoding from the value of each scan.

        Examples
        --------
        >>> Covariate.of("sex", ["F", "M", "F", "F"]).columns(["M", "F"])
        array([[ 0.75],
               [-0.25]])
        """
        numeric = [word for word in values if _is_number(word)]
        strange = [word for word in values if not _is_number(word)]
        if numeric and strange:
            raise DatasetError(
                f"expected numbers only, or words only, as the {name}, found "
                f"{numeric[0]!r} and {strange[0]!r}",
                remedy="correct participants.tsv",
            )
        words = tuple(sorted(set(strange)))
        numbers = [float(word) for word in numeric]
        many = len(set(numbers)) >= _LEAST_VALUES
        knots = tuple(np.percentile(numbers, _KNOTS).tolist()) if many else ()
        columns = cls(name, words, (), knots)._uncentred(values).T.tolist()
        varies = [column for column in columns if len(set(column)) > 1]
        return cls(name, words, tuple(float(np.mean(column)) for column in varies), knots)

    def columns(self, values: Sequence[str]) -> Array:
        """Return centred regressors, shape (scan, column)."""
        if not self.means:
            return np.zeros((len(values), 0))
        unknown = [v for v in values if not (v in self.words if self.words else _is_number(v))]
        if unknown:
            expected = f"one of {', '.join(self.words)}" if self.words else "a number"
            raise DatasetError(
                f"expected {expected} as the {self.name}, found {unknown[0]!r}",
                remedy="correct participants.tsv",
            )
        return self._uncentred(values) - self.means

    def _uncentred(self, values: Sequence[str]) -> Array:
        if self.words:
            return np.array([[v == word for word in self.words[1:]] for v in values], dtype=float)
        return _bent(np.array([float(v) for v in values]), self.knots)


def covariate_columns(
    covariates: Sequence[Covariate], scans: Sequence[Mapping[str, str]]
) -> Array:
    """Return the regressors of all covariates, shape (scan, column)."""
    parts = [np.zeros((len(scans), 0))]
    for covariate in covariates:
        values = [scan.get(covariate.name, "n/a") for scan in scans]
        if covariate.means and "n/a" in values:
            raise DatasetError(
                f"the {covariate.name} of the scan is unknown, and the model needs it",
                remedy="add it to participants.tsv",
            )
        parts.append(covariate.columns(values))
    return np.hstack(parts)


def _bent(numbers: Array, knots: Sequence[float]) -> Array:
    """Return the columns of a natural cubic spline, shape (scan, column)."""
    if not knots:
        return numbers[:, None]
    low, middle, high = knots
    above = [np.maximum(numbers - knot, 0) ** 3 for knot in knots]
    bend = above[0] - (above[1] * (high - low) - above[2] * (middle - low)) / (high - middle)
    return np.column_stack([numbers, bend / (high - low) ** 2])


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False
