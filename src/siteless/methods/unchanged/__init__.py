"""A method that interpolates a scan to any gradients, without harmonization."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.unchanged._method import Unchanged

if TYPE_CHECKING:
    from siteless.methods.unchanged._model import UnchangedModel

__all__ = ["Unchanged", "UnchangedModel"]

__getattr__ = lazy_names(__name__, {"_model": ("UnchangedModel",)})
