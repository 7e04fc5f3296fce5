"""Scores of single rendered scans, computed once and stored on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, read_mask, read_scan, read_signal, write_json, write_map
from siteless.errors import errors_at
from siteless.evaluation import (
    NOISE,
    RESCAN,
    WHITE_MATTER,
    Fods,
    Responses,
    Score,
    Target,
    estimate_responses,
    evenly_spaced,
    find_fods,
    lesion_contrast,
    maps_within,
    match_volumes,
    peak_angles,
    rmse_map,
    score_angles,
    score_maps,
    score_signal,
    summarise_map,
)
from siteless.harmonics import fit_coefficients
from siteless.pipelines.evaluate._comparison import Comparison, RenderedScan
from siteless.pipelines.evaluate._measures import Kind, Measures
from siteless.storage import is_whole, save_arrays, size_and_time

# Voxels per scan that are stored for adversaries and distributions.
_SAMPLED = 1000
LESION = "lesion"
# Maps of errors, by the kind of scores that they belong to.
_ERROR_MAPS: dict[Kind, str] = {"signal": "rmse", "orientation": "angle"}

# Method, region, metric and value.
_Row = tuple[str, str, str, float]


@dataclass(frozen=True, eq=False)
class ScoringGroup:
    """Renderings with the same reference scan, which is read once."""

    measures: Measures
    renderings: tuple[RenderedScan, ...]  # with the same target; or a single one without a target
    scored: bool  # otherwise only voxels for adversaries are stored
    rescan: ScanFiles | None = None  # of the same participant at the target site

    @property
    def name(self) -> str:
        """Name for progress."""
        first = self.renderings[0]
        return (first.target or first.source).name

    def run(self) -> list[Score]:
        """Return the scores, from records if they exist."""
        reference = _Reference(self.measures, self.renderings[0].target, self.rescan)
        scores = [score for r in self.renderings for score in self._scores(r, reference)]
        if self.scored and reference.files:
            scores += self._floors(reference, reference.files)
        return scores

    def _scores(self, rendered: RenderedScan, reference: _Reference) -> list[Score]:
        measures = self.measures
        record = measures.record(rendered.folder, rendered.source)
        maps = []
        if self.scored and rendered.image and rendered.target:
            outputs = [output for kind, output in _ERROR_MAPS.items() if measures.include(kind)]
            maps = [measures.error_map(rendered, output) for output in outputs]
        if not (is_whole(measures.sample(rendered)) and all(path.exists() for path in maps)):
            record.unlink(missing_ok=True)
        extra = [self.scored, *map(size_and_time, rendered.maps.values())]
        with errors_at((rendered.image or rendered.source).dwi):
            rows = _from_record(
                record,
                measures.key(rendered.files, extra),
                lambda: _score_scan(rendered, reference, scored=self.scored),
            )
        return [Score(rendered.source.subject, rendered.task, *row) for row in rows]

    def _floors(self, reference: _Reference, target: ScanFiles) -> list[Score]:
        """Return the error floors of noise and rescan, for each task."""
        record = self.measures.record("floors", target)
        scans = [scan for scan in (target, self.rescan) if scan is not None]
        rows = _from_record(record, self.measures.key(scans, "floors"), reference.floors)
        tasks = dict.fromkeys(rendered.task for rendered in self.renderings)
        return [Score(target.subject, task, *row) for task in tasks for row in rows]


def group_by_reference(measures: Measures, comparison: Comparison) -> list[ScoringGroup]:
    """Group renderings that share a reference, without those that no score requires."""
    by_target: dict[Path, list[RenderedScan]] = {}
    alone: list[ScoringGroup] = []
    for rendered in comparison.renderings:
        scored = comparison.is_scored(rendered.source)
        if scored and rendered.target is not None:
            by_target.setdefault(rendered.target.dwi, []).append(rendered)
        elif scored or (measures.include("leakage") and comparison.is_used(rendered.source)):
            alone.append(ScoringGroup(measures, (replace(rendered, target=None),), scored))
    compared = [
        ScoringGroup(measures, tuple(group), scored=True, rescan=comparison.rescan(target))
        for group in by_target.values()
        if (target := group[0].target)
    ]
    return compared + alone


def _from_record(path: Path, key: str, score: Callable[[], Iterable[_Row]]) -> list[_Row]:
    """Return the scores of a record with this key; otherwise compute and write them."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["key"] == key:
            return [tuple(row) for row in record["scores"]]
    path.unlink(missing_ok=True)  # an interrupted run would leave it beside new maps
    rows = [row for row in score() if np.isfinite(row[-1])]
    write_json(path, {"key": key, "scores": rows})
    return rows


