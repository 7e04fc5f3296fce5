"""Calibrate renderings, so that sites differ only as much as their profiles.

Each site has different participants. The decoder attributes features of participants that codes do
not represent to the site, although the profiles attribute them to the participants. So the mean
amplitudes of renderings are compared between sites, and a gain for each site and degree adjusts
them to those expected from the profiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.harmonics import Channels
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.patches import TrainingScan
from siteless.neighbourhood import cut

# Number of rendered patches per scan.
_PATCHES = 1024


def calibrate_sites(
    network: Autoencoder, scans: Sequence[TrainingScan], sites: Sequence[str], expected: Array
) -> None:
    """Set the gains of all sites from corrected scans, whose codes are rendered as every site.

    The log amplitudes expected from the profiles, up to a constant, are those of b0 and of each
    shell's degrees 0 and 2, shape (site, feature).
    """
    numbers = [list(sites).index(scan.site) for scan in scans]
    excess = _log_amplitudes(network, scans, numbers) - expected
    _set_gains(network, slice(None), excess - excess.mean(axis=0), scans[0].order)


def calibrate_last(network: Autoencoder, scans: Sequence[TrainingScan], expected: Array) -> None:
    """Set the gains of a network's last site, from its scans."""
    last = network.settings.sites - 1
    excess = _log_amplitudes(network, scans, [last] * len(scans)) - expected
    _set_gains(network, last, excess[last] - excess[:last].mean(axis=0), scans[0].order)


@torch.no_grad()
def _log_amplitudes(
    network: Autoencoder, scans: Sequence[TrainingScan], numbers: Sequence[int]
) -> Array:
    """Return log mean amplitudes of renderings, shape (site, feature)."""
    amplitudes: list[Array] = []
    for scan, number in zip(scans, numbers, strict=True):
        rows = scan.neighbours[:: math.ceil(len(scan.neighbours) / _PATCHES)]
        patch = torch.from_numpy(cut(scan.values, rows)).flatten(1)
        frames = network.frames(patch)
        code = network.encode(patch, torch.tensor([number]), frames).mean
        rendered = (
            network.decode(code, torch.full((len(code),), site), frames).numpy()
            for site in range(network.settings.sites)
        )
        amplitudes.append(np.stack([_amplitudes(values, scan.order) for values in rendered]))
    return np.log(np.mean(amplitudes, axis=0))


def _amplitudes(values: Array, order: int) -> Array:
    """Return the means of b0 and of each shell's degree 0, and the RMS of degree 2."""
    channels = Channels.of(values, order)
    energies = channels.energies(values).mean(axis=0)  # (shell, degree)
    b0, *means = values[:, channels.means].mean(axis=0)
    return np.append(b0, np.column_stack([means, np.sqrt(energies[:, 1])]))


def _set_gains(network: Autoencoder, sites: slice | int, excess: Array, order: int) -> None:
    """Set gains that divide renderings by their log excess."""
    amplitudes = Channels(order, network.settings.shells).amplitudes
    network.gain[sites] = torch.from_numpy(np.exp(-excess[..., amplitudes])).float()
