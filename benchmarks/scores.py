"""How far is a harmonized scan from the target? The columns of the benchmarks.

`siteless.evaluation` computes the scores; here are those that benchmarks show, and the simulated
cohorts that they are computed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, find_scans, read_scan, read_signal
from siteless.evaluation import (
    Target,
    lesion_contrast,
    maps_within,
    score_maps,
    score_signal,
)

LESION = "lesion"
# The decimals and the meaning of each score. All are in the target's white matter.
SCORES = {
    "scan": (2, "RMSE to the target scan, % of its median b0"),
    "truth": (2, "RMSE to the noiseless target, % of the scan's median b0"),
    "block": (2, "block means of the signal: RMS error to the noiseless target's, % of that b0"),
    "block-fa": (2, "block means of FA: RMS error to the noiseless target's, % of their mean"),
    "block-md": (2, "block means of MD: RMS error to the noiseless target's, % of their mean"),
    "shell": (2, "means of b0 and of each shell: mean error to the noiseless target's, %"),
    "anisotropy": (2, "anisotropy of block means: error to the noiseless target's, %"),
    "cv-fa": (2, "FA of voxels: coefficient of variation to the target scan, %"),
    "cv-md": (2, "MD of voxels: coefficient of variation to the target scan, %"),
    "lesion": (3, "MD in lesions over MD around them, over the noiseless target's; 0.5 if erased"),
}
# The metric that each score shows, and the factor that multiplies it.
_METRICS = {
    "scan": ("rmse_percent", 1),
    "truth": ("rmse_truth_percent", 1),
    "block": ("block_percent", 1),
    "block-fa": ("fa_block_percent", 1),
    "block-md": ("md_block_percent", 1),
    "shell": ("shell_error", 1),
    "anisotropy": ("block_anisotropy", 1),
    "cv-fa": ("fa_cv", 100),
    "cv-md": ("md_cv", 100),
}


def read_targets(
    dataset: Path, *, split: str | None = None, scans: Path | None = None
) -> dict[tuple[str, str], Target]:
    """Read a simulated cohort's scans and truth, by person and session, which names the site.

    Parameters
    ----------
    dataset
        As it was simulated.
    split
        Of the people; everybody by default.
    scans
        A copy of the dataset that the scans are read from; the dataset itself by default.
    """
    targets = {}
    for files in find_scans(scans or dataset).scans:
        if split in (None, files.attributes["split"]):
            scan = read_scan(files)
            truth = scan.with_signal(read_signal(noiseless_path(dataset, files))[0])
            regions = _read_lesion(dataset, files)
            targets[files.subject, files.entities["ses"]] = Target(
                scan, truth=truth, regions=regions
            )
    return targets


def noiseless_path(dataset: Path, files: ScanFiles) -> Path:
    """Return where a simulated cohort has a scan without noise."""
    parts = files.dwi.parent.parts[-3:]
    folder = dataset.joinpath("derivatives", "truth", *parts)
    return folder / files.name.replace("_dwi", "_desc-noiseless_dwi.nii.gz")


def _read_lesion(dataset: Path, files: ScanFiles) -> dict[str, Array]:
    person = f"sub-{files.subject}"
    folder = dataset / "derivatives" / "truth" / person / "dwi"
    path = folder / f"{person}_label-lesion_mask.nii.gz"
    return {LESION: read_signal(path)[0] > 0} if path.exists() else {}


def score_given(given: Scan | Mapping[str, Array], target: Target) -> dict[str, float]:
    """Score a scan on the target's grid, or maps of FA and MD where there is no signal."""
    white, signal = target.scan.white_matter, {}
    if isinstance(given, Scan):
        signal = score_signal(given, target, white)
        given = maps_within(given, target.maps, target.masks.values())
    values = signal | score_maps(given, target, white)
    scores = {
        name: factor * values[metric]
        for name, (metric, factor) in _METRICS.items()
        if metric in values
    }
    if LESION in target.regions:
        scores["lesion"] = score_lesion(given["md"], target)
    return scores


def score_lesion(md: Array, target: Target) -> float:
    """Return by how much lesions stand out, relative to the noiseless target: 1 is best."""
    masks = target.regions[LESION], target.scan.white_matter
    measured, true = (
        lesion_contrast(values, *masks) for values in (md, target.reference_maps["md"])
    )
    return measured / true
