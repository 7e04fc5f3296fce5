"""The scores of what is judged, scan by scan, made once and kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from siteless.acquisition import GRID_TOLERANCE, Array, Scan, grid_offset
from siteless.bids import (
    ScanFiles,
    derivative_path,
    read_mask,
    read_scan,
    read_signal,
    write_json,
    write_map,
)
from siteless.errors import MaskError, errors_at
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
from siteless.pipelines._choice import fingerprint
from siteless.pipelines.evaluate._comparison import Contest, Judged, folder_name
from siteless.pipelines.evaluate._regions import Labels
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays, size_and_time

# Raised when a score changes its meaning.
_SCORES = 2
# Voxels of a scan that are kept for adversaries and for distributions.
_SHOWN = 1000
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
        folder = self.out / "maps" / one.method / f"to-{folder_name(one.to)}"
        return derivative_path(folder, output, one.source.entities)

    def places(self, one: Judged) -> list[Path]:
        """Return all maps of errors that there are of a scan that is compared."""
        kinds = {"signal": "rmse", "orientation": "angle"}
        outputs = [output for kind, output in kinds.items() if kind in self.kinds]
        return [self.place(one, output) for output in outputs if one.image and one.target]

    def record(self, one: Judged) -> Path:
        """Return where the scores of what is judged are kept."""
        return self._record(f"{one.method}/to-{folder_name(one.to)}", one.source)

    def floors(self, target: ScanFiles) -> Path:
        """Return where the errors of noise and of scanning again are kept."""
        return self._record("floors", target)

    def shown(self, one: Judged) -> Path:
        """Return where some voxels of what is judged are kept."""
        return self.record(one).with_suffix(".safetensors")

    def _record(self, folder: str, files: ScanFiles) -> Path:
        image = derivative_path(self.out / "records" / folder, "scan", files.entities)
        return image.with_name(image.name.replace(".nii.gz", ".json"))

    def truth(self, files: ScanFiles) -> Path | None:
        """Return the noiseless scan of a simulated one."""
        folder = self.root / "derivatives" / "truth"
        path = derivative_path(folder, "noiseless", files.entities)
        return path if path.exists() else None

    def lesion(self, files: ScanFiles) -> Path | None:
        """Return the mask of a person's lesion, of any derivative of the dataset."""
        folders = sorted((self.root / "derivatives").glob("*/")) if self.root.is_dir() else []
        for entities in (files.entities, {"sub": files.subject}):
            for folder in folders:
                if (path := derivative_path(folder, "lesion", entities)).exists():
                    return path
        return None

    def key(self, files: Iterable[ScanFiles], scored: object) -> str:
        """Return what scores depend on, as a hash."""
        settings = [sorted(self.kinds), self.maps, self.order, self.engine, self.fibres]
        labels = self.labels and self.labels.key
        files = list(files)
        beside = [path for one in files for path in (self.truth(one), self.lesion(one)) if path]
        scans = [*map(fingerprint, files), *map(size_and_time, beside)]
        return cache_key(_SCORES, scored, settings, labels, scans)


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
        made = [] if not self.scored else measures.places(one)
        if not (is_whole(measures.shown(one)) and all(path.exists() for path in made)):
            record.unlink(missing_ok=True)
        key = measures.key(one.files, [self.scored, *map(size_and_time, one.maps.values())])
        with errors_at((one.image or one.source).dwi):
            scores = _from_record(record, key, lambda: _judge(one, rival, scored=self.scored))
        return [Score(one.source.subject, one.task, *score) for score in scores]

    def _floors(self, rival: _Rival) -> list[Score]:
        """Return the errors of noise alone, and of scanning again, for each task."""
        assert rival.files is not None
        place = self.measures.floors(rival.files)
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
    place.unlink(missing_ok=True)  # or it might later stand beside what others have made
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
        truth = measures.truth(self.files)
        noiseless = scan.with_signal(read_signal(truth)[0]) if truth else None
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
        chosen.flat[evenly_spaced(voxels, self.measures.fibres or len(voxels))] = True
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
    scan = read_judged(one) if one.image else None
    own = scan or read_scan(one.source)
    masks, compared = _masks(one, own, measures), scored and one.target is not None
    maps: dict[str, Array] = {}
    if scored and {"maps", "biology"} & measures.kinds:
        where = [*masks.values(), *(rival.target.masks.values() if compared else ())]
        maps = maps_within(scan, measures.maps, where) if scan else read_judged_maps(one, own)
        maps = {name: values for name, values in maps.items() if name in measures.maps}
    shown = {
        name: evenly_spaced(values.T[(own.white_matter & np.isfinite(values)).T], _SHOWN)
        for name, values in maps.items()
    }
    if scan and "leakage" in measures.kinds:
        fitted = fit_coefficients(scan, order=measures.order).values
        shown["values"] = evenly_spaced(fitted[scan.white_matter.T[scan.mask.T]], _SHOWN)
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


