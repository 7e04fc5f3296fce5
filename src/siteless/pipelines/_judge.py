"""The scores of what is judged, scan by scan, made once and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import (
    ScanFiles,
    derivative_path,
    read_mask,
    read_scan,
    read_signal,
    write_json,
    write_map,
)
from siteless.errors import errors_at
from siteless.evaluation import (
    WHITE_MATTER,
    Fods,
    Responses,
    Score,
    Target,
    estimate_responses,
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
from siteless.pipelines._choice import fingerprint, size_and_time
from siteless.pipelines._coefficients import is_whole, load_arrays, save_arrays
from siteless.pipelines._contest import Judged
from siteless.pipelines._regions import Labels

# Raised when a score changes its meaning.
_SCORES = 1
# Voxels of a scan that are kept for adversaries and for distributions.
_SHOWN = 1000
NOISE, RESCAN = "noise floor", "rescan floor"
LESION = "lesion"


# Method, region, metric and value.
_Found = tuple[str, str, str, float]


@dataclass(frozen=True)
class Measures:
    """What is measured, and where it is kept.

    Attributes
    ----------
    out
        Folder of maps and of records.
    root
        Of the dataset, where a simulated one has its truth.
    kinds
        Of `siteless.pipelines.KINDS`.
    maps
        Of microstructure.
    order
        Of the harmonics that adversaries are shown.
    engine
        That finds fibre orientations.
    fibres
        Voxels of white matter that they are found in, evenly spaced; None for all.
    labels
        Of regions to score in, besides white matter.
    """

    out: Path
    root: Path
    kinds: frozenset[str]
    maps: tuple[str, ...]
    order: int
    engine: str
    fibres: int | None
    labels: Labels | None

    def place(self, one: Judged, output: str) -> Path:
        """Return where a map of errors goes."""
        folder = self.out / "maps" / one.method / f"to-{one.to}"
        return derivative_path(folder, output, one.source.entities)

    def shown(self, one: Judged) -> Path:
        """Return where voxels for adversaries are kept."""
        return self.record(one).with_suffix(".npz")

    def record(self, one: Judged) -> Path:
        """Return where the scores of what is judged are kept."""
        return self.out / "records" / one.method / f"to-{one.to}" / f"{one.source.name}.json"

    def key(self, files: Iterable[ScanFiles], scored: object) -> str:
        """Return what scores depend on, as a hash."""
        settings = [sorted(self.kinds), self.maps, self.order, self.engine, self.fibres]
        labels = self.labels and self.labels.key
        known = [version("siteless"), _SCORES, scored, settings, labels, *map(fingerprint, files)]
        return hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, eq=False)
class Heat:
    """All that is compared with one scan, so that it is read once; or what has none.

    Attributes
    ----------
    measures
        What is measured.
    judged
        With the same target, or none.
    scored
        Whether there are scores: of people that nobody has learned from. Otherwise only voxels
        for adversaries are kept.
    rescan
        Another scan as the target.
    """

    measures: Measures
    judged: tuple[Judged, ...]
    scored: bool
    rescan: ScanFiles | None = None

    @property
    def name(self) -> str:
        """What progress calls it."""
        first = self.judged[0]
        return (first.target or first.source).name

    def run(self) -> list[Score]:
        """Return the scores, from records where they are there."""
        rival = _Rival(self.measures, self.judged[0].target, self.rescan)
        found: list[Score] = []
        for one in self.judged:
            found += self._recorded(one, rival)
        return found + (self._floors(rival) if rival.files and self.scored else [])

    def _recorded(self, one: Judged, rival: _Rival) -> list[Score]:
        measures = self.measures
        record = measures.record(one)
        if not is_whole(measures.shown(one)):
            record.unlink(missing_ok=True)
        key = measures.key(one.files, [self.scored, *map(size_and_time, one.maps.values())])
        with errors_at((one.image or one.source).dwi):
            scores = _from_record(record, key, lambda: _judge(one, rival, scored=self.scored))
        return [Score(one.source.subject, one.task, *score) for score in scores]

    def _floors(self, rival: _Rival) -> list[Score]:
        """Return the errors of noise alone, and of scanning again, for each task."""
        assert rival.files is not None
        place = self.measures.out / "records" / "floors" / f"{rival.files.name}.json"
        files = [one for one in (rival.files, self.rescan) if one is not None]
        scores = _from_record(place, self.measures.key(files, "floors"), rival.floors)
        tasks = dict.fromkeys(one.task for one in self.judged)
        return [Score(rival.files.subject, task, *score) for task in tasks for score in scores]


def _from_record(place: Path, key: str, make: Callable[[], Iterable[_Found]]) -> list[_Found]:
    """Return what was found before, if it was of the same; else find it and keep it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(place.read_text(encoding="utf-8"))
        if record["key"] == key:
            return [tuple(one) for one in record["scores"]]
    scores = [one for one in make() if np.isfinite(one[-1])]
    write_json(place, {"key": key, "scores": scores})
    return scores


