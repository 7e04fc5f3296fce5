"""What a scan is: its site, gradient table, shells and signal, as value objects."""

from siteless.acquisition._array import Array
from siteless.acquisition._gradients import GradientTable, fsl_axes
from siteless.acquisition._scan import Scan, Site
from siteless.acquisition._shells import (
    B0_LIMIT,
    MIN_DIRECTIONS,
    Shell,
    describe_shells,
    find_shells,
    same_b,
)

__all__ = [
    "B0_LIMIT",
    "MIN_DIRECTIONS",
    "Array",
    "GradientTable",
    "Scan",
    "Shell",
    "Site",
    "describe_shells",
    "find_shells",
    "fsl_axes",
    "same_b",
]
