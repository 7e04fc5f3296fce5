"""Pipelines from files to files, run in parallel."""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names

if TYPE_CHECKING:
    from siteless.pipelines._check import CheckReport, check_dataset
    from siteless.pipelines._choice import processes_within
    from siteless.pipelines._run import Progress, Run, Stages
    from siteless.pipelines._simulate import simulate_cohort
    from siteless.pipelines.evaluate import (
        KINDS,
        Derivatives,
        Evaluation,
        Scoring,
        evaluate_dataset,
    )
    from siteless.pipelines.fit import FitFiles, adapt_model, fit_model
    from siteless.pipelines.harmonize import (
        Gradients,
        HarmonizeReport,
        RenderingOptions,
        encode_dataset,
        harmonize_dataset,
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
    "RenderingOptions",
    "Run",
    "Scoring",
    "Stages",
    "adapt_model",
    "check_dataset",
    "encode_dataset",
    "evaluate_dataset",
    "fit_model",
    "harmonize_dataset",
    "processes_within",
    "simulate_cohort",
    "write_report",
]

__getattr__ = lazy_names(
    __name__,
    {
        "_check": ("CheckReport", "check_dataset"),
        "_choice": ("processes_within",),
        "_run": ("Progress", "Run", "Stages"),
        "_simulate": ("simulate_cohort",),
        "evaluate": ("KINDS", "Derivatives", "Evaluation", "Scoring", "evaluate_dataset"),
        "fit": ("FitFiles", "adapt_model", "fit_model"),
        "harmonize": (
            *("Gradients", "HarmonizeReport", "RenderingOptions", "encode_dataset"),
            "harmonize_dataset",
        ),
        "report": ("write_report",),
    },
)
