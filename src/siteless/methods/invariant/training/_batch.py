"""Batches of a few groups of patches, each group from one scan.

A batch depends only on the seed and its index, so training can be resumed, and divided between
processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.distributed import GROUPS
from siteless.methods.patches import TrainingScan
from siteless.methods.training import draw_evenly


@dataclass(frozen=True, eq=False)
class Batch:
    """Patches in groups of equal size, with the data that the loss requires.

    Attributes
    ----------
    patch
        Coefficients of the patches, shape (patch, input).
    site, elsewhere
        Sites of the patches, and random sites to render them as, shape (patch,), integers.
    noise
        Standard normal noise, shape (patch, unit).
    signal
        Signal of the centres, as in `TrainingScan`, shape (group, patch, volume), padded with
        zeros for scans with fewer volumes.
    mixing
        Matrices from coefficients to signal, shape (group, channel, volume).
    shell
        Shells of the columns of `signal`, shape (group, volume), -1 where padded.
    """

    patch: Tensor
    site: Tensor
    elsewhere: Tensor
    noise: Tensor
    signal: Tensor
    mixing: Tensor
    shell: Tensor


class Sampler:
    """Draws batches of scans in which all sites have the same share.

    Sites are in the order of their indices, and `units` is the number of latent units.
    """

    def __init__(
        self, scans: Sequence[TrainingScan], sites: Sequence[str], *, units: int, device: str
    ) -> None:
        self.scans = scans
        self.sites = tuple(sites)
        self.units = units
        self.device = device
        self.by_site = [[s for s in scans if s.site == site] for site in sites]

    def draw(self, patches: int, *, seed: Sequence[int], part: slice = slice(None)) -> Batch:
        """Draw a batch of about `patches`, or a part of its groups."""
        rng = np.random.default_rng(seed)
        scans = draw_evenly(self.by_site, rng)
        return self._gather(scans, max(1, patches // GROUPS), rng, part)

    def draw_from_each(self, patches: int, *, seed: Sequence[int]) -> Batch:
        """Draw a batch with one group from every scan."""
        size = 2 ** max(3, int(math.log2(patches / len(self.scans))))
        return self._gather(self.scans, size, np.random.default_rng(seed), slice(None))

    def _gather(
        self, scans: Sequence[TrainingScan], size: int, rng: np.random.Generator, part: slice
    ) -> Batch:
        # Random numbers are drawn for all groups, so that parts of a batch add up to the whole.
        rows = [rng.integers(len(scan.neighbours), size=size) for scan in scans]
        elsewhere = rng.integers(len(self.sites), size=(len(scans), size))
        noise = rng.standard_normal((len(scans), size, self.units), dtype=np.float32)
        scans, rows = scans[part], rows[part]
        inputs = scans[0].neighbours.shape[1] * scans[0].values.shape[1]
        volumes = max(scan.signal.shape[1] for scan in scans)
        patch = torch.empty(len(scans), size, inputs)
        signal = torch.zeros(len(scans), size, volumes)
        mixing = torch.zeros(len(scans), scans[0].values.shape[1], volumes)
        shell = torch.full((len(scans), volumes), -1)
        for group, (scan, drawn) in enumerate(zip(scans, rows, strict=True)):
            flat = patch[group].view(-1, scan.values.shape[1])
            _select(scan.values, scan.neighbours[drawn].ravel(), out=flat)
            measured = scan.signal.shape[1]
            signal[group, :, :measured] = _select(scan.signal, drawn)
            mixing[group, :, :measured] = torch.from_numpy(scan.mixing)
            shell[group, :measured] = torch.from_numpy(scan.shell)
        site = torch.tensor([self.sites.index(scan.site) for scan in scans])
        return Batch(
            patch=patch.flatten(0, 1).to(self.device),
            site=site.repeat_interleave(size).to(self.device),
            elsewhere=torch.from_numpy(elsewhere[part].ravel()).to(self.device),
            noise=torch.from_numpy(noise[part].reshape(-1, self.units)).to(self.device),
            signal=signal.to(self.device),
            mixing=mixing.to(self.device),
            shell=shell.to(self.device),
        )


def _select(array: Array, rows: Array, out: Tensor | None = None) -> Tensor:
    """Copy rows of an array, on all threads."""
    return torch.index_select(torch.from_numpy(array), 0, torch.from_numpy(rows), out=out)
