"""File names of a BIDS tree: parsing them, and which file applies to which (inheritance)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class BidsName:
    """A file's path with the parts of its name.

    Examples
    --------
    >>> name = BidsName.parse(Path("sub-01_ses-a_dir-AP_dwi.nii.gz"))
    >>> name.entities, name.suffix, name.extension
    ({'sub': '01', 'ses': 'a', 'dir': 'AP'}, 'dwi', '.nii.gz')
    """

    path: Path
    entities: dict[str, str]
    suffix: str
    extension: str

    @classmethod
    def parse(cls, path: Path) -> BidsName:
        """Split a name into entities, suffix and extension; what fits nothing is passed over."""
        stem, dot, extension = path.name.partition(".")
        *pairs, suffix = stem.split("_")
        split = (pair.partition("-") for pair in pairs)
        entities = {key: value for key, dash, value in split if dash}
        return cls(path, entities, suffix, dot + extension)

    @property
    def is_image(self) -> bool:
        """Whether the file is a NIfTI image."""
        return self.extension in (".nii", ".nii.gz")


@dataclass
class Tree:
    """The files of a dataset, each folder listed once."""

    root: Path
    _listings: dict[Path, list[BidsName]] = field(default_factory=dict)

    def folder(self, path: Path) -> list[BidsName]:
        """List the files of a folder, sorted; none when there is no such folder."""
        if path not in self._listings:
            try:
                names = sorted(entry.name for entry in os.scandir(path) if not entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                names = []
            self._listings[path] = [BidsName.parse(path / name) for name in names]
        return self._listings[path]

    @cached_property
    def derivatives(self) -> list[Path]:
        """Datasets in the root's ``derivatives`` folder."""
        return sorted(path for path in (self.root / "derivatives").glob("*") if path.is_dir())

    def walk(self) -> Iterator[BidsName]:
        """Yield every file below the root's ``sub-*`` folders, in sorted order."""
        for subject in sorted(entry.path for entry in os.scandir(self.root) if _is_subject(entry)):
            for folder, below, _ in os.walk(subject, followlinks=True):
                below.sort()
                yield from self.folder(Path(folder))

    def applicable(self, name: BidsName, extension: str) -> list[BidsName]:
        """Return the metadata files that apply to a data file, the most general first.

        BIDS's inheritance principle: a file applies when it lies in the data file's folder or
        above it, has the same suffix, and has no entity that the data file does not have.
        """
        inside = name.path.parent.relative_to(self.root).parts
        folders = [self.root.joinpath(*inside[:depth]) for depth in range(len(inside) + 1)]
        found = [
            other
            for folder in folders
            for other in self.folder(folder)
            if other.extension == extension and other.suffix == name.suffix
            if other.entities.items() <= name.entities.items()
        ]
        return sorted(found, key=lambda other: (len(other.path.parts), len(other.entities)))

    def closest(self, name: BidsName, extension: str) -> Path | None:
        """Return the applicable file that is nearest to the data file."""
        found = self.applicable(name, extension)
        return found[-1].path if found else None


def _is_subject(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith("sub-") and entry.is_dir()
