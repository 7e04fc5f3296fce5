"""Fine detail of scans, by which the point-spread functions of sites are matched.

Larger brains have less fine detail, and participants differ in it. So its logarithm is separated
into effects of sites, participants and covariates, including the volume of the brain. The
reduction of detail by a blur is measured in the scans of each site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from siteless.acquisition import Array
from siteless.methods.invariant.profiles._survey import BLURS, Survey, fine_detail, usable_surveys
from siteless.population import Design, SiteEffects, estimate_new_site, estimate_site_effects

# Detail is one feature.
_GROUP = np.zeros(1, dtype=int)
_PREFIX = "detail."


@dataclass(frozen=True, eq=False)
class FineDetail:
    """The fine detail of scans.

    Attributes
    ----------
    near
        Distance over which detail is measured, mm, shape ().
    volumes
        Smallest, mean and largest log brain volume of participants (mm3), shape (3,).
    of_sites
        Detail of each site's scans after each of `BLURS`, shape (site, blur).
    effects
        Effects of sites, participants and covariates on log detail. The last covariate is the log
        brain volume.
    """

    near: Array
    volumes: Array
    of_sites: Array
    effects: SiteEffects

    @property
    def blurs(self) -> Array:
        """Variance of the blur that matches each site to the most blurred one, (site,), mm2."""
        return np.array([self.match(detail) for detail in self.of_sites])

    def match(self, detail: Array) -> float:
        """Return the blur that reduces detail to that of the most blurred site."""
        goal = self.of_sites[:, 0].min()
        if detail[0] <= goal:
            return 0.0
        # Detail decreases with blur, but np.interp requires increasing values.
        return float(np.interp(-goal, -np.minimum.accumulate(detail), BLURS))

    def match_new_site(self, surveys: Sequence[Survey], covariates: Array | None) -> float:
        """Return the blur that matches scans of a new site; 0 if their detail is unknown.

        Covariates of each survey's participant have the shape (survey, column), and are assumed to
        be at their means if None.
        """
        logs, known, usable = _details(surveys, float(self.near))
        if not usable:
            return 0.0
        least, mean, largest = self.volumes
        columns = np.zeros((len(usable), len(self.effects.covariates)))
        volumes = np.log([survey.brain_volume for survey in usable])
        columns[:, -1] = volumes.clip(least, largest) - mean
        if covariates is not None:
            columns[:, :-1] = covariates[known]
        left = (logs[known, :1] - columns @ self.effects.covariates).mean(axis=0)
        people = len({survey.person for survey in usable})
        effect, _ = estimate_new_site(left - self.effects.mean, self.effects, people, _GROUP)
        return self.match(_after_blurs(self.effects.mean + effect, logs[known]))

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays, to store."""
        plain = {name: value for name, value in vars(self).items() if name != "effects"}
        return {_PREFIX + name: value for name, value in {**plain, **vars(self.effects)}.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> FineDetail | None:
        """Make fine detail from stored arrays; None if they contain none."""
        if _PREFIX + "near" not in arrays:
            return None
        effects = SiteEffects(**{f.name: arrays[_PREFIX + f.name] for f in fields(SiteEffects)})
        near, volumes, of_sites = (arrays[_PREFIX + n] for n in ("near", "volumes", "of_sites"))
        return cls(near, volumes, of_sites, effects)


def learn_detail(surveys: Sequence[Survey], design: Design) -> FineDetail | None:
    """Return the fine detail of scans; None if it is unknown for a site."""
    near = max(float(survey.voxel_size.max()) for survey in surveys)
    logs, known, usable = _details(surveys, near)
    seen = [known & design.reference & (design.sites == site) for site in range(design.count)]
    if not all(mask.any() for mask in seen):
        return None
    part = design.part(known)
    volumes = part.means_of_people(np.log([survey.brain_volume for survey in usable]))
    mean = volumes.mean()
    part = part.beside(volumes[:, None] - mean)
    effects = estimate_site_effects(logs[known, :1], part, _GROUP)
    of_sites = [
        _after_blurs(effects.mean + effect, logs[mask])
        for effect, mask in zip(effects.sites, seen, strict=True)
    ]
    limits = np.array([volumes.min(), mean, volumes.max()])
    return FineDetail(np.array(near), limits, np.stack(of_sites), effects)


def _details(surveys: Sequence[Survey], near: float) -> tuple[Array, Array, list[Survey]]:
    """Return log fine detail (survey, blur), a mask of surveys where it is known, and these."""
    logs = np.log(np.stack([fine_detail(survey, near) for survey in surveys]))
    known = usable_surveys(surveys) & np.isfinite(logs).all(axis=1)
    return logs, known, [survey for survey, use in zip(surveys, known, strict=True) if use]


def _after_blurs(before: Array, logs: Array) -> Array:
    """Return detail after blurs, given its logarithm before them and the logs of some scans."""
    return np.exp(before + (logs - logs[:, :1]).mean(axis=0))
