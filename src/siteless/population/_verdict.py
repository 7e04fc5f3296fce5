"""How much of a site's difference is the scanner's, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from siteless.acquisition import Array
from siteless.population._effects import SiteEffects

# Numbers of people a site that the expected error is quoted for.
NUMBERS = (3, 5, 10, 20, 40)
_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class SiteVerdict:
    """What is known about the effect of a site.

    Differences are from the mean of the sites, as root mean squares over features.

    Attributes
    ----------
    site
        Label.
    people
        Number of people that the effect was estimated from.
    difference
        Difference that was found, with covariates taken into account.
    chance
        Difference that is expected if all scanners are alike, as people differ.
    scanner
        Part of the difference that is taken for the scanner's, and removed.
    error
        Standard error of that part.
    expected_errors
        Standard error that is expected with as many people a site as `NUMBERS` says.
    """

    site: str
    people: int
    difference: float
    chance: float
    scanner: float
    error: float
    expected_errors: tuple[float, ...]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `asdict` made, from a file."""
        return cls(**{**values, "expected_errors": tuple(values["expected_errors"])})

    @property
    def left(self) -> float:
        """Part of the difference that is left to people; its square and the scanner's add up."""
        return math.sqrt(max(self.difference**2 - self.scanner**2, 0))


def judge_sites(
    effects: SiteEffects, sites: Sequence[str], groups: Array, units: Array
) -> list[SiteVerdict]:
    """Return the verdict on each site.

    Parameters
    ----------
    effects
        Effects of the sites.
    sites
        Labels.
    groups
        As for `estimate_site_effects`.
    units
        What each feature is multiplied by before squares are summed, shape (feature,).
    """

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
    """Return the error variance of shrunken effects whose raw error variance is `noise`.

    It is averaged over the standard deviations of sites that the scans leave possible.
    """
    weight = np.exp(effects.log_evidence - effects.log_evidence.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    variance = np.zeros_like(noise)
    for chances, scales in zip(weight[groups].T, effects.scales[groups].T, strict=True):
        prior = np.square(scales)
        variance += chances * prior * noise / np.maximum(prior + noise, _TINY)
    return variance
