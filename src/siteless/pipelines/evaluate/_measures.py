"""Which scores are computed, in which regions, and where they are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import (
    ScanFiles,
    derivative_path,
    fingerprint,
    read_rows,
    read_signal,
    sidecar_of,
)
from siteless.errors import DatasetError, errors_at
from siteless.microstructure import MAPS
from siteless.pipelines.evaluate._comparison import ACQUISITION, RenderedScan
from siteless.storage import cache_key, size_and_time

Kind = Literal["signal", "maps", "orientation", "leakage", "biology"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Least number of voxels of a region.
_LEAST = 10
# Increased when a score changes its meaning.
_SCORES = 2


@dataclass(frozen=True)
class Scoring:
    """Scores to compute.

    Attributes
    ----------
    kinds
        Kinds of scores; all by default.
    maps
        Keys of `siteless.microstructure.MAPS`. Maps that the scans do not support are left out.
    labels
        Label image on the grid of the scans, or folder of a dataset with a ``*_dseg.nii[.gz]``
        for each. A table with the same name and the columns index and name names the labels.
    fibres
        Number of evenly spaced white-matter voxels in which fibre orientations are compared; None
        for all. MRtrix3 takes a few milliseconds for each, and DIPY ten times as long.
    """

    kinds: Collection[Kind] = KINDS
    maps: Collection[str] = tuple(MAPS)
    labels: Path | None = None
    fibres: int | None = 1000

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - set(KINDS)
        if unknown:
            raise DatasetError(
                f"there are no scores of {min(unknown)!r}",
                remedy=f"choose from {', '.join(KINDS)}",
            )


@dataclass(frozen=True)
class Measures:
    """The scores that a dataset supports, and their files."""

    out: Path  # folder of the scores, of maps of errors, and of records
    root: Path  # the dataset, which contains the noiseless truth of simulated scans
    scoring: Scoring  # that all scans support
    order: int  # lmax of the harmonics for adversaries
    engine: str  # program for fibre orientations; empty if they are not compared

    def include(self, *kinds: Kind) -> bool:
        """Whether scores of any of these kinds are computed."""
        return any(kind in self.scoring.kinds for kind in kinds)

    def regions(self, files: ScanFiles, scan: Scan) -> dict[str, Array]:
        """Return the labelled regions in a scan's brain, by name: masks of shape (x, y, z)."""
        if self.scoring.labels is None:
            return {}
        image = _label_image(self.scoring.labels, files)
        values, affine = read_signal(image)
        remedy = "give a folder with a *_dseg.nii.gz for each scan, on its grid"
        with errors_at(image):
            scan.require_grid(values.shape, affine, what="labels", remedy=remedy)
        labels, names = np.where(scan.mask, values, 0).round().astype(int), _names(image)
        numbers, counts = np.unique(labels[labels > 0], return_counts=True)
        large = numbers[counts >= _LEAST].tolist()
        return {names.get(number, f"label-{number}"): labels == number for number in large}

    def error_map(self, rendered: RenderedScan, output: str) -> Path:
        """Return the path of a map of errors."""
        folder = self.out / "maps" / rendered.folder
        return derivative_path(folder, output, rendered.source.entities)

    def record(self, folder: str, files: ScanFiles) -> Path:
        """Return the path of the stored scores of a scan."""
        return sidecar_of(derivative_path(self.out / "records" / folder, "scan", files.entities))

    def sample(self, rendered: RenderedScan) -> Path:
        """Return the path of the stored voxel sample of a rendered scan."""
        return self.record(rendered.folder, rendered.source).with_suffix(".safetensors")

    def truth(self, files: ScanFiles) -> Path | None:
        """Return the noiseless scan of a simulated one."""
        path = derivative_path(self.root / "derivatives/truth", "noiseless", files.entities)
        return path if path.exists() else None

    def lesion(self, files: ScanFiles) -> Path | None:
        """Return the lesion mask of a participant, from any derivative of the dataset."""
        folders = sorted((self.root / "derivatives").glob("*/")) if self.root.is_dir() else []
        for entities in (files.entities, {"sub": files.subject}):
            for folder in folders:
                if (path := derivative_path(folder, "lesion", entities)).exists():
                    return path
        return None

    def key(self, scans: Iterable[ScanFiles], extra: object) -> str:
        """Return a hash of all that the scores of some scans depend on."""
        scoring, scans = self.scoring, list(scans)
        settings = [sorted(scoring.kinds), scoring.maps, self.order, self.engine, scoring.fibres]
        beside = [path for files in scans for path in (self.truth(files), self.lesion(files))]
        files = [*map(fingerprint, scans), *(size_and_time(path) for path in beside if path)]
        labels = self.scoring.labels
        stamps = labels and [size_and_time(path) for path in _label_files(labels)]
        return cache_key(_SCORES, extra, settings, stamps, files)


def _label_files(path: Path) -> list[Path]:
    """Return the label images of a file or folder, and the tables of their names."""
    images = [path] if path.is_file() else sorted(path.rglob("*_dseg.nii*"))
    return [*images, *(table for image in images if (table := _table_of(image)).exists())]


def _label_image(path: Path, files: ScanFiles) -> Path:
    """Return the label image of a scan."""
    if path.is_file():
        return path
    known = {f"{key}-{label}" for key, label in files.entities.items()}
    fitting = []
    for image in sorted(path.rglob(f"sub-{files.subject}*_dseg.nii*")):
        parts = image.name.split("_")[:-1]
        if known.issuperset(part for part in parts if part.partition("-")[0] in ACQUISITION):
            fitting.append(image)
    if not fitting:
        raise DatasetError(
            f"no *_dseg.nii.gz in the folder is of {files.name}",
            remedy="give a label image for each scan, or one for all",
            path=path,
        )
    return max(fitting, key=lambda image: len(image.name))


def _names(image: Path) -> dict[int, str]:
    """Read the names of labels."""
    table = _table_of(image)
    rows = read_rows(table, "index", "name") if table.exists() else []
    try:
        return {int(float(row["index"])): row["name"] for row in rows}
    except (ValueError, KeyError):
        raise DatasetError(
            "expected a whole number and a name in each row", remedy="correct it", path=table
        ) from None


def _table_of(image: Path) -> Path:
    return image.with_name(image.name.partition(".nii")[0] + ".tsv")
