"""A scan and a target site to a scan, or to maps: a room for each method."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siteless.methods._render import Outside, Rendering, harmonize, render
    from siteless.methods.registry import METHODS, Method, load_model

__all__ = ["METHODS", "Method", "Outside", "Rendering", "harmonize", "load_model", "render"]

_HOMES = {
    "_render": ("Outside", "Rendering", "harmonize", "render"),
    "registry": ("METHODS", "Method", "load_model"),
}


def __getattr__(name: str) -> Any:
    # Imported when first used: what knows the methods' names needs no torch.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"siteless.methods.{home}"), name)
    raise AttributeError(f"module 'siteless.methods' has no attribute {name!r}")
