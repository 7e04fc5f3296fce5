"""What the models of all methods share: a card, levels, protocols, and what they refuse."""

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

# The target that favours no site: the mean of what every site of the model would show.
AVERAGE = "average"


@dataclass(frozen=True, eq=False)
class Translation:
    """A scan's coefficients as another site would show them.

    Attributes
    ----------
    coefficients
        Of the voxels that the method translates, which its mask tells.
    spread
        Standard deviation of b0 and, as a root mean square over directions, of each shell, as
        far as the method knows it; shape (voxel, 1 + shell), in units of the signal.
    levels
        Of the scan and of the translation: the median b0 of white matter.
    unfamiliar
        Voxels of the learned tissue that the method has treated as unlike its training voxels,
        shape (voxel of the tissue,), bool; None where it treats all alike.
    """

    coefficients: Coefficients
    spread: Array
    levels: tuple[float, float]
    unfamiliar: Array | None = None


class SiteFields(Protocol):
    """What sites do to all of a brain alike: point spreads, and smooth fields over the head."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Labels."""

    @property
    def spreads(self) -> Array:
        """What scans are blurred by to be as blurred as the most blurred site's, (site,), mm2."""

    @property
    def box(self) -> tuple[Array, Array]:
        """The lowest and the highest corner of the heads, mm."""

    def changes(self, places: Array) -> Array:
        """Return the change of amplitudes from the mean of sites, shape (site, place, feature).

        Features are b0, and relative to it degrees 0 and 2 of each shell.
        """


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """What a method has learned: a card, and arrays."""

    card: ModelCard

    @property
    def site_fields(self) -> SiteFields | None:
        """What sites do to all of a brain alike, if the method learns it."""
        return None

    @classmethod
    @abstractmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model of what its file holds."""

    @property
    @abstractmethod
    def arrays(self) -> Mapping[str, Array]:
        """All that was learned, beside the card."""

    @cached_property
    def identity(self) -> str:
        """Hash of all that the model is, in hexadecimal digits."""
        told = json.dumps(asdict(self.card), sort_keys=True)
        digest = hashlib.sha256(told.encode())
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def describe(self) -> Sequence[tuple[str, str]]:
        """Say how the model was learned and how well: a word and a line each."""
        return ()

    @property
    def preparation(self) -> Preparation:
        """What is done to a scan first."""
        return self.card.preparation

    def prepare(self, scan: Scan) -> Scan:
        """Return a scan as those that were learned from; refuse what was not learned."""
        self.require_known(scan.gradients, scan.site)
        return self.preparation.prepare(scan)

    def unfamiliar(self, scan: Scan, own: Coefficients) -> Array:
        """Tell which voxels of the learned tissue are unlike the training scans' of their site.

        Returns
        -------
        Array
            Shape (voxel of the tissue,), bool.
        """
        rows = own.values[self.preparation.where(scan).T[scan.mask.T]]
        typical = self.card.sites[str(scan.site)].typical
        return typical.is_unlike(rows / np.float32(white_matter_level(scan)), own.order)

    def level(self, site: str) -> float:
        """Return a target's typical level; the average's is the sites' geometric mean."""
        levels = [self.card.sites[label].level for label in self.labels(site)]
        return geometric_mean(levels) if len(levels) > 1 else levels[0]

    def levels(self, scan: Scan, site: str) -> tuple[float, float]:
        """Return the level of a scan, and the one that it has as a site.

        At home nothing is to change, and the scan's own level is known.
        """
        own = white_matter_level(scan)
        return own, own if site == str(scan.site) else self.level(site)

    def protocol(self, site: str) -> GradientTable:
        """Return the gradient table of a site, in world axes."""
        if site == AVERAGE:
            raise ModelError(
                "the average of sites has no gradient table of its own",
                remedy="choose a site, or render at other gradients",
            )
        [label] = self.labels(site)
        known = self.card.sites[label]
        return GradientTable(np.array(known.bvals), np.array(known.bvecs))

    def labels(self, site: str) -> list[str]:
        """Return the sites that a target is made of."""
        if site == AVERAGE:
            return list(self.card.sites)
        if site not in self.card.sites:
            raise ModelError(
                f"the model does not know the site {site!r}",
                remedy=f"choose of {', '.join(self.card.sites)}, or {AVERAGE}",
            )
        return [site]

    def numbers(self, site: str) -> list[int]:
        """Return the numbers of the sites that a target is made of."""
        known = list(self.card.sites)
        return [known.index(label) for label in self.labels(site)]

    def require_known(self, gradients: GradientTable, site: Site | None) -> int:
        """Return the number of a scan's site; refuse what was not learned.

        Raises
        ------
        SitelessError
            When the shells do not tell the signal at the model's, or the site is not among its
            sites.
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
    """A model of a method that gives scans, not maps alone.

    Attributes
    ----------
    uncertainty
        What the standard deviation that `translate` gives is of; empty where it gives none.
    """

    uncertainty: ClassVar[str] = "the noise that is left"

    @abstractmethod
    def translate(self, scan: Scan, own: Coefficients, site: str) -> Translation:
        """Return a scan's coefficients as a site, or the average of sites, would show them.

        Parameters
        ----------
        scan
            As `prepare` gives it.
        own
            Its coefficients.
        site
            Of the model, or ``average``.
        """


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
    """A model of a method that has a latent code."""

    @abstractmethod
    def encode(self, scan: Scan, coefficients: Coefficients | None = None) -> LatentCodes:
        """Return the codes of a scan as `prepare` gives it."""


@dataclass(frozen=True, eq=False)
class HarmonizedMaps:
    """Maps of a scan as a site would show them.

    Attributes
    ----------
    maps
        By name, each of shape (x, y, z), float32, zero outside the brain.
    source
        Likewise, as they were.
    known
        Voxels that the model knows, shape (x, y, z), bool; elsewhere maps are unchanged.
    """

    maps: Mapping[str, Array]
    source: Mapping[str, Array]
    known: Array


@dataclass(frozen=True, eq=False)
class MapModel(Model):
    """A model of a method that gives maps, and no scans."""

    @property
    @abstractmethod
    def maps(self) -> tuple[str, ...]:
        """Names of the maps."""

    @property
    @abstractmethod
    def covariates(self) -> tuple[Covariate, ...]:
        """What must be known about people."""

    @abstractmethod
    def render_maps(
        self, scan: Scan, site: str, attributes: Mapping[str, str] | None = None
    ) -> HarmonizedMaps:
        """Compute the maps of a scan, and bring them to a site.

        Parameters
        ----------
        scan
            A scan of a site of the model.
        site
            A site of the model, or ``average``.
        attributes
            The covariates that the model was learned with, as the dataset's tables have them.
        """