@dataclass(eq=False)
class _Reference:
    """The reference scan of renderings; its properties are computed when needed."""

    measures: Measures
    files: ScanFiles | None
    rescan: ScanFiles | None

    @cached_property
    def target(self) -> Target:
        assert self.files is not None
        scan, measures = read_scan(self.files), self.measures
        truth = measures.truth(self.files)
        noiseless = scan.with_signal(read_signal(truth)[0]) if truth else None
        regions = measures.regions(self.files, scan)
        return Target(scan, tuple(measures.scoring.maps), noiseless, regions)

    @cached_property
    def responses(self) -> Responses:
        return estimate_responses(self.target.scan, self.measures.engine)

    @cached_property
    def fods(self) -> Fods:
        return find_fods(self.target.scan, self.responses, self.deconvolved)

    @cached_property
    def deconvolved(self) -> Array:
        """Voxels whose fibres are compared."""
        white = self.target.scan.white_matter
        voxels = np.flatnonzero(white)
        chosen = np.zeros(white.shape, dtype=bool)
        chosen.flat[evenly_spaced(voxels, self.measures.scoring.fibres or len(voxels))] = True
        return chosen

    def floors(self) -> Iterator[_Row]:
        """Yield the error floors of any method."""
        if self.measures.include("signal"):
            yield from _rows(NOISE, self.target.masks, self.target.noise)
        if self.rescan:
            rescan = match_volumes(read_scan(self.rescan), self.target.scan.gradients)
            yield from self.compare(RESCAN, rescan, self.maps_of(rescan))

    def maps_of(self, scan: Scan) -> dict[str, Array]:
        """Return the maps of another scan within the target's masks, if maps are scored."""
        if not self.measures.include("maps"):
            return {}
        return maps_within(scan, self.target.maps, self.target.masks.values())

    def compare(
        self, method: str, scan: Scan, maps: Mapping[str, Array], angle_map: Path | None = None
    ) -> Iterator[_Row]:
        """Yield the errors of a scan at the volumes of the target, and write its map of angles."""
        if self.measures.include("signal"):
            yield from _rows(method, self.target.masks, partial(score_signal, scan, self.target))
        yield from self.compare_maps(method, maps)
        if self.measures.include("orientation"):
            where = self.deconvolved
            fods = find_fibres(scan, self.responses, where)
            angles = peak_angles(fods.peaks, self.fods.peaks)
            if angle_map:
                grid = np.full(where.shape, np.nan, dtype=np.float32)
                grid.T[where.T] = angles.closest
                write_map(angle_map, grid, scan.affine)
            masks = {region: mask.T[where.T] for region, mask in self.target.masks.items()}
            yield from _rows(method, masks, partial(score_angles, angles))

    def compare_maps(self, method: str, maps: Mapping[str, Array]) -> Iterator[_Row]:
        """Yield the errors of maps."""
        if self.measures.include("maps"):
            known = {name: values for name, values in maps.items() if name in self.target.maps}
            yield from _rows(method, self.target.masks, partial(score_maps, known, self.target))


def _score_scan(rendered: RenderedScan, reference: _Reference, *, scored: bool) -> Iterator[_Row]:
    """Yield the scores of a rendered scan, or of maps; write voxels and maps of errors."""
    measures = reference.measures
    scan = read_rendered_scan(rendered) if rendered.image else None
    brain = scan or read_scan(rendered.source)
    masks, compared = _masks(rendered, brain, measures), scored and rendered.target is not None
    maps: dict[str, Array] = {}
    if scored and measures.include("maps", "biology"):
        if scan:
            where = [*masks.values(), *(reference.target.masks.values() if compared else ())]
            maps = maps_within(scan, tuple(measures.scoring.maps), where)
        else:
            known = read_rendered_maps(rendered, brain)
            maps = {name: known[name] for name in known if name in measures.scoring.maps}
    save_arrays(measures.sample(rendered), _sample(scan, brain, maps, measures))
    yield from _describe(rendered, maps, masks)
    if compared and scan:
        matched = match_volumes(scan, reference.target.scan.gradients)
        at_target = maps if matched is scan else reference.maps_of(matched)
        angle_map = measures.error_map(rendered, "angle")
        yield from reference.compare(rendered.method, matched, at_target, angle_map)
        if measures.include("signal"):
            errors = rmse_map(matched, reference.target)
            write_map(measures.error_map(rendered, "rmse"), errors, matched.affine)
    elif compared:
        yield from reference.compare_maps(rendered.method, maps)


