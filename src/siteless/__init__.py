"""Remove what a scanner adds to a diffusion MRI scan.

The layers, in the direction of the data flow::

    acquisition     scans: site, gradient table, shells, signal
    programs        external programs
    tissue          tensors, brain and white-matter masks
    microstructure  maps of the signal: FA, MD, MK, RTOP
    denoising       denoising of the signal
    registration    registration to a common space
    harmonics       conversion between signal and spherical-harmonic coefficients
    bids            reading and writing of scans
    storage         atomic writing of files
    model           trained models of any method, in one file
    methods         harmonization methods, which render a scan as a target site
    simulation      travelling subjects with known truth
    preflight       checks of scans
    evaluation      scores of scans and latent codes
    report          tables, pictures and pages
    pipelines       pipelines from files to files
    experiments     the paper's experiment and the demo
    cli             the command line
"""

from typing import TYPE_CHECKING

from siteless._lazy import lazy_names

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

# Names are imported when first used: `siteless --help` must not wait for nibabel and scipy.
__getattr__ = lazy_names(
    __name__,
    {
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
    },
)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
