"""Scans to what methods learn from, made once and kept on disk."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, read_scan
from siteless.denoising import denoise
from siteless.errors import OutputError, SitelessError, UnreadableFileError, errors_at
from siteless.harmonics import FitName, fit_coefficients
from siteless.methods import BrainMaps, energies_of
from siteless.microstructure import compute_maps
from siteless.pipelines._choice import fingerprint
from siteless.pipelines._parallel import Progress, run_all
from siteless.tissue import Tissue, white_matter_level
from siteless.training import (
    TrainingScan,
    is_stored,
    make_training_scan,
    open_scan,
    raise_everywhere,
    rank,
    store_scan,
)

# Gives, for the name of a stage of the work, what is called as it goes on.
Stages = Callable[[str], Progress]
# Raised when what is stored of a scan changes.
_STORE = 4


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
        told = [source, asdict(self), version("siteless"), _STORE]
        digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()
        return f"{files.name}-{digest}"

    def place(self, work: Path, files: ScanFiles) -> Path:
        """Return the folder of a scan's white matter."""
        return work / "coefficients" / self.key(files)

    def maps(self, work: Path, files: ScanFiles) -> Path:
        """Return the file of a scan's maps."""
        return work / "maps" / f"{self.key(files)}.npz"

    def microstructure(self, work: Path, files: ScanFiles, name: str) -> Path:
        """Return the file of a scan's map of microstructure."""
        return work / "microstructure" / f"{self.key(files)}_{name}.npz"

    def store(
        self,
        work: Path,
        files: ScanFiles,
        *,
        with_maps: bool,
        microstructure: Sequence[str] = (),
    ) -> None:
        """Make what methods learn from of a scan, but for what is there already."""
        place, maps = self.place(work, files), self.maps(work, files)
        lacks_values, lacks_maps = not is_stored(place), with_maps and not is_whole(maps)
        lacking = [n for n in microstructure if not is_whole(self.microstructure(work, files, n))]
        if not (lacks_values or lacks_maps or lacking):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            if self.denoiser:
                scan = denoise(scan, self.denoiser)
            if lacks_values:
                store_scan(self._training_scan(scan, files), place)
            if lacks_maps:
                save_arrays(maps, self._maps_of(scan))
            for name, values in (compute_maps(scan, lacking) if lacking else {}).items():
                save_arrays(self.microstructure(work, files, name), {name: values})

    def _training_scan(self, scan: Scan, files: ScanFiles) -> TrainingScan:
        return make_training_scan(
            scan,
            fit=self.fit,
            order=self.order,
            bs=self.bs,
            tissue=self.tissue,
            subject=files.subject,
        )

    def _maps_of(self, scan: Scan) -> Mapping[str, Array]:
        own = fit_coefficients(scan, order=self.order, fit=self.fit)
        energies = vars(energies_of(scan, own, white_matter_level(scan)))
        on_grid = {name: own.on_grid(values) for name, values in energies.items()}
        return {**BrainMaps.of(scan, own).arrays, **on_grid}


def store_scans(
    recipe: Recipe,
    work: Path,
    scans: Sequence[ScanFiles],
    *,
    with_maps: bool = False,
    microstructure: Sequence[str] = (),
    nprocs: int | None = None,
    progress: Progress | None = None,
) -> list[TrainingScan]:
    """Make the store on the first process, and map it on all."""
    error = None
    try:
        if rank() == 0:
            store = partial(recipe.store, work, with_maps=with_maps, microstructure=microstructure)
            run_stage(store, scans, nprocs=nprocs, progress=progress)
    except SitelessError as caught:
        error = caught
    raise_everywhere(error)
    return [open_scan(recipe.place(work, files)) for files in scans]


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


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays into one file, which appears when it is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".siteless-", dir=path.parent) as stage:
            aside = Path(stage) / path.name
            np.savez(aside, allow_pickle=False, **arrays)
            aside.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write here ({error.strerror or error})",
            remedy="check space and permissions, then run again",
            path=path.parent,
        ) from None


def is_whole(path: Path) -> bool:
    """Whether a file of arrays is there, and not truncated."""
    return zipfile.is_zipfile(path)


def load_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a file."""
    try:
        with np.load(path) as stored:
            return dict(stored)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        raise UnreadableFileError(
            "the file is damaged, or was taken away", remedy="delete it and run again", path=path
        ) from None
