"""An invariant conditional autoencoder (Moyer et al. 2020)."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.invariant._method import Invariant

if TYPE_CHECKING:
    from siteless.methods.invariant._model import Codes, InvariantModel

__all__ = ["Codes", "Invariant", "InvariantModel"]

__getattr__ = lazy_names(__name__, {"_model": ("Codes", "InvariantModel")})
