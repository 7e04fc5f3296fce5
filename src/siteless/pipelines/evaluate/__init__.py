"""Score harmonized datasets: single scans, and groups of scans."""

from siteless.pipelines.evaluate._comparison import (
    Derivatives,
    RenderedScan,
    find_renderings,
    folder_name,
    pair_scans,
)
from siteless.pipelines.evaluate._evaluate import Evaluation, evaluate_dataset
from siteless.pipelines.evaluate._figures import Figures
from siteless.pipelines.evaluate._measures import KINDS, Kind, Scoring
from siteless.pipelines.evaluate._scan_scores import read_rendered_maps, read_rendered_scan

__all__ = [
    "KINDS",
    "Derivatives",
    "Evaluation",
    "Figures",
    "Kind",
    "RenderedScan",
    "Scoring",
    "evaluate_dataset",
    "find_renderings",
    "folder_name",
    "pair_scans",
    "read_rendered_maps",
    "read_rendered_scan",
]