class _Rival:
    """The scan that others are compared with; parts of it are computed when they are needed."""

    def __init__(
        self, measures: Measures, files: ScanFiles | None, rescan: ScanFiles | None
    ) -> None:
        self.measures, self.files, self.rescan = measures, files, rescan

    @cached_property
    def target(self) -> Target:
        assert self.files is not None
        scan, measures = read_scan(self.files), self.measures
        truth = derivative_path(
            measures.root / "derivatives" / "truth", "noiseless", self.files.entities
        )
        noiseless = scan.with_signal(read_signal(truth)[0]) if truth.exists() else None
        regions = measures.labels.regions(self.files, scan) if measures.labels else {}
        return Target(scan, measures.maps, noiseless, regions)

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
        chosen.flat[_evenly(voxels, self.measures.fibres or len(voxels))] = True
        return chosen

    def floors(self) -> Iterator[_Found]:
        """Yield the errors that no method can be expected to go below."""
        for region, where in self.target.masks.items():
            if "signal" in self.measures.kinds:
                for metric, value in self.target.noise(where).items():
                    yield NOISE, region, metric, value
        if self.rescan:
            again = match_volumes(read_scan(self.rescan), self.target.scan.gradients)
            yield from _compare_signal(RESCAN, again, self)
            yield from _compare_maps(RESCAN, again, self)
            yield from _compare_fibres(RESCAN, again, self)


def _judge(one: Judged, rival: _Rival, *, scored: bool) -> Iterator[_Found]:
    """Yield the scores of a scan, or of maps, and write maps of its errors."""
    measures = rival.measures
    scan = read_scan(_with_masks(one.image, one.source)) if one.image else None
    own = scan or read_scan(one.source)
    masks, compared = _masks(one, own, measures), scored and one.target is not None
    maps: dict[str, Array] = {}
    if scored and {"maps", "biology"} & measures.kinds:
        where = [*masks.values(), *(rival.target.masks.values() if compared else ())]
        maps = maps_within(scan, measures.maps, where) if scan else _read_maps(one)
    shown = {name: _evenly(values.T[own.white_matter.T]) for name, values in maps.items()}
    if scan and "leakage" in measures.kinds:
        fitted = fit_coefficients(scan, order=measures.order).values
        shown["values"] = _evenly(fitted[scan.white_matter.T[scan.mask.T]])
    save_arrays(measures.shown(one), shown)
    yield from _describe(one, maps, masks)
    if compared and scan:
        given = match_volumes(scan, rival.target.scan.gradients)
        yield from _compare_signal(one.method, given, rival)
        yield from _compare_maps(one.method, given, rival, maps if given is scan else None)
        yield from _compare_fibres(one.method, given, rival, rival.measures.place(one, "angle"))
        if "signal" in measures.kinds:
            write_map(measures.place(one, "rmse"), rmse_map(given, rival.target), given.affine)
    elif compared:
        yield from _compare_maps(one.method, None, rival, maps)


def _with_masks(image: ScanFiles, source: ScanFiles) -> ScanFiles:
    """Give a rendered scan the masks of its source where it has none of its own."""
    mask, white = image.mask or source.mask, image.white_matter or source.white_matter
    return replace(image, mask=mask, white_matter=white, site=source.site)


def _evenly(values: Array, most: int = _SHOWN) -> Array:
    """Return evenly spaced voxels, the first axis."""
    chosen = np.linspace(0, len(values) - 1, min(len(values), most)).round().astype(int)
    return values[chosen]


