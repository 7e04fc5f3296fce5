"""A method in a file of its own, as somebody else would write it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients
from siteless.methods.base import Citation, Learned, Method, Workspace, option
from siteless.methods.cohort import Cohort
from siteless.methods.scaling import ScalingModel
from siteless.model import ModelCard


@dataclass(frozen=True, eq=False)
class FactorModel(ScalingModel):
    """Multiplies the diffusion-weighted signal of any scan by a factor."""

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make the model of its card alone."""
        assert not arrays
        return cls(card)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Nothing beside the card."""
        return {}

    def gains(self, scan: Scan, coefficients: Coefficients, site: str) -> Array:
        """Return the factor for the shells and one for b0, unless the scan is at home."""
        factor = 1.0 if site == str(scan.site) else self.card.settings["factor"]
        gains = np.full(
            (1, 1 + len(coefficients.bs) * (coefficients.order // 2 + 1)), factor, dtype=np.float32
        )
        gains[0, 0] = 1
        return gains

    def describe(self) -> list[tuple[str, str]]:
        """Describe the factor."""
        return [("factor", f"{self.card.settings['factor']:g}")]


@dataclass(frozen=True, kw_only=True)
class Toy(Method):
    """Multiplies by a factor."""

    name = "toy"
    summary = "a factor that the user gives"
    sentence = "a factor that was guessed"
    citations = (Citation("toy2026", "Toy 2026", "Toy, A.", "On guessing", "Journal", 2026),)

    factor: float = field(default=2.0, metadata=option(help="the factor", type=float))

    @classmethod
    def model_type(cls) -> type[FactorModel]:
        """Return the class of its models."""
        return FactorModel

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:  # noqa: ARG002
        """Learn nothing."""
        return Learned(FactorModel)
