"""What methods have made of a dataset, to scores: scan by scan, and of many scans together."""

from siteless.pipelines.evaluate._comparison import (
    Judged,
    find_judged,
    folder_name,
    read_sidecar_of_maps,
    set_contest,
)
from siteless.pipelines.evaluate._evaluate import KINDS, Evaluation, Kind, evaluate_dataset
from siteless.pipelines.evaluate._scan_scores import read_judged, read_judged_maps

__all__ = [
    "KINDS",
    "Evaluation",
    "Judged",
    "Kind",
    "evaluate_dataset",
    "find_judged",
    "folder_name",
    "read_judged",
    "read_judged_maps",
    "read_sidecar_of_maps",
    "set_contest",
]
