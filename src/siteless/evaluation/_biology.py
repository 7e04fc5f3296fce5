"""Scores of biological variation, which harmonization must preserve: age, participants, lesions.

Differences between sites are scored too, for participants scanned at one site only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array
from siteless.errors import DatasetError

# Voxels. White matter around a lesion lies between these distances; nearer voxels contain some of
# the lesion.
_NEAR, _FAR = 1, 3
_LEAST_PEOPLE = 3
_DRAWS = 2000
# Years. Scans that are closer in time belong to one visit, and their change per year is noise.
_APART = 0.25


@dataclass(frozen=True)
class Effect:
    """A linear effect of a covariate.

    Attributes
    ----------
    slope, slope_low, slope_high
        Change of the value per unit of the covariate, and its 95 % interval by the Bayesian
        bootstrap over participants.
    correlation
        Pearson's correlation over scans; NaN if all values are equal.
    people
        Number of participants.
    """

    slope: float
    slope_low: float
    slope_high: float
    correlation: float
    people: int


@dataclass(frozen=True)
class Change:
    """Mean yearly change within participants, with its 95 % interval by the Bayesian bootstrap.

    ``people`` counts the participants with several visits.
    """

    per_year: float
    low: float
    high: float
    people: int


@dataclass(frozen=True)
class Agreement:
    """Agreement between sites on participants, from a two-way analysis of variance.

    Attributes
    ----------
    absolute
        ICC(A,1) of McGraw & Wong (1996), ICC(2,1) of Shrout & Fleiss (1979): a site's offset
        counts as disagreement.
    consistency
        ICC(C,1) of the former, ICC(3,1) of the latter: it does not.
    people_sd, site_sd, residual_sd
        Standard deviations of the components of a value, in its unit; zero for negative estimates.
    """

    absolute: float
    consistency: float
    people_sd: float
    site_sd: float
    residual_sd: float


@dataclass(frozen=True)
class SitePair:
    """Distance between two sites.

    ``d`` is Cohen's d of the scans' means, second minus first over the pooled standard deviation;
    NaN if that is zero or unknown. ``ks`` is the Kolmogorov-Smirnov distance between the voxels
    of all scans: 0 if distributions are equal, 1 if they do not overlap.
    """

    first: str
    second: str
    d: float
    ks: float


def linear_effect(
    values: Array, covariate: Array, subjects: Sequence[str], *, seed: int = 0
) -> Effect:
    """Fit a line to values of scans by least squares.

    Parameters
    ----------
    values
        Value of each scan, shape (scan,).
    covariate
        Covariate, such as age in years, shape (scan,).
    subjects
        Participant of each scan. Scans of one participant stay together in the bootstrap.
    seed
        Random seed of the bootstrap.

    Raises
    ------
    DatasetError
        When there are fewer than 3 people, the covariate is constant, or a number is not finite.

    Examples
    --------
    >>> ages = np.array([20.0, 30.0, 40.0, 60.0])
    >>> round(linear_effect(0.6 - 0.002 * ages, ages, ["a", "b", "c", "d"]).slope, 6)
    -0.002
    """
    values, covariate = np.asarray(values, dtype=float), np.asarray(covariate, dtype=float)
    people, person = np.unique(subjects, return_inverse=True)
    _require_scans(values, covariate, person)
    if len(people) < _LEAST_PEOPLE or not np.ptp(covariate):
        raise DatasetError(
            f"an effect needs at least {_LEAST_PEOPLE} people who differ in the covariate, found "
            f"{len(people)}, with {len(np.unique(covariate))} different",
            remedy="give more people",
        )
    # Positive weights, so that the covariate varies in every draw.
    weights = np.random.default_rng(seed).exponential(size=(_DRAWS, len(people)))
    slopes = _slopes(values, covariate, weights[:, person])
    low, high = np.quantile(slopes, [0.025, 0.975])
    slope = float(_slopes(values, covariate, np.ones((1, len(values))))[0])
    deviation = float(values.std()) if np.ptp(values) else np.nan
    return Effect(
        slope=slope,
        slope_low=float(low),
        slope_high=float(high),
        correlation=slope * float(covariate.std()) / deviation,
        people=len(people),
    )


def _require_scans(values: Array, covariate: Array, person: Array) -> None:
    if not values.shape == covariate.shape == person.shape:
        raise DatasetError(
            f"a value, a covariate and a subject are needed for each scan, got {len(values)}, "
            f"{len(covariate)} and {len(person)}",
            remedy="give one of each",
        )
    if not (np.isfinite(values).all() and np.isfinite(covariate).all()):
        raise DatasetError(
            "values and covariate must be finite", remedy="leave out scans that lack either"
        )


def _slopes(values: Array, covariate: Array, weights: Array) -> Array:
    """Return slopes, shape (draw,), from weights of scans, shape (draw, scan)."""
    weights = weights / weights.sum(axis=1, keepdims=True)
    x = covariate - (weights * covariate).sum(axis=1, keepdims=True)
    return (weights * x * values).sum(axis=1) / (weights * x * x).sum(axis=1)


def change_per_year(
    values: Array, ages: Array, subjects: Sequence[str], *, seed: int = 0
) -> Change:
    """Average the yearly change of a value within participants.

    A participant's change is the slope of a least-squares line. Participants whose ages differ by
    less than a quarter of a year are left out.

    At least 3 participants must remain. All arrays have shape (scan,); ages are in years.

    Examples
    --------
    >>> ages = np.array([20.0, 22.0, 50.0, 53.0, 60.0, 61.0])
    >>> level = np.array([0.5, 0.5, 0.4, 0.4, 0.6, 0.6])
    >>> round(change_per_year(level - 0.002 * ages, ages, list("aabbcc")).per_year, 6)
    -0.002
    """
    values, ages = np.asarray(values, dtype=float), np.asarray(ages, dtype=float)
    _, person = np.unique(subjects, return_inverse=True)
    _require_scans(values, ages, person)
    visits = [person == number for number in np.unique(person)]
    followed = [scans for scans in visits if np.ptp(ages[scans]) >= _APART]
    if len(followed) < _LEAST_PEOPLE:
        raise DatasetError(
            f"change needs at least {_LEAST_PEOPLE} people who were seen at several ages, found "
            f"{len(followed)}",
            remedy="give more people",
        )
    slopes = np.array(
        [_slopes(values[scans], ages[scans], np.ones((1, scans.sum())))[0] for scans in followed]
    )
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(followed)), size=_DRAWS)
    low, high = np.quantile(weights @ slopes, [0.025, 0.975])
    return Change(float(slopes.mean()), float(low), float(high), len(followed))


def intraclass_correlation(values: Array) -> Agreement:
    """Compare values of the same participants between sites.

    Parameters
    ----------
    values
        Value of each participant at each site, shape (person, site), none missing.

    Raises
    ------
    DatasetError
        When there are fewer than 3 people or 2 sites, or values are missing or all equal.

    Examples
    --------
    >>> agreement = intraclass_correlation(np.array([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]))
    >>> round(agreement.consistency, 6), round(agreement.absolute, 6)
    (1.0, 0.666667)
    """
    values = np.asarray(values, dtype=float)
    _require_crossed(values)
    people, sites = values.shape
    by_person, by_site = (values.mean(axis=axis, keepdims=True) for axis in (1, 0))
    rest = values - by_person - by_site + values.mean()
    between = sites * float(by_person.var(ddof=1))
    offsets = people * float(by_site.var(ddof=1))
    residual = float(np.square(rest).sum()) / ((people - 1) * (sites - 1))
    shared, total = between - residual, between + (sites - 1) * residual
    return Agreement(
        absolute=shared / (total + sites / people * (offsets - residual)),
        consistency=shared / total if total else np.nan,
        people_sd=max(0.0, shared / sites) ** 0.5,
        site_sd=max(0.0, (offsets - residual) / people) ** 0.5,
        residual_sd=residual**0.5,
    )


def _require_crossed(values: Array) -> None:
    if values.ndim != 2 or values.shape[0] < _LEAST_PEOPLE or values.shape[1] < 2:
        raise DatasetError(
            f"agreement needs at least {_LEAST_PEOPLE} people and 2 sites, found "
            f"{' and '.join(map(str, values.shape))}",
            remedy="give more people who were scanned at every site",
        )
    if not np.isfinite(values).all():
        raise DatasetError(
            f"{np.count_nonzero(~np.isfinite(values).all(axis=1))} of {len(values)} people lack "
            "a finite value at a site",
            remedy="leave them out",
        )
    if not np.ptp(values):
        raise DatasetError(
            "all values are equal, so that agreement has no meaning", remedy="choose another map"
        )


def lesion_contrast(values: Array, lesion: Array, white_matter: Array) -> float:
    """Return the ratio of the mean in lesions to that in surrounding white matter.

    Surrounding voxels are the second and third from a lesion.

    Parameters
    ----------
    values
        Map, shape (x, y, z). Voxels that are not finite are left out.
    lesion, white_matter
        Masks, shape (x, y, z), bool.

    Returns
    -------
    float
        Ratio; NaN without a lesion or surrounding voxels, or if their mean is zero.
    """
    near, far = (ndimage.binary_dilation(lesion, iterations=count) for count in (_NEAR, _FAR))
    valid = np.isfinite(values)
    inside = values[lesion & valid].astype(float)
    around = values[far & ~near & white_matter & valid].astype(float)
    if not inside.size or not around.size or not around.mean():
        return float("nan")
    return float(inside.mean() / around.mean())


def site_distances(values: Mapping[str, Sequence[Array]]) -> tuple[SitePair, ...]:
    """Compare the distributions of a map between all pairs of sites, from each scan's voxels.

    Examples
    --------
    >>> a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    >>> site_distances({"x": [a, b], "y": [a + 1, b + 1]})[0].ks
    0.25
    """
    for site, scans in values.items():
        if not len(scans) or not all(scan.size and np.isfinite(scan).all() for scan in scans):
            raise DatasetError(
                f"site {site} needs scans with finite values, found {len(scans)} scans",
                remedy="leave out scans or voxels without a value",
            )
    means = {site: np.array([scan.mean(dtype=float) for scan in s]) for site, s in values.items()}
    voxels = {site: np.sort(np.concatenate(scans)) for site, scans in values.items()}
    return tuple(
        SitePair(a, b, _cohens_d(means[a], means[b]), _largest_gap(voxels[a], voxels[b]))
        for a, b in combinations(values, 2)
    )


def _cohens_d(first: Array, second: Array) -> float:
    freedom = len(first) + len(second) - 2
    squares = sum(float(np.square(group - group.mean()).sum()) for group in (first, second))
    if not freedom or not squares:
        return float("nan")
    return float((second.mean() - first.mean()) / np.sqrt(squares / freedom))


def _largest_gap(first: Array, second: Array) -> float:
    """Return the Kolmogorov-Smirnov statistic of two sorted arrays."""
    both = np.concatenate([first, second])
    shares = [np.searchsorted(group, both, side="right") / len(group) for group in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())
