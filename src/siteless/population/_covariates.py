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
    """A column of a table, as encoded from the training scans.

    Attributes
    ----------
    name
        Name of the column.
    words
        Categories, sorted; empty for a numeric covariate.
    means
        Means of its regressors: the value and, with knots, a spline term; or an indicator for each
        category but the first. Empty when it was the same for everybody.
    knots
        Three knots of a natural cubic spline; empty for a linear effect.
    """

    name: str
    words: tuple[str, ...]
    means: tuple[float, ...]
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
        words: tuple[str, ...] = ()
        strange = [word for word in values if not _is_number(word)]
        if strange and len(strange) < len(values):
            raise DatasetError(
                f"expected numbers only, or words only, as the {name}, found "
                f"{next(word for word in values if _is_number(word))!r} and {strange[0]!r}",
                remedy="correct participants.tsv",
            )
        knots: tuple[float, ...] = ()
        if not strange:
            numbers = np.array([float(word) for word in values])
            knots = _knots(numbers)
            columns = _bent(numbers, knots).T.tolist()
        else:
            words = tuple(sorted(set(values)))
            columns = [[float(value == word) for value in values] for word in words[1:]]
        varies = [column for column in columns if len(set(column)) > 1]
        return cls(name, words, tuple(float(np.mean(column)) for column in varies), knots)

    def columns(self, values: Sequence[str]) -> Array:
        """Return centred regressors, shape (scan, column).

        Raises
        ------
        DatasetError
            When a value is not a number, or is an unknown category.
        """
        if not self.means:
            return np.zeros((len(values), 0))
        if self.words:
            self._require([word in self.words for word in values], values)
            numbers = np.array(
                [[value == word for word in self.words[1:]] for value in values], float
            )
        else:
            self._require([_is_number(word) for word in values], values)
            numbers = _bent(np.array([float(word) for word in values]), self.knots)
        return numbers - self.means

    def _require(self, known: Sequence[bool], values: Sequence[str]) -> None:
        unknown = [word for word, fine in zip(values, known, strict=True) if not fine]
        if unknown:
            expected = f"one of {', '.join(self.words)}" if self.words else "a number"
            raise DatasetError(
                f"expected {expected} as the {self.name}, found {unknown[0]!r}",
                remedy="correct participants.tsv",
            )


def covariate_columns(
    covariates: Sequence[Covariate], scans: Sequence[Mapping[str, str]]
) -> Array:
    """Return the regressors of all covariates, shape (scan, column).

    Raises
    ------
    DatasetError
        When a covariate of a scan is unknown.
    """
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


def _knots(numbers: Array) -> tuple[float, ...]:
    """Return the knots of a spline, or none if there are few distinct values."""
    if len(set(numbers.tolist())) < _LEAST_VALUES:
        return ()
    return tuple(np.percentile(numbers, _KNOTS).tolist())


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
