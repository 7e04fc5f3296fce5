"""The base class of models that scale harmonics, and the one that leaves them unchanged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients, fit_noise
from siteless.model import ModelCard, SignalModel, Translation


@dataclass(frozen=True, eq=False)
class ScalingModel(SignalModel):
    """Scales b0 and each degree of each shell's harmonics over the whole brain."""

    @abstractmethod
    def gains(self, scan: Scan, coefficients: Coefficients, site: str) -> Array:
        """Return the gains of b0 and of each shell's degrees.

        Returns
        -------
        Array
            Gain of b0 relative to the reference intensity, and of each degree relative to b0,
            shape (voxel or 1, 1 + shell * degree).
        """

    def translate(self, scan: Scan, coefficients: Coefficients, site: str) -> Translation:
        """Scale a scan's coefficients by the gains."""
        levels = self.levels(scan, site)
        relative = self.gains(scan, coefficients, site)
        b0 = relative[:, :1] * np.float32(levels[1] / levels[0])
        gains = np.hstack([b0, b0 * relative[:, 1:]])
        values = coefficients.values * coefficients.channels.spread_degrees(gains)
        deviation = _noise_deviation(scan, coefficients, gains)
        return Translation(replace(coefficients, values=values), deviation, levels)


@dataclass(frozen=True, eq=False)
class UnchangedModel(ScalingModel):
    """A model that knows sites and protocols, and changes nothing."""

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:  # noqa: ARG003
        """Make a model from its card."""
        return cls(card)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Nothing is learned."""
        return {}

    def levels(self, scan: Scan, site: str) -> tuple[float, float]:
        """Return the scan's level twice, as it does not change."""
        level, _ = super().levels(scan, site)
        return level, level

    def gains(self, scan: Scan, coefficients: Coefficients, site: str) -> Array:  # noqa: ARG002
        """Return ones."""
        degrees = coefficients.order // 2 + 1
        return np.ones((1, 1 + len(coefficients.bs) * degrees), dtype=np.float32)


def _noise_deviation(scan: Scan, coefficients: Coefficients, gains: Array) -> Array:
    """Return the standard deviation of residual noise, shape (voxel, 1 + shell)."""
    noise = fit_noise(scan, coefficients)
    degrees = gains[:, 1:].reshape(len(gains), len(coefficients.bs), -1)
    shells = (noise.energies * np.square(degrees)).sum(axis=2) / np.float32(4 * np.pi)
    # The weakest shell has the least unmodelled signal, which looks like noise.
    b0 = noise.variance[:, 0] / scan.gradients.is_b0.sum() * np.square(gains[:, 0])
    return np.sqrt(np.column_stack([b0, shells]).clip(min=0)).astype(np.float32)
