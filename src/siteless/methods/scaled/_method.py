"""The method that matches the mean attenuation of each shell to the target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from siteless.methods.base import ComparesGroups, Learned

if TYPE_CHECKING:
    from siteless.methods.base import Workspace
    from siteless.methods.cohort import Cohort
    from siteless.model import Model


@dataclass(frozen=True, kw_only=True)
class Scaled(ComparesGroups):
    """Scales b0 to the target's level, and each shell to the target's mean attenuation."""

    name: ClassVar[str] = "scaled"
    summary: ClassVar[str] = "the level of b0, and one factor for each shell and site"
    sentence: ClassVar[str] = "one scale factor for each shell and site"

    @classmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""
        from siteless.methods.scaled._model import ScaledModel

        return ScaledModel

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Average the attenuation over the training scans of each site."""
        from siteless.methods.scaled._model import ScaledModel, site_attenuation

        scans = [workspace.store.patches(scan) for scan in cohort.learning]
        attenuation = site_attenuation(scans, cohort.sites)
        return Learned(lambda card: ScaledModel(card, attenuation))
