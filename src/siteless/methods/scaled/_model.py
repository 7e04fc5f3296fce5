"""The simplest method: the level of b0, and one factor for each shell and site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Channels, Coefficients
from siteless.methods.patches import TrainingScan
from siteless.methods.scaling import ScalingModel
from siteless.model import ModelCard


@dataclass(frozen=True, eq=False)
class ScaledModel(ScalingModel):
    """Scales b0 to the target's level, and each shell to the target's mean attenuation.

    Attributes
    ----------
    attenuation
        Ratio of each shell's mean to b0 in white matter of training scans, shape (site, shell).
    """

    attenuation: Array

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model from its card and arrays."""
        return cls(card, arrays["attenuation"])

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Attenuation of each shell at each site."""
        return {"attenuation": self.attenuation}

    def gains(self, scan: Scan, coefficients: Coefficients, site: str) -> Array:
        """Return the ratio of the target's to the source's attenuation, for all voxels."""
        source = self.require_known(scan.gradients, scan.site)
        logs = np.log(self.attenuation)
        factors = np.exp(logs[self.numbers(site)].mean(axis=0) - logs[source])
        degrees = coefficients.order // 2 + 1
        return np.concatenate([[1.0], np.repeat(factors, degrees)])[None].astype(np.float32)


def mean_attenuation(values: Array, order: int) -> Array:
    """Return the ratio of each shell's mean to that of b0, shape (shell,).

    Values are coefficients of a scan's white matter, shape (voxel, channel).
    """
    b0, *shells = values.mean(axis=0, dtype=float)[Channels.of(values, order).means]
    isotropic = 1 / np.sqrt(4 * np.pi)  # the harmonic of degree 0
    return np.asarray(np.array(shells) * isotropic / b0, dtype=np.float32)


def site_attenuation(scans: Sequence[TrainingScan], sites: Sequence[str]) -> Array:
    """Return the mean attenuation of each shell over the scans of a site, shape (site, shell)."""
    of_sites = [
        [
            mean_attenuation(scan.values[scan.neighbours[:, 0]], scan.order)
            for scan in scans
            if scan.site == site
        ]
        for site in sites
    ]
    return np.stack([np.mean(of_site, axis=0) for of_site in of_sites]).astype(np.float32)
