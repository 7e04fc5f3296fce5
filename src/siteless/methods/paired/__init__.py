"""A network that learns from travelling subjects."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.paired._method import Paired

if TYPE_CHECKING:
    from siteless.methods.paired._model import PairedModel
    from siteless.methods.paired._training import PairedSettings

__all__ = ["Paired", "PairedModel", "PairedSettings"]

__getattr__ = lazy_names(__name__, {"_model": ("PairedModel",), "_training": ("PairedSettings",)})
