"""Compare a harmonized scan with a scan of the target site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.evaluation._errors import relative_errors
from siteless.evaluation._peaks import Angles
from siteless.evaluation._score import WHITE_MATTER
from siteless.evaluation._signal import (
    anisotropy,
    block_means,
    match_volumes,
    noise_level,
    volume_groups,
    voxel_rmse,
)
from siteless.microstructure import compute_maps
from siteless.tissue import white_matter_level

Scores = dict[str, float]


@dataclass(frozen=True, eq=False)
class Target:
    """A scan of a participant at the target site, to compare with.

    Attributes
    ----------
    scan
        Scan measured at the target site.
    maps
        Maps to compare, keys of `siteless.microstructure.MAPS`.
    truth
        The same scan without noise, if simulated.
    regions
        Further masks by name, shape (x, y, z).
    """

    scan: Scan
    maps: Sequence[str] = ("fa", "md")
    truth: Scan | None = None
    regions: Mapping[str, Array] = field(default_factory=dict)

    @property
    def reference(self) -> Scan:
        """Reference for systematic errors: the truth, or else the scan."""
        return self.truth or self.scan

    @property
    def masks(self) -> dict[str, Array]:
        """Masks in which scores are computed: white matter, and each region."""
        return {WHITE_MATTER: self.scan.white_matter, **self.regions}

    @cached_property
    def level(self) -> float:
        """Reference b0 intensity of the scan."""
        return white_matter_level(self.scan)

    @cached_property
    def groups(self) -> dict[str, Array]:
        """Volumes of b0 and of each shell."""
        return volume_groups(self.scan.gradients)

    @cached_property
    def measured_maps(self) -> dict[str, Array]:
        """Maps of the scan within the masks."""
        return maps_within(self.scan, self.maps, self.masks.values())

    @cached_property
    def reference_maps(self) -> dict[str, Array]:
        """Maps of the reference within the masks."""
        if self.truth is None:
            return self.measured_maps
        return maps_within(self.truth, self.maps, self.masks.values())

    def noise(self, where: Array) -> Scores:
        """Return the errors of a perfect estimate, which are due to noise of the scan."""
        if self.truth is None:
            level = noise_level(self.scan, where)
            return {"rmse": level, "rmse_percent": 100 * level / self.level}
        perfect = score_signal(self.truth, self, where)
        return {name: value for name, value in perfect.items() if name.startswith("rmse")}


def maps_within(scan: Scan, names: Sequence[str], masks: Iterable[Array]) -> dict[str, Array]:
    """Compute maps of a scan in its brain, within white matter and some masks."""
    inside = np.logical_or.reduce([scan.white_matter, *masks])
    return compute_maps(replace(scan, mask=inside & scan.mask), names)


def score_signal(harmonized: Scan, target: Target, where: Array) -> Scores:
    """Score the signal of a scan at the target's volumes.

    Parameters
    ----------
    harmonized
        Harmonized scan on the target's grid, with its shells.
    target
        Target to compare with.
    where
        Voxels to score, shape (x, y, z), bool.

    Returns
    -------
    dict
        Scores by metric, see `describe_metric`.
    """
    harmonized = match_volumes(harmonized, target.scan.gradients)
    signal = harmonized.signal[where].astype(float)
    scores = {"level": target.level}
    for name, reference in (("rmse", target.scan), ("rmse_truth", target.truth)):
        if reference is not None:
            expected = reference.signal[where].astype(float)
            gain = _level(reference, target) / _level(harmonized, target)
            scores |= _voxel_scores(name, signal, expected, gain, target)
    return scores | _systematic_scores(signal, expected, gain, target, where)


def _level(scan: Scan, target: Target) -> float:
    """Return the reference b0 intensity of a scan in the target's white matter."""
    return white_matter_level(replace(scan, white_matter=target.scan.white_matter))


def _voxel_scores(
    name: str, signal: Array, expected: Array, gain: float, target: Target
) -> Scores:
    errors, matched = voxel_rmse(signal, expected), voxel_rmse(gain * signal, expected)
    shells = {
        f"{name}_{group}": float(voxel_rmse(signal[:, volumes], expected[:, volumes]).mean())
        for group, volumes in target.groups.items()
    }
    return {
        name: float(errors.mean()),
        f"{name}_median": float(np.median(errors)),
        f"{name}_p90": float(np.percentile(errors, 90)),
        f"{name}_percent": 100 * float(errors.mean()) / target.level,
        **shells,
        f"{name}_matched_percent": 100 * float(matched.mean()) / target.level,
    }


def _systematic_scores(
    signal: Array, expected: Array, gain: float, target: Target, where: Array
) -> Scores:
    scores = {
        f"shell_error_{group}": 100
        * float(signal[:, volumes].mean() / expected[:, volumes].mean() - 1)
        for group, volumes in target.groups.items()
    }
    scores["shell_error"] = float(np.abs(list(scores.values())).mean())
    averaging = block_means(where, target.scan.voxel_size)
    if not averaging.shape[0]:
        return scores
    blocks, true = averaging @ signal, averaging @ expected
    ratio = anisotropy(blocks, target.groups) / anisotropy(true, target.groups)
    block, matched = (
        100 * float(np.sqrt(np.square(factor * blocks - true).mean())) / target.level
        for factor in (1.0, gain)
    )
    scores |= {"block_percent": block, "block_matched_percent": matched}
    return scores | {"block_anisotropy": 100 * abs(ratio - 1)}


def score_maps(maps: Mapping[str, Array], target: Target, where: Array) -> Scores:
    """Score maps on the target's grid, shape (x, y, z), where they are finite."""
    scores: Scores = {}
    for name, estimate in maps.items():
        known = where & np.isfinite(estimate)
        if not known.any():
            continue
        estimated, measured, true = (
            image[known].astype(float)
            for image in (estimate, target.measured_maps[name], target.reference_maps[name])
        )
        errors = relative_errors(estimated, measured)
        scores |= {f"{name}_{kind}": value for kind, value in errors.items()}
        averaging = block_means(known, target.scan.voxel_size)
        if averaging.shape[0]:
            blocks, expected = averaging @ estimated, averaging @ true
            error = np.sqrt(np.square(blocks - expected).mean())
            scores[f"{name}_block_percent"] = 100 * float(error / expected.mean())
    return scores


def summarise_map(name: str, values: Array) -> Scores:
    """Summarize the distribution of a map over voxels, shape (voxel,)."""
    low, middle, high = np.percentile(values, (5, 50, 95))
    return {
        f"{name}_mean": float(values.mean(dtype=float)),
        f"{name}_sd": float(values.std(dtype=float)),
        f"{name}_p05": float(low),
        f"{name}_p50": float(middle),
        f"{name}_p95": float(high),
    }


def rmse_map(harmonized: Scan, target: Target) -> Array:
    """Return the error of each white-matter voxel, shape (x, y, z), NaN elsewhere."""
    signal = match_volumes(harmonized, target.scan.gradients).signal
    white = target.scan.white_matter
    errors = np.full(white.shape, np.nan, dtype=np.float32)
    errors[white] = voxel_rmse(signal[white], target.scan.signal[white])
    return errors


def score_angles(angles: Angles, inside: Array) -> Scores:
    """Summarize angles of fibres in a mask of voxels, shape (voxel,), bool."""
    scores: Scores = {}
    for name, degrees in (("closest", angles.closest), ("largest", angles.largest)):
        known = degrees[inside & np.isfinite(degrees)]
        if len(known):
            scores[f"angle_{name}_median"] = float(np.median(known))
            scores[f"angle_{name}_p90"] = float(np.percentile(known, 90))
    return scores
