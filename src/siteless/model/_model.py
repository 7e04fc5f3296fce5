"""A trained network and its card: a scan to codes, codes to a site's coefficients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from siteless.acquisition import Array, GradientTable, Scan, Site, same_b
from siteless.errors import GradientTableError, ModelError
from siteless.harmonics import Coefficients, FitName, fit_coefficients
from siteless.network import Autoencoder, NetworkSettings
from siteless.patches import cut, index_neighbours
from siteless.tissue import Tissue, tissue_mask, white_matter_level

# Patches that are encoded or decoded at a time.
_BLOCK = 8192


@dataclass(frozen=True)
class ModelCard:
    """What a person must know of a model, and what siteless needs to use it.

    Attributes
    ----------
    sites
        Labels in the order of the network's numbers, with each site's typical level: the median
        over its training scans of white matter's b0.
    bs
        b-values of the shells, s/mm2.
    order, basis
        Of the spherical harmonics.
    fit
        How coefficients were fitted, and are to be.
    tissue
        What was learned from.
    network
        Sizes of the network.
    preset, seed, settings
        How it was trained.
    summary
        From what it was trained, and how well.
    versions
        Of the libraries that trained it.
    """

    sites: Mapping[str, float]
    bs: tuple[float, ...]
    order: int
    fit: FitName
    tissue: Tissue
    network: NetworkSettings
    preset: str
    seed: int
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, str]
    basis: str = "MRtrix3 (tournier07), scanner axes"


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of a scan's voxels.

    Attributes
    ----------
    mean, variance
        Shape (voxel, unit), float32.
    where
        The voxels, shape (x, y, z), bool; they follow each other as in NIfTI files, x fastest.
    level
        Of the scan: the median b0 of its white matter.
    """

    mean: Array
    variance: Array
    where: Array
    level: float

    def on_grid(self) -> Array:
        """Return the means on the grid, shape (x, y, z, unit), zero elsewhere."""
        grid = np.zeros((*self.where.shape[::-1], self.mean.shape[1]), dtype=np.float32)
        grid[self.where.T] = self.mean
        return grid.swapaxes(0, 2)


@dataclass(frozen=True, eq=False)
class Model:
    """A trained network and its card."""

    card: ModelCard
    network: Autoencoder

    @cached_property
    def identity(self) -> str:
        """Hash of all that the model is, in hexadecimal digits."""
        told = json.dumps(asdict(self.card), sort_keys=True)
        digest = hashlib.sha256(told.encode())
        for name, weight in sorted(self.network.state_dict().items()):
            array = weight.cpu().numpy()
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    @torch.inference_mode()
    def encode(self, scan: Scan) -> Codes:
        """Return the codes of a scan's voxels of the tissue that the model is of.

        Raises
        ------
        SitelessError
            When the scan's shells or site are not the model's, or it has no such voxel.
        """
        site = torch.tensor([self.require_known(scan.gradients, scan.site)])
        level = white_matter_level(scan)
        coefficients = fit_coefficients(scan, order=self.card.order, fit=self.card.fit)
        where = tissue_mask(scan, self.card.tissue)
        patches = index_neighbours(scan.mask)[where.T[scan.mask.T]]
        values = coefficients.values / np.float32(level)
        starts = range(0, len(patches), _BLOCK)
        cuts = (torch.from_numpy(cut(values, patches[s : s + _BLOCK])) for s in starts)
        blocks = [self.network.encode(block.flatten(1), site) for block in cuts]
        mean = torch.cat([block.mean for block in blocks]).numpy()
        variance = torch.cat([block.variance for block in blocks]).numpy()
        return Codes(mean, variance, where, level)

    @torch.inference_mode()
    def decode(self, codes: Codes, site: str) -> Coefficients:
        """Render codes as a site, at the site's typical level."""
        if site not in self.card.sites:
            raise ModelError(
                f"the model does not know the site {site!r}",
                remedy=f"choose of {', '.join(self.card.sites)}",
            )
        number = self._sites.index(site)
        blocks = [
            self.network.decode(block, torch.full((len(block),), number))
            for block in torch.from_numpy(codes.mean).split(_BLOCK)
        ]
        values = torch.cat(blocks).numpy() * np.float32(self.card.sites[site])
        bs, order = self.card.bs, self.card.order
        return Coefficients(values, codes.where, bs, order, penalties=(0.0,) * len(bs))

    @property
    def _sites(self) -> list[str]:
        return list(self.card.sites)

    def require_known(self, gradients: GradientTable, site: Site | None) -> int:
        """Return the number of the site whose units a scan is in; refuse what was not learned.

        Raises
        ------
        SitelessError
            When the shells are not the model's, or its sites have units of their own and the
            scan's is not among them.
        """
        found = tuple(shell.b for shell in gradients.shells)
        if not same_shells(found, self.card.bs):
            raise GradientTableError(
                f"expected the model's shells of {show_bs(self.card.bs)}, found {show_bs(found)}",
                remedy="leave the scan out, or fit a model to scans like it",
            )
        if str(site) in self._sites:
            return self._sites.index(str(site))
        if torch.equal(self.network.scale, self.network.scale[:1].expand_as(self.network.scale)):
            return 0  # sites share their units
        raise ModelError(
            f"the model has not learned the scan's site, {site or 'which nothing tells'}",
            remedy=f"expected one of {', '.join(self._sites)}; choose scans of them with --sites",
        )


def same_shells(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether two sets of shells have the same b-values, as scanners play them."""
    return len(first) == len(second) and bool(same_b(np.array(first), np.array(second)).all())


def show_bs(bs: tuple[float, ...]) -> str:
    """Write b-values as a person does."""
    return ", ".join(f"b={b:.0f}" for b in bs) or "b0 only"
