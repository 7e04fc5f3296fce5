"""The three networks of the paper.

The encoder maps a patch to a latent code without knowing the site; the decoder renders a code as a
site; the adversary predicts the original site of a rendered patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from siteless.methods.invariant.network._frames import DEGREE_2, fibre_frames, rotate

_ACTIVATIONS = {"tanh": nn.Tanh, "silu": nn.SiLU, "relu": nn.ReLU}


@dataclass(frozen=True)
class NetworkSettings:
    """Sizes of the networks; the defaults are the paper's.

    Attributes
    ----------
    channels, code
        Number of coefficients of a voxel, and of latent units.
    neighbours, rendered
        Number of voxels of a patch, including means of its surroundings; and of those that the
        decoder renders: all, or 1 for the centre only.
    shells, kept
        Number of shells, whose coefficients follow b0; and of coefficients per shell of neighbours
        in the encoder's input, None for all.
    turned
        Whether patches are encoded and rendered in the frame of their fibres.
    encoder, decoder, adversary
        Widths of the hidden layers.
    """

    channels: int
    sites: int
    neighbours: int = 7
    rendered: int = 7
    shells: int = 2
    kept: int | None = None
    turned: bool = False
    code: int = 32
    encoder: tuple[int, ...] = (256, 128, 64)
    decoder: tuple[int, ...] = (64, 128, 256)
    adversary: tuple[int, ...] = (32, 32)
    activation: Literal["tanh", "silu", "relu"] = "tanh"

    @property
    def of_neighbours(self) -> Tensor:
        """Channels of neighbours in the encoder's input."""
        channel = torch.arange(self.channels)
        if self.kept is None:
            return channel
        of_shell = (self.channels - 1) // self.shells
        return channel[(channel == 0) | ((channel - 1) % of_shell < self.kept)]

    @property
    def inputs(self) -> int:
        """Number of inputs of the encoder."""
        return self.channels + (self.neighbours - 1) * len(self.of_neighbours)

    @property
    def outputs(self) -> int:
        """Number of outputs of the decoder."""
        return self.rendered * self.channels


@dataclass(frozen=True, eq=False)
class Posterior:
    """Independent normal distributions of latent units; mean and variance are (patch, unit)."""

    mean: Tensor
    variance: Tensor

    def float(self) -> Posterior:
        """Return the posterior in single precision."""
        return Posterior(self.mean.float(), self.variance.float())

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a code for each patch, differentiably; shape (patch, unit)."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.variance.sqrt() * noise


class Encoder(nn.Module):
    """Maps a patch to the posterior of its latent code."""

    # Keeps variances above zero.
    least_variance = 1e-6

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        widths = (settings.inputs, *settings.encoder)
        self.hidden = layers(widths, settings.activation)
        self.mean = nn.Linear(widths[-1], settings.code)
        self.variance = nn.Linear(widths[-1], settings.code)

    def forward(self, patch: Tensor) -> Posterior:
        """Encode patches of shape (patch, input)."""
        hidden = self.hidden(patch)  # does not see the site, or the code could retain it
        variance = torch.sigmoid(self.variance(hidden)) + self.least_variance
        return Posterior(self.mean(hidden), variance)


class Decoder(nn.Module):
    """Maps a latent code and a site to a patch."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.sites = settings.sites
        widths = (settings.code + settings.sites, *settings.decoder)
        self.hidden = layers(widths, settings.activation)
        self.patch = nn.Linear(widths[-1], settings.outputs)

    def forward(self, code: Tensor, site: Tensor) -> Tensor:
        """Render codes, shape (patch, unit), as sites, integers of shape (patch,)."""
        return self.patch(self._hidden(code, site))

    def centre(self, code: Tensor, site: Tensor, channels: int) -> Tensor:
        """Render only the first channels, those of the centre, shape (patch, channel)."""
        weight, bias = self.patch.weight[:channels], self.patch.bias[:channels]
        return nn.functional.linear(self._hidden(code, site), weight, bias)

    def _hidden(self, code: Tensor, site: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(site, self.sites).to(code.dtype)
        return self.hidden(torch.cat([code, one_hot], dim=1))


class Adversary(nn.Module):
    """Maps a patch to the logits of each site, shape (patch, site)."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        widths = (settings.outputs, *settings.adversary)
        self.hidden = layers(widths, settings.activation)
        self.site = nn.Linear(widths[-1], settings.sites)

    def forward(self, patch: Tensor) -> Tensor:
        """Predict the original site of rendered patches, shape (patch, output)."""
        return self.site(self.hidden(patch))


