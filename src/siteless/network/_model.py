"""The three networks of the paper.

The encoder makes a code of a patch without knowing the site; the decoder renders a code as a site;
the adversary tries to name the site that a rendered patch came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

_ACTIVATIONS = {"tanh": nn.Tanh, "silu": nn.SiLU, "relu": nn.ReLU}


@dataclass(frozen=True)
class NetworkSettings:
    """Sizes of the networks; the defaults are the paper's.

    Attributes
    ----------
    inputs
        Numbers in a patch: neighbours times channels.
    sites
        Sites that the decoder can render.
    code
        Units of the code.
    encoder, decoder, adversary
        Widths of the hidden layers.
    activation
        Between layers.
    """

    inputs: int
    sites: int
    code: int = 32
    encoder: tuple[int, ...] = (256, 128, 64)
    decoder: tuple[int, ...] = (64, 128, 256)
    adversary: tuple[int, ...] = (32, 32)
    activation: Literal["tanh", "silu", "relu"] = "tanh"


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the encoder knows of the codes of patches: independent normal distributions.

    Attributes
    ----------
    mean, variance
        Shape (patch, unit).
    """

    mean: Tensor
    variance: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw a code for each patch, differentiably; shape (patch, unit)."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.variance.sqrt() * noise


class Encoder(nn.Module):
    """Patch to code."""

    # Keeps variances from zero, where their logarithm and inverse have no value.
    least_variance = 1e-6

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        widths = (settings.inputs, *settings.encoder)
        self.hidden = _layers(widths, settings.activation)
        self.mean = nn.Linear(widths[-1], settings.code)
        self.variance = nn.Linear(widths[-1], settings.code)

    def forward(self, patch: Tensor) -> Posterior:
        """Encode patches of shape (patch, input)."""
        hidden = self.hidden(patch)  # must not see the site, or the code could keep it
        variance = torch.sigmoid(self.variance(hidden)) + self.least_variance
        return Posterior(self.mean(hidden), variance)


class Decoder(nn.Module):
    """Code and site to patch."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.sites = settings.sites
        widths = (settings.code + settings.sites, *settings.decoder)
        self.hidden = _layers(widths, settings.activation)
        self.patch = nn.Linear(widths[-1], settings.inputs)

    def forward(self, code: Tensor, site: Tensor) -> Tensor:
        """Render codes of shape (patch, unit) as sites, whole numbers of shape (patch,)."""
        one_hot = nn.functional.one_hot(site, self.sites).to(code.dtype)
        rendered: Tensor = self.patch(self.hidden(torch.cat([code, one_hot], dim=1)))
        return rendered


class Adversary(nn.Module):
    """Patch to the log-odds of each site, shape (patch, site)."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        widths = (settings.inputs, *settings.adversary)
        self.hidden = _layers(widths, settings.activation)
        self.site = nn.Linear(widths[-1], settings.sites)

    def forward(self, patch: Tensor) -> Tensor:
        """Guess where patches of shape (patch, input) came from."""
        guess: Tensor = self.site(self.hidden(patch))
        return guess


def _layers(widths: Sequence[int], activation: str) -> nn.Sequential:
    steps = [(nn.Linear(a, b), _ACTIVATIONS[activation]()) for a, b in pairwise(widths)]
    return nn.Sequential(*(module for step in steps for module in step))
