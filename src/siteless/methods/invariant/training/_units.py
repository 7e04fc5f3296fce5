"""Units of coefficients in the networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.harmonics import Channels
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.patches import TrainingScan
from siteless.neighbourhood import cut
from siteless.population import Design, estimate_site_effects

# Number of rotated patches per scan for its moments.
_TURNED = 8192
_LEAST_VARIANCE = 1e-12


def channel_units(
    scans: Sequence[TrainingScan], design: Design | None, network: Autoencoder | None = None
) -> tuple[Tensor, Tensor]:
    """Return the offset and scale of every site's channels, shape (site, channel) each.

    In these units channels have mean 0 and variance 1, with equal weights of scans. With a design,
    scales depend on the site, so that the harmonics of a shell and degree have equal variance at
    all sites, unless participants explain the difference. This concerns degrees whose variance is
    mostly noise, which would reveal the number of directions. Fields correct degrees 0 and 2, and
    b0. Means are signal, and the same at all sites.

    Channels are those in fibre frames, if the network rotates patches. Without a design there is
    one row of units, for all sites.
    """
    moments = [_moments(scan, network) for scan in scans]
    mean = np.mean([channel_mean for channel_mean, _ in moments], axis=0)
    variances = _variances(moments, mean)
    ratios, sites = np.ones((1, len(mean))), np.zeros(len(scans), dtype=int)
    if design is not None:
        pooled = np.stack([_pooled(variance, scans[0].order) for variance in variances])
        logs = np.log(np.maximum(pooled, _LEAST_VARIANCE))
        ratios = np.exp(estimate_site_effects(logs, design, np.arange(len(mean))).sites / 2)
        ratios[:, _is_low(scans[0])] = 1
        sites = design.sites
    variance = (variances / ratios[sites] ** 2).mean(axis=0)
    scale = np.sqrt(np.maximum(variance, _LEAST_VARIANCE)) * ratios
    return torch.from_numpy(mean).float().expand(scale.shape), torch.from_numpy(scale).float()


def _is_low(scan: TrainingScan) -> Array:
    """Return which channels are b0 or have degree 0 or 2."""
    return Channels.of(scan.values, scan.order).degrees <= 2


def _moments(scan: TrainingScan, network: Autoencoder | None) -> tuple[Array, Array]:
    """Return the mean and the mean square of each channel over patch centres."""
    centres = scan.values[scan.neighbours[:, 0]]
    if network is not None and network.settings.turned:
        rows = scan.neighbours[:: math.ceil(len(scan.neighbours) / _TURNED)]
        centres = network.centres(torch.from_numpy(cut(scan.values, rows)).flatten(1)).numpy()
    return centres.mean(axis=0, dtype=float), np.square(centres).mean(axis=0, dtype=float)


def _variances(moments: Sequence[tuple[Array, Array]], mean: Array) -> Array:
    """Return the mean squared deviation of each scan's channels from a common mean."""
    return np.stack([square - 2 * mean * own_mean + mean**2 for own_mean, square in moments])


def _pooled(variance: Array, order: int) -> Array:
    """Replace channels of a shell and degree by their rotation-invariant sum."""
    channels = Channels.of(variance, order)
    degrees = channels.degrees[channels.shell(0)]
    shells = variance[1:].reshape(channels.shells, -1)
    sums = (shells[:, degrees == degree].sum(axis=1) for degree in degrees)
    return np.concatenate([variance[:1], np.stack(list(sums), axis=1).ravel()])


def units_beside(
    network: Autoencoder, scans: Sequence[TrainingScan], *, of_sites: bool
) -> tuple[Tensor, Tensor]:
    """Return the units of a new site's channels as in `channel_units`, shape (channel,) each.

    The network has the units of the known sites; the scans are those of the new one.
    """
    # The geometric mean of the sites' ratios is 1.
    common_scale = network.scale.double().log().mean(dim=0).exp().numpy()
    mean = network.offset[0].double().numpy()
    ratio = np.ones_like(common_scale)
    if of_sites:
        moments = [_moments(scan, network) for scan in scans]
        variance = _variances(moments, mean).mean(axis=0)
        usual = _pooled(common_scale**2, scans[0].order)
        ratio = np.sqrt(_pooled(variance, scans[0].order) / usual)
        ratio[_is_low(scans[0])] = 1
    return network.offset[0].clone(), torch.from_numpy(common_scale * ratio).float()
