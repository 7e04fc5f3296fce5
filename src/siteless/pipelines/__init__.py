"""Paths in, paths or reports out: where disk, mathematics and parallelism meet."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siteless.pipelines._adapt import adapt_model
    from siteless.pipelines._check import CheckReport, check_dataset, write_check
    from siteless.pipelines._choice import fingerprint, processes_within
    from siteless.pipelines._encode import encode_dataset
    from siteless.pipelines._fit import fit_model
    from siteless.pipelines._harmonize import Gradients, HarmonizeReport, harmonize_dataset
    from siteless.pipelines._learn import FitFiles
    from siteless.pipelines._run import Progress, Run, Stages
    from siteless.pipelines._simulate import simulate_cohort
    from siteless.pipelines.evaluate import (
        KINDS,
        Derivatives,
        Evaluation,
        Scoring,
        evaluate_dataset,
    )
    from siteless.pipelines.report import write_report

__all__ = [
    "KINDS",
    "CheckReport",
    "Derivatives",
    "Evaluation",
    "FitFiles",
    "Gradients",
    "HarmonizeReport",
    "Progress",
    "Run",
    "Scoring",
    "Stages",
    "adapt_model",
    "check_dataset",
    "encode_dataset",
    "evaluate_dataset",
    "fingerprint",
    "fit_model",
    "harmonize_dataset",
    "processes_within",
    "simulate_cohort",
    "write_check",
    "write_report",
]

_HOMES = {
    "_adapt": ("adapt_model",),
    "_check": ("CheckReport", "check_dataset", "write_check"),
    "_choice": ("fingerprint", "processes_within"),
    "_encode": ("encode_dataset",),
    "evaluate": ("KINDS", "Derivatives", "Evaluation", "Scoring", "evaluate_dataset"),
    "_fit": ("fit_model",),
    "_harmonize": ("Gradients", "HarmonizeReport", "harmonize_dataset"),
    "_learn": ("FitFiles",),
    "_run": ("Progress", "Run", "Stages"),
    "_simulate": ("simulate_cohort",),
    "report": ("write_report",),
}


def __getattr__(name: str) -> Any:
    # Imported when first used: checking and simulating, in many processes, do without torch.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"siteless.pipelines.{home}"), name)
    raise AttributeError(f"module 'siteless.pipelines' has no attribute {name!r}")
