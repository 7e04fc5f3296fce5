"""A scan before and after: numbers for a report, and volumes to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from siteless.acquisition import GRID_TOLERANCE, Array, Scan, grid_offset, same_shells
from siteless.bids import (
    ScanFiles,
    derivative_path,
    read_header,
    read_scan,
    read_sidecar,
    read_signal,
    sidecar_of,
)
from siteless.errors import MaskError, errors_at
from siteless.microstructure import compute_maps
from siteless.pipelines._choice import read_number
from siteless.pipelines.evaluate._comparison import Judged, read_sidecar_of_maps
from siteless.pipelines.evaluate._scan_scores import read_judged, read_judged_maps
from siteless.report import SCALES, Portrait, ViewedScan, Volume
from siteless.tissue import fit_tensor, white_matter_level

# Of the curves of a map's voxels.
_BINS = 60
_COLOURS = "red left-right, green front-back, blue up-down"
# FA below which a direction says nothing.
_ISOTROPIC = 0.15
# Voxels of a volume in a page, at most; finer ones are averaged.
_MOST_VOXELS = 500_000
# Ends of scales: differences of the signal and its uncertainty, % of white-matter b0; degrees.
_SIGNAL_DIFFERENCE, _UNCERTAIN, _TURNED = 20.0, 15.0, 45.0


@dataclass(frozen=True, eq=False)
class _Looks:
    """What is shown of a scan.

    Attributes
    ----------
    maps
        By name, shape (x, y, z).
    principal
        Fibre direction, world axes, shape (x, y, z, 3); None of a method that gives maps.
    bs
        b-values of the shells, s/mm2.
    means
        Of b0 and of the shells, in per cent of white-matter b0, shape (x, y, z) each.
    """

    maps: Mapping[str, Array]
    principal: Array | None = None
    bs: tuple[float, ...] = ()
    means: tuple[Array, ...] = ()


def portray(one: Judged) -> tuple[Portrait, ViewedScan]:
    """Return the numbers of a scan, and volumes of it before and after."""
    with errors_at((one.image or one.source).dwi):
        return _portray(one)


def _portray(one: Judged) -> tuple[Portrait, ViewedScan]:
    own = read_scan(one.source)
    rendered = _read_rendered(one, own) if one.image else None
    after = _look(rendered) if rendered else _Looks(read_judged_maps(one, own))
    before = _look(own) if rendered else _Looks(compute_maps(own, list(after.maps)))
    portrait = Portrait(
        name=name_of(one.source),
        subject=one.source.subject,
        site=str(one.source.site),
        to=one.to,
        age=read_number(one.source.attributes.get("age")),
        unfamiliar=told_of(one).get("SitelessFound", {}).get("Unfamiliar"),
        **_numbers(before, after, own.white_matter),
    )
    volumes = dict(_volumes(before, after, own, _uncertainty(one, rendered)))
    return portrait, ViewedScan(f"{name_of(one.source)}, {one.source.site}", volumes)


def name_of(files: ScanFiles) -> str:
    """Return what tells a scan from the others: files of many scans may have one name."""
    return derivative_path(Path(), "scan", files.entities).name.removesuffix("_dwi.nii.gz")


def told_of(one: Judged) -> dict[str, Any]:
    """Return what the sidecar of a harmonized scan, or of its first map, says."""
    return read_sidecar(one.image) if one.image else read_sidecar_of_maps(one.maps)


def beside_of(one: Judged) -> list[Path]:
    """Return the files that a portrait depends on, beside the scans; some may not be there."""
    if one.image:
        return [_spread(one)]
    return [path for own in one.maps.values() for path in (own, sidecar_of(own))]


def _read_rendered(one: Judged, own: Scan) -> Scan:
    """Read a rendered scan, which must be on the grid of its source."""
    assert one.image is not None
    header, affine = read_header(one.image.dwi)
    shape, found = own.mask.shape, header.get_data_shape()[:3]
    if found != shape or grid_offset(affine, own.affine, shape) > GRID_TOLERANCE:
        raise MaskError(
            f"expected a scan on the grid of {own.name}, {shape} voxels, found another of {found}",
            remedy="give renderings that were not resampled",
            path=one.image.dwi,
        )
    return read_judged(one)


def _look(scan: Scan) -> _Looks:
    with threadpool_limits(1, user_api="blas"):  # sums by threads would change the last bits
        tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
    maps = {"fa": _on_grid(scan, tensor.fa), "md": _on_grid(scan, tensor.md)}
    b0 = np.flatnonzero(scan.gradients.is_b0)
    shells = scan.gradients.shells
    means = [_mean(scan, volumes) for volumes in (b0, *(shell.volumes for shell in shells))]
    level = white_matter_level(scan)
    return _Looks(
        maps,
        _on_grid(scan, tensor.principal),
        tuple(shell.b for shell in shells),
        tuple(100 * mean / level for mean in means),
    )


def _mean(scan: Scan, volumes: Array) -> Array:
    """Return the mean of some volumes in the brain, shape (x, y, z)."""
    return _on_grid(scan, scan.volumes[np.ix_(volumes, scan.voxels)].mean(axis=0, dtype=float))


def _on_grid(scan: Scan, values: Array) -> Array:
    """Put values of brain voxels where they are, zero elsewhere."""
    grid = np.zeros((*scan.mask.shape, *values.shape[1:]), dtype=np.float32)
    grid.swapaxes(0, 2)[scan.mask.T] = values
    return grid


def _numbers(before: _Looks, after: _Looks, white: Array) -> dict[str, Any]:
    """Return what is measured in white matter."""
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
    """Return the correlation of voxels, NaN where one of the two does not vary."""
    if not (before.size and before.std() and after.std()):
        return float("nan")
    return float(np.corrcoef(before, after)[0, 1])


def _shell_pairs(before: _Looks, after: _Looks) -> list[tuple[Array, Array]]:
    """Return means of b0 and of shells before and after; none if shells are not the same."""
    if not same_shells(before.bs, after.bs):
        return []
    return list(zip(before.means, after.means, strict=True))


def _density(values: Array, name: str) -> list[float]:
    scale = SCALES[name]
    shown = (scale.factor * values).clip(*scale.usual)
    counts = np.histogram(shown, _BINS, scale.usual)[0]
    return [round(float(part), 5) for part in counts / max(1, counts.sum())]


def _uncertainty(one: Judged, rendered: Scan | None) -> Array | None:
    """Return the standard deviation of the signal, % of white-matter b0; None when not told.

    It is NaN where nothing tells it: in voxels that were scaled, not rendered.
    """
    if rendered is None or not _spread(one).exists():
        return None
    spread = np.sqrt(np.square(read_signal(_spread(one))[0]).mean(axis=3))
    return np.where(spread > 0, 100 * spread / white_matter_level(rendered), np.nan)


def _spread(one: Judged) -> Path:
    """Return where the uncertainty of a rendered scan is, if it was written."""
    assert one.image is not None
    return one.image.dwi.with_name(derivative_path(Path(), "spread", one.source.entities).name)


def _volumes(
    before: _Looks, after: _Looks, own: Scan, uncertain: Array | None
) -> Iterator[tuple[str, dict[str, Volume]]]:
    """Yield panels by what they show."""
    frame = _Frame(own)
    doubt = (
        {}
        if uncertain is None
        else {"uncertainty": frame.volume(uncertain, 0, _UNCERTAIN, "% of b0", "viridis")}
    )
    for name, scale in SCALES.items():
        if name in after.maps:
            pair = scale.factor * before.maps[name], scale.factor * after.maps[name]
            shown = _compared(frame, pair, scale.ends, scale.difference, scale.unit)
            yield scale.title, {**shown, **doubt}
    if before.principal is not None and after.principal is not None:
        shown = {"before": frame.colours(before), "after": frame.colours(after)}
        turned = frame.volume(_turned(before, after), 0, _TURNED, "degrees", "magma")
        yield "fibre directions", {**shown, "difference": turned, **doubt}
    names = ["b0", *(f"b={b:.0f}" for b in before.bs)]
    for name, pair in zip(names, _shell_pairs(before, after), strict=False):
        top = float(np.percentile(pair[1][own.mask], 99)) if own.mask.any() else 0.0
        unit, ends = "% of white matter's b0", (0.0, max(1.0, round(top)))
        shown = _compared(frame, pair, ends, _SIGNAL_DIFFERENCE, unit)
        yield f"signal, {name}", {**shown, **doubt}


def _compared(
    frame: _Frame, pair: tuple[Array, Array], ends: tuple[float, float], largest: float, unit: str
) -> dict[str, Volume]:
    before, after = (frame.volume(values, *ends, unit) for values in pair)
    change = frame.volume(pair[1] - pair[0], -largest, largest, unit, "RdBu_r")
    return {"before": before, "after": after, "difference": change}


def _turned(before: _Looks, after: _Looks) -> Array:
    """Return the angle between fibres before and after, degrees; NaN where there is none."""
    assert before.principal is not None
    assert after.principal is not None
    cosine = np.abs((before.principal * after.principal).sum(axis=-1)).clip(0, 1)
    lined = np.minimum(before.maps["fa"], after.maps["fa"]) > _ISOTROPIC
    return np.where(lined, np.degrees(np.arccos(cosine)), np.nan)


class _Frame:
    """The brain of a scan, as coarse as a page needs."""

    def __init__(self, scan: Scan) -> None:
        voxels = max(1, int(scan.mask.sum()))
        self.mask = scan.mask
        self.step = int(np.ceil((voxels / _MOST_VOXELS) ** (1 / 3)))
        self.affine = _coarse_affine(scan.affine, self.step)

    def volume(
        self, values: Array, low: float, high: float, unit: str, colours: str = "gray"
    ) -> Volume:
        inside = np.where(self.mask, values, np.nan)
        return Volume(self._coarsen(inside), self.affine, low, high, unit, colours)

    def colours(self, looks: _Looks) -> Volume:
        """Return fibre directions as colours, as bright as FA."""
        assert looks.principal is not None
        bright = np.abs(looks.principal) * looks.maps["fa"][..., None].clip(0, 1)
        inside = np.where(self.mask[..., None], bright, np.nan)
        return Volume(np.nan_to_num(self._coarsen(inside)), self.affine, unit=_COLOURS)

    def _coarsen(self, values: Array) -> Array:
        """Return means of blocks, of what is in the brain."""
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


def _coarse_affine(affine: Array, step: int) -> Array:
    """Return the affine of blocks of voxels."""
    coarse = np.array(affine, dtype=float)
    coarse[:3, 3] += coarse[:3, :3] @ np.full(3, (step - 1) / 2)
    coarse[:3, :3] *= step
    return coarse
