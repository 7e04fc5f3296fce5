"""A scan and a target site to a scan."""

from siteless.methods._invariant import Outside, harmonize

__all__ = ["Outside", "harmonize"]
