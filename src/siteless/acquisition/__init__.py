"""Value objects that describe a scan: its site, gradient table, shells and signal."""

from siteless.acquisition._array import Array
from siteless.acquisition._gradients import GradientTable, fsl_axes
from siteless.acquisition._scan import (
    GRID_TOLERANCE,
    Scan,
    Site,
    grid_offset,
    on_grid,
    require_finite,
)
from siteless.acquisition._shells import (
    MIN_DIRECTIONS,
    Shell,
    count_axes,
    describe_shells,
    find_shells,
    group_by_b,
    same_b,
    same_shells,
    show_bs,
)

__all__ = [
    "GRID_TOLERANCE",
    "MIN_DIRECTIONS",
    "Array",
    "GradientTable",
    "Scan",
    "Shell",
    "Site",
    "count_axes",
    "describe_shells",
    "find_shells",
    "fsl_axes",
    "grid_offset",
    "group_by_b",
    "on_grid",
    "require_finite",
    "same_b",
    "same_shells",
    "show_bs",
]
