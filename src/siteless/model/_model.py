"""What the models of all methods share: a card, levels, protocols, and what they refuse."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Self

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.errors import ModelError
from siteless.harmonics import Coefficients, table_at_shells
from siteless.model._card import ModelCard
from siteless.model._preparation import Preparation
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
    """

    coefficients: Coefficients
    spread: Array
    levels: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """What a method has learned: a card, and arrays."""

    card: ModelCard

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
    """A model of a method that gives scans, not maps alone."""

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
