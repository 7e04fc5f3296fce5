"""The profiles of a model's sites, and scans without them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Channels, Coefficients
from siteless.methods.invariant.profiles._detail import FineDetail, learn_detail
from siteless.methods.invariant.profiles._field import Field, design_of, extend_fields, fit_fields
from siteless.methods.invariant.profiles._spread import diffuse
from siteless.methods.invariant.profiles._survey import DEGREES, Survey, at_spread
from siteless.population import Design, SiteVerdict

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
    sharpening
        How much larger amplitudes of b0, and of each shell's degrees 0 and 2, are in scans of a
        site than after they are blurred by its spread (log), shape (site, feature).
    detail
        Fine detail of scans, by which point spreads were matched; None where scans do not show
        it, and spreads are zero.
    """

    sites: tuple[str, ...]
    spreads: Array
    field: Field
    order: int
    sharpening: Array
    detail: FineDetail | None = None

    @classmethod
    def from_arrays(cls, sites: Sequence[str], order: int, arrays: Mapping[str, Array]) -> Self:
        """Make profiles of what `arrays` holds."""
        return cls(
            tuple(sites),
            arrays["spreads"],
            Field.from_arrays(dict(arrays)),
            order,
            arrays["sharpening"],
            FineDetail.from_arrays(arrays),
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """All but the sites and the order."""
        own = {"spreads": self.spreads, "sharpening": self.sharpening}
        detail = self.detail.arrays if self.detail else {}
        return {**own, **detail, **self.field.arrays}

    def of(self, scan: Scan) -> ScanProfile:
        """Return the profile of a scan's site over the scan's brain."""
        site = str(scan.site)
        spread = float(self.spreads[self.sites.index(site)])
        return ScanProfile(scan, self.gains(scan.positions, site), spread)

    def logarithms(self, world: Array, site: str) -> Array:
        """Return the field of a site at places, within bounds, shape (place, feature)."""
        return self.field.logarithms(world, self.sites.index(site)).clip(-_MOST, _MOST)

    @property
    def box(self) -> tuple[Array, Array]:
        """The lowest and the highest corner of the training heads, mm."""
        low, high = self.field.box
        return low, high

    def changes(self, places: Array) -> Array:
        """Return the change of amplitudes from the mean of sites, shape (site, place, feature).

        Features are b0, and relative to it degrees 0 and 2 of each shell.
        """
        logs = np.stack([self.logarithms(places, site) for site in self.sites])
        logs[..., 1:] /= 2  # an energy is the square of an amplitude
        return np.exp(logs) - 1

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
        shells = logs.shape[1] // len(DEGREES)
        return np.take(np.exp(logs), Channels(self.order, shells).amplitudes, axis=1)


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
    detail = learn_detail(surveys, design)
    spreads = detail.spreads if detail else np.zeros(len(sites))
    return SiteProfiles(
        sites=tuple(sites),
        spreads=spreads,
        field=fit_fields(surveys, sites, spreads.tolist(), design),
        order=order,
        sharpening=np.stack(
            [
                _sharpening([one for one in surveys if one.site == site], spread)
                for site, spread in zip(sites, spreads, strict=True)
            ]
        ),
        detail=detail,
    )


def extend_profiles(
    profiles: SiteProfiles,
    surveys: Sequence[Survey],
    site: str,
    covariates: Array | None = None,
) -> SiteProfiles:
    """Learn the profile of a new site beside those that are known, which stay."""
    detail = profiles.detail
    own = detail.of_new_site(surveys, covariates) if detail else None
    spread = detail.match(own) if detail and own is not None else 0.0
    return replace(
        profiles,
        sites=(*profiles.sites, site),
        spreads=np.append(profiles.spreads, spread),
        field=extend_fields(profiles.field, surveys, spread, covariates),
        sharpening=np.concatenate([profiles.sharpening, [_sharpening(surveys, spread)]]),
    )


def _sharpening(surveys: Sequence[Survey], spread: float) -> Array:
    """Return how much larger amplitudes are than after a blur (log), shape (feature,)."""
    usable = [one for one in surveys if len(one.count)]
    if not usable:
        return np.zeros(surveys[0].energies.shape[2])
    lost = [
        np.average(one.energies[0] - at_spread(one.energies, spread), 0, one.count)
        for one in usable
    ]
    b0, *energies = np.mean(lost, axis=0)
    # An energy is the square of an amplitude, and over that of b0.
    return np.append(b0, b0 + np.array(energies) / 2)