def _masks(one: Judged, own: Scan, measures: Measures) -> dict[str, Array]:
    """Return where maps of a scan are described: white matter, regions, and a lesion."""
    masks = {WHITE_MATTER: own.white_matter}
    if measures.labels:
        masks |= measures.labels.regions(one.source, own)
    lesion = find_lesion(measures.root, one.source)
    if lesion and "biology" in measures.kinds:
        masks[LESION] = read_mask(lesion, own.mask.shape, own.affine)
    return masks


def _describe(
    one: Judged, maps: Mapping[str, Array], masks: Mapping[str, Array]
) -> Iterator[_Found]:
    """Yield what needs no other scan: how maps are distributed, how a lesion stands out."""
    for name, values in maps.items():
        for region, where in masks.items():
            for metric, value in summarise_map(name, values[where]).items():
                yield one.method, region, metric, value
        if LESION in masks:
            contrast = lesion_contrast(values, masks[LESION], masks[WHITE_MATTER])
            yield one.method, LESION, f"{name}_contrast", contrast


def find_lesion(root: Path, files: ScanFiles) -> Path | None:
    """Find the mask of a person's lesion in the derivatives of a dataset."""
    folders = sorted((root / "derivatives").glob("*/")) if root.is_dir() else []
    for entities in (files.entities, {"sub": files.subject}):
        for folder in folders:
            if (path := derivative_path(folder, "lesion", entities)).exists():
                return path
    return None


def _read_maps(one: Judged) -> dict[str, Array]:
    return {name: read_signal(path)[0] for name, path in one.maps.items()}


def _compare_signal(method: str, given: Scan, rival: _Rival) -> Iterator[_Found]:
    """Yield the errors of a scan at the target's volumes."""
    for region, where in rival.target.masks.items() if "signal" in rival.measures.kinds else ():
        for metric, value in score_signal(given, rival.target, where).items():
            yield method, region, metric, value


def _compare_maps(
    method: str, given: Scan | None, rival: _Rival, known: Mapping[str, Array] | None = None
) -> Iterator[_Found]:
    """Yield the errors of maps, which are computed where they are not known."""
    target = rival.target
    if "maps" not in rival.measures.kinds:
        return
    if known is None and given is not None:
        known = maps_within(given, target.maps, target.masks.values())
    maps = {name: own for name, own in (known or {}).items() if name in target.maps}
    for region, where in target.masks.items():
        for metric, value in score_maps(maps, target, where).items():
            yield method, region, metric, value


def _compare_fibres(
    method: str, given: Scan, rival: _Rival, place: Path | None = None
) -> Iterator[_Found]:
    """Yield how far fibres are turned, and write a map of it."""
    if "orientation" not in rival.measures.kinds:
        return
    where = rival.deconvolved
    # A voxel outside the brain of the scan has no maximum, and is not counted.
    found = find_fods(replace(given, mask=given.mask | where), rival.responses, where)
    angles = peak_angles(found.peaks, rival.fods.peaks)
    if place:
        grid = np.full(where.shape, np.nan, dtype=np.float32)
        grid.T[where.T] = angles.closest
        write_map(place, grid, given.affine)
    for region, mask in rival.target.masks.items():
        for metric, value in score_angles(angles, mask.T[where.T]).items():
            yield method, region, metric, value


def read_shown(measures: Measures, one: Judged) -> dict[str, Array]:
    """Return some voxels of a scan: coefficients, for adversaries, and maps by name."""
    return load_arrays(measures.shown(one))


def make_heats(
    measures: Measures,
    judged: Sequence[Judged],
    *,
    is_scored: Callable[[ScanFiles], bool],
    rescan: Callable[[ScanFiles], ScanFiles | None],
) -> list[Heat]:
    """Put together what is compared with the same scan."""
    targets: dict[Path, list[Judged]] = {}
    heats: list[Heat] = []
    for one in judged:
        scored = is_scored(one.source)
        if scored and one.target is not None:
            targets.setdefault(one.target.dwi, []).append(one)
        elif scored or "leakage" in measures.kinds:
            heats.append(Heat(measures, (replace(one, target=None),), scored))
    compared = [
        Heat(measures, tuple(own), scored=True, rescan=own[0].target and rescan(own[0].target))
        for own in targets.values()
    ]
    return compared + heats
