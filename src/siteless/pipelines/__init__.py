"""Paths in, paths or reports out: where disk, mathematics and parallelism meet."""

from siteless.pipelines._check import CheckReport, check_dataset, write_report
from siteless.pipelines._simulate import simulate_cohort

__all__ = ["CheckReport", "check_dataset", "simulate_cohort", "write_report"]
