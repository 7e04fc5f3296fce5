"""The units that the networks see coefficients in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.harmonics import Channels
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.patches import TrainingScan, cut
from siteless.population import Design, estimate_site_effects

# Patches of a scan that are turned to tell its moments.
_TURNED = 8192
_LEAST_VARIANCE = 1e-12


def channel_units(
    scans: Sequence[TrainingScan], design: Design | None, network: Autoencoder | None = None
) -> tuple[Tensor, Tensor]:
    """Return the offset and scale of every site's channels, shape (site, channel) each.

    In them channels have mean 0 and variance 1, every scan counting the same. With a design, each
    site has units of its own: those in which the harmonics of a shell and degree vary as much at
    every site, as far as that is not explained by people. They are for degrees whose variance is
    mostly noise, which would reveal the number of directions. Degrees 0 and 2, and b0, are left
    to the fields of sites. Means are signal, and the same at all sites.

    Channels are those of the frames that the network sees patches in, if it turns them.

    Parameters
    ----------
    scans
        Training scans.
    design
        Who was scanned where; None for the same units at all sites, in one row.
    network
        Sees the patches.
    """
    moments = [_moments(scan, network) for scan in scans]
    mean = np.mean([own for own, _ in moments], axis=0)
    variances = np.stack([square - 2 * mean * own + mean**2 for own, square in moments])
    ratios, own = np.ones((1, len(mean))), np.ones_like(variances)
    if design is not None:
        pooled = np.stack([_pooled(variance, scans[0].order) for variance in variances])
        logs = np.log(np.maximum(pooled, _LEAST_VARIANCE))
        ratios = np.exp(estimate_site_effects(logs, design, np.arange(len(mean))).sites / 2)
        ratios[:, _is_low(scans[0])] = 1
        own = ratios[design.sites]
    scale = np.sqrt(np.maximum((variances / own**2).mean(axis=0), _LEAST_VARIANCE)) * ratios
    return torch.from_numpy(mean).float().expand(scale.shape), torch.from_numpy(scale).float()


def _is_low(scan: TrainingScan) -> Array:
    """Return which channels are b0 or of degrees 0 and 2."""
    low: Array = Channels.of(scan.values, scan.order).degrees <= 2
    return low


def _moments(scan: TrainingScan, network: Autoencoder | None) -> tuple[Array, Array]:
    """Return the mean and the mean square of each channel over the centres of patches."""
    centres = scan.values[scan.neighbours[:, 0]]
    if network is not None and network.settings.turned:
        rows = scan.neighbours[:: math.ceil(len(scan.neighbours) / _TURNED)]
        centres = network.centres(torch.from_numpy(cut(scan.values, rows)).flatten(1)).numpy()
    return centres.mean(axis=0, dtype=float), np.square(centres).mean(axis=0, dtype=float)


def _pooled(variance: Array, order: int) -> Array:
    """Give all channels of a shell and degree their sum, which rotations do not change."""
    channels = Channels.of(variance, order)
    degrees = channels.degrees[channels.shell(0)]
    shells = variance[1:].reshape(channels.shells, -1)
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
