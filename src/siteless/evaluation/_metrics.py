"""Descriptions of metrics."""

from __future__ import annotations

import re

from siteless.microstructure import MAPS

_SIGNAL = "arbitrary (of the target scan)"
# Unit and description of a metric by its name. Errors are those of the voxels in a region.
_MEANINGS = {
    r"level": (_SIGNAL, "median b0 of the target's white matter"),
    r"rmse": (_SIGNAL, "root mean square error over the target's volumes, mean over voxels"),
    r"rmse_truth": (_SIGNAL, "root mean square error to the noiseless target, mean over voxels"),
    r"rmse(_truth)?_median": (_SIGNAL, "root mean square error, median over voxels"),
    r"rmse(_truth)?_p90": (_SIGNAL, "root mean square error, 90th percentile over voxels"),
    r"rmse(_truth)?_percent": ("%", "the mean, of the median b0 of the target's white matter"),
    r"rmse(_truth)?_matched_percent": (
        "%",
        "the same, of the scan at the target's level: the gain of one scan does not count",
    ),
    r"rmse(_truth)?_b\d+": (_SIGNAL, "over the volumes of b0 or of a shell, mean over voxels"),
    r"shell_error_b\d+": ("%", "error of the mean over voxels of b0 or of a shell"),
    r"shell_error": ("%", "mean size of the errors of b0 and of each shell"),
    r"block_percent": ("%", "root mean square error of the signal's 10 mm block means"),
    r"block_matched_percent": ("%", "the same, of the scan at the target's level"),
    r"block_anisotropy": (
        "%",
        "error of how much the strongest shell of block means differs between directions",
    ),
    r"angle_closest_median": ("degree", "largest FOD maximum to the closest of the target's"),
    r"angle_closest_p90": ("degree", "the same, 90th percentile over voxels"),
    r"angle_largest_median": ("degree", "largest FOD maximum to the largest of the target's"),
    r"angle_largest_p90": ("degree", "the same, 90th percentile over voxels"),
    r"leakage_accuracy": ("1", "share of voxels whose source site an adversary names rightly"),
    r"leakage_chance": ("1", "what guessing gives"),
    r"leakage_nats": ("nat", "lower bound on the information of a voxel about its source site"),
    r"leakage_accuracy_(low|high)": ("1", "95 % interval over people"),
    r"leakage_nats_(low|high)": ("nat", "95 % interval over people"),
}
# Unit and description of a map's metric; {} is the map, and an empty unit that of the map.
_OF_MAPS = {
    "pe": ("1", "{}: mean of (estimated - observed) / observed"),
    "ape": ("1", "{}: mean of |estimated - observed| / |observed|"),
    "pe_median": ("1", "{}: median of (estimated - observed) / observed"),
    "ape_median": ("1", "{}: median of |estimated - observed| / |observed|"),
    "ape_floored": ("1", "{}: mean of |estimated - observed| / max(|observed|, mean / 10)"),
    "cv": ("1", "{}: root mean square of estimated - observed, over the mean of observed"),
    "block_percent": ("%", "{}: root mean square error of 10 mm block means, of their mean"),
    "mean": ("", "{}: mean over voxels"),
    "sd": ("", "{}: standard deviation over voxels"),
    "p05": ("", "{}: 5th percentile over voxels"),
    "p50": ("", "{}: median over voxels"),
    "p95": ("", "{}: 95th percentile over voxels"),
    "contrast": ("1", "{}: mean in a lesion over the mean in white matter around it"),
    "age_slope": ("per year", "{}: change of a scan's mean with age"),
    "age_slope_low": ("per year", "{}: lower end of its 95 % interval over people"),
    "age_slope_high": ("per year", "{}: upper end of its 95 % interval over people"),
    "change_per_year": ("per year", "{}: change of the mean within a person, mean over people"),
    "change_per_year_low": ("per year", "{}: lower end of its 95 % interval over people"),
    "change_per_year_high": ("per year", "{}: upper end of its 95 % interval over people"),
    "icc_agreement": ("1", "{}: intraclass correlation of people's means between sites, ICC(A,1)"),
    "icc_consistency": ("1", "{}: the same but for offsets of sites, ICC(C,1)"),
    "sd_people": ("", "{}: standard deviation of means between people"),
    "sd_sites": ("", "{}: standard deviation of means between sites"),
    "site_ks": ("1", "{}: largest Kolmogorov-Smirnov distance of voxels between two sites"),
    "site_d": ("1", "{}: largest standardised difference of means between two sites (Cohen's d)"),
}


def describe_metric(name: str) -> tuple[str, str]:
    """Return the unit and the description of a metric.

    Examples
    --------
    >>> describe_metric("md_mean")
    ('mm2/s', 'md: mean over voxels')
    """
    for pattern, meaning in _MEANINGS.items():
        if re.fullmatch(pattern, name):
            return meaning
    shown, _, kind = name.partition("_")
    unit, text = _OF_MAPS[kind]
    return unit or MAPS[shown].units, text.format(shown)
