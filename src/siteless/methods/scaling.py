"""The base class of models that scale harmonics: unchanged, scaled and RISH."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients, fit_noise
from siteless.model import SignalModel, Translation


@dataclass(frozen=True, eq=False)
class ScalingModel(SignalModel):
    """Scales b0 and each degree of each shell's harmonics over the whole brain."""

    @abstractmethod
    def gains(self, scan: Scan, coefficients: Coefficients, site: str) -> Array:
        """Return the gains of b0 and of each shell's degrees, relative to the reference intensity.

        Returns
        -------
        Array
            Gain of b0, and of each degree relative to b0, shape (voxel or 1, 1 + shell * degree).
        """

    def translate(self, scan: Scan, coefficients: Coefficients, site: str) -> Translation:
        """Scale a scan's coefficients by the gains."""
        levels = self.levels(scan, site)
        relative = self.gains(scan, coefficients, site)
        b0 = relative[:, :1] * np.float32(levels[1] / levels[0])
        gains = np.hstack([b0, b0 * relative[:, 1:]])
        values = coefficients.values * coefficients.channels.spread_degrees(gains)
        return Translation(
            replace(coefficients, values=values),
            _noise_deviation(scan, coefficients, gains),
            levels,
        )


def _noise_deviation(scan: Scan, coefficients: Coefficients, gains: Array) -> Array:
    """Return the standard deviation of residual noise, shape (voxel, 1 + shell)."""
    noise = fit_noise(scan, coefficients)
    degrees = gains[:, 1:].reshape(len(gains), len(coefficients.bs), -1)
    shells = (noise.energies * np.square(degrees)).sum(axis=2) / np.float32(4 * np.pi)
    # The weakest shell has the least unmodelled signal, which looks like noise.
    b0 = noise.variance[:, 0] / scan.gradients.is_b0.sum() * np.square(gains[:, 0])
    return np.sqrt(np.column_stack([b0, shells]).clip(min=0)).astype(np.float32)
