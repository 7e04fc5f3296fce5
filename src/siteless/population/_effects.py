"""Site effects, separated from differences between people and shrunk by their uncertainty.

A feature of a scan is modelled as

    y = mean + site + covariates + person + rest,

with normal person and rest terms. Sites and covariates are estimated by generalised least squares,
so that people who were scanned at several sites count for what they are worth.

The variances of a group of features share a prior, whose weight is estimated (Smyth 2004), as
single variances are known badly where people are few; their posterior means are used. Site effects
of a group share a normal prior of unknown standard deviation, which is integrated out over a
logarithmic grid. Where the scans prove a difference the estimate is kept; where chance in who was
scanned explains it, the estimate is shrunk to zero. Sites that people who travelled connect, such
as a scanner before and after an upgrade, may be much more alike than others: differences between
connected sites have a prior of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from siteless.acquisition import Array
from siteless.population._design import Design

# Standard deviations of sites that are considered, relative to that of people, and their prior:
# half-Cauchy, which prefers small ones and yet lets large ones be found.
_RATIOS = np.geomspace(0.02, 50, 60)
_TYPICAL_RATIO = 0.2
_LOG_PRIOR = -np.log(_TYPICAL_RATIO / _RATIOS + _RATIOS / _TYPICAL_RATIO)
# Correlations that are considered between scans of one person.
_CORRELATIONS = np.array([0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99])
# A covariate explains at most about as many standard deviations of people; it keeps the
# regression defined where a covariate and the site coincide.
_MOST_OF_COVARIATE = 10.0
# Degrees of freedom that are needed to estimate how much people differ, and how much scans of one
# person are taken to differ where there are fewer.
_LEAST_FREEDOM, _CERTAIN = 0.5, 1e-6
# Degrees of freedom below which a prior of variances is left out; and those that a posterior,
# whose mean exists above 2, has at least.
_LEAST_PRIOR, _LEAST_TOTAL = 1e-2, 2.5
# Standard deviations beyond which people count less, and how often their weights are updated.
_FAR, _TURNS = 2.5, 4
_TINY = np.finfo(float).tiny
# Rounding errors of values, relative to the largest.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class SiteEffects:
    """Effects of sites on features.

    Attributes
    ----------
    mean
        Mean of each feature over sites, at mean covariates, shape (feature,).
    sites, variance
        Shrunken effects, whose sum over sites is zero before shrinkage, and their posterior
        variance, shape (site, feature).
    raw
        Effects before shrinkage, shape (site, feature).
    covariates
        Effects of covariates, shape (column, feature).
    of_people
        Variance between scans of different people at one site, shape (feature,).
    scales, log_evidence
        Standard deviations of sites that were considered for each group of features, and their
        log posterior, shape (group, scale).
    people
        Number of people that the effects of each site are estimated from, shape (site,).
    chance
        Sampling variance of `raw`, over `of_people`, shape (site,).
    """

    mean: Array
    sites: Array
    variance: Array
    raw: Array
    covariates: Array
    of_people: Array
    scales: Array
    log_evidence: Array
    people: Array
    chance: Array


def estimate_site_effects(values: Array, design: Design, groups: Array) -> SiteEffects:
    """Estimate what each site adds to features.

    Parameters
    ----------
    values
        Features of each scan, shape (scan, feature).
    design
        Sites, people and covariates of the scans.
    groups
        Number of the group that each feature belongs to, shape (feature,). The effects in a group
        share a prior.
    """
    reference = design.of_reference
    regression = _Regression.fit(values[design.reference], reference).moderated(groups)
    raw, scatter = regression.centred_sites(design.count)
    sites, variance = np.zeros_like(raw), np.zeros_like(raw)
    for contrasts in _contrasts(reference.connections, scatter):
        spread = np.einsum("sc,st,tc->c", contrasts, scatter, contrasts)
        found = contrasts.T @ raw * regression.proves_sites
        scales, evidence = [], []  # those of the last contrasts are what a new site will need
        for group in range(int(groups.max()) + 1):
            own = groups == group
            noise = spread[:, None] * regression.variance[own]
            prior = _prior_scales(regression.variance[own])
            fit = _LOG_PRIOR + _log_evidence(found[:, own], noise, prior)
            kept, left = _shrink(found[:, own], noise, prior, fit)
            sites[:, own] += contrasts @ kept
            variance[:, own] += np.square(contrasts) @ left
            scales.append(prior)
            evidence.append(fit)
    of_people = regression.variance
    if not regression.proves_sites:
        variance = np.square(raw)
        of_people = variance.sum(axis=0) / max(np.trace(scatter), _TINY)
    return SiteEffects(
        mean=regression.weights[: design.count].mean(axis=0),
        sites=sites,
        variance=variance,
        raw=raw,
        covariates=regression.weights[design.count :],
        of_people=of_people,
        scales=np.stack(scales),
        log_evidence=np.stack(evidence),
        people=reference.people_of_sites,
        chance=np.diag(scatter).clip(min=0),
    )


def _contrasts(connections: Array, scatter: Array) -> list[Array]:
    """Return orthonormal contrasts of sites whose errors are independent, (site, contrast) each.

    Those between sites that people connect come first, then those between groups of such sites.
    """
    groups = np.eye(connections.max() + 1)[connections]
    means = groups @ np.linalg.pinv(groups)
    within, between = np.eye(len(means)) - means, means - 1 / len(means)
    contrasts = []
    for projection in (within, between):
        rank = round(float(np.trace(projection)))
        _, vectors = np.linalg.eigh(projection @ scatter @ projection)
        if rank:
            contrasts.append(vectors[:, len(vectors) - rank :])
    return contrasts


def estimate_new_site(
    values: Array, known: SiteEffects, people: int, groups: Array
) -> tuple[Array, Array]:
    """Return the effect of a further site on features and its variance, shape (feature,) each.

    Parameters
    ----------
    values
        Mean over its scans of the features, without the mean of the known sites and the effects
        of covariates, shape (feature,).
    known
        Effects of the sites that are known.
    people
        Number of people who were scanned there.
    groups
        As for `estimate_site_effects`.
    """
    effect, variance = np.zeros_like(values), np.zeros_like(values)
    noise = known.of_people / people
    for group, (prior, evidence) in enumerate(zip(known.scales, known.log_evidence, strict=True)):
        own = groups == group
        found = values[None, own], noise[None, own]
        kept, left = _shrink(*found, prior, evidence + _log_evidence(*found, prior))
        effect[own], variance[own] = kept[0], left[0]
    return effect, variance


def _prior_scales(variance: Array) -> Array:
    return _RATIOS * np.sqrt(max(float(variance.mean()), _TINY))


def _log_evidence(found: Array, noise: Array, scales: Array) -> Array:
    """Return the log-likelihood of effects under each standard deviation of sites, (scale,)."""
    total = np.square(scales)[:, None, None] + noise
    terms = np.log(np.maximum(total, _TINY)) + np.square(found) / np.maximum(total, _TINY)
    return -terms.sum(axis=(1, 2)) / 2


def _shrink(found: Array, noise: Array, scales: Array, evidence: Array) -> tuple[Array, Array]:
    """Return the posterior mean and variance of effects, averaged over the scales."""
    weight = np.exp(evidence - evidence.max())
    weight = (weight / weight.sum())[:, None, None]
    prior = np.square(scales)[:, None, None]
    share = prior / np.maximum(prior + noise, _TINY)
    mean = (weight * share).sum(axis=0) * found
    variance = (weight * (share * noise + np.square(share * found - mean))).sum(axis=0)
    return mean, variance


@dataclass(frozen=True, eq=False)
class _Regression:
    """A generalised least-squares fit.

    Attributes
    ----------
    weights, variance
        Shape (column, feature), and the variance of a scan about the fit, (feature,).
    scatter
        Covariance of the weights, over that variance, shape (column, column).
    freedom
        Degrees of freedom that the variance was estimated with.
    proves_sites
        False where each site has one person, whose difference may be their own.
    """

    weights: Array
    variance: Array
    scatter: Array
    freedom: float
    proves_sites: bool = True

    @classmethod
    def fit(cls, values: Array, design: Design) -> _Regression:
        """Fit with the correlation between scans of one person that is most likely.

        People who are far from all others, as those with a damaged scan are, count less.
        """
        weights = np.ones(len(values))
        for _ in range(_TURNS):
            fits = [
                cls._fit(values, design, correlation, weights)
                for correlation in (_CORRELATIONS if design.travelled else _CORRELATIONS[:1])
            ]
            best = max(fits, key=lambda fit: fit[1])[0]
            weights = best.usualness(values, design)
        return best

    @classmethod
    def _fit(
        cls, values: Array, design: Design, correlation: float, usual: Array
    ) -> tuple[_Regression, float]:
        """Return the fit and its restricted log-likelihood."""
        whitening = _Whitening.of(design.people, correlation)
        root = np.sqrt(usual)[:, None]
        columns, given = root * whitening(design.columns), root * whitening(values)
        scale = design.covariates.std(axis=0).clip(min=np.finfo(float).eps)
        penalty = np.append(np.zeros(design.count), np.square(scale / _MOST_OF_COVARIATE))
        gram = columns.T @ columns + np.diag(penalty)
        scatter = np.linalg.inv(gram)
        weights = scatter @ (columns.T @ given)
        left = np.square(given - columns @ weights).sum(axis=0)
        free = len(values) - float(np.trace(scatter @ (columns.T @ columns)))
        least = np.square(_ROUNDING * np.abs(values).max(axis=0)) + _TINY
        if free < _LEAST_FREEDOM:
            variance = np.maximum(_CERTAIN * values.var(axis=0), least)
            return cls(weights, variance, scatter, 0.0, design.travelled), correlation
        variance = np.maximum(left / free, least)
        determinants = whitening.log_determinant + np.linalg.slogdet(gram)[1]
        likelihood = -(free * np.log(variance) + determinants).sum() / 2
        return cls(weights, variance, scatter, free), float(likelihood)

    def moderated(self, groups: Array) -> _Regression:
        """Return it with the posterior means of variances, given those of the same group."""
        if self.freedom < _LEAST_FREEDOM:
            return self
        variance = self.variance.copy()
        for group in range(int(groups.max()) + 1):
            own = groups == group
            variance[own] = _moderated(variance[own], self.freedom)
        return replace(self, variance=variance)

    def usualness(self, values: Array, design: Design) -> Array:
        """Return the weight of each scan's person, at most 1, shape (scan,)."""
        squares = np.square(values - design.columns @ self.weights) / self.variance
        counts = np.bincount(design.people)
        of_people = np.bincount(design.people, squares.mean(axis=1)) / counts
        usual = _FAR**2 / np.fmax(of_people, _FAR**2)
        return usual[design.people] if self.proves_sites else np.ones(len(values))

    def centred_sites(self, count: int) -> tuple[Array, Array]:
        """Return the sites' weights about their mean, and their covariance."""
        centre = np.eye(count) - 1 / count
        return centre @ self.weights[:count], centre @ self.scatter[:count, :count] @ centre


