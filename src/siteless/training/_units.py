"""The units that the networks see coefficients in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.harmonics import coefficient_orders
from siteless.network import Autoencoder
from siteless.patches import cut
from siteless.training._scan import TrainingScan

# Patches of a scan that are turned to tell its moments.
_TURNED = 8192


def channel_units(
    scans: Sequence[TrainingScan],
    sites: Sequence[str],
    *,
    of_sites: bool,
    network: Autoencoder | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the offset and scale of every site's channels, shape (site, channel) each.

    In them channels have mean 0 and variance 1, every scan counting the same. With `of_sites`,
    each site has units of its own: those in which the harmonics of a shell and degree vary as
    much at every site. That is for degrees whose variance is mostly noise, which would tell the
    number of directions. Degrees 0 and 2, and b0, are left to the fields of sites. Means are
    signal, and the same at all sites.

    Channels are those of the frames that the network sees patches in, if it turns them.
    """
    moments = [_moments(scan, network) for scan in scans]
    mean = np.mean([own for own, _ in moments], axis=0)
    variances = [square - 2 * mean * own + mean**2 for own, square in moments]
    ratios = np.ones((len(sites), len(mean)))
    if of_sites:
        of_sites_scans = [
            [v for scan, v in zip(scans, variances, strict=True) if scan.site == site]
            for site in sites
        ]
        pooled = np.stack(
            [_pooled(np.mean(own, axis=0), scans[0].order) for own in of_sites_scans]
        )
        ratios = np.sqrt(pooled / np.exp(np.log(pooled).mean(axis=0)))
        ratios[:, _is_low(scans[0])] = 1
    own = [ratios[list(sites).index(scan.site)] for scan in scans]
    variance = np.mean([v / ratio**2 for v, ratio in zip(variances, own, strict=True)], axis=0)
    scale = np.sqrt(np.maximum(variance, 1e-12)) * ratios
    return torch.from_numpy(mean).float().expand(scale.shape), torch.from_numpy(scale).float()


def _is_low(scan: TrainingScan) -> Array:
    """Return which channels are b0 or of degrees 0 and 2."""
    degrees = coefficient_orders(scan.order)
    shells = (scan.values.shape[1] - 1) // len(degrees)
    return np.concatenate([[True], np.tile(degrees <= 2, shells)])


def _moments(scan: TrainingScan, network: Autoencoder | None) -> tuple[Array, Array]:
    """Return the mean and the mean square of each channel over the centres of patches."""
    centres = scan.values[scan.neighbours[:, 0]]
    if network is not None and network.settings.turned:
        rows = scan.neighbours[:: math.ceil(len(scan.neighbours) / _TURNED)]
        centres = network.centres(torch.from_numpy(cut(scan.values, rows)).flatten(1)).numpy()
    return centres.mean(axis=0, dtype=float), np.square(centres).mean(axis=0, dtype=float)


def _pooled(variance: Array, order: int) -> Array:
    """Give all channels of a shell and degree their sum, which rotations do not change."""
    degrees = coefficient_orders(order)
    shells = variance[1:].reshape(-1, len(degrees))
    sums = (shells[:, degrees == degree].sum(axis=1) for degree in degrees)
    return np.concatenate([variance[:1], np.stack(list(sums), axis=1).ravel()])


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
    spread = network.scale.double().log().mean(dim=0).exp().numpy()
    mean = network.offset[0].double().numpy()
    ratio = np.ones_like(spread)
    if of_sites:
        moments = [_moments(scan, network) for scan in scans]
        variance = np.mean([square - 2 * mean * own + mean**2 for own, square in moments], axis=0)
        usual = _pooled(spread**2, scans[0].order)
        ratio = np.sqrt(_pooled(variance, scans[0].order) / usual)
        ratio[_is_low(scans[0])] = 1
    return network.offset[0].clone(), torch.from_numpy(spread * ratio).float()
