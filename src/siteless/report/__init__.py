"""Numbers to tables and pictures."""

from siteless.report._boxes import draw_boxes
from siteless.report._experiment import (
    ablation_table,
    accuracy_table,
    biology_table,
    error_tables,
    leakage_table,
)
from siteless.report._glyphs import draw_fods
from siteless.report._maps import draw_maps
from siteless.report._tables import Table
from siteless.report._training import draw_training

__all__ = [
    "Table",
    "ablation_table",
    "accuracy_table",
    "biology_table",
    "draw_boxes",
    "draw_fods",
    "draw_maps",
    "draw_training",
    "error_tables",
    "leakage_table",
]
