"""Tables, plots and pages of scores and scans."""

from siteless.report._boxes import draw_boxes
from siteless.report._comparison import Comparison, compare_methods
from siteless.report._experiment import (
    ablation_table,
    accuracy_table,
    biology_table,
    error_tables,
    leakage_table,
)
from siteless.report._glyphs import draw_fods
from siteless.report._group import Study
from siteless.report._maps import draw_maps
from siteless.report._niivue import find_niivue
from siteless.report._profiles import draw_profiles, profiles_url
from siteless.report._subject import subject_page
from siteless.report._summary import SCALES, ScanSummary, flag_scans
from siteless.report._tables import Table
from siteless.report._training import draw_training
from siteless.report._viewer import ViewedScan, viewer_html
from siteless.report._volume import Volume

__all__ = [
    "SCALES",
    "Comparison",
    "ScanSummary",
    "Study",
    "Table",
    "ViewedScan",
    "Volume",
    "ablation_table",
    "accuracy_table",
    "biology_table",
    "compare_methods",
    "draw_boxes",
    "draw_fods",
    "draw_maps",
    "draw_profiles",
    "draw_training",
    "error_tables",
    "find_niivue",
    "flag_scans",
    "leakage_table",
    "profiles_url",
    "subject_page",
    "viewer_html",
]
