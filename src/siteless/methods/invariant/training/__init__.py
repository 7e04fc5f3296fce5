"""Training of the networks: batches, the loss and the loop."""

from siteless.methods.invariant.training._adapt import adapt
from siteless.methods.invariant.training._calibrate import calibrate_last, calibrate_sites
from siteless.methods.invariant.training._loop import Training, train
from siteless.methods.invariant.training._parts import WHOLE, make_parts, part_volumes
from siteless.methods.invariant.training._settings import PRESETS, TrainingSettings
from siteless.methods.invariant.training._units import channel_units

__all__ = [
    "PRESETS",
    "WHOLE",
    "Training",
    "TrainingSettings",
    "adapt",
    "calibrate_last",
    "calibrate_sites",
    "channel_units",
    "make_parts",
    "part_volumes",
    "train",
]
