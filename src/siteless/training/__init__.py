"""Scans to weights: what to learn from, batches, the loss and the loop."""

from siteless.training._adapt import adapt
from siteless.training._calibrate import calibrate_last, calibrate_sites
from siteless.training._distributed import joined, raise_everywhere, rank, world
from siteless.training._lesson import Lesson, Row, Watch
from siteless.training._loop import Training, train
from siteless.training._paired import (
    Pair,
    PairedSettings,
    PairedTraining,
    find_pairs,
    train_paired,
)
from siteless.training._parts import WHOLE, make_parts, part_volumes
from siteless.training._scan import TrainingScan, make_training_scan
from siteless.training._settings import PRESETS, TrainingSettings
from siteless.training._store import is_stored, open_scan, store_scan

__all__ = [
    "PRESETS",
    "WHOLE",
    "Lesson",
    "Pair",
    "PairedSettings",
    "PairedTraining",
    "Row",
    "Training",
    "TrainingScan",
    "TrainingSettings",
    "Watch",
    "adapt",
    "calibrate_last",
    "calibrate_sites",
    "find_pairs",
    "is_stored",
    "joined",
    "make_parts",
    "make_training_scan",
    "open_scan",
    "part_volumes",
    "raise_everywhere",
    "rank",
    "store_scan",
    "train",
    "train_paired",
    "world",
]
