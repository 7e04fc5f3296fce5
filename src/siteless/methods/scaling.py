"""What methods share that multiply harmonics: unchanged, scaled and RISH."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients, fit_noise
from siteless.model import SignalModel, Translation


@dataclass(frozen=True, eq=False)
class ScalingModel(SignalModel):
    """Multiplies b0, and each degree of each shell's harmonics, over the whole brain."""

    @abstractmethod
    def gains(self, scan: Scan, own: Coefficients, site: str) -> Array:
        """Return what b0 and the degrees of shells are multiplied by, beside the level.

        Returns
        -------
        Array
            Shape (voxel or 1, 1 + shell * degree): of b0, and of each degree relative to b0.
        """

    def translate(self, scan: Scan, own: Coefficients, site: str) -> Translation:
        """Multiply a scan's coefficients by the gains."""
        levels = self.levels(scan, site)
        relative = self.gains(scan, own, site)
        b0 = relative[:, :1] * np.float32(levels[1] / levels[0])
        gains = np.hstack([b0, b0 * relative[:, 1:]])
        values = own.values * own.channels.spread_degrees(gains)
        return Translation(replace(own, values=values), _spread(scan, own, gains), levels)


def _spread(scan: Scan, own: Coefficients, gains: Array) -> Array:
    """Return the standard deviation of the noise that is left, shape (voxel, 1 + shell)."""
    noise = fit_noise(scan, own)
    degrees = gains[:, 1:].reshape(len(gains), len(own.bs), -1)
    shells = (noise.energies * np.square(degrees)).sum(axis=2) / np.float32(4 * np.pi)
    # Of the weakest shell: what a fit misses of stronger ones, it takes for noise.
    b0 = noise.variance[:, 0] / scan.gradients.is_b0.sum() * np.square(gains[:, 0])
    return np.sqrt(np.column_stack([b0, shells]).clip(min=0)).astype(np.float32)
