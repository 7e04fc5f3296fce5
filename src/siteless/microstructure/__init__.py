"""Scans to maps of what tissue does to water: anisotropy, diffusivity, kurtosis."""

from siteless.microstructure._maps import (
    MAPS,
    MapKind,
    compute_maps,
    default_maps,
    require_maps,
)

__all__ = ["MAPS", "MapKind", "compute_maps", "default_maps", "require_maps"]
