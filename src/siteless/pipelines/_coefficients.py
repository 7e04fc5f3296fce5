"""Scans to what methods learn from, made once and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, read_scan
from siteless.denoising import denoise
from siteless.distributed import raise_everywhere, rank
from siteless.errors import SitelessError, errors_at
from siteless.harmonics import Coefficients, FitName, at_shells, fit_coefficients
from siteless.methods.invariant.profiles import SiteProfiles, Survey, survey
from siteless.methods.invariant.training import make_parts
from siteless.methods.patches import (
    TrainingScan,
    is_stored,
    make_training_scan,
    open_scan,
    store_scan,
)
from siteless.methods.rish import energies_of
from siteless.methods.template import BrainMaps
from siteless.microstructure import compute_maps
from siteless.pipelines._choice import fingerprint
from siteless.pipelines._parallel import Progress, run_all
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays
from siteless.tissue import Tissue, white_matter_level

# Gives, for the name of a stage of the work, what is called as it goes on.
Stages = Callable[[str], Progress]
# Raised when what is stored of a scan changes.
_STORE = 10


@dataclass(frozen=True)
class Recipe:
    """How coefficients are made: part of what a stored scan is known by."""

    fit: FitName
    order: int
    bs: tuple[float, ...]
    tissue: Tissue
    denoiser: str

    def key(self, files: ScanFiles) -> str:
        """Return the name of what is stored of a scan."""
        source = str(files.dwi.resolve()), files.subject, fingerprint(files)
        return f"{files.name}-{cache_key(source, asdict(self), _STORE)}"

    def place(self, work: Path, files: ScanFiles) -> Path:
        """Return the file of a scan's white matter."""
        return work / "coefficients" / f"{self.key(files)}.safetensors"

    def maps(self, work: Path, files: ScanFiles) -> Path:
        """Return the file of a scan's maps."""
        return work / "maps" / f"{self.key(files)}.safetensors"

    def survey(self, work: Path, files: ScanFiles) -> Path:
        """Return the file of a scan's survey."""
        return work / "surveys" / f"{self.key(files)}.safetensors"

    def part(self, work: Path, files: ScanFiles, key: str, number: int) -> Path:
        """Return the file of a part of a scan, without a profile that has a key."""
        return work / "parts" / f"{self.key(files)}-{key}-{number}.safetensors"

    def microstructure(self, work: Path, files: ScanFiles, name: str) -> Path:
        """Return the file of a scan's map of microstructure."""
        return work / "microstructure" / f"{self.key(files)}_{name}.safetensors"

    def store(
        self,
        work: Path,
        files: ScanFiles,
        *,
        with_maps: bool,
        with_survey: bool,
        microstructure: Sequence[str] = (),
    ) -> None:
        """Make what methods learn from of a scan, but for what is there already."""
        place, maps = self.place(work, files), self.maps(work, files)
        surveyed = self.survey(work, files)
        lacks_values, lacks_maps = not is_stored(place), with_maps and not is_whole(maps)
        lacks_survey = with_survey and not is_whole(surveyed)
        lacking = [n for n in microstructure if not is_whole(self.microstructure(work, files, n))]
        if not (lacks_values or lacks_maps or lacks_survey or lacking):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            if self.denoiser:
                scan = denoise(scan, self.denoiser)
            scan = at_shells(scan, self.bs)
            own = fit_coefficients(scan, order=self.order, fit=self.fit)
            if lacks_values:
                made = make_training_scan(
                    scan, own, bs=self.bs, tissue=self.tissue, subject=files.subject
                )
                store_scan(made, place)
            if lacks_maps:
                save_arrays(maps, _maps_of(scan, own))
            if lacks_survey:
                save_arrays(surveyed, survey(scan, own, files.subject).arrays)
            for name, values in (compute_maps(scan, lacking) if lacking else {}).items():
                save_arrays(self.microstructure(work, files, name), {name: values})

    def store_parts(
        self,
        work: Path,
        profiles: SiteProfiles | None,
        parts: int,
        surroundings: Sequence[int],
        key: str,
        files: ScanFiles,
    ) -> None:
        """Make the parts of a scan and, last, the whole, but when they are there already."""
        places = [self.part(work, files, key, number) for number in range(parts + 1)]
        if all(map(is_stored, places)):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            if self.denoiser:
                scan = denoise(scan, self.denoiser)
            made = make_parts(
                scan,
                profiles,
                parts=parts,
                fit=self.fit,
                order=self.order,
                bs=self.bs,
                tissue=self.tissue,
                subject=files.subject,
                surroundings=surroundings,
            )
            for one, place in zip(made, places, strict=True):
                store_scan(one, place)


