"""The baseline method, which interpolates a scan to any gradients, without harmonization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from siteless.methods.base import Learned, Method

if TYPE_CHECKING:
    from siteless.methods.base import Workspace
    from siteless.methods.cohort import Cohort
    from siteless.model import Model


@dataclass(frozen=True, kw_only=True)
class Unchanged(Method):
    """Learns only the sites and their protocols."""

    name: ClassVar[str] = "unchanged"
    summary: ClassVar[str] = "nothing but harmonics: the scan's own signal, at any b-vectors"
    sentence: ClassVar[str] = (
        "spherical-harmonic interpolation alone, which leaves sites as they are"
    )

    @classmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""
        from siteless.methods.scaling import UnchangedModel

        return UnchangedModel

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:  # noqa: ARG002
        """Learn nothing."""
        return Learned(self.model_type())
