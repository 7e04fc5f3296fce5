"""The paper's experiment and the demo: steps over the pipelines, each of which is done once."""

from siteless.experiments._demo import Demo, run_demo
from siteless.experiments._models import SCALES
from siteless.experiments._reproduce import reproduce_experiment

__all__ = ["SCALES", "Demo", "reproduce_experiment", "run_demo"]
