"""Patches of coefficients, and scans that are stored as patches."""

from siteless.methods.patches._blocks import over_blocks, weights_of, with_weights
from siteless.methods.patches._scan import (
    TrainingScan,
    evenly_spaced,
    gather_patches,
    is_stored,
    make_training_scan,
    open_scan,
    same_places,
    store_scan,
)

__all__ = [
    "TrainingScan",
    "evenly_spaced",
    "gather_patches",
    "is_stored",
    "make_training_scan",
    "open_scan",
    "over_blocks",
    "same_places",
    "store_scan",
    "weights_of",
    "with_weights",
]
