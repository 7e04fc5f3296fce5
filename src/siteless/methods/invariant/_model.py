"""The learned method: encode a scan without its site, render its code as the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from siteless.acquisition import Array, Scan
from siteless.harmonics import Channels, Coefficients
from siteless.methods.invariant._describe import describe_model
from siteless.methods.invariant.network import Autoencoder, NetworkSettings, Posterior
from siteless.methods.invariant.profiles import ScanProfile, SiteProfiles, diffuse
from siteless.methods.patches import (
    cut,
    index_neighbours,
    over_blocks,
    surrounded,
    weights_of,
    with_weights,
)
from siteless.model import LatentModel, ModelCard, SiteFields, Translation
from siteless.tissue import white_matter_level

# Codes that are drawn to tell how far a rendering may vary.
_DRAWS = 2
# mm2, by which what codes do not hold is smoothed: noise is left out, and lesions are kept.
_LOST_SPREAD = 4.0
# Of the 26 voxels around an unfamiliar one that must be unfamiliar too, or it is left to its code.
_LEAST_CLUSTER = 3
# Before the names of the profiles' arrays in a model's file.
_PROFILE = "profile."


@dataclass(frozen=True, eq=False)
class Codes:
    """Codes of a scan's voxels.

    Attributes
    ----------
    mean, variance
        Shape (voxel, unit), float32.
    where
        The voxels, shape (x, y, z), bool; they follow each other as in NIfTI files, x fastest.
    positions
        Of the voxels in the world, shape (voxel, 3), mm.
    level
        Of the scan: the median b0 of its white matter.
    frames
        Where the voxels' fibres point, which codes do not hold: rotations from the frame that a
        code is in to scanner axes, shape (voxel, 3, 3). None when codes are in scanner axes.
    lost
        What codes do not hold of b0 and of shells' means, smoothed, in units of the level, shape
        (voxel, 1 + shell).
    unfamiliar, kept
        Voxels that are unlike those that were learned from, but for single ones, shape (voxel,),
        bool; and their coefficients, which no code is trusted with, in units of the level,
        without the field of their site, shape (unfamiliar voxel, channel).
    flagged
        Voxels that are unlike those that were learned from, isolated ones too, (voxel,), bool.
    """

    mean: Array
    variance: Array
    where: Array
    positions: Array
    level: float
    frames: Array | None
    lost: Array
    unfamiliar: Array
    flagged: Array
    kept: Array

    def on_grid(self) -> Array:
        """Return the means on the grid, shape (x, y, z, unit), zero elsewhere."""
        grid = np.zeros((*self.where.shape[::-1], self.mean.shape[1]), dtype=np.float32)
        grid[self.where.T] = self.mean
        return grid.swapaxes(0, 2)


@dataclass(frozen=True, eq=False)
class InvariantModel(LatentModel):
    """A trained network, the profiles of its sites, and its card.

    Attributes
    ----------
    network
        Encoder and decoder.
    profiles
        Of the sites; None when they were not taken out of the training scans.
    """

    uncertainty: ClassVar[str] = "its code (of unfamiliar voxels, to it)"
    network: Autoencoder
    profiles: SiteProfiles | None = None

    @property
    def site_fields(self) -> SiteFields | None:
        """The profiles of sites."""
        return self.profiles

    def describe(self) -> Sequence[tuple[str, str]]:
        """Say what each site does, how sure that is, and what the network is."""
        return describe_model(self.card, self.profiles)

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make the network that the card tells of, with its weights."""
        network = Autoencoder(NetworkSettings(**card.settings["network"]))
        weights = {k: v for k, v in arrays.items() if not k.startswith(_PROFILE)}
        told = {k.removeprefix(_PROFILE): v for k, v in arrays.items() if k.startswith(_PROFILE)}
        profiles = (
            SiteProfiles.from_arrays(list(card.sites), card.preparation.order, told)
            if told
            else None
        )
        return cls(card, with_weights(network, weights), profiles)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Weights of the network, and profiles."""
        told = self.profiles.arrays if self.profiles else {}
        return {**weights_of(self.network), **{_PROFILE + k: v for k, v in told.items()}}

    def translate(self, scan: Scan, own: Coefficients, site: str) -> Translation:
        """Encode the voxels of the learned tissue, and render their codes."""
        codes = self.encode(scan, own)
        level = self.levels(scan, site)[1]
        rendered = self.decode(codes, site, level=level)
        spread = self.spread(codes, site, rendered, level=level)
        if self.profiles and self.labels(site) != [str(scan.site)]:
            spread = np.hypot(spread, self._uncertainty_of_sites(scan, site, rendered))
        levels = codes.level, level
        if self.profiles is None:
            return Translation(rendered, spread, levels)
        return Translation(rendered, spread, levels, codes.unfamiliar, codes.flagged)

    def _uncertainty_of_sites(self, scan: Scan, site: str, rendered: Coefficients) -> Array:
        """Return what the uncertain effects of source and target add, shape (voxel, 1 + shell)."""
        assert self.profiles is not None
        shells = len(self.preparation.shells)
        labels = self.labels(site)
        targets = [np.square(self.profiles.uncertainty(one, shells)) for one in labels]
        of_target = np.sum(targets, axis=0) / len(labels) ** 2
        of_source = np.square(self.profiles.uncertainty(str(scan.site), shells))
        signal = np.sqrt(rendered.channels.mean_squares(np.square(rendered.values)))
        return (signal * np.sqrt(of_source + of_target)).astype(np.float32)

    def encode(self, scan: Scan, coefficients: Coefficients | None = None) -> Codes:
        """Return the codes of a scan's voxels of the tissue that the model is of.

        Parameters
        ----------
        scan
            As `prepare` gives it.
        coefficients
            Of the scan, when they are there already.

        Raises
        ------
        SitelessError
            When the scan's shells or site are not the model's, or it has no such voxel.
        """
        site = torch.tensor([self.require_known(scan.gradients, scan.site)])
        level = white_matter_level(scan)
        coefficients = coefficients or self.preparation.coefficients(scan)
        where = self.preparation.where(scan)
        inside = where.T[scan.mask.T]
        values = own = coefficients.values
        profile = self.profiles.of(scan) if self.profiles else None
        if profile:
            own = profile.without_field(coefficients)
            values = profile.blurred(own)
        neighbours = index_neighbours(scan.mask, scan.affine)
        passes = self.card.settings["training"]["surroundings"]
        values, patches = surrounded(values / np.float32(level), neighbours, inside, passes)

        def encode(block: slice) -> tuple[Array, Array, Array | None]:
            own = torch.from_numpy(cut(values, patches[block])).flatten(1)
            axes = self.network.frames(own)
            posterior = self.network.encode(own, site, axes)
            return posterior.mean.numpy(), posterior.variance.numpy(), _as_array(axes)

        *encoded, axes = zip(*over_blocks(encode, len(patches)), strict=True)
        mean, variance = map(np.concatenate, encoded)
        frames = np.concatenate(axes) if self.network.settings.turned else None
        codes = Codes(
            mean,
            variance,
            where,
            scan.positions[inside],
            level,
            frames,
            lost=np.zeros((len(mean), 1 + len(self.preparation.shells)), dtype=np.float32),
            unfamiliar=np.zeros(len(mean), dtype=bool),
            flagged=np.zeros(len(mean), dtype=bool),
            kept=np.empty((0, values.shape[1]), dtype=np.float32),
        )
        if profile is None:
            return codes
        codes = replace(codes, flagged=self.unfamiliar(scan, coefficients))
        unfamiliar = _clustered(codes.flagged, where)
        return self._with_own(codes, own[inside] / np.float32(level), unfamiliar, profile)

    def _with_own(
        self, codes: Codes, own: Array, unfamiliar: Array, profile: ScanProfile
    ) -> Codes:
        """Add what a scan has of its own, which codes do not hold.

        Codes hold what training scans have. What a person has beyond that is the difference
        between a scan and its rendering at home; so is noise, which smoothing takes. Unfamiliar
        voxels keep all that is theirs, and nothing flows from or to them.
        """
        scan, means = profile.scan, self._means
        home = self.decode(codes, str(scan.site), level=1.0).values[:, means]
        home /= profile.gains[codes.where.T[scan.mask.T]][:, means]
        familiar, lost = codes.where.copy(), np.zeros_like(codes.lost)
        familiar.T[codes.where.T] = ~unfamiliar
        difference = (own[:, means] - home)[~unfamiliar]
        lost[~unfamiliar] = diffuse(difference, familiar, scan.voxel_size, _LOST_SPREAD)
        return replace(codes, lost=lost, unfamiliar=unfamiliar, kept=own[unfamiliar])

    def decode(self, codes: Codes, site: str, *, level: float | None = None) -> Coefficients:
        """Render codes as a site, or as the average of sites, at its typical level or another.

        Unfamiliar voxels are not rendered from their codes: what they are gets the target's field.
        """
        level, render = level or self.level(site), self._renderer(codes, site)
        mean = torch.from_numpy(codes.mean)

        def decode(block: slice) -> Array:
            return (render(mean[block], block) * level).numpy()

        values = np.concatenate(over_blocks(decode, len(mean)))
        if self.profiles and codes.unfamiliar.any():
            places = codes.positions[codes.unfamiliar]
            gains = [self.profiles.gains(places, label) for label in self.labels(site)]
            values[codes.unfamiliar] = codes.kept * np.mean(gains, axis=0) * np.float32(level)
        bs, order = self.preparation.shells, self.preparation.order
        return Coefficients(values, codes.where, bs, order, penalties=(0.0,) * len(bs))

    def spread(
        self, codes: Codes, site: str, rendered: Coefficients, *, level: float | None = None
    ) -> Array:
        """Return how much what `decode` has rendered varies under the posterior of the codes.

        Of unfamiliar voxels, it is how far their own signal is from what codes would render.

        Returns
        -------
        Array
            Standard deviation of b0 and, as a root mean square over directions, of each shell;
            shape (voxel, 1 + shell), in units of the rendered signal.
        """
        level, render = level or self.level(site), self._renderer(codes, site)
        codes_and_signal = codes.mean, codes.variance, rendered.values
        mean, variance, expected = map(torch.from_numpy, codes_and_signal)

        def vary(block: slice) -> Array:
            generator = torch.Generator().manual_seed(block.start)
            posterior = Posterior(mean[block], variance[block])
            squares = torch.zeros_like(expected[block])
            for _ in range(_DRAWS):
                drawn = render(posterior.sample(generator), block) * level
                squares += torch.square(drawn - expected[block])
            return rendered.channels.mean_squares(squares.numpy() / _DRAWS)

        return np.sqrt(np.concatenate(over_blocks(vary, len(mean))))

    @property
    def _means(self) -> Array:
        """Channels of b0 and of the shells' means."""
        return Channels(self.preparation.order, len(self.preparation.shells)).means

    def _renderer(self, codes: Codes, site: str) -> Callable[[Tensor, slice], Tensor]:
        """Return what renders codes of a block of voxels, in units of the level.

        Sites that a target is made of are rendered each with its field, and averaged.
        """
        labels, numbers = self.labels(site), self.numbers(site)
        means = self._means

        def render(code: Tensor, block: slice) -> Tensor:
            frames = None if codes.frames is None else torch.from_numpy(codes.frames[block])
            shown = []
            for label, number in zip(labels, numbers, strict=True):
                one = self.network.decode(code, torch.full((len(code),), number), frames)
                one[:, means] += torch.from_numpy(codes.lost[block])
                if self.profiles:
                    gains = self.profiles.gains(codes.positions[block], label)
                    one = one * torch.from_numpy(gains)
                shown.append(one)
            return torch.stack(shown).mean(dim=0) if len(shown) > 1 else shown[0]

        return render


def _clustered(flagged: Array, where: Array) -> Array:
    """Leave out voxels that are flagged alone: one in a thousand is, of healthy tissue.

    Parameters
    ----------
    flagged
        Shape (voxel,), bool.
    where
        The voxels, shape (x, y, z), bool.
    """
    grid = np.zeros(where.shape, dtype=np.int8)
    grid.T[where.T] = flagged
    around = ndimage.convolve(grid, np.ones((3, 3, 3), dtype=np.int8), mode="constant") - grid
    return flagged & (around >= _LEAST_CLUSTER).T[where.T]


def _as_array(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.numpy()
