"""The training of networks: training sets, the loop, its log and its resumption."""

from siteless.methods.training._resume import one_cycle
from siteless.methods.training._trainer import Trainer, draw_evenly
from siteless.methods.training._training_set import (
    Row,
    TrainingCallback,
    TrainingLog,
    TrainingSet,
    count_people,
    describe_validation,
    without_speed,
)

__all__ = [
    "Row",
    "Trainer",
    "TrainingCallback",
    "TrainingLog",
    "TrainingSet",
    "count_people",
    "describe_validation",
    "draw_evenly",
    "one_cycle",
    "without_speed",
]
