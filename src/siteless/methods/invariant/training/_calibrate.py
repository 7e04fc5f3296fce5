"""Renderings of a code that differ between sites as far as profiles say, and no further.

A decoder is shown different people at each site. What codes do not hold of them it learns as if
it were the site's, although the profiles, which separate sites from people, have left it to the
people. So the mean amplitudes of what is rendered are compared between sites, and a gain for each
site and degree brings them to what the profiles expect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.harmonics import Channels
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.patches import TrainingScan, cut

# Patches of a scan whose codes are rendered.
_PATCHES = 1024


def calibrate_sites(
    network: Autoencoder, scans: Sequence[TrainingScan], sites: Sequence[str], expected: Array
) -> None:
    """Set the gains of all sites.

    Parameters
    ----------
    network
        Trained.
    scans
        Scans whose codes are rendered as every site, without profiles.
    sites
        Labels, in the order of the network's numbers.
    expected
        Logarithms of amplitudes that the profiles expect, up to what all sites share: of b0 and
        of each shell's degrees 0 and 2, shape (site, feature).
    """
    found = _log_amplitudes(network, scans, [list(sites).index(one.site) for one in scans])
    excess = found - expected
    _set_gains(network, slice(None), excess - excess.mean(axis=0), scans[0].order)


def calibrate_last(network: Autoencoder, scans: Sequence[TrainingScan], expected: Array) -> None:
    """Set the gains of a network's last site, whose scans these are; the others stay."""
    last = network.settings.sites - 1
    excess = _log_amplitudes(network, scans, [last] * len(scans)) - expected
    _set_gains(network, last, excess[last] - excess[:last].mean(axis=0), scans[0].order)


@torch.no_grad()
def _log_amplitudes(
    network: Autoencoder, scans: Sequence[TrainingScan], numbers: Sequence[int]
) -> Array:
    """Return logarithms of the mean rendered amplitudes of scans, shape (site, feature)."""
    found: list[Array] = []
    for scan, number in zip(scans, numbers, strict=True):
        rows = scan.neighbours[:: math.ceil(len(scan.neighbours) / _PATCHES)]
        patch = torch.from_numpy(cut(scan.values, rows)).flatten(1)
        frames = network.frames(patch)
        code = network.encode(patch, torch.tensor([number]), frames).mean
        rendered = (
            network.decode(code, torch.full((len(code),), site), frames).numpy()
            for site in range(network.settings.sites)
        )
        found.append(np.stack([_amplitudes(values, scan.order) for values in rendered]))
    logarithms: Array = np.log(np.mean(found, axis=0))
    return logarithms


def _amplitudes(values: Array, order: int) -> Array:
    """Return the means of b0 and of each shell's degree 0, and root mean squares of degree 2."""
    channels = Channels.of(values, order)
    energies = channels.energies(values).mean(axis=0)  # (shell, degree)
    b0, *means = values[:, channels.means].mean(axis=0)
    return np.append(b0, np.column_stack([means, np.sqrt(energies[:, 1])]))


def _set_gains(network: Autoencoder, sites: slice | int, excess: Array, order: int) -> None:
    """Divide what is rendered by its excess (log)."""
    amplitudes = Channels(order, network.settings.shells).amplitudes
    network.gain[sites] = torch.from_numpy(np.exp(-excess[..., amplitudes])).float()