def _moderated(variance: Array, freedom: float) -> Array:
    """Return the posterior mean of variances whose prior is estimated from their scatter.

    The prior is a scaled inverse chi-squared distribution; a single variance has none. The
    variance of logarithms of estimates is the sum of trigamma functions of half the degrees of
    freedom of both. The mean exceeds the estimates, as few degrees of freedom leave larger
    variances possible.
    """
    prior, common = _prior_of_variances(variance, freedom)
    total = max(prior + freedom, _LEAST_TOTAL)
    usual: Array = (prior * common + freedom * variance) / (prior + freedom)
    return usual * total / (total - 2)


def _prior_of_variances(variance: Array, freedom: float) -> tuple[float, float]:
    """Return the degrees of freedom of the prior of variances, and its scale."""
    if len(variance) == 1:
        return 0.0, 0.0
    # No more than the scatter of so few estimates can show.
    low, high = _LEAST_PRIOR, freedom * (len(variance) - 1)
    half = freedom / 2
    logs = np.log(variance) - digamma(half) + np.log(half)
    excess = logs.var(ddof=1) - polygamma(1, half)
    if excess <= polygamma(1, high / 2):
        return high, float(variance.mean())
    if excess >= polygamma(1, low / 2):
        return 0.0, 0.0
    prior = brentq(lambda value: polygamma(1, value / 2) - excess, low, high)
    return prior, float(np.exp(logs.mean() + digamma(prior / 2) - np.log(prior / 2)))


@dataclass(frozen=True, eq=False)
class _Whitening:
    """Makes scans of one person, which are equally correlated, independent.

    The covariance of a person's n scans is (1 - r) I + r 11', whose inverse square root takes a
    part of their mean away.
    """

    people: Array
    counts: Array
    correlation: float

    @classmethod
    def of(cls, people: Array, correlation: float) -> _Whitening:
        return cls(people, np.bincount(people), correlation)

    def __call__(self, values: Array) -> Array:
        rest, largest = 1 - self.correlation, 1 + (self.counts - 1) * self.correlation
        sums = np.zeros((len(self.counts), values.shape[1]))
        np.add.at(sums, self.people, values)
        part = (1 - np.sqrt(rest / largest)) / self.counts
        return (values - (part[:, None] * sums)[self.people]) / np.sqrt(rest)

    @property
    def log_determinant(self) -> float:
        rest, largest = 1 - self.correlation, 1 + (self.counts - 1) * self.correlation
        return float(((self.counts - 1) * np.log(rest) + np.log(largest)).sum())
