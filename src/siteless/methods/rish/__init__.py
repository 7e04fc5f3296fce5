"""Rotation-invariant energies of each shell and degree, on a template."""

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
    "RishModel",
    "energies_of",
    "site_energies",
    "site_weights",
    "smooth_on_template",
]
