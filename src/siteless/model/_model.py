"""The base classes of all models."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import ClassVar, Protocol, Self

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.errors import ModelError
from siteless.harmonics import Coefficients, table_at_shells
from siteless.model._card import ModelCard
from siteless.model._preparation import Preparation
from siteless.population import Covariate
from siteless.tissue import white_matter_level

# A target that favours no site: the mean of renderings as every site of the model.
AVERAGE = "average"


@dataclass(frozen=True, eq=False)
class Translation:
    """Harmonized coefficients of a scan.

    Attributes
    ----------
    coefficients
        Coefficients of the translated voxels, which are those of its mask.
    deviation
        Standard deviation of b0 and, as a root mean square over directions, of each shell, as
        estimated by the method; shape (voxel, 1 + shell), in units of the signal.
    levels
        Reference b0 intensities of the scan and of the translation.
    unfamiliar
        Voxels of the training tissue that the method treats as out-of-distribution, shape (voxel
        of the tissue,), bool; None if it treats all voxels alike.
    flagged
        Likewise, voxels that are unlike the training voxels, isolated ones too.
    """

    coefficients: Coefficients
    deviation: Array
    levels: tuple[float, float]
    unfamiliar: Array | None = None
    flagged: Array | None = None

    @property
    def ratio(self) -> np.float32:
        """Level of the translation over that of the scan."""
        return np.float32(self.levels[1] / self.levels[0])


class SiteFields(Protocol):
    """Global effects of sites: point-spread functions, and smooth fields over the head."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Labels of the sites."""

    @property
    def blurs(self) -> Array:
        """Variance of the blur that matches each site to the most blurred one, (site,), mm2."""

    @property
    def box(self) -> tuple[Array, Array]:
        """Lowest and highest corner of the training heads, mm."""

    def changes(self, places: Array) -> Array:
        """Return relative deviations of amplitudes from the mean of sites, (site, place, feature).

        Features are b0 and, relative to it, degrees 0 and 2 of each shell.
        """


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """A trained model: a card and arrays."""

    card: ModelCard

    @property
    def site_fields(self) -> SiteFields | None:
        """Global effects of sites, if the method learns them."""
        return None

    @classmethod
    @abstractmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model from its card and arrays."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, Array]:
        """All learned parameters, apart from the card."""

    @cached_property
    def identity(self) -> str:
        """Hash of the card and the arrays, in hexadecimal digits."""
        content = json.dumps(asdict(self.card), sort_keys=True)
        digest = hashlib.sha256(content.encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def describe(self) -> Sequence[tuple[str, str]]:
        """Describe how the model was trained and how well, as pairs of a title and a line."""
        return ()

    @property
    def preparation(self) -> Preparation:
        """Processing that a scan needs first."""
        return self.card.preparation

    def prepare(self, scan: Scan) -> Scan:
        """Process a scan like the training scans; raise an error for an unsupported scan."""
        self.require_known(scan.gradients, scan.site)
        return self.preparation.at_shells(self.preparation.cleaned(scan))

    def unfamiliar(self, scan: Scan, coefficients: Coefficients) -> Array:
        """Return which voxels of the training tissue are out-of-distribution for their site.

        Returns
        -------
        Array
            Out-of-distribution voxels, shape (voxel of the tissue,), bool.
        """
        rows = coefficients.values[self.preparation.where(scan).T[scan.mask.T]]
        typical = self.card.sites[str(scan.site)].typical
        return typical.is_unlike(rows / np.float32(white_matter_level(scan)), coefficients.order)

    def level(self, site: str) -> float:
        """Return a target's typical reference b0 intensity (geometric mean for the average)."""
        levels = [self.card.sites[label].level for label in self.labels(site)]
        return geometric_mean(levels) if len(levels) > 1 else levels[0]

    def levels(self, scan: Scan, site: str) -> tuple[float, float]:
        """Return the reference b0 intensities of a scan and of its rendering as a site.

        A scan that is rendered as its own site keeps its intensity.
        """
        level = white_matter_level(scan)
        return level, level if site == str(scan.site) else self.level(site)

    def protocol(self, site: str) -> GradientTable:
        """Return the gradient table of a site's protocol, in world axes."""
        if site == AVERAGE:
            raise ModelError(
                "the average of sites has no gradient table of its own",
                remedy="choose a site, or render at other gradients",
            )
        [label] = self.labels(site)
        known = self.card.sites[label]
        return GradientTable(np.array(known.bvals), np.array(known.bvecs))

    def labels(self, site: str) -> list[str]:
        """Return the labels of the sites that a target averages."""
        if site == AVERAGE:
            return list(self.card.sites)
        if site not in self.card.sites:
            raise ModelError(
                f"the model does not know the site {site!r}",
                remedy=f"choose from {', '.join(self.card.sites)}, or {AVERAGE}",
            )
        return [site]

    def numbers(self, site: str) -> list[int]:
        """Return the indices of the sites that a target averages."""
        return [list(self.card.sites).index(label) for label in self.labels(site)]

    def require_known(self, gradients: GradientTable, site: Site | None) -> int:
        """Return the index of a scan's site; raise an error for an unsupported scan.

        Raises
        ------
        SitelessError
            When the shells do not support the model's, or the model does not know the site.
        """
        table_at_shells(gradients, self.preparation.shells)
        labels = list(self.card.sites)
        if str(site) not in labels:
            raise ModelError(
                f"the model has not learned the scan's site, {site or 'which is unknown'}",
                remedy=f"expected one of {', '.join(labels)}; choose scans of them with --site",
            )
        return labels.index(str(site))


@dataclass(frozen=True, eq=False)
class SignalModel(Model):
    """A model that harmonizes the signal of scans.

    Attributes
    ----------
    uncertainty
        Source of the standard deviation that `translate` returns; empty if there is none.
    """

    uncertainty: ClassVar[str] = "the noise that is left"

    @abstractmethod
    def translate(self, scan: Scan, coefficients: Coefficients, site: str) -> Translation:
        """Render the coefficients of a scan from `prepare` as a site, or as the average."""


class LatentCodes(Protocol):
    """Latent codes of a scan's voxels."""

    @property
    def mean(self) -> Array:
        """Posterior means, shape (voxel, unit), float32."""

    @property
    def level(self) -> float:
        """Reference b0 intensity of the scan."""

    def on_grid(self) -> Array:
        """Return the means on the scan's grid, shape (x, y, z, unit), zero elsewhere."""


@dataclass(frozen=True, eq=False)
class LatentModel(SignalModel):
    """A model with a latent code."""

    @abstractmethod
    def encode(self, scan: Scan, coefficients: Coefficients | None = None) -> LatentCodes:
        """Return the latent codes of a scan from `prepare`."""


@dataclass(frozen=True, eq=False)
class HarmonizedMaps:
    """Harmonized maps of a scan.

    Attributes
    ----------
    maps
        Harmonized maps by name, shape (x, y, z), float32, zero outside the brain.
    source
        Maps before harmonization.
    known
        Voxels that the model covers, shape (x, y, z), bool; elsewhere maps are unchanged.
    """

    maps: Mapping[str, Array]
    source: Mapping[str, Array]
    known: Array


@dataclass(frozen=True, eq=False)
class MapModel(Model):
    """A model that harmonizes maps, not scans."""

    @property
    @abstractmethod
    def maps(self) -> tuple[str, ...]:
        """Names of the maps."""

    @property
    @abstractmethod
    def covariates(self) -> tuple[Covariate, ...]:
        """Covariates that the model requires."""

    @abstractmethod
    def render_maps(
        self, scan: Scan, site: str, attributes: Mapping[str, str] | None = None
    ) -> HarmonizedMaps:
        """Compute the maps of a scan, and harmonize them to a site or to the average.

        Attributes are values of the model's covariates, as in the dataset's tables.
        """
