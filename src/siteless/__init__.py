"""Remove what a scanner adds to a diffusion MRI scan.

The way data goes, a line a layer:

`acquisition`
    what a scan is: site, gradient table, shells, signal
`programs`
    programs beyond Python
`tissue`
    what a voxel is: tensor, brain and white-matter masks
`microstructure`
    signal to maps: FA, MD, MK, RTOP
`denoising`
    signal to signal with less noise
`registration`
    brains to a common space
`harmonics`
    signal to spherical-harmonic coefficients and back
`bids`
    disk to scans and back
`storage`
    files that appear whole or not at all
`model`
    what was learned, in one file, whatever the method
`methods`
    a scan and a target site to a scan, a room for each method
`simulation`
    travelling subjects with known truth
`preflight`
    what is wrong with scans
`evaluation`
    scans and codes to scores
`report`
    scores and scans to tables, pictures and pages
`pipelines`
    paths in, reports out
`experiments`
    the paper's experiment and the demo, in steps over the pipelines
`cli`
    words in, one pipeline call out
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siteless.acquisition import GradientTable, Scan, Shell, Site
    from siteless.bids import ScanSelection, find_scans, read_scan, write_scan
    from siteless.errors import SitelessError
    from siteless.experiments import reproduce_experiment
    from siteless.harmonics import Coefficients, fit_coefficients, project, rish
    from siteless.methods import harmonize, load_model
    from siteless.pipelines import (
        Derivatives,
        Run,
        Scoring,
        check_dataset,
        evaluate_dataset,
        fit_model,
        harmonize_dataset,
        write_report,
    )

__all__ = [
    "Coefficients",
    "Derivatives",
    "GradientTable",
    "Run",
    "Scan",
    "ScanSelection",
    "Scoring",
    "Shell",
    "Site",
    "SitelessError",
    "check_dataset",
    "evaluate_dataset",
    "find_scans",
    "fit_coefficients",
    "fit_model",
    "harmonize",
    "harmonize_dataset",
    "load_model",
    "project",
    "read_scan",
    "reproduce_experiment",
    "rish",
    "write_report",
    "write_scan",
]

_HOMES = {
    "acquisition": ("GradientTable", "Scan", "Shell", "Site"),
    "bids": ("ScanSelection", "find_scans", "read_scan", "write_scan"),
    "errors": ("SitelessError",),
    "experiments": ("reproduce_experiment",),
    "harmonics": ("Coefficients", "fit_coefficients", "project", "rish"),
    "methods": ("harmonize", "load_model"),
    "pipelines": (
        *("check_dataset", "evaluate_dataset", "fit_model", "harmonize_dataset"),
        *("Derivatives", "Run", "Scoring", "write_report"),
    ),
}


def __getattr__(name: str) -> Any:
    # Names are imported when first used: `siteless --help` must not wait for nibabel and scipy.
    for layer, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"siteless.{layer}"), name)
    raise AttributeError(f"module 'siteless' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