def read_judged(one: Judged) -> Scan:
    """Read a rendered scan, with the masks of its source where it has none of its own."""
    image, source = one.image or one.source, one.source
    mask, white = image.mask or source.mask, image.white_matter or source.white_matter
    return read_scan(replace(image, mask=mask, white_matter=white, site=source.site))


def _masks(one: Judged, own: Scan, measures: Measures) -> dict[str, Array]:
    """Return where maps of a scan are described: white matter, regions, and a lesion."""
    masks = {WHITE_MATTER: own.white_matter}
    if measures.labels:
        masks |= measures.labels.regions(one.source, own)
    lesion = measures.lesion(one.source)
    if lesion and "biology" in measures.kinds:
        masks[LESION] = read_mask(lesion, own.mask.shape, own.affine)
    return masks


def _describe(
    one: Judged, maps: Mapping[str, Array], masks: Mapping[str, Array]
) -> Iterator[_Found]:
    """Yield what needs no other scan: how maps are distributed, how a lesion stands out."""
    for name, values in maps.items():
        for region, where in masks.items():
            known = values[where & np.isfinite(values)]
            for metric, value in (summarise_map(name, known) if known.size else {}).items():
                yield one.method, region, metric, value
        if LESION in masks:
            contrast = lesion_contrast(values, masks[LESION], masks[WHITE_MATTER])
            yield one.method, LESION, f"{name}_contrast", contrast


def read_judged_maps(one: Judged, own: Scan) -> dict[str, Array]:
    """Read the maps of a method that gives no scan, which must be on the grid of the source."""
    found = {}
    for name, path in one.maps.items():
        values, affine = read_signal(path)
        shape = own.mask.shape
        if values.shape != shape or grid_offset(affine, own.affine, shape) > GRID_TOLERANCE:
            raise MaskError(
                f"expected a map on the grid of {own.name}, {shape} voxels, found another of "
                f"{values.shape}",
                remedy="resample it to the scan",
                path=path,
            )
        found[name] = values
    return found


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
    found = find_fibres(given, rival.responses, where)
    angles = peak_angles(found.peaks, rival.fods.peaks)
    if place:
        grid = np.full(where.shape, np.nan, dtype=np.float32)
        grid.T[where.T] = angles.closest
        write_map(place, grid, given.affine)
    for region, mask in rival.target.masks.items():
        for metric, value in score_angles(angles, mask.T[where.T]).items():
            yield method, region, metric, value


def find_fibres(given: Scan, responses: Responses, where: Array) -> Fods:
    """Deconvolve voxels of the target's brain, some of which may be outside that of the scan.

    They have no maximum then, and are not counted.
    """
    return find_fods(replace(given, mask=given.mask | where), responses, where)


def read_shown(measures: Measures, one: Judged) -> dict[str, Array]:
    """Return some voxels of a scan: coefficients, for adversaries, and maps by name."""
    return load_arrays(measures.shown(one))


def read_mean(measures: Measures, one: Judged, name: str) -> float | None:
    """Return the mean of a map over white matter, None where the scan has none.

    A table of scores does not know the session; a record does.
    """
    record = json.loads(measures.record(one).read_text(encoding="utf-8"))
    wanted = [one.method, WHITE_MATTER, f"{name}_mean"]
    return next((value for *where, value in record["scores"] if where == wanted), None)


def make_heats(measures: Measures, contest: Contest) -> list[Heat]:
    """Put together what is compared with the same scan; leave out whom nobody needs."""
    targets: dict[Path, list[Judged]] = {}
    heats: list[Heat] = []
    for one in contest.judged:
        scored = contest.is_scored(one.source)
        if scored and one.target is not None:
            targets.setdefault(one.target.dwi, []).append(one)
        elif scored or ("leakage" in measures.kinds and contest.is_learned_from(one.source)):
            heats.append(Heat(measures, (replace(one, target=None),), scored))
    compared = [
        Heat(measures, tuple(own), scored=True, rescan=contest.rescan(own[0].target))
        for own in targets.values()
        if own[0].target
    ]
    return compared + heats
