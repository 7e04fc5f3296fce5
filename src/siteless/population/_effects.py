"""Site effects, separated from differences between participants and shrunk to zero.

A feature of a scan is modelled as

    y = mean + site + covariates + person + rest,

with normal person and rest terms. Sites and covariates are estimated by generalised least squares,
which weights travelling subjects optimally.

With few participants a single variance is poorly estimated. The variances of a group of features
therefore share a prior, whose weight is estimated (Smyth 2004), and their posterior means are
used. Site effects of a group share a normal prior of unknown standard deviation, which is
integrated out over a logarithmic grid. An effect that the scans clearly show is kept; one that
sampling of participants can explain is shrunk to zero. Sites connected by travelling subjects,
such as a scanner before and after an upgrade, may be much more alike than others, so differences
between connected sites have a separate prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from siteless.acquisition import Array
from siteless.population._design import Design

# Grid of standard deviations of sites, relative to that of participants, and its prior:
# half-Cauchy, which favours small values but allows large ones.
_RATIOS = np.geomspace(0.02, 50, 60)
_TYPICAL_RATIO = 0.2
_LOG_PRIOR = -np.log(_TYPICAL_RATIO / _RATIOS + _RATIOS / _TYPICAL_RATIO)
# Probability that a new site is unlike the known sites, where people connect all of these.
_DOUBT = 0.2
# Grid of correlations between scans of one participant.
_CORRELATIONS = np.array([0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99])
# Prior standard deviation of covariate effects, relative to that of participants. It keeps the
# regression defined where a covariate and the site coincide.
_MOST_OF_COVARIATE = 10.0
# Degrees of freedom that the residual variance requires, and the relative variance that is assumed
# with fewer.
_LEAST_FREEDOM, _CERTAIN = 0.5, 1e-6
# Least degrees of freedom of a prior of variances, and of a posterior, whose mean exists above 2.
_LEAST_PRIOR, _LEAST_TOTAL = 1e-2, 2.5
# Standard deviations beyond which participants are downweighted, and iterations of the weights.
_FAR, _TURNS = 2.5, 4
_TINY = np.finfo(float).tiny
# Rounding errors of values, relative to the largest.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class SiteEffects:
    """Estimated effects of sites on features."""

    mean: Array  # mean of each feature over sites at mean covariates, shape (feature,)
    # Posterior mean and variance of site effects, which sum to zero before shrinkage, shape
    # (site, feature).
    sites: Array
    variance: Array
    raw: Array  # effects before shrinkage, shape (site, feature)
    covariates: Array  # effects of covariates, shape (column, feature)
    of_people: Array  # variance between participants at one site, shape (feature,)
    # Grid of the standard deviation of sites for each group of features, its log posterior, and
    # its log prior for a site that is not known yet, shape (group, scale).
    scales: Array
    log_evidence: Array
    log_prior_of_new: Array
    people: Array  # number of reference participants at each site, shape (site,)
    chance: Array  # sampling variance of `raw`, divided by `of_people`, shape (site,)


def estimate_site_effects(values: Array, design: Design, groups: Array) -> SiteEffects:
    """Estimate the effect of each site on features, given for each scan as (scan, feature).

    Effects of features in one of the `groups`, shape (feature,), share a prior.
    """
    reference = design.of_reference
    regression = _Regression.fit(values[design.reference], reference).moderated(groups)
    centre = np.eye(design.count) - 1 / design.count
    raw = centre @ regression.weights[: design.count]
    scatter = centre @ regression.scatter[: design.count, : design.count] @ centre
    blocks = _contrasts(reference.connections, scatter)
    sites, variance = np.zeros_like(raw), np.zeros_like(raw)
    scales, evidence, of_new_site = [], [], []
    for group in range(int(groups.max()) + 1):
        members = groups == group
        prior = _RATIOS * np.sqrt(max(float(regression.variance[members].mean()), _TINY))
        log_posterior = _LOG_PRIOR
        for block in blocks:
            estimates = block.weights @ raw[:, members] * regression.proves_sites
            noise = block.sampling[:, None] * regression.variance[members]
            log_posterior = _LOG_PRIOR + _log_evidence(estimates, noise, prior)
            kept, left = _shrink(estimates, noise, prior, log_posterior)
            sites[:, members] += block.patterns @ kept
            variance[:, members] += np.square(block.patterns) @ left
        scales.append(prior)
        evidence.append(log_posterior)
        of_new_site.append(_doubted(log_posterior) if reference.is_connected else log_posterior)
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
        log_prior_of_new=np.stack(of_new_site),
        people=reference.people_of_sites,
        chance=np.diag(scatter).clip(min=0),
    )


@dataclass(frozen=True, eq=False)
class _Block:
    """Contrasts of sites that share a prior, with independent errors."""

    weights: Array  # give the contrasts of effects before shrinkage, shape (contrast, site)
    patterns: Array  # effects of sites for contrasts of one, shape (site, contrast)
    sampling: Array  # sampling variance in units of the variance of people, (contrast,)


def _contrasts(connections: Array, scatter: Array) -> list[_Block]:
    """Return the contrasts between connected sites, and those between groups of such sites.

    Errors of the two are uncorrelated: what the first predict of the second is taken away, so that
    a group is not known as badly as its least known site. `connections` holds each site's group,
    and `scatter` the covariance of effects before shrinkage.
    """
    groups = np.eye(connections.max() + 1)[connections]
    means = groups @ np.linalg.pinv(groups)
    within = _basis(np.eye(len(means)) - means)
    between = _basis(means - 1 / len(means))
    covariance = within.T @ scatter @ within
    predicted = between.T @ scatter @ within @ np.linalg.pinv(covariance, hermitian=True)
    blocks = []
    for weights, patterns in (
        (within.T, within + between @ predicted),
        (between.T - predicted @ within.T, between),
    ):
        sampling, vectors = np.linalg.eigh(weights @ scatter @ weights.T)
        if len(sampling):
            sampling = sampling.clip(min=0)
            blocks.append(_Block(vectors.T @ weights, patterns @ vectors, sampling))
    return blocks


def _doubted(log_posterior: Array) -> Array:
    """Mix a posterior with the prior, since a new site may differ more than connected sites do."""
    posterior, prior = (log - np.logaddexp.reduce(log) for log in (log_posterior, _LOG_PRIOR))
    return np.logaddexp(posterior + np.log(1 - _DOUBT), prior + np.log(_DOUBT))


def _basis(projection: Array) -> Array:
    """Return orthonormal columns that span what a projection keeps."""
    rank = round(float(np.trace(projection)))
    _, vectors = np.linalg.eigh(projection)
    return vectors[:, len(vectors) - rank :]


def estimate_new_site(
    values: Array, known: SiteEffects, people: int, groups: Array
) -> tuple[Array, Array]:
    """Return the effect of a new site and its variance, shape (feature,) each.

    Values are averaged over the scans of so many people at the new site, after subtracting the
    mean of the known sites and covariate effects.
    """
    effect, variance = np.zeros_like(values), np.zeros_like(values)
    noise = known.of_people / people
    for group, (prior, evidence) in enumerate(
        zip(known.scales, known.log_prior_of_new, strict=True)
    ):
        members = groups == group
        observed = values[None, members], noise[None, members]
        kept, left = _shrink(*observed, prior, evidence + _log_evidence(*observed, prior))
        effect[members], variance[members] = kept[0], left[0]
    return effect, variance


def _log_evidence(effects: Array, noise: Array, scales: Array) -> Array:
    """Return the log-likelihood of effects for each standard deviation of sites, (scale,)."""
    total = np.square(scales)[:, None, None] + noise
    terms = np.log(np.maximum(total, _TINY)) + np.square(effects) / np.maximum(total, _TINY)
    return -terms.sum(axis=(1, 2)) / 2


def _shrink(effects: Array, noise: Array, scales: Array, evidence: Array) -> tuple[Array, Array]:
    """Return the posterior mean and variance of effects, averaged over the scales."""
    weight = np.exp(evidence - evidence.max())
    weight = (weight / weight.sum())[:, None, None]
    prior = np.square(scales)[:, None, None]
    share = prior / np.maximum(prior + noise, _TINY)
    mean = (weight * share).sum(axis=0) * effects
    variance = (weight * (share * noise + np.square(share * effects - mean))).sum(axis=0)
    return mean, variance


@dataclass(frozen=True, eq=False)
class _Regression:
    """A generalised least-squares fit."""

    weights: Array  # regression coefficients, shape (column, feature)
    variance: Array  # residual variance of a scan, shape (feature,)
    scatter: Array  # covariance of the coefficients, divided by that variance, (column, column)
    freedom: float  # degrees of freedom of the variance
    # False if each site has one participant, who cannot be separated from the site.
    proves_sites: bool = True

    @classmethod
    def fit(cls, values: Array, design: Design) -> _Regression:
        """Fit with the most likely correlation between scans of one participant.

        Outlying participants, such as those with a damaged scan, are downweighted.
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
        columns, whitened = root * whitening(design.columns), root * whitening(values)
        scale = design.covariates.std(axis=0).clip(min=np.finfo(float).eps)
        penalty = np.append(np.zeros(design.count), np.square(scale / _MOST_OF_COVARIATE))
        gram = columns.T @ columns + np.diag(penalty)
        scatter = np.linalg.inv(gram)
        weights = scatter @ (columns.T @ whitened)
        left = np.square(whitened - columns @ weights).sum(axis=0)
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
        """Return the regression with posterior mean variances, using the prior of each group."""
        if self.freedom < _LEAST_FREEDOM:
            return self
        variance = self.variance.copy()
        for group in range(int(groups.max()) + 1):
            members = groups == group
            variance[members] = _moderated(variance[members], self.freedom)
        return replace(self, variance=variance)

    def usualness(self, values: Array, design: Design) -> Array:
        """Return the weight of each scan's participant, at most 1, shape (scan,)."""
        squares = np.square(values - design.columns @ self.weights) / self.variance
        counts = np.bincount(design.people)
        of_people = np.bincount(design.people, squares.mean(axis=1)) / counts
        usual = _FAR**2 / np.fmax(of_people, _FAR**2)
        return usual[design.people] if self.proves_sites else np.ones(len(values))


def _moderated(variance: Array, freedom: float) -> Array:
    """Return posterior mean variances, with a prior estimated from their scatter.

    The prior is a scaled inverse chi-squared distribution; a single variance has none. The
    variance of the log estimates is the sum of trigamma functions of half the degrees of freedom
    of the prior and of the data. With few degrees of freedom the posterior mean exceeds the
    estimates.
    """
    prior, common = _prior_of_variances(variance, freedom)
    total = max(prior + freedom, _LEAST_TOTAL)
    usual: Array = (prior * common + freedom * variance) / (prior + freedom)
    return usual * total / (total - 2)


def _prior_of_variances(variance: Array, freedom: float) -> tuple[float, float]:
    """Return the degrees of freedom and the scale of the prior of variances."""
    if len(variance) == 1:
        return 0.0, 0.0
    # Limits to what the scatter of so few estimates can show.
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
    """Decorrelates the equally correlated scans of one participant.

    The covariance of a participant's n scans is (1 - r) I + r 11', whose inverse square root
    subtracts a part of their mean.
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