def _maps_of(scan: Scan, own: Coefficients) -> Mapping[str, Array]:
    energies = vars(energies_of(scan, own, white_matter_level(scan)))
    on_grid = {name: own.on_grid(values) for name, values in energies.items()}
    return {**BrainMaps.of(scan, own).arrays, **on_grid}


def store_scans(
    recipe: Recipe,
    work: Path,
    scans: Sequence[ScanFiles],
    *,
    with_maps: bool = False,
    with_survey: bool = False,
    microstructure: Sequence[str] = (),
    nprocs: int | None = None,
    progress: Progress | None = None,
) -> list[TrainingScan]:
    """Make the store on the first process, and map it on all."""
    store = partial(
        recipe.store,
        work,
        with_maps=with_maps,
        with_survey=with_survey,
        microstructure=microstructure,
    )
    _run_on_first(store, scans, nprocs=nprocs, progress=progress)
    return [open_scan(recipe.place(work, files)) for files in scans]


def read_surveys(recipe: Recipe, work: Path, scans: Sequence[ScanFiles]) -> list[Survey]:
    """Return the surveys that `store_scans` has stored."""
    return [
        Survey.from_arrays(str(f.site), f.subject or f.name, load_arrays(recipe.survey(work, f)))
        for f in scans
    ]


def store_parts(
    recipe: Recipe,
    work: Path,
    scans: Sequence[ScanFiles],
    *,
    profiles: SiteProfiles | None,
    parts: int,
    surroundings: Sequence[int],
    nprocs: int | None = None,
    progress: Progress | None = None,
) -> list[list[TrainingScan]]:
    """Make the parts of scans on the first process, and map them on all.

    Of each scan its parts are returned and, last, the whole.
    """
    arrays = sorted((profiles.arrays if profiles else {}).items())
    key = cache_key(parts, surroundings, *(array for _, array in arrays))
    store = partial(recipe.store_parts, work, profiles, parts, surroundings, key)
    _run_on_first(store, scans, nprocs=nprocs, progress=progress)
    return [
        [open_scan(recipe.part(work, files, key, number)) for number in range(parts + 1)]
        for files in scans
    ]


def _run_on_first(
    function: Callable[[ScanFiles], object],
    scans: Sequence[ScanFiles],
    *,
    nprocs: int | None,
    progress: Progress | None,
) -> None:
    """Apply a function to every scan on the first of several trainings, and wait for it."""
    error = None
    try:
        if rank() == 0:
            run_stage(function, scans, nprocs=nprocs, progress=progress)
    except SitelessError as caught:
        error = caught
    raise_everywhere(error)


def run_stage(
    function: Callable[[ScanFiles], object],
    scans: Sequence[ScanFiles],
    *,
    nprocs: int | None,
    progress: Progress | None,
) -> list[object]:
    """Apply a function to every scan and tell how it goes; return the results in order."""
    results: dict[int, object] = {}
    if progress:
        progress(0, len(scans), "")
    for position, result in run_all(function, scans, nprocs=nprocs):
        results[position] = result
        if progress:
            progress(len(results), len(scans), scans[position].name)
    return [results[position] for position in range(len(scans))]
