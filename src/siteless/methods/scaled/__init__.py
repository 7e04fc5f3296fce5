"""A method with one factor for each shell and site."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.scaled._method import Scaled

if TYPE_CHECKING:
    from siteless.methods.scaled._model import ScaledModel, mean_attenuation

__all__ = ["Scaled", "ScaledModel", "mean_attenuation"]

__getattr__ = lazy_names(__name__, {"_model": ("ScaledModel", "mean_attenuation")})
