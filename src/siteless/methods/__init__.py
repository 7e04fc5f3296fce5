"""A scan and a target site to a scan."""

from siteless.methods._invariant import Outside, Rendering, harmonize, render

__all__ = ["Outside", "Rendering", "harmonize", "render"]
