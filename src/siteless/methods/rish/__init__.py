"""Rotation-invariant energies of each shell and degree, on a template."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names
from siteless.methods.rish._method import Rish, RishGlm

if TYPE_CHECKING:
    from siteless.methods.rish._model import (
        CLIP,
        SMOOTHING,
        Energies,
        RishModel,
        energies_of,
        site_energies,
        site_weights,
        smooth_on_template,
    )

__all__ = [
    "CLIP",
    "SMOOTHING",
    "Energies",
    "Rish",
    "RishGlm",
    "RishModel",
    "energies_of",
    "site_energies",
    "site_weights",
    "smooth_on_template",
]

__getattr__ = lazy_names(
    __name__,
    {
        "_model": (
            *("CLIP", "SMOOTHING", "Energies", "RishModel", "energies_of", "site_energies"),
            *("site_weights", "smooth_on_template"),
        )
    },
)
