"""Smooth fields over scanner coordinates, separated from anatomy and from participants.

The logarithm of a block's energy is a sum of

    anatomy in head coordinates, the same for all participants,
    the white-matter fraction of the block,
    the field of the site, smooth in scanner coordinates, and
    an effect of the participant, partly explained by covariates.

The residual of a scan is expanded into smooth components, which are orthonormal over white matter.
`estimate_site_effects` separates sites from participants in their coefficients, and shrinks fields
that the scans of a site do not support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
from scipy.linalg import eigh

from siteless.acquisition import Array
from siteless.methods.invariant.profiles._survey import Survey, at_blur, usable_surveys
from siteless.population import (
    Design,
    SiteEffects,
    SiteVerdict,
    estimate_new_site,
    estimate_site_effects,
    judge_sites,
)

# Highest sum of frequencies of cosines along the axes.
_DEGREE = 4
_FREQUENCIES = np.array([f for f in product(range(_DEGREE + 1), repeat=3) if sum(f) <= _DEGREE])
_COSINES = len(_FREQUENCIES)
# Components whose site effects share a prior: the mean, slopes, curvatures, and finer ones.
_BANDS = np.repeat(np.arange(4), (1, 3, 6, _COSINES - 10))
# mm beyond the outermost blocks, where fields become flat.
_MARGIN = 15.0
# Regularize regressions where blocks do not cover the box; in units of the mean square.
_ANATOMY_PENALTY, _COMPONENT_PENALTY, _LEAST_MASS = 1e-6, 1e-2, 1e-4


@dataclass(frozen=True, eq=False)
class Field:
    """Logarithms of each site's gain of features, as sums of cosines.

    Attributes
    ----------
    box
        Corners of the domain of the cosines, shape (2, 3), mm.
    weights
        Weights of the cosines, shape (site, cosine, feature).
    deviations
        Posterior standard deviation of each site's field, as a root mean square over white
        matter, shape (site, feature).
    anatomy
        Weights of the shared anatomy: of cosines in head coordinates and of the white-matter
        fraction, shape (column, feature).
    components
        Matrix from cosines to components, shape (cosine, component).
    effects
        Effects of sites, participants and covariates on the components of features, which vary
        fastest.
    """

    box: Array
    weights: Array
    deviations: Array
    anatomy: Array
    components: Array
    effects: SiteEffects

    def logarithms(self, world: Array, site: int) -> Array:
        """Return the log field of a site at places, shape (place, feature)."""
        waves = cosines(world.astype(np.float32), self.box.astype(np.float32))
        return waves @ self.weights[site].astype(np.float32)

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays, to store."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.type == "Array"}
        return plain | {f"effect.{name}": value for name, value in vars(self.effects).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Field:
        """Make fields from stored arrays."""
        effects = SiteEffects(**{f.name: arrays[f"effect.{f.name}"] for f in fields(SiteEffects)})
        plain = {f.name: arrays[f.name] for f in fields(cls) if f.type == "Array"}
        return cls(**plain, effects=effects)

    def verdict(self, sites: Sequence[str]) -> list[SiteVerdict]:
        """Summarize site effects as relative changes of amplitudes, averaged over features."""
        features = self.weights.shape[2]
        # All features but b0 are energies, which are squares of amplitudes.
        units = np.append(1.0, np.full(features - 1, 0.5)) / np.sqrt(features)
        return judge_sites(self.effects, sites, _groups(features), np.tile(units, _COSINES))

    @property
    def variation(self) -> Array:
        """Standard deviation of each site's log field of b0 over the middle of the box."""
        middle = self.box.mean(axis=0) + (self.box - self.box.mean(axis=0)) / 2
        grid = np.linspace(middle[0], middle[1], 9)
        places = np.stack(np.meshgrid(*grid.T), axis=-1).reshape(-1, 3)
        return (cosines(places, self.box) @ self.weights[:, :, 0].T).std(axis=0)


def cosines(world: Array, box: Array) -> Array:
    """Return smooth functions of places, shape (place, cosine)."""
    part = ((world - box[0]) / (box[1] - box[0])).clip(0, 1)
    waves = np.cos(part[:, :, None] * (np.pi * np.arange(_DEGREE + 1)).astype(part.dtype))
    x, y, z = _FREQUENCIES.T
    return waves[:, 0, x] * waves[:, 1, y] * waves[:, 2, z]


def fit_fields(
    surveys: Sequence[Survey],
    sites: Sequence[str],
    site_blurs: Sequence[float],
    design: Design | None = None,
) -> Field:
    """Estimate the fields of sites from surveys of their training scans.

    Sites are in the order of their indices, and the variances of their blurs in mm2. The default
    design consists of the sites and participants of the surveys.
    """
    kept = [survey for survey in surveys if len(survey.count)]
    if not kept:
        return flat_fields(len(sites), surveys[0].energies.shape[2])
    places = np.concatenate([survey.position for survey in kept])
    box = np.stack([places.min(axis=0) - _MARGIN, places.max(axis=0) + _MARGIN])
    blurs = [site_blurs[list(sites).index(survey.site)] for survey in kept]
    anatomy = _fit_anatomy(kept, blurs, box)
    components = _smooth_components(kept, box)
    values = [
        _component_values(survey, blur, box, anatomy, components).ravel()
        for survey, blur in zip(kept, blurs, strict=True)
    ]
    design = (design or design_of(surveys, sites)).part(usable_surveys(surveys))
    effects = estimate_site_effects(np.stack(values), design, _groups(anatomy.shape[1]))
    by_component = effects.sites.reshape(len(sites), _COSINES, -1)
    variance = effects.variance.reshape(by_component.shape).sum(axis=1)
    weights = np.einsum("ck,skf->scf", components, by_component)
    return Field(box, weights, np.sqrt(variance), anatomy, components, effects)