class Autoencoder(nn.Module):
    """Encoder and decoder with the units of their channels: the network of a trained model.

    The networks see coefficients minus the `offset`, divided by the `scale` of their site and
    channel, shape (site, channel) each. If patches are rotated, they are in the frames from
    `frames`. Codes are multiplied by the `code_mixing` of their site, shape (site, unit, unit),
    and shifted by its `code_shift`, shape (site, unit), so that they have the same
    `code_covariance` at all sites. Renderings are multiplied by the `gain` of the site, shape
    (site, channel), which is the same for all channels of a shell and degree.
    """

    offset: Tensor
    scale: Tensor
    code_shift: Tensor
    code_mixing: Tensor
    code_covariance: Tensor
    gain: Tensor
    of_neighbours: Tensor

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = Encoder(settings)
        self.decoder = Decoder(settings)
        self.register_buffer("of_neighbours", settings.of_neighbours, persistent=False)
        sites, channels, code = settings.sites, settings.channels, settings.code
        self.register_buffer("offset", torch.zeros(sites, channels))
        self.register_buffer("scale", torch.ones(sites, channels))
        self.register_buffer("code_shift", torch.zeros(sites, code))
        self.register_buffer("code_mixing", torch.eye(code).repeat(sites, 1, 1))
        self.register_buffer("code_covariance", torch.eye(code))
        self.register_buffer("gain", torch.ones(sites, channels))

    def set_units(self, offset: Tensor, scale: Tensor) -> None:
        """Set the offset and the scale of coefficients, shape (site, channel) each."""
        self.offset.copy_(offset)
        self.scale.copy_(scale)

    def set_alignment(self, shift: Tensor, mixing: Tensor, covariance: Tensor) -> None:
        """Set the affine maps that align the codes of sites, and their common covariance."""
        self.code_shift.copy_(shift)
        self.code_mixing.copy_(mixing)
        self.code_covariance.copy_(covariance)

    def frames(self, patch: Tensor) -> Tensor | None:
        """Return the frames of patches, shape (patch, 3, 3); None if patches are not rotated.

        A patch has one frame, from all its voxels and shells.
        """
        if not self.settings.turned:
            return None
        voxels = patch.unflatten(1, (self.settings.neighbours, -1))
        shells = voxels[..., 1:].unflatten(-1, (self.settings.shells, -1))
        return fibre_frames(shells[..., DEGREE_2].sum(dim=(1, 2)))

    def centres(self, patch: Tensor) -> Tensor:
        """Return the centres of patches in their frames, shape (patch, channel)."""
        voxels = patch.unflatten(1, (self.settings.neighbours, -1))
        return self._turn(voxels[:, :1], self.frames(patch), back=False).squeeze(1)

    def standardise(self, patch: Tensor, site: Tensor, frames: Tensor | None) -> Tensor:
        """Return the encoder's input from patches of coefficients, shape (patch, input)."""
        voxels = patch.unflatten(1, (self.settings.neighbours, -1))
        if self.settings.kept is None:
            return self._see(voxels, site, frames, slice(None))
        few = self.of_neighbours
        centre = self._see(voxels[:, :1], site, frames, slice(None))
        others = self._see(voxels[:, 1:, few], site, frames, few)
        return torch.cat([centre, others], dim=1)

    def encode(self, patch: Tensor, site: Tensor, frames: Tensor | None) -> Posterior:
        """Encode patches of coefficients, shape (patch, neighbour x channel), in their frames."""
        posterior = self.encoder(self.standardise(patch, site, frames))
        return self._align(posterior, site.expand(len(patch)))

    def decode(self, code: Tensor, site: Tensor, frames: Tensor | None) -> Tensor:
        """Render codes, shape (patch, unit), as sites; return centres, shape (patch, channel).

        The centre is the only voxel of a patch with all its neighbours.
        """
        rendered = self.decoder.centre(code, site, self.settings.channels)
        return self.restore(rendered, site, frames)

    def restore(self, rendered: Tensor, site: Tensor, frames: Tensor | None) -> Tensor:
        """Return the coefficients of rendered centres, shape (patch, channel)."""
        centre = (rendered * self.scale[site] + self.offset[site]) * self.gain[site]
        return self._turn(centre.unsqueeze(1), frames, back=True).squeeze(1)

    def _align(self, posterior: Posterior, site: Tensor) -> Posterior:
        """Align the codes of sites, ignoring covariances within a posterior."""
        mean, variance = torch.empty_like(posterior.mean), torch.empty_like(posterior.variance)
        for number in site.unique():
            rows, mixing = site == number, self.code_mixing[number]
            mean[rows] = posterior.mean[rows] @ mixing + self.code_shift[number]
            variance[rows] = posterior.variance[rows] @ mixing.square()
        return Posterior(mean, variance)

    def _see(
        self, voxels: Tensor, site: Tensor, frames: Tensor | None, channels: slice | Tensor
    ) -> Tensor:
        """Rotate and standardise voxels, shape (patch, voxel, channel), and flatten them."""
        inverse = 1 / self.scale[:, channels]
        shift, inverse = (-self.offset[:, channels] * inverse)[site], inverse[site]
        turned = self._turn(voxels, frames, back=False)
        return torch.addcmul(shift[:, None], turned, inverse[:, None]).flatten(1)

    def _turn(self, voxels: Tensor, frames: Tensor | None, *, back: bool) -> Tensor:
        """Rotate the shells of voxels, shape (patch, voxel, channel), into frames, or back."""
        if frames is None:
            return voxels
        shells = voxels[..., 1:].unflatten(-1, (self.settings.shells, -1))
        turned = rotate(shells.flatten(1, 2), frames if back else frames.mT)
        return torch.cat([voxels[..., :1], turned.view(shells.shape).flatten(2)], dim=2)


def layers(widths: Sequence[int], activation: str) -> nn.Sequential:
    """Return fully connected layers of so many units, each followed by an activation."""
    steps = [(nn.Linear(a, b), _ACTIVATIONS[activation]()) for a, b in pairwise(widths)]
    return nn.Sequential(*(module for step in steps for module in step))
