"""A trained network and its card: a scan to codes, codes to a site's coefficients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array, GradientTable, Scan, Site, same_b
from siteless.errors import GradientTableError, ModelError
from siteless.harmonics import Coefficients, FitName, fit_coefficients, mean_over_directions
from siteless.model._blocks import over_blocks
from siteless.model._typical import Typical
from siteless.network import Autoencoder, NetworkSettings, Posterior
from siteless.patches import cut, index_neighbours
from siteless.tissue import Tissue, tissue_mask, white_matter_level

# The target that favours no site: the mean of what every site of the model would show.
AVERAGE = "average"
# Codes that are drawn to tell how far a rendering may vary.
_DRAWS = 2


@dataclass(frozen=True)
class LearnedSite:
    """What a model knows of a site, beside how to render it.

    Attributes
    ----------
    level
        Median over its training scans of white matter's b0.
    bvals, bvecs
        Its protocol: the gradient table, in world axes, of a training scan.
    typical
        How its training voxels are distributed.
    """

    level: float
    bvals: tuple[float, ...]
    bvecs: tuple[tuple[float, ...], ...]
    typical: Typical


@dataclass(frozen=True)
class ModelCard:
    """What a person must know of a model, and what siteless needs to use it.

    Attributes
    ----------
    sites
        By label, in the order of the network's numbers.
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

    sites: Mapping[str, LearnedSite]
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

    def fit(self, scan: Scan) -> Coefficients:
        """Fit a scan as those that were learned from."""
        return fit_coefficients(scan, order=self.card.order, fit=self.card.fit)

    def encode(self, scan: Scan, coefficients: Coefficients | None = None) -> Codes:
        """Return the codes of a scan's voxels of the tissue that the model is of.

        Parameters
        ----------
        scan
            Of a site of the model.
        coefficients
            Of `fit`, when they are there already.

        Raises
        ------
        SitelessError
            When the scan's shells or site are not the model's, or it has no such voxel.
        """
        site = torch.tensor([self.require_known(scan.gradients, scan.site)])
        level = white_matter_level(scan)
        coefficients = coefficients or self.fit(scan)
        where = tissue_mask(scan, self.card.tissue)
        patches = index_neighbours(scan.mask, scan.affine)[where.T[scan.mask.T]]
        values = coefficients.values / np.float32(level)

        def encode(block: slice) -> tuple[Array, Array]:
            own = torch.from_numpy(cut(values, patches[block])).flatten(1)
            posterior = self.network.encode(own, site)
            return posterior.mean.numpy(), posterior.variance.numpy()

        mean, variance = map(np.concatenate, zip(*over_blocks(encode, len(patches)), strict=True))
        return Codes(mean, variance, where, level)

    def decode(self, codes: Codes, site: str, *, level: float | None = None) -> Coefficients:
        """Render codes as a site, or as the average of sites, at its typical level or another."""
        level, numbers = level or self.level(site), self._targets(site)
        mean = torch.from_numpy(codes.mean)

        def decode(block: slice) -> Array:
            return (self._render(mean[block], numbers) * level).numpy()

        values = np.concatenate(over_blocks(decode, len(mean)))
        bs, order = self.card.bs, self.card.order
        return Coefficients(values, codes.where, bs, order, penalties=(0.0,) * len(bs))

    def spread(
        self, codes: Codes, site: str, rendered: Coefficients, *, level: float | None = None
    ) -> Array:
        """Return how much what `decode` has rendered varies under the posterior of the codes.

        Returns
        -------
        Array
            Standard deviation of b0 and, as a root mean square over directions, of each shell;
            shape (voxel, 1 + shell), in units of the rendered signal.
        """
        level, numbers = level or self.level(site), self._targets(site)
        codes_and_signal = codes.mean, codes.variance, rendered.values
        mean, variance, expected = map(torch.from_numpy, codes_and_signal)

        def vary(block: slice) -> Array:
            generator = torch.Generator().manual_seed(block.start)
            posterior = Posterior(mean[block], variance[block])
            squares = torch.zeros_like(expected[block])
            for _ in range(_DRAWS):
                drawn = self._render(posterior.sample(generator), numbers) * level
                squares += torch.square(drawn - expected[block])
            return mean_over_directions(squares.numpy() / _DRAWS, len(self.card.bs))

        return np.sqrt(np.concatenate(over_blocks(vary, len(mean))))

    def level(self, site: str) -> float:
        """Return a target's typical level; the average's is the sites' geometric mean."""
        levels = [self.card.sites[label].level for label in self._labels(site)]
        return geometric_mean(levels) if len(levels) > 1 else levels[0]

    def protocol(self, site: str) -> GradientTable:
        """Return the gradient table of a site, in world axes."""
        if site == AVERAGE:
            raise ModelError(
                "the average of sites has no gradient table of its own",
                remedy="choose a site, or render at other gradients",
            )
        [label] = self._labels(site)
        known = self.card.sites[label]
        return GradientTable(np.array(known.bvals), np.array(known.bvecs))

    def _labels(self, site: str) -> list[str]:
        """Return the sites that a target is made of."""
        if site == AVERAGE:
            return list(self.card.sites)
        if site not in self.card.sites:
            raise ModelError(
                f"the model does not know the site {site!r}",
                remedy=f"choose of {', '.join(self.card.sites)}, or {AVERAGE}",
            )
        return [site]

    def _targets(self, site: str) -> list[int]:
        labels = list(self.card.sites)
        return [labels.index(label) for label in self._labels(site)]

    def _render(self, code: Tensor, sites: Sequence[int]) -> Tensor:
        """Render codes as sites, and return the mean, in units of the level."""
        rendered = [self.network.decode(code, torch.full((len(code),), site)) for site in sites]
        return torch.stack(rendered).mean(dim=0) if len(sites) > 1 else rendered[0]

    def require_known(self, gradients: GradientTable, site: Site | None) -> int:
        """Return the number of a scan's site; refuse what was not learned.

        Raises
        ------
        SitelessError
            When the shells are not the model's, or the site is not among its sites.
        """
        found = tuple(shell.b for shell in gradients.shells)
        if not same_shells(found, self.card.bs):
            raise GradientTableError(
                f"expected the model's shells of {show_bs(self.card.bs)}, found {show_bs(found)}",
                remedy="leave the scan out, or fit a model to scans like it",
            )
        labels = list(self.card.sites)
        if str(site) not in labels:
            raise ModelError(
                f"the model has not learned the scan's site, {site or 'which nothing tells'}",
                remedy=f"expected one of {', '.join(labels)}; choose scans of them with --site",
            )
        return labels.index(str(site))


def same_shells(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    """Whether two sets of shells have the same b-values, as scanners play them."""
    return len(first) == len(second) and bool(same_b(np.array(first), np.array(second)).all())


def show_bs(bs: tuple[float, ...]) -> str:
    """Write b-values as a person does."""
    return ", ".join(f"b={b:.0f}" for b in bs) or "b0 only"
