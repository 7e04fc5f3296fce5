"""ComBat for maps, at each voxel of a template."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.combat._method import Combat

if TYPE_CHECKING:
    from siteless.methods.combat._model import (
        CombatModel,
        Estimates,
        estimate,
        require_neurocombat,
    )

__all__ = ["Combat", "CombatModel", "Estimates", "estimate", "require_neurocombat"]

__getattr__ = lazy_names(
    __name__, {"_model": ("CombatModel", "Estimates", "estimate", "require_neurocombat")}
)
