"""The baseline model, which renders a scan at any gradients without harmonization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients
from siteless.methods.scaling import ScalingModel
from siteless.model import ModelCard


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