def design_of(surveys: Sequence[Survey], sites: Sequence[str]) -> Design:
    """Return the design of surveys, without covariates."""
    people = [survey.person for survey in surveys]
    return Design.of([survey.site for survey in surveys], people, sites)


def extend_fields(
    field: Field, surveys: Sequence[Survey], blur: float, covariates: Array | None = None
) -> Field:
    """Add the field of a new site; those of known sites are unchanged.

    The surveys describe scans of the new site, whose blur has a variance in mm2. Covariates of
    each survey's participant have the shape (survey, column).
    """
    known, groups = field.effects, _groups(field.anatomy.shape[1])
    usable = [survey for survey in surveys if len(survey.count)]
    people = len({survey.person for survey in usable})
    effect, variance, left = np.zeros((3, len(known.mean)))
    if usable:
        fixed = blur, field.box, field.anatomy, field.components
        values = [_component_values(survey, *fixed).ravel() for survey in usable]
        left = np.mean(values, axis=0) - known.mean
        if covariates is not None:
            left -= covariates[usable_surveys(surveys)].mean(axis=0) @ known.covariates
        effect, variance = estimate_new_site(left, known, people, groups)
    weights = field.components @ effect.reshape(_COSINES, -1)
    deviations = np.sqrt(variance.reshape(_COSINES, -1).sum(axis=0))
    return replace(
        field,
        weights=np.append(field.weights, weights[None], axis=0),
        deviations=np.append(field.deviations, deviations[None], axis=0),
        effects=replace(
            known,
            sites=np.append(known.sites, effect[None], axis=0),
            variance=np.append(known.variance, variance[None], axis=0),
            raw=np.append(known.raw, left[None], axis=0),
            people=np.append(known.people, people),
            chance=np.append(known.chance, 1 / max(people, 1)),
        ),
    )


def _groups(features: int) -> Array:
    """Return the groups of components that share a prior: each feature's bands, shape (value,)."""
    return (_BANDS[:, None] * features + np.arange(features)).ravel()


def _fit_anatomy(surveys: Sequence[Survey], blurs: Sequence[float], box: Array) -> Array:
    """Fit the shared anatomy with equal weights of scans, shape (column, feature)."""
    gram: Array = np.zeros((_COSINES + 2,) * 2)
    right: Array = np.zeros((_COSINES + 2, surveys[0].energies.shape[2]))
    for survey, blur in zip(surveys, blurs, strict=True):
        columns, weight = _anatomy_columns(survey, box), survey.count / survey.count.sum()
        weighted = columns.T * weight
        gram += weighted @ columns
        right += weighted @ at_blur(survey.energies, blur)
    penalty = _ANATOMY_PENALTY * len(surveys) * np.eye(len(gram))
    return np.linalg.solve(gram + penalty, right)


def _anatomy_columns(survey: Survey, box: Array) -> Array:
    share = survey.share[:, None] ** [1, 2] - [0.5, 0.25]
    return np.hstack([cosines(survey.head_position, box - box.mean(axis=0)), share])


def _smooth_components(surveys: Sequence[Survey], box: Array) -> Array:
    """Return combinations of cosines that are orthonormal over white matter, smoothest first."""
    gram = _LEAST_MASS * np.eye(_COSINES)
    for survey in surveys:
        waves = cosines(survey.position, box)
        gram += (waves.T * (survey.count / survey.count.sum())) @ waves / len(surveys)
    roughness = np.diag(np.square(np.square(_FREQUENCIES).sum(axis=1)).astype(float))
    _, components = eigh(roughness, gram)
    return components * np.sign(components.sum(axis=0))


def _component_values(
    survey: Survey, blur: float, box: Array, anatomy: Array, components: Array
) -> Array:
    """Expand the residual of a scan into components, shape (component, feature)."""
    left = at_blur(survey.energies, blur) - _anatomy_columns(survey, box) @ anatomy
    columns = cosines(survey.position, box) @ components
    weighted = columns.T * (survey.count / survey.count.sum())
    penalty = np.append(0.0, np.full(_COSINES - 1, _COMPONENT_PENALTY))
    return np.linalg.solve(weighted @ columns + np.diag(penalty), weighted @ left)


def flat_fields(sites: int, features: int) -> Field:
    """Return fields that change nothing."""
    box, values = np.array([[-100.0] * 3, [100.0] * 3]), _COSINES * features
    effects = SiteEffects(
        mean=np.zeros(values),
        sites=np.zeros((sites, values)),
        variance=np.zeros((sites, values)),
        raw=np.zeros((sites, values)),
        covariates=np.zeros((0, values)),
        of_people=np.ones(values),
        scales=np.full((4 * features, 1), 1e-3),
        log_evidence=np.zeros((4 * features, 1)),
        log_prior_of_new=np.zeros((4 * features, 1)),
        people=np.zeros(sites, dtype=int),
        chance=np.zeros(sites),
    )
    return Field(
        box,
        weights=np.zeros((sites, _COSINES, features)),
        deviations=np.zeros((sites, features)),
        anatomy=np.zeros((_COSINES + 2, features)),
        components=np.eye(_COSINES),
        effects=effects,
    )
