"""A space that people share, and how scans lie on it."""

from siteless.methods.template._likeness import (
    BrainMaps,
    Likeness,
    lay,
    lay_well,
    mean_maps,
    typical_likeness,
)

__all__ = [
    "BrainMaps",
    "Likeness",
    "lay",
    "lay_well",
    "mean_maps",
    "typical_likeness",
]
