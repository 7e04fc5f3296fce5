"""Regions of label images in which scans are scored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, read_rows, read_signal
from siteless.errors import DatasetError, MissingFileError, errors_at
from siteless.pipelines.evaluate._comparison import ACQUISITION
from siteless.storage import size_and_time

# Least number of voxels of a region.
_LEAST = 10


@dataclass(frozen=True)
class Labels:
    """Label images: one for all scans, or a folder of a dataset with one for each.

    A table with the same name and the columns index and name contains the names of labels.
    """

    path: Path  # image on the grid of the scans; or folder with ``*_dseg.nii[.gz]`` files

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise MissingFileError(
                "there is no such file or folder", remedy="correct the path", path=self.path
            )

    @property
    def key(self) -> list[tuple[str, int, int]]:
        """Names, sizes and modification times of the files."""
        images = [self.path] if self.path.is_file() else sorted(self.path.rglob("*_dseg.nii*"))
        tables = [table for image in images if (table := _table_of(image)).exists()]
        return [size_and_time(path) for path in (*images, *tables)]

    def regions(self, files: ScanFiles, scan: Scan) -> dict[str, Array]:
        """Return the regions in a scan's brain, by name: masks of shape (x, y, z)."""
        image = self.path if self.path.is_file() else self._of(files)
        values, affine = read_signal(image)
        remedy = "give a folder with a *_dseg.nii.gz for each scan, on its grid"
        with errors_at(image):
            scan.require_grid(values.shape, affine, what="labels", remedy=remedy)
        labels, names = np.where(scan.mask, values, 0).round().astype(int), _names(image)
        numbers, counts = np.unique(labels[labels > 0], return_counts=True)
        large = numbers[counts >= _LEAST]
        return {
            names.get(number, f"label-{number}"): labels == number for number in large.tolist()
        }

    def _of(self, files: ScanFiles) -> Path:
        known = {f"{key}-{label}" for key, label in files.entities.items()}
        fitting = []
        for path in sorted(self.path.rglob(f"sub-{files.subject}*_dseg.nii*")):
            parts = path.name.split("_")[:-1]
            if known.issuperset(part for part in parts if part.partition("-")[0] in ACQUISITION):
                fitting.append(path)
        if not fitting:
            raise DatasetError(
                f"no *_dseg.nii.gz in the folder is of {files.name}",
                remedy="give a label image for each scan, or one for all",
                path=self.path,
            )
        return max(fitting, key=lambda path: len(path.name))


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
