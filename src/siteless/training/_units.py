"""The units that the networks see coefficients in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.harmonics import coefficient_orders
from siteless.network import Autoencoder
from siteless.patches import cut
from siteless.training._scan import TrainingScan

# Centres of a scan that its moments are of.
_COUNTED = 8192


def channel_units(
    scans: Sequence[TrainingScan],
    sites: Sequence[str],
    *,
    of_sites: bool,
    network: Autoencoder | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the offset and scale of every site's channels, shape (site, channel) each.

    In them channels have mean 0 and variance 1, every scan counting the same. With `of_sites`,
    each site has units of its own: those in which the harmonics of a shell and degree have the
    same energy at every site. That is for degrees whose energy is mostly noise, which would tell
    the number of directions. Degrees 0 and 2, and b0, are left to the fields of sites.

    Channels are those of the frames that the network sees patches in, if it turns them.
    """
    moments = [_moments(scan, network) for scan in scans]
    ratios = np.ones((len(sites), scans[0].values.shape[1]))
    if of_sites:
        energies = [
            np.mean([m[1] for s, m in zip(scans, moments, strict=True) if s.site == site], axis=0)
            for site in sites
        ]
        pooled = np.stack([_pooled(energy, scans[0].order) for energy in energies])
        ratios = np.sqrt(pooled / np.exp(np.log(pooled).mean(axis=0)))
        ratios[:, _is_low(scans[0])] = 1
    own = [ratios[list(sites).index(scan.site)] for scan in scans]
    mean = np.mean([m[0] / ratio for m, ratio in zip(moments, own, strict=True)], axis=0)
    square = np.mean([m[1] / ratio**2 for m, ratio in zip(moments, own, strict=True)], axis=0)
    scale = np.sqrt(np.maximum(square - mean**2, 1e-12))
    return torch.from_numpy(mean * ratios).float(), torch.from_numpy(scale * ratios).float()


def _is_low(scan: TrainingScan) -> Array:
    """Return which channels are b0 or of degrees 0 and 2."""
    degrees = coefficient_orders(scan.order)
    shells = (scan.values.shape[1] - 1) // len(degrees)
    return np.concatenate([[True], np.tile(degrees <= 2, shells)])


def _moments(scan: TrainingScan, network: Autoencoder | None) -> tuple[Array, Array]:
    """Return the mean and the mean square of each channel over the centres of patches."""
    rows = scan.neighbours[:: max(1, len(scan.neighbours) // _COUNTED)]
    centres = scan.values[rows[:, 0]]
    if network:
        centres = network.centres(torch.from_numpy(cut(scan.values, rows)).flatten(1)).numpy()
    return centres.mean(axis=0, dtype=float), np.square(centres).mean(axis=0, dtype=float)


def _pooled(energy: Array, order: int) -> Array:
    """Give all channels of a shell and degree their sum, which rotations do not change."""
    degrees = coefficient_orders(order)
    shells = energy[1:].reshape(-1, len(degrees))
    sums = (shells[:, degrees == degree].sum(axis=1) for degree in degrees)
    return np.concatenate([energy[:1], np.stack(list(sums), axis=1).ravel()])


def units_beside(
    network: Autoencoder, scans: Sequence[TrainingScan], *, of_sites: bool
) -> tuple[Tensor, Tensor]:
    """Return the units of a new site's channels, shape (channel,) each, as `channel_units` would.

    Parameters
    ----------
    network
        With the units of the sites that are known.
    scans
        Of the new site.
    """
    # Ratios of sites have the geometric mean 1.
    offset, scale = network.offset.double().numpy(), network.scale.double().numpy()
    spread = np.exp(np.log(scale).mean(axis=0))
    mean = offset[0] * spread / scale[0]
    ratio = np.ones_like(spread)
    if of_sites:
        energy = np.mean([_moments(scan, network)[1] for scan in scans], axis=0)
        usual = _pooled(mean**2 + spread**2, scans[0].order)
        ratio = np.sqrt(_pooled(energy, scans[0].order) / usual)
        ratio[_is_low(scans[0])] = 1
    return torch.from_numpy(mean * ratio).float(), torch.from_numpy(spread * ratio).float()
