"""Rotation-invariant energies of each shell and degree, on a template."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.rish._method import Rish, RishGlm

if TYPE_CHECKING:
    from siteless.methods.rish._model import RishModel, site_weights

__all__ = ["Rish", "RishGlm", "RishModel", "site_weights"]

__getattr__ = lazy_names(__name__, {"_model": ("RishModel", "site_weights")})
