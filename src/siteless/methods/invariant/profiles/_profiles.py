"""Profiles of sites, and the correction of scans by them."""

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
from siteless.methods.invariant.profiles._survey import DEGREES, Survey, at_blur
from siteless.neighbourhood import diffuse
from siteless.population import Design, SiteVerdict

# Largest absolute value of a log field.
_MOST = math.log(2)


@dataclass(frozen=True, eq=False)
class SiteProfiles:
    """Global effects of sites.

    Attributes
    ----------
    sites
        Labels of the sites.
    blurs
        Variance of the blur that matches each site to the most blurred one, shape (site,), mm2.
    field
        Fields of b0 and of the energies of each shell's degrees 0 and 2 over b0 squared.
    order
        lmax of the harmonics.
    sharpening
        Log ratio of amplitudes of b0, and of each shell's degrees 0 and 2, in scans of a site
        before and after its blur, shape (site, feature).
    detail
        Fine detail of scans, by which blurs were matched; None if it is unknown, and blurs are
        zero.
    """

    sites: tuple[str, ...]
    blurs: Array
    field: Field
    order: int
    sharpening: Array
    detail: FineDetail | None = None

    @classmethod
    def from_arrays(cls, sites: Sequence[str], order: int, arrays: Mapping[str, Array]) -> Self:
        """Make profiles from stored arrays."""
        return cls(
            tuple(sites),
            arrays["spreads"],
            Field.from_arrays(arrays),
            order,
            arrays["sharpening"],
            FineDetail.from_arrays(arrays),
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays, without the sites and the order."""
        plain = {"spreads": self.blurs, "sharpening": self.sharpening}
        detail = self.detail.arrays if self.detail else {}
        return {**plain, **detail, **self.field.arrays}

    def of(self, scan: Scan) -> ScanProfile:
        """Return the profile of a scan's site at the scan's voxels."""
        site = str(scan.site)
        blur = float(self.blurs[self.sites.index(site)])
        return ScanProfile(scan, self.gains(scan.positions, site), blur)

    def logarithms(self, world: Array, site: str) -> Array:
        """Return the bounded log field of a site at places, shape (place, feature)."""
        return self.field.logarithms(world, self.sites.index(site)).clip(-_MOST, _MOST)

    @property
    def box(self) -> tuple[Array, Array]:
        """Lowest and highest corner of the training heads, mm."""
        low, high = self.field.box
        return low, high

    def changes(self, places: Array) -> Array:
        """Return relative deviations of amplitudes from the mean of sites, (site, place, feature).

        Features are b0 and, relative to it, degrees 0 and 2 of each shell.
        """
        logs = np.stack([self.logarithms(places, site) for site in self.sites])
        logs[..., 1:] /= 2  # an energy is the square of an amplitude
        return np.exp(logs) - 1

    def uncertainty(self, site: str, shells: int) -> Array:
        """Return the relative standard deviation of a site's gains, shape (1 + shell,).

        The gains are those of b0 and of each shell's mean over directions.
        """
        deviations = self.field.deviations[self.sites.index(site)]
        of_shells = deviations[1 :: len(DEGREES)][:shells] / 2  # an amplitude, not an energy
        return np.append(deviations[0], np.hypot(deviations[0], of_shells))

    @property
    def verdict(self) -> list[SiteVerdict]:
        """Summary of each site's effect."""
        return self.field.verdict(self.sites)

    def gains(self, world: Array, site: str) -> Array:
        """Return the gains of a site's channels at places, shape (place, channel)."""
        logs = self.logarithms(world, site)
        # Energies are squared amplitudes, divided by b0 squared.
        logs[:, 1:] = logs[:, :1] + logs[:, 1:] / 2
        shells = logs.shape[1] // len(DEGREES)
        return np.take(np.exp(logs), Channels(self.order, shells).amplitudes, axis=1)


@dataclass(frozen=True, eq=False)
class ScanProfile:
    """The profile of a site at the voxels of a scan, whose signal is not used.

    Gains have the shape (voxel, channel). The variance of the blur that matches the scan to the
    most blurred site is in mm2.
    """

    scan: Scan
    gains: Array
    blur: float

    def without_field(self, coefficients: Coefficients) -> Array:
        """Divide coefficients by the site's gains, shape (voxel, channel)."""
        return coefficients.values / self.gains

    def blurred(self, values: Array) -> Array:
        """Blur channels to match the most blurred site."""
        return diffuse(values, self.scan.mask, self.scan.voxel_size, self.blur)


def learn_profiles(
    surveys: Sequence[Survey], sites: Sequence[str], order: int, design: Design | None = None
) -> SiteProfiles:
    """Learn the profiles of sites from surveys of their training scans.

    The default design consists of the sites and participants of the surveys.
    """
    design = design or design_of(surveys, sites)
    detail = learn_detail(surveys, design)
    blurs = detail.blurs if detail else np.zeros(len(sites))
    sharpening = [
        _sharpening([survey for survey in surveys if survey.site == site], blur)
        for site, blur in zip(sites, blurs, strict=True)
    ]
    field = fit_fields(surveys, sites, blurs.tolist(), design)
    return SiteProfiles(tuple(sites), blurs, field, order, np.stack(sharpening), detail)


def extend_profiles(
    profiles: SiteProfiles, surveys: Sequence[Survey], site: str, covariates: Array | None = None
) -> SiteProfiles:
    """Add the profile of a new site; those of known sites are unchanged."""
    detail = profiles.detail
    blur = detail.match_new_site(surveys, covariates) if detail else 0.0
    return replace(
        profiles,
        sites=(*profiles.sites, site),
        blurs=np.append(profiles.blurs, blur),
        field=extend_fields(profiles.field, surveys, blur, covariates),
        sharpening=np.concatenate([profiles.sharpening, [_sharpening(surveys, blur)]]),
    )


def _sharpening(surveys: Sequence[Survey], blur: float) -> Array:
    """Return the log ratio of amplitudes before and after a blur, shape (feature,)."""
    usable = [survey for survey in surveys if len(survey.count)]
    if not usable:
        return np.zeros(surveys[0].energies.shape[2])
    lost = [
        np.average(survey.energies[0] - at_blur(survey.energies, blur), 0, survey.count)
        for survey in usable
    ]
    b0, *energies = np.mean(lost, axis=0)
    # Energies are squared amplitudes, divided by b0 squared.
    return np.append(b0, b0 + np.array(energies) / 2)
