"""Patches of coefficients, and training scans."""

from siteless.methods.patches._blocks import over_blocks, weights_of, with_weights
from siteless.methods.patches._neighbourhood import (
    FACES,
    channel_blocks,
    cut,
    index_neighbours,
    neighbour_means,
    surrounded,
)
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
from siteless.methods.patches._training_set import (
    Row,
    TrainingCallback,
    TrainingLog,
    TrainingSet,
    count_people,
    describe_validation,
    without_speed,
)

__all__ = [
    "FACES",
    "Row",
    "TrainingCallback",
    "TrainingLog",
    "TrainingScan",
    "TrainingSet",
    "channel_blocks",
    "count_people",
    "cut",
    "describe_validation",
    "evenly_spaced",
    "gather_patches",
    "index_neighbours",
    "is_stored",
    "make_training_scan",
    "neighbour_means",
    "open_scan",
    "over_blocks",
    "same_places",
    "store_scan",
    "surrounded",
    "weights_of",
    "with_weights",
    "without_speed",
]
