"""ComBat for maps, at each voxel of a template."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.combat._method import Combat

if TYPE_CHECKING:
    from siteless.methods.combat._model import CombatModel

__all__ = ["Combat", "CombatModel"]

__getattr__ = lazy_names(__name__, {"_model": ("CombatModel",)})
