"""The profiles of a model's sites, and scans without them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients, coefficient_orders
from siteless.population import Design, SiteVerdict, estimate_site_effects
from siteless.profiles._field import Field, design_of, extend_fields, fit_fields
from siteless.profiles._spread import diffuse
from siteless.profiles._survey import DEGREES, SPREADS, Survey, fine_detail

# A field multiplies a feature by no more than this, or divides it by as much (log).
_MOST = math.log(2)


@dataclass(frozen=True, eq=False)
class SiteProfiles:
    """What sites do to all of a brain alike.

    Attributes
    ----------
    sites
        Labels.
    spreads
        What scans of each site are blurred by to be as blurred as those of the most blurred site,
        shape (site,), mm2.
    field
        Of b0 and, over b0 squared, of the energies of each shell's degrees 0 and 2.
    order
        Of the harmonics.
    goal
        Of matching point spreads: a distance, mm, and the part of harmonics' differences over it
        that is fine detail at the most blurred site, shape (2,).
    """

    sites: tuple[str, ...]
    spreads: Array
    field: Field
    order: int
    goal: Array

    @classmethod
    def from_arrays(cls, sites: Sequence[str], order: int, arrays: Mapping[str, Array]) -> Self:
        """Make profiles of what `arrays` holds."""
        field = Field.from_arrays(dict(arrays))
        return cls(tuple(sites), arrays["spreads"], field, order, arrays["goal"])

    @property
    def arrays(self) -> dict[str, Array]:
        """All but the sites and the order."""
        return {"spreads": self.spreads, "goal": self.goal, **self.field.arrays}

    def of(self, scan: Scan) -> ScanProfile:
        """Return the profile of a scan's site over the scan's brain."""
        site = str(scan.site)
        spread = float(self.spreads[self.sites.index(site)])
        return ScanProfile(scan, self.gains(scan.positions, site), spread)

    def logarithms(self, world: Array, site: str) -> Array:
        """Return the field of a site at places, within bounds, shape (place, feature)."""
        return self.field.logarithms(world, self.sites.index(site)).clip(-_MOST, _MOST)

    def uncertainty(self, site: str, shells: int) -> Array:
        """Return the relative standard deviation of a site's gain of b0 and shells, (1 + shell,).

        It is that of b0 and of each shell's mean over directions.
        """
        deviations = self.field.deviations[self.sites.index(site)]
        of_shells = deviations[1 :: len(DEGREES)][:shells] / 2  # an amplitude, not an energy
        return np.append(deviations[0], np.hypot(deviations[0], of_shells))

    @property
    def verdict(self) -> list[SiteVerdict]:
        """How much of each site's difference is the scanner's, and how sure that is."""
        return self.field.verdict(self.sites)

    def gains(self, world: Array, site: str) -> Array:
        """Return what a site multiplies channels by at places, shape (place, channel)."""
        logs = self.logarithms(world, site)
        # An energy is the square of an amplitude, and over that of b0.
        logs[:, 1:] = logs[:, :1] + logs[:, 1:] / 2
        # Degrees above the last that fields are of follow it.
        degrees = np.minimum(coefficient_orders(self.order) // 2, len(DEGREES) - 1)
        shells = np.arange(1, logs.shape[1], len(DEGREES))
        features = np.concatenate([[0], (shells[:, None] + degrees).ravel()])
        return np.take(np.exp(logs), features, axis=1)


@dataclass(frozen=True, eq=False)
class ScanProfile:
    """What a site does to the brain of one of its scans.

    Attributes
    ----------
    scan
        Whose brain it is; of its volumes nothing is used.
    gains
        What the site multiplies channels by, shape (voxel, channel).
    spread
        What the scan is blurred by to be as blurred as those of the most blurred site, mm2.
    """

    scan: Scan
    gains: Array
    spread: float

    def without_field(self, own: Coefficients) -> Array:
        """Divide coefficients of the brain by the site's gains, shape (voxel, channel)."""
        return own.values / self.gains

    def blurred(self, values: Array) -> Array:
        """Take out of channels of the brain what the most blurred site does not show."""
        return diffuse(values, self.scan.mask, self.scan.voxel_size, self.spread)


def learn_profiles(
    surveys: Sequence[Survey],
    sites: Sequence[str],
    order: int,
    design: Design | None = None,
) -> SiteProfiles:
    """Learn the profiles of sites from surveys of their training scans.

    Parameters
    ----------
    surveys
        Surveys of the training scans.
    sites
        Labels.
    order
        Order of the harmonics.
    design
        Who was scanned where; the surveys' sites and people by default.
    """
    design = design or design_of(surveys, sites)
    near = max(float(one.voxel_size.max()) for one in surveys)
    details = _site_details(surveys, design, near)
    least = float(np.nanmin(details[:, 0])) if np.isfinite(details).any() else np.nan
    spreads = np.array([_match(detail, least) for detail in details])
    field = fit_fields(surveys, sites, spreads.tolist(), design)
    return SiteProfiles(tuple(sites), spreads, field, order, np.array([near, least]))


def extend_profiles(
    profiles: SiteProfiles,
    surveys: Sequence[Survey],
    site: str,
    covariates: Array | None = None,
) -> SiteProfiles:
    """Learn the profile of a new site beside those that are known, which stay."""
    near, least = profiles.goal.tolist()
    found = np.stack([fine_detail(one, near) for one in surveys])
    known = found[np.isfinite(found).all(axis=1)]
    spread = _match(np.median(known, axis=0), least) if len(known) else 0.0
    return replace(
        profiles,
        sites=(*profiles.sites, site),
        spreads=np.append(profiles.spreads, spread),
        field=extend_fields(profiles.field, surveys, spread, covariates),
    )


def _site_details(surveys: Sequence[Survey], design: Design, near: float) -> Array:
    """Return the fine detail of each site's scans after each of `SPREADS`, (site, spread).

    It is NaN where the scans of some site do not show it.
    """
    found = np.stack([fine_detail(one, near) for one in surveys])
    shown = np.isfinite(found).all(axis=1)
    own = design.part(shown)
    if len(np.unique(own.sites[own.reference])) < design.count:
        return np.full((design.count, len(SPREADS)), np.nan)
    effects = estimate_site_effects(np.log(found[shown]), own, np.arange(len(SPREADS)))
    return np.exp(effects.mean + effects.sites)


def _match(detail: Array, goal: float) -> float:
    """Return the blur after which as little fine detail is left as the goal."""
    if not np.isfinite([*detail, goal]).all():
        return 0.0
    # Detail falls as the blur grows; np.interp needs what it looks up to rise.
    return float(np.interp(-goal, -np.minimum.accumulate(detail), SPREADS))
