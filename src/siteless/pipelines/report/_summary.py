"""Summarize a scan before and after for a report, with volumes to view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from siteless.acquisition import Array, Scan, same_shells
from siteless.bids import (
    ScanFiles,
    derivative_path,
    read_header,
    read_scan,
    read_signal,
    sidecar_of,
)
from siteless.errors import errors_at
from siteless.microstructure import compute_maps
from siteless.pipelines._choice import read_number
from siteless.pipelines.evaluate import RenderedScan, read_rendered_maps, read_rendered_scan
from siteless.report import SCALES, ScanSummary, ViewedScan, Volume
from siteless.tissue import fit_tensor, white_matter_level

# Bins of the curves of a map's voxels.
_BINS = 60
_COLOURS = "red left-right, green front-back, blue up-down"
# FA below which a direction is meaningless.
_ISOTROPIC = 0.15
# Largest number of voxels of a volume in a page; finer ones are averaged.
_MOST_VOXELS = 500_000
# Ends of scales: differences of the signal and its uncertainty, % of white-matter b0; degrees.
_SIGNAL_DIFFERENCE, _UNCERTAIN, _TURNED = 20.0, 15.0, 45.0


@dataclass(frozen=True, eq=False)
class _Images:
    """Images of a scan for a page."""

    maps: Mapping[str, Array]  # by name, shape (x, y, z)
    principal: Array | None = None  # fibre direction, world axes, (x, y, z, 3); None for maps
    bs: tuple[float, ...] = ()
    means: tuple[Array, ...] = ()  # of b0 and of the shells, % of white-matter b0


def summarize_scan(rendered: RenderedScan) -> tuple[ScanSummary, ViewedScan]:
    """Return the summary of a scan, and volumes of it before and after."""
    with errors_at((rendered.image or rendered.source).dwi):
        source = read_scan(rendered.source)
        before, after, uncertain = _read_images(rendered, source)
        name = scan_name(rendered.source)
        summary = ScanSummary(
            name=name,
            subject=rendered.source.subject,
            site=str(rendered.source.site),
            to=rendered.to,
            age=read_number(rendered.source.attributes.get("age")),
            unfamiliar=rendered.read_sidecar().get("SitelessFound", {}).get("Unfamiliar"),
            **_numbers(before, after, source.white_matter),
        )
        volumes = dict(_volumes(before, after, source, uncertain))
        return summary, ViewedScan(f"{name}, {rendered.source.site}", volumes)


def _read_images(rendered: RenderedScan, source: Scan) -> tuple[_Images, _Images, Array | None]:
    """Return images before and after, and the uncertainty of the signal if it was written."""
    if not rendered.image:
        maps = read_rendered_maps(rendered, source)
        return _Images(compute_maps(source, list(maps))), _Images(maps), None
    header, affine = read_header(rendered.image.dwi)
    shape, remedy = header.get_data_shape()[:3], "give renderings that were not resampled"
    with errors_at(rendered.image.dwi):
        source.require_grid(shape, affine, what="a scan", remedy=remedy)
    scan = read_rendered_scan(rendered)
    return _images(source), _images(scan), _uncertainty(rendered, scan)


def scan_name(files: ScanFiles) -> str:
    """Return a unique name of a scan; file names may not be unique."""
    return derivative_path(Path(), "scan", files.entities).name.removesuffix("_dwi.nii.gz")


def files_beside(rendered: RenderedScan) -> list[Path]:
    """Return further files that a summary depends on; they may not exist."""
    if rendered.image:
        return [_uncertainty_path(rendered.image, rendered.source)]
    return [path for image in rendered.maps.values() for path in (image, sidecar_of(image))]


def _uncertainty_path(image: ScanFiles, source: ScanFiles) -> Path:
    return image.dwi.with_name(derivative_path(Path(), "spread", source.entities).name)


def _images(scan: Scan) -> _Images:
    with threadpool_limits(1, user_api="blas"):  # sums over several threads round differently
        tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
    maps = {"fa": _on_grid(scan, tensor.fa), "md": _on_grid(scan, tensor.md)}
    shells, level = scan.gradients.shells, white_matter_level(scan)
    groups = [np.flatnonzero(scan.gradients.is_b0), *(shell.volumes for shell in shells)]
    means = (scan.volumes[np.ix_(v, scan.voxels)].mean(axis=0, dtype=float) for v in groups)
    percent = tuple(100 * _on_grid(scan, mean) / level for mean in means)
    principal = _on_grid(scan, tensor.principal)
    return _Images(maps, principal, tuple(shell.b for shell in shells), percent)


def _on_grid(scan: Scan, values: Array) -> Array:
    """Place values of brain voxels on the grid, zero elsewhere."""
    grid = np.zeros((*scan.mask.shape, *values.shape[1:]), dtype=np.float32)
    grid.swapaxes(0, 2)[scan.mask.T] = values
    return grid


def _numbers(before: _Images, after: _Images, white: Array) -> dict[str, Any]:
    """Return the white-matter statistics of a summary."""
    names = [name for name in SCALES if name in after.maps]
    pairs = {name: _known(before.maps[name][white], after.maps[name][white]) for name in names}
    changes = [np.mean(np.square(a[white] - b[white])) for a, b in _shell_pairs(before, after)]
    return {
        "before": {name: float(pair[0].mean(dtype=float)) for name, pair in pairs.items()},
        "after": {name: float(pair[1].mean(dtype=float)) for name, pair in pairs.items()},
        "curves": {n: tuple(_density(v, n) for v in pair) for n, pair in pairs.items()},
        "likeness": {name: _correlation(*pair) for name, pair in pairs.items()},
        "change": float(np.sqrt(np.mean(changes))) if changes else None,
    }


def _known(before: Array, after: Array) -> tuple[Array, Array]:
    both = np.isfinite(before) & np.isfinite(after)
    return before[both], after[both]


def _correlation(before: Array, after: Array) -> float:
    """Return the correlation of voxels, NaN if either is constant."""
    if not (before.size and before.std() and after.std()):
        return float("nan")
    return float(np.corrcoef(before, after)[0, 1])


def _shell_pairs(before: _Images, after: _Images) -> list[tuple[Array, Array]]:
    """Return means of b0 and of shells before and after; empty if shells differ."""
    if not same_shells(before.bs, after.bs):
        return []
    return list(zip(before.means, after.means, strict=True))


def _density(values: Array, name: str) -> list[float]:
    scale = SCALES[name]
    shown = (scale.factor * values).clip(*scale.usual)
    counts = np.histogram(shown, _BINS, scale.usual)[0]
    return [round(float(part), 5) for part in counts / max(1, counts.sum())]


def _uncertainty(rendered: RenderedScan, scan: Scan) -> Array | None:
    """Return the standard deviation of the signal, % of white-matter b0; None if not written.

    It is NaN in voxels that were scaled, not rendered.
    """
    if rendered.image is None:
        return None
    path = _uncertainty_path(rendered.image, rendered.source)
    if not path.exists():
        return None
    deviation = np.sqrt(np.square(read_signal(path)[0]).mean(axis=3))
    return np.where(deviation > 0, 100 * deviation / white_matter_level(scan), np.nan)


def _volumes(
    before: _Images, after: _Images, source: Scan, uncertain: Array | None
) -> Iterator[tuple[str, dict[str, Volume]]]:
    """Yield panels by title."""
    grid = _PageGrid(source)
    doubt = {}
    if uncertain is not None:
        doubt = {"uncertainty": grid.volume(uncertain, 0, _UNCERTAIN, "% of b0", "viridis")}
    for name, scale in SCALES.items():
        if name in after.maps:
            pair = scale.factor * before.maps[name], scale.factor * after.maps[name]
            panels = _compared(grid, pair, scale.ends, scale.difference, scale.unit)
            yield scale.title, {**panels, **doubt}
    if before.principal is not None and after.principal is not None:
        cosine = np.abs((before.principal * after.principal).sum(axis=-1)).clip(0, 1)
        lined = np.minimum(before.maps["fa"], after.maps["fa"]) > _ISOTROPIC
        turned = np.where(lined, np.degrees(np.arccos(cosine)), np.nan)
        panels = {
            "before": grid.colours(before.principal, before.maps["fa"]),
            "after": grid.colours(after.principal, after.maps["fa"]),
            "difference": grid.volume(turned, 0, _TURNED, "degrees", "magma"),
        }
        yield "fibre directions", {**panels, **doubt}
    names = ["b0", *(f"b={b:.0f}" for b in before.bs)]
    for name, pair in zip(names, _shell_pairs(before, after), strict=False):
        top = float(np.percentile(pair[1][source.mask], 99)) if source.mask.any() else 0.0
        unit, ends = "% of white matter's b0", (0.0, max(1.0, round(top)))
        panels = _compared(grid, pair, ends, _SIGNAL_DIFFERENCE, unit)
        yield f"signal, {name}", {**panels, **doubt}


def _compared(
    grid: _PageGrid,
    pair: tuple[Array, Array],
    ends: tuple[float, float],
    largest: float,
    unit: str,
) -> dict[str, Volume]:
    before, after = (grid.volume(values, *ends, unit) for values in pair)
    change = grid.volume(pair[1] - pair[0], -largest, largest, unit, "RdBu_r")
    return {"before": before, "after": after, "difference": change}


class _PageGrid:
    """The grid of a brain, coarsened for a page."""

    def __init__(self, scan: Scan) -> None:
        voxels = max(1, int(scan.mask.sum()))
        self.mask = scan.mask
        self.step = int(np.ceil((voxels / _MOST_VOXELS) ** (1 / 3)))
        self.affine = scan.affine.copy()
        self.affine[:3, 3] += scan.affine[:3, :3] @ np.full(3, (self.step - 1) / 2)
        self.affine[:3, :3] *= self.step

    def volume(
        self, values: Array, low: float, high: float, unit: str, colours: str = "gray"
    ) -> Volume:
        inside = np.where(self.mask, values, np.nan)
        return Volume(self._coarsen(inside), self.affine, low, high, unit, colours)

    def colours(self, directions: Array, fa: Array) -> Volume:
        """Return fibre directions as colours, with FA as brightness."""
        bright = np.abs(directions) * fa[..., None].clip(0, 1)
        inside = np.where(self.mask[..., None], bright, np.nan)
        return Volume(np.nan_to_num(self._coarsen(inside)), self.affine, unit=_COLOURS)

    def _coarsen(self, values: Array) -> Array:
        """Return block means over voxels in the brain."""
        if self.step == 1:
            return values
        pads = [(0, -size % self.step) for size in values.shape[:3]]
        padded = np.pad(values, [*pads, *[(0, 0)] * (values.ndim - 3)], constant_values=np.nan)
        split = [part for size in padded.shape[:3] for part in (size // self.step, self.step)]
        blocks = padded.reshape(*split, *padded.shape[3:])
        known = np.isfinite(blocks)
        count = known.sum(axis=(1, 3, 5))
        total = np.where(known, blocks, 0).sum(axis=(1, 3, 5))
        return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
