"""The paper's experiment and the demo, as resumable steps over pipelines."""

from siteless.experiments._demo import Demo, run_demo
from siteless.experiments._models import SCALES
from siteless.experiments._reproduce import reproduce_experiment

__all__ = ["SCALES", "Demo", "reproduce_experiment", "run_demo"]
