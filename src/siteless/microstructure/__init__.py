"""Compute maps of tissue microstructure: anisotropy, diffusivity, kurtosis."""

from siteless.microstructure._maps import (
    MAPS,
    MapKind,
    compute_maps,
    default_maps,
    require_maps,
)

__all__ = ["MAPS", "MapKind", "compute_maps", "default_maps", "require_maps"]
