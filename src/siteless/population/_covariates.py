"""What tables tell of people, as numbers that a regression takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array
from siteless.errors import DatasetError

# Distinct values that a spline needs, and the percentiles that its knots lie at.
_LEAST_VALUES, _KNOTS = 20, (10, 50, 90)


@dataclass(frozen=True)
class Covariate:
    """A column of a table, as it was among the scans that were learned from.

    Attributes
    ----------
    name
        Of the column.
    words
        That were there, sorted; none for numbers.
    means
        Of the columns of numbers that it becomes: itself, with a second column that bends it
        where there are knots, or one for all but the first of the words; none when it was the
        same for everybody.
    knots
        Three values between which numbers may act along a natural cubic spline; none for a
        straight line.
    """

    name: str
    words: tuple[str, ...]
    means: tuple[float, ...]
    knots: tuple[float, ...] = ()

    @classmethod
    def of(cls, name: str, told: Sequence[str]) -> Self:
        """Learn from what is told of each scan.

        Examples
        --------
        >>> Covariate.of("sex", ["F", "M", "F", "F"]).columns(["M", "F"])
        array([[ 0.75],
               [-0.25]])
        """
        words: tuple[str, ...] = ()
        strange = [word for word in told if not _is_number(word)]
        if strange and len(strange) < len(told):
            raise DatasetError(
                f"expected numbers only, or words only, as the {name}, found "
                f"{next(word for word in told if _is_number(word))!r} and {strange[0]!r}",
                remedy="correct participants.tsv",
            )
        knots: tuple[float, ...] = ()
        if not strange:
            numbers = np.array([float(word) for word in told])
            knots = _knots(numbers)
            columns = _bent(numbers, knots).T.tolist()
        else:
            words = tuple(sorted(set(told)))
            columns = [[float(one == word) for one in told] for word in words[1:]]
        varies = [column for column in columns if len(set(column)) > 1]
        return cls(name, words, tuple(float(np.mean(column)) for column in varies), knots)

    def columns(self, told: Sequence[str]) -> Array:
        """Return numbers less their means, shape (scan, column).

        Raises
        ------
        DatasetError
            When what is told is no number, or a word that was not there.
        """
        if not self.means:
            return np.zeros((len(told), 0))
        if self.words:
            self._require([word in self.words for word in told], told)
            numbers = np.array([[one == word for word in self.words[1:]] for one in told], float)
        else:
            self._require([_is_number(word) for word in told], told)
            numbers = _bent(np.array([float(word) for word in told]), self.knots)
        return numbers - self.means

    def _require(self, known: Sequence[bool], told: Sequence[str]) -> None:
        unknown = [word for word, fine in zip(told, known, strict=True) if not fine]
        if unknown:
            expected = f"one of {', '.join(self.words)}" if self.words else "a number"
            raise DatasetError(
                f"expected {expected} as the {self.name}, found {unknown[0]!r}",
                remedy="correct participants.tsv",
            )


def covariate_columns(
    covariates: Sequence[Covariate], scans: Sequence[Mapping[str, str]]
) -> Array:
    """Return the numbers of what tables tell of scans, shape (scan, column).

    Raises
    ------
    DatasetError
        When a covariate of a scan is unknown.
    """
    parts = [np.zeros((len(scans), 0))]
    for covariate in covariates:
        told = [scan.get(covariate.name, "n/a") for scan in scans]
        if covariate.means and "n/a" in told:
            raise DatasetError(
                f"the {covariate.name} of the scan is unknown, and the model needs it",
                remedy="add it to participants.tsv",
            )
        parts.append(covariate.columns(told))
    return np.hstack(parts)


def _knots(numbers: Array) -> tuple[float, ...]:
    """Return the knots of a spline, or none where few people would bend it."""
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
