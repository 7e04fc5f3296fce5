"""Check scans for problems before they are processed."""

from siteless.preflight._coherence import AxisError, find_axis_error
from siteless.preflight._cohort import cohort_problems
from siteless.preflight._facts import ScanFacts
from siteless.preflight._problem import Problem, Severity
from siteless.preflight._scan import (
    axis_problems,
    direction_problems,
    mask_problems,
    signal_problems,
)

__all__ = [
    "AxisError",
    "Problem",
    "ScanFacts",
    "Severity",
    "axis_problems",
    "cohort_problems",
    "direction_problems",
    "find_axis_error",
    "mask_problems",
    "signal_problems",
]
