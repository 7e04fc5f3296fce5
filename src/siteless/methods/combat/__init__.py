"""ComBat on maps, at each voxel of a template."""

from siteless.methods.combat._model import (
    CombatModel,
    Estimates,
    HarmonizedMaps,
    estimate,
    require_neurocombat,
)

__all__ = [
    "CombatModel",
    "Estimates",
    "HarmonizedMaps",
    "estimate",
    "require_neurocombat",
]
