"""A network that translates patches of one site to centre voxels of another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from siteless.methods.invariant.network import layers


@dataclass(frozen=True)
class TranslatorSettings:
    """Sizes of the network: coefficients of a voxel, sites, voxels of a patch, hidden layers."""

    channels: int
    sites: int
    neighbours: int = 7
    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["tanh", "silu", "relu"] = "silu"

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.neighbours * self.channels


class Translator(nn.Module):
    """Maps a patch, source and target site to the centre's coefficients at the target.

    The network learns a correction of the centre's coefficients, which is initially zero. It is
    the sum of a linear map for each source and target, which layers alone would learn slowly, and
    of the output of the layers. Both see coefficients minus the `offset`, divided by the `scale`
    of the channel, shape (channel,) each. These are the same for all sites, since the site is an
    input.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, settings: TranslatorSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = (settings.inputs + 2 * settings.sites, *settings.hidden)
        self.hidden = layers(widths, settings.activation)
        self.correction = nn.Linear(widths[-1], settings.channels)
        nn.init.zeros_(self.correction.weight)
        nn.init.zeros_(self.correction.bias)
        self.linear = nn.Parameter(
            torch.zeros(settings.sites**2, settings.channels, settings.inputs)
        )
        self.register_buffer("offset", torch.zeros(settings.channels))
        self.register_buffer("scale", torch.ones(settings.channels))

    def set_units(self, offset: Tensor, scale: Tensor) -> None:
        """Set the offset and the scale of coefficients, shape (channel,) each."""
        self.offset.copy_(offset)
        self.scale.copy_(scale)

    def forward(self, patch: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Translate patches, shape (patch, input), the centre's coefficients first.

        Coefficients are in units of the scan's level, and those of the centres that are returned,
        shape (patch, channel), in units of the target scan's. Sites are indices, shape (patch,).
        """
        voxels = patch.unflatten(1, (self.settings.neighbours, -1))
        seen = ((voxels - self.offset) / self.scale).flatten(1)
        sites = [nn.functional.one_hot(site, self.settings.sites) for site in (source, target)]
        hidden = self.hidden(torch.cat([seen, *(site.to(seen.dtype) for site in sites)], dim=1))
        correction = self._linear(seen, source * self.settings.sites + target)
        return voxels[:, 0] + self.scale * (correction + self.correction(hidden))

    def _linear(self, seen: Tensor, number: Tensor) -> Tensor:
        """Apply the linear map of each patch's source and target, shape (patch, channel)."""
        mapped = seen.new_zeros(len(seen), self.settings.channels)
        for pair in number.unique().tolist():
            rows = torch.nonzero(number == pair).squeeze(1)
            mapped = mapped.index_add(0, rows, seen[rows] @ self.linear[pair].T)
        return mapped
