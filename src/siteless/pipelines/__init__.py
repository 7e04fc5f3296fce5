"""Paths in, paths or reports out: where disk, mathematics and parallelism meet."""

from siteless.pipelines._check import CheckReport, check_dataset, write_report
from siteless.pipelines._encode import encode_dataset
from siteless.pipelines._fit import FitFiles, fit_model
from siteless.pipelines._simulate import simulate_cohort

__all__ = [
    "CheckReport",
    "FitFiles",
    "check_dataset",
    "encode_dataset",
    "fit_model",
    "simulate_cohort",
    "write_report",
]
