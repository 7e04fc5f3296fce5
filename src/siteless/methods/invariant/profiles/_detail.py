"""Fine detail of scans, by which the point spreads of sites are matched.

Anatomy has less of it in larger brains, and people differ in it. So the logarithm of the detail
is separated into sites, people and covariates, among them the volume of the brain, and what a
blur takes of it is taken from the scans of each site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from siteless.acquisition import Array
from siteless.methods.invariant.profiles._survey import SPREADS, Survey, fine_detail
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
        Distance that detail is measured over, mm, shape ().
    volumes
        Least, mean and largest logarithm of the volumes of people's brains (mm3), shape (3,).
    of_sites
        Detail of each site's scans after each of `SPREADS`, shape (site, spread).
    effects
        Of sites, people and covariates on its logarithm. The last covariate is the logarithm of
        the brain's volume.
    """

    near: Array
    volumes: Array
    of_sites: Array
    effects: SiteEffects

    @property
    def spreads(self) -> Array:
        """What each site's scans are blurred by to be like the most blurred, (site,), mm2."""
        return np.array([self.match(own) for own in self.of_sites])

    def match(self, detail: Array) -> float:
        """Return the blur after which as little detail is left as at the most blurred site."""
        goal = self.of_sites[:, 0].min()
        if detail[0] <= goal:
            return 0.0
        # Detail falls as the blur grows; np.interp needs what it looks up to rise.
        return float(np.interp(-goal, -np.minimum.accumulate(detail), SPREADS))

    def of_new_site(self, surveys: Sequence[Survey], covariates: Array | None) -> Array | None:
        """Return the detail of a further site after each of `SPREADS`; None if it is unknown.

        Parameters
        ----------
        surveys
            Of its scans.
        covariates
            Of each survey's person, shape (survey, column); their means by default.
        """
        found, known, usable = _details(surveys, float(self.near))
        if not usable:
            return None
        least, mean, largest = self.volumes
        columns = np.zeros((len(usable), len(self.effects.covariates)))
        columns[:, -1] = _log_volumes(usable).clip(least, largest) - mean
        if covariates is not None:
            columns[:, :-1] = covariates[known]
        left = (found[known, :1] - columns @ self.effects.covariates).mean(axis=0)
        people = len({one.person for one in usable})
        effect, _ = estimate_new_site(left - self.effects.mean, self.effects, people, _GROUP)
        return _after_blurs(self.effects.mean + effect, found[known])

    @property
    def arrays(self) -> dict[str, Array]:
        """Everything, for a file."""
        own = {name: value for name, value in vars(self).items() if name != "effects"}
        return {_PREFIX + name: value for name, value in {**own, **vars(self.effects)}.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> FineDetail | None:
        """Read what `arrays` holds; None when it holds no detail."""
        if _PREFIX + "near" not in arrays:
            return None
        effects = SiteEffects(**{f.name: arrays[_PREFIX + f.name] for f in fields(SiteEffects)})
        near, volumes, of_sites = (arrays[_PREFIX + n] for n in ("near", "volumes", "of_sites"))
        return cls(near, volumes, of_sites, effects)


def learn_detail(surveys: Sequence[Survey], design: Design) -> FineDetail | None:
    """Return the fine detail of scans; None where the scans of some site do not show it."""
    near = max(float(one.voxel_size.max()) for one in surveys)
    found, known, usable = _details(surveys, near)
    seen = [known & design.reference & (design.sites == site) for site in range(design.count)]
    if not all(one.any() for one in seen):
        return None
    own = design.part(known)
    volumes = own.means_of_people(_log_volumes(usable))
    mean = volumes.mean()
    own = own.beside(volumes[:, None] - mean)
    effects = estimate_site_effects(found[known, :1], own, _GROUP)
    of_sites = [
        _after_blurs(effects.mean + effect, found[one])
        for effect, one in zip(effects.sites, seen, strict=True)
    ]
    limits = np.array([volumes.min(), mean, volumes.max()])
    return FineDetail(np.array(near), limits, np.stack(of_sites), effects)


def _details(surveys: Sequence[Survey], near: float) -> tuple[Array, Array, list[Survey]]:
    """Return logarithms of fine detail after each of `SPREADS`, and the surveys that show it.

    The first has the shape (survey, spread); the second is a mask of shape (survey,).
    """
    found = np.log(np.stack([fine_detail(one, near) for one in surveys]))
    known = np.array([bool(len(one.count)) for one in surveys]) & np.isfinite(found).all(axis=1)
    return found, known, [one for one, use in zip(surveys, known, strict=True) if use]


def _log_volumes(surveys: Sequence[Survey]) -> Array:
    return np.log([one.brain_volume for one in surveys])


def _after_blurs(before: Array, found: Array) -> Array:
    """Return detail after blurs, given its logarithm before them and that of some scans."""
    after: Array = np.exp(before + (found - found[:, :1]).mean(axis=0))
    return after
