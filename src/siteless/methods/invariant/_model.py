"""Models of the invariant method: encode a scan without its site, render it as the target."""

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
from siteless.methods.invariant.profiles import ScanProfile, SiteProfiles
from siteless.methods.patches import over_blocks, weights_of, with_weights
from siteless.model import LatentModel, ModelCard, SiteFields, Translation
from siteless.neighbourhood import cut, diffuse, index_neighbours, surrounded
from siteless.tissue import white_matter_level

# Number of sampled codes for the uncertainty of a rendering.
_DRAWS = 2
# mm2. Blur of the residuals of a scan, which removes noise and preserves lesions.
_RESIDUAL_BLUR = 4.0
# An out-of-distribution voxel counts only if as many of its 26 neighbours are too.
_LEAST_CLUSTER = 3
# Prefix of the profiles' arrays in a model's file.
_PROFILE = "profile."


@dataclass(frozen=True, eq=False)
class Codes:
    """Latent codes of a scan's voxels.

    Attributes
    ----------
    mean, variance
        Posterior means and variances, shape (voxel, unit), float32.
    where
        Mask of the voxels, shape (x, y, z), bool, in NIfTI order (x fastest).
    positions
        World coordinates of the voxels, shape (voxel, 3), mm.
    level
        Reference b0 intensity of the scan.
    frames
        Rotations from the fibre frame of each code to scanner axes, shape (voxel, 3, 3). None if
        codes are in scanner axes.
    lost
        Smoothed residuals of b0 and of shells' means that codes do not represent, in units of the
        level, shape (voxel, 1 + shell).
    unfamiliar, kept
        Clusters of out-of-distribution voxels, shape (voxel,), bool; and their coefficients, which
        replace codes, corrected for the site's field, in units of the level, shape (unfamiliar
        voxel, channel).
    flagged
        All out-of-distribution voxels, isolated ones too, shape (voxel,), bool.
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
        """Return the posterior means on the grid, shape (x, y, z, unit), zero elsewhere."""
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
        Profiles of the sites; None if training scans were not corrected by them.
    """

    uncertainty: ClassVar[str] = "its code (of unfamiliar voxels, to it)"
    network: Autoencoder
    profiles: SiteProfiles | None = None

    @property
    def site_fields(self) -> SiteFields | None:
        """The profiles of sites."""
        return self.profiles

    def describe(self) -> Sequence[tuple[str, str]]:
        """Describe the effect of each site with its uncertainty, and the network."""
        return describe_model(self.card, self.profiles)

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make the network described by the card, and load its weights."""
        network = Autoencoder(NetworkSettings(**card.settings["network"]))
        weights = {k: v for k, v in arrays.items() if not k.startswith(_PROFILE)}
        stored = {k.removeprefix(_PROFILE): v for k, v in arrays.items() if k.startswith(_PROFILE)}
        network, profiles = with_weights(network, weights), None
        if stored:
            profiles = SiteProfiles.from_arrays(list(card.sites), card.preparation.order, stored)
        return cls(card, network, profiles)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Weights of the network, and profiles."""
        stored = self.profiles.arrays if self.profiles else {}
        return {**weights_of(self.network), **{_PROFILE + k: v for k, v in stored.items()}}

    def translate(self, scan: Scan, coefficients: Coefficients, site: str) -> Translation:
        """Encode the voxels of the training tissue, and render their codes."""
        codes = self.encode(scan, coefficients)
        levels, labels = (codes.level, self.levels(scan, site)[1]), self.labels(site)
        rendered = self.decode(codes, site, level=levels[1])
        deviation = self.deviation(codes, site, rendered, level=levels[1])
        if self.profiles is None:
            return Translation(rendered, deviation, levels)
        if labels != [str(scan.site)]:  # effects of the source and the target are uncertain
            shells = len(self.preparation.shells)
            targets = [np.square(self.profiles.uncertainty(label, shells)) for label in labels]
            of_target = np.sum(targets, axis=0) / len(labels) ** 2
            of_source = np.square(self.profiles.uncertainty(str(scan.site), shells))
            signal = np.sqrt(rendered.channels.mean_squares(np.square(rendered.values)))
            of_sites = (signal * np.sqrt(of_source + of_target)).astype(np.float32)
            deviation = np.hypot(deviation, of_sites)
        return Translation(rendered, deviation, levels, codes.unfamiliar, codes.flagged)

    def encode(self, scan: Scan, coefficients: Coefficients | None = None) -> Codes:
        """Return the latent codes of a scan's voxels in the model's tissue.

        Parameters
        ----------
        scan
            Scan from `prepare`.
        coefficients
            Coefficients of the scan, if known.

        Raises
        ------
        SitelessError
            When the model does not support the scan's shells or site, or no voxel is in the
            tissue.
        """
        site = torch.tensor([self.require_known(scan.gradients, scan.site)])
        level = white_matter_level(scan)
        coefficients = coefficients or self.preparation.coefficients(scan)
        where = self.preparation.where(scan)
        inside = where.T[scan.mask.T]
        values = corrected = coefficients.values
        profile = self.profiles.of(scan) if self.profiles else None
        if profile:
            corrected = profile.without_field(coefficients)
            values = profile.blurred(corrected)
        neighbours = index_neighbours(scan.mask, scan.affine)
        passes = self.card.settings["training"]["surroundings"]
        values, patches = surrounded(values / np.float32(level), neighbours, inside, passes)

        def encode(block: slice) -> tuple[Array, Array, Array | None]:
            patch = torch.from_numpy(cut(values, patches[block])).flatten(1)
            axes = self.network.frames(patch)
            posterior = self.network.encode(patch, site, axes)
            turned = None if axes is None else axes.numpy()
            return posterior.mean.numpy(), posterior.variance.numpy(), turned

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
        return self._with_residuals(codes, corrected[inside] / np.float32(level), profile)

    def _with_residuals(self, codes: Codes, measured: Array, profile: ScanProfile) -> Codes:
        """Add the residuals of a scan, which codes do not represent.

        Codes represent features of training scans. Other features of a participant remain in the
        difference between a scan and its rendering as its own site, from which smoothing removes
        noise. Out-of-distribution voxels keep their coefficients, and are excluded from smoothing.
        """
        scan, means, unfamiliar = profile.scan, self._means, _clustered(codes.flagged, codes.where)
        home = self.decode(codes, str(scan.site), level=1.0).values[:, means]
        home /= profile.gains[codes.where.T[scan.mask.T]][:, means]
        familiar, lost = codes.where.copy(), np.zeros_like(codes.lost)
        familiar.T[codes.where.T] = ~unfamiliar
        difference = (measured[:, means] - home)[~unfamiliar]
        lost[~unfamiliar] = diffuse(difference, familiar, scan.voxel_size, _RESIDUAL_BLUR)
        return replace(codes, lost=lost, unfamiliar=unfamiliar, kept=measured[unfamiliar])

    def decode(self, codes: Codes, site: str, *, level: float | None = None) -> Coefficients:
        """Render codes as a site or as the average of sites, at a given or its typical level.

        Out-of-distribution voxels are not rendered from codes: their coefficients receive the
        target's field.
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

    def deviation(
        self, codes: Codes, site: str, rendered: Coefficients, *, level: float | None = None
    ) -> Array:
        """Return the standard deviation of a rendering under the posterior of the codes.

        For out-of-distribution voxels it is the difference between their signal and the rendering.

        Returns
        -------
        Array
            Standard deviation of b0 and, as a root mean square over directions, of each shell;
            shape (voxel, 1 + shell), in units of the rendered signal.
        """
        level, render = level or self.level(site), self._renderer(codes, site)
        mean, variance = torch.from_numpy(codes.mean), torch.from_numpy(codes.variance)
        expected = torch.from_numpy(rendered.values)

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
        """Return a function that renders codes of a block of voxels, in units of the level.

        For an average, renderings as each site with its field are averaged.
        """
        labels, numbers = self.labels(site), self.numbers(site)
        means = self._means

        def render(code: Tensor, block: slice) -> Tensor:
            frames = None if codes.frames is None else torch.from_numpy(codes.frames[block])
            shown = []
            for label, number in zip(labels, numbers, strict=True):
                rendered = self.network.decode(code, torch.full((len(code),), number), frames)
                rendered[:, means] += torch.from_numpy(codes.lost[block])
                if self.profiles:
                    gains = self.profiles.gains(codes.positions[block], label)
                    rendered = rendered * torch.from_numpy(gains)
                shown.append(rendered)
            return torch.stack(shown).mean(dim=0) if len(shown) > 1 else shown[0]

        return render


def _clustered(flagged: Array, where: Array) -> Array:
    """Remove isolated flagged voxels of a mask, as one in a thousand healthy voxels is flagged."""
    grid = np.zeros(where.shape, dtype=np.int8)
    grid.T[where.T] = flagged
    around = ndimage.convolve(grid, np.ones((3, 3, 3), dtype=np.int8), mode="constant") - grid
    return flagged & (around >= _LEAST_CLUSTER).T[where.T]