def _sample(
    scan: Scan | None, brain: Scan, maps: Mapping[str, Array], measures: Measures
) -> dict[str, Array]:
    """Return some white-matter voxels of maps; and coefficients, for adversaries."""
    sample = {
        name: evenly_spaced(values.T[(brain.white_matter & np.isfinite(values)).T], _SAMPLED)
        for name, values in maps.items()
    }
    if scan and measures.include("leakage"):
        coefficients = fit_coefficients(scan, order=measures.order).values
        white = scan.white_matter.T[scan.mask.T]
        sample["values"] = evenly_spaced(coefficients[white], _SAMPLED)
    return sample


def read_rendered_scan(rendered: RenderedScan) -> Scan:
    """Read a rendered scan; missing masks are those of its source."""
    image, source = rendered.image or rendered.source, rendered.source
    mask, white = image.mask or source.mask, image.white_matter or source.white_matter
    return read_scan(replace(image, mask=mask, white_matter=white, site=source.site))


def read_rendered_maps(rendered: RenderedScan, source: Scan) -> dict[str, Array]:
    """Read harmonized maps, which must be on the grid of the source."""
    maps = {}
    for name, path in rendered.maps.items():
        values, affine = read_signal(path)
        with errors_at(path):
            remedy = "resample it to the scan"
            source.require_grid(values.shape, affine, what="a map", remedy=remedy)
        maps[name] = values
    return maps


def _masks(rendered: RenderedScan, brain: Scan, measures: Measures) -> dict[str, Array]:
    """Return the masks of a scan: white matter, regions and a lesion."""
    masks = {WHITE_MATTER: brain.white_matter, **measures.regions(rendered.source, brain)}
    lesion = measures.lesion(rendered.source)
    if lesion and measures.include("biology"):
        masks[LESION] = read_mask(lesion, brain.mask.shape, brain.affine)
    return masks


def _describe(
    rendered: RenderedScan, maps: Mapping[str, Array], masks: Mapping[str, Array]
) -> Iterator[_Row]:
    """Yield scores without a reference: distributions of maps, and contrasts of lesions."""
    for name, values in maps.items():
        inside = {region: mask & np.isfinite(values) for region, mask in masks.items()}
        known = {region: values[mask] for region, mask in inside.items() if mask.any()}
        yield from _rows(rendered.method, known, partial(summarise_map, name))
        if LESION in masks:
            contrast = lesion_contrast(values, masks[LESION], masks[WHITE_MATTER])
            yield rendered.method, LESION, f"{name}_contrast", contrast


def _rows(
    method: str, parts: Mapping[str, Array], score: Callable[[Array], Mapping[str, float]]
) -> Iterator[_Row]:
    """Yield the scores of parts of the brain, which are given by region as masks or values."""
    for region, part in parts.items():
        for metric, value in score(part).items():
            yield method, region, metric, value


def find_fibres(scan: Scan, responses: Responses, where: Array) -> Fods:
    """Deconvolve voxels; those outside the scan's brain have no maximum, and are not counted."""
    return find_fods(replace(scan, mask=scan.mask | where), responses, where)


def read_mean(measures: Measures, rendered: RenderedScan, name: str) -> float | None:
    """Return the mean of a map over white matter, None if the scan lacks it.

    It is read from a record, which unlike a table of scores belongs to one session.
    """
    path = measures.record(rendered.folder, rendered.source)
    record = json.loads(path.read_text(encoding="utf-8"))
    wanted = [rendered.method, WHITE_MATTER, f"{name}_mean"]
    return next((value for *where, value in record["scores"] if where == wanted), None)
