"""Summarize how much of a site's difference is attributed to the scanner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from siteless.acquisition import Array
from siteless.population._effects import SiteEffects

# Participants per site for which the expected error is reported.
NUMBERS = (3, 5, 10, 20, 40)
_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class SiteVerdict:
    """A summary of the effect of a site.

    All values are root mean squares over features; differences are from the mean of sites.
    """

    site: str
    people: int  # number of participants that the effect is estimated from
    difference: float  # estimated difference, adjusted for covariates
    chance: float  # difference expected from sampling participants if all scanners are alike
    scanner: float  # part of the difference that is attributed to the scanner and removed
    error: float  # standard error of that part
    expected_errors: tuple[float, ...]  # with each number of participants per site in `NUMBERS`

    @property
    def conclusion(self) -> str:
        """How clearly the site differs from the others, in words."""
        if self.scanner < self.error:
            return "chance may explain it"
        return "probably the scanner" if self.scanner < 3 * self.error else "clearly the scanner"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the output of `asdict` from JSON."""
        return cls(**{**values, "expected_errors": tuple(values["expected_errors"])})

    @property
    def left(self) -> float:
        """Part of the difference attributed to participants; squares of both parts add up."""
        return math.sqrt(max(self.difference**2 - self.scanner**2, 0))


def judge_sites(
    effects: SiteEffects, sites: Sequence[str], groups: Array, units: Array
) -> list[SiteVerdict]:
    """Return a summary of each site; `units` scale each feature in the sum of squares."""

    def total(squares: Array) -> Array:
        return np.sqrt(squares @ np.square(units))

    chance = effects.chance[:, None] * effects.of_people
    now = total(_expected_variance(effects, chance, groups))
    differences = total(np.square(effects.raw)).tolist()
    chances = total(chance).tolist()
    scanners = total(np.square(effects.sites)).tolist()
    errors = total(effects.variance)
    expected = [
        errors * total(_expected_variance(effects, noise, groups)) / np.maximum(now, _TINY)
        for noise in (chance * effects.people[:, None] / number for number in NUMBERS)
    ]
    return [
        SiteVerdict(
            site=site,
            people=int(effects.people[number]),
            difference=differences[number],
            chance=chances[number],
            scanner=scanners[number],
            error=float(errors[number]),
            expected_errors=tuple(float(of_sites[number]) for of_sites in expected),
        )
        for number, site in enumerate(sites)
    ]


def _expected_variance(effects: SiteEffects, noise: Array, groups: Array) -> Array:
    """Return the error variance of shrunken effects, given that of raw effects, `noise`.

    It is averaged over the posterior of the standard deviation of sites.
    """
    weight = np.exp(effects.log_evidence - effects.log_evidence.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    variance = np.zeros_like(noise)
    for chances, scales in zip(weight[groups].T, effects.scales[groups].T, strict=True):
        prior = np.square(scales)
        variance += chances * prior * noise / np.maximum(prior + noise, _TINY)
    return variance
