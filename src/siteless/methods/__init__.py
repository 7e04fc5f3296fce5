"""Harmonization methods, which render a scan, or its maps, as a target site."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names

if TYPE_CHECKING:
    from siteless.methods._render import Outside, Rendering, harmonize, render
    from siteless.methods.base import Method
    from siteless.methods.combat import Combat
    from siteless.methods.invariant import Invariant
    from siteless.methods.paired import Paired
    from siteless.methods.registry import METHODS, load_model
    from siteless.methods.rish import Rish, RishGlm
    from siteless.methods.scaled import Scaled
    from siteless.methods.unchanged import Unchanged

__all__ = [
    "METHODS",
    "Combat",
    "Invariant",
    "Method",
    "Outside",
    "Paired",
    "Rendering",
    "Rish",
    "RishGlm",
    "Scaled",
    "Unchanged",
    "harmonize",
    "load_model",
    "render",
]

__getattr__ = lazy_names(
    __name__,
    {
        "_render": ("Outside", "Rendering", "harmonize", "render"),
        "base": ("Method",),
        "combat": ("Combat",),
        "invariant": ("Invariant",),
        "paired": ("Paired",),
        "registry": ("METHODS", "load_model"),
        "rish": ("Rish", "RishGlm"),
        "scaled": ("Scaled",),
        "unchanged": ("Unchanged",),
    },
)
