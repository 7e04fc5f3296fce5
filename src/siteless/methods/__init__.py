"""A scan and a target site to a scan."""

from siteless.methods._invariant import OUTSIDE, Outside, harmonize

__all__ = ["OUTSIDE", "Outside", "harmonize"]
