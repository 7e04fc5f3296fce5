"""What methods learn from, made of each scan once and kept on disk."""

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
from siteless.harmonics import Coefficients
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
from siteless.model import Preparation
from siteless.pipelines._choice import fingerprint
from siteless.pipelines._run import Run
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays
from siteless.tissue import white_matter_level

# Raised when what is stored of a scan changes.
_FORMAT = 11


@dataclass(frozen=True)
class Workspace:
    """A folder of what methods learn from.

    Attributes
    ----------
    folder
        Fits may share it.
    preparation
        Of the scans: part of what a stored scan is known by.
    """

    folder: Path
    preparation: Preparation

    def key(self, files: ScanFiles) -> str:
        """Return the name of what is stored of a scan."""
        source = str(files.dwi.resolve()), files.subject, fingerprint(files)
        return f"{files.name}-{cache_key(source, asdict(self.preparation), _FORMAT)}"

    def file(self, kind: str, files: ScanFiles, *parts: str) -> Path:
        """Return the file of something that is stored of a scan."""
        return self.folder / kind / f"{'-'.join([self.key(files), *parts])}.safetensors"

    def read(self, kind: str, files: ScanFiles, *parts: str) -> dict[str, Array]:
        """Read something that is stored of a scan."""
        return load_arrays(self.file(kind, files, *parts))

    def store_scans(
        self,
        scans: Sequence[ScanFiles],
        *,
        with_maps: bool = False,
        with_survey: bool = False,
        microstructure: Sequence[str] = (),
        run: Run = Run(),
    ) -> list[TrainingScan]:
        """Make what methods learn from on the first process, and map it on all."""
        store = partial(
            self._store,
            with_maps=with_maps,
            with_survey=with_survey,
            microstructure=microstructure,
        )
        _run_on_first(run, "Reading scans", store, scans)
        return [open_scan(self.file("coefficients", files)) for files in scans]

    def _store(
        self,
        files: ScanFiles,
        *,
        with_maps: bool,
        with_survey: bool,
        microstructure: Sequence[str],
    ) -> None:
        """Make what methods learn from of a scan, but for what is there already."""
        values = self.file("coefficients", files)
        others = {"maps": with_maps, "surveys": with_survey}
        lacks_values = not is_stored(values)
        lacks = {kind for kind, needed in others.items() if needed and not self._has(kind, files)}
        lacking = [name for name in microstructure if not self._has("microstructure", files, name)]
        if not (lacks_values or lacks or lacking):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            scan = self.preparation.prepare(scan)
            coefficients = self.preparation.coefficients(scan)
            if lacks_values:
                made = make_training_scan(scan, coefficients, self.preparation, files.subject)
                store_scan(made, values)
            if "maps" in lacks:
                save_arrays(self.file("maps", files), _maps_of(scan, coefficients))
            if "surveys" in lacks:
                surveyed = survey(scan, coefficients, files.subject)
                save_arrays(self.file("surveys", files), surveyed.arrays)
            for name, array in (compute_maps(scan, lacking) if lacking else {}).items():
                save_arrays(self.file("microstructure", files, name), {name: array})

    def _has(self, kind: str, files: ScanFiles, *parts: str) -> bool:
        return is_whole(self.file(kind, files, *parts))

    def read_surveys(self, scans: Sequence[ScanFiles]) -> list[Survey]:
        """Return the surveys that `store_scans` has stored."""
        return [
            Survey.from_arrays(str(f.site), f.subject or f.name, self.read("surveys", f))
            for f in scans
        ]

    def store_parts(
        self,
        scans: Sequence[ScanFiles],
        *,
        profiles: SiteProfiles | None,
        parts: int,
        surroundings: Sequence[int],
        run: Run = Run(),
    ) -> list[list[TrainingScan]]:
        """Make the parts of scans on the first process, and map them on all.

        Of each scan its parts are returned and, last, the whole.
        """
        arrays = sorted((profiles.arrays if profiles else {}).items())
        key = cache_key(parts, surroundings, *(array for _, array in arrays))
        store = partial(self._store_parts, profiles, parts, surroundings, key)
        _run_on_first(run, "Parting scans", store, scans)
        return [list(map(open_scan, self._parts(files, key, parts))) for files in scans]

    def _store_parts(
        self,
        profiles: SiteProfiles | None,
        parts: int,
        surroundings: Sequence[int],
        key: str,
        files: ScanFiles,
    ) -> None:
        """Make the parts of a scan, but when they are there already."""
        places = self._parts(files, key, parts)
        if all(map(is_stored, places)):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            if self.preparation.denoiser:
                scan = denoise(scan, self.preparation.denoiser)
            made = make_parts(
                scan,
                profiles,
                self.preparation,
                parts=parts,
                subject=files.subject,
                surroundings=surroundings,
            )
            for one, place in zip(made, places, strict=True):
                store_scan(one, place)

    def _parts(self, files: ScanFiles, key: str, parts: int) -> list[Path]:
        """Return the files of the parts of a scan, without the profiles that have a key."""
        return [self.file("parts", files, key, str(number)) for number in range(parts + 1)]


def _maps_of(scan: Scan, coefficients: Coefficients) -> Mapping[str, Array]:
    energies = vars(energies_of(scan, coefficients, white_matter_level(scan)))
    on_grid = {name: coefficients.on_grid(values) for name, values in energies.items()}
    return {**BrainMaps.of(scan, coefficients).arrays, **on_grid}


def _run_on_first(
    run: Run, title: str, function: Callable[[ScanFiles], object], scans: Sequence[ScanFiles]
) -> None:
    """Apply a function to every scan on the first of several trainings, and wait for it."""
    error = None
    try:
        if rank() == 0:
            run.map(title, function, scans)
    except SitelessError as caught:
        error = caught
    raise_everywhere(error)
