"""Parse the file names of a BIDS tree and apply its inheritance principle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from siteless.bids._tables import unreadable
from siteless.errors import DatasetError, SitelessError

# Long names of entities, as used in BIDS filter files.
ENTITIES = {
    "subject": "sub",
    "session": "ses",
    "acquisition": "acq",
    "ceagent": "ce",
    "reconstruction": "rec",
    "direction": "dir",
    "run": "run",
    "part": "part",
    "space": "space",
    "resolution": "res",
    "description": "desc",
}


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
        """Split a name into entities, suffix and extension; other parts are ignored."""
        stem, dot, extension = path.name.partition(".")
        *pairs, suffix = stem.split("_")
        split = (pair.partition("-") for pair in pairs)
        entities = {key: value for key, dash, value in split if dash}
        return cls(path, entities, suffix, dot + extension)

    @property
    def is_image(self) -> bool:
        """Whether the file is a NIfTI image."""
        return self.extension in (".nii", ".nii.gz")


def _rank(name: BidsName) -> tuple[int, int]:
    """Return how specific a file is: the depth of its folder, and the number of its entities."""
    return len(name.path.parts), len(name.entities)


@dataclass
class Tree:
    """The files of a dataset; each folder is listed once, and `errors` collects failures."""

    root: Path
    errors: list[SitelessError] = field(default_factory=list)
    _listings: dict[Path, list[BidsName]] = field(default_factory=dict)

    def folder(self, path: Path) -> list[BidsName]:
        """List the files of a folder, sorted; a missing folder has none."""
        if path not in self._listings:
            files = sorted(entry.name for entry in self._entries(path) if not entry.is_dir())
            self._listings[path] = [BidsName.parse(path / name) for name in files]
        return self._listings[path]

    @cached_property
    def derivatives(self) -> list[Path]:
        """Datasets in the root's ``derivatives`` folder."""
        return sorted(path for path in (self.root / "derivatives").glob("*") if path.is_dir())

    def diffusion_files(self) -> Iterator[BidsName]:
        """Yield the files of every ``sub-*/dwi`` and ``sub-*/ses-*/dwi`` folder, sorted."""
        for subject in self._folders(self.root, "sub-"):
            for folder in (subject, *self._folders(subject, "ses-")):
                yield from self.folder(folder / "dwi")

    def applicable(self, name: BidsName, extension: str) -> list[BidsName]:
        """Return the metadata files that apply to a data file, from general to specific.

        BIDS's inheritance principle: a file applies when it lies in the data file's folder or
        above it, has the same suffix, and has no entity that the data file does not have.
        """
        inside = name.path.parent.relative_to(self.root).parts
        folders = [self.root.joinpath(*inside[:depth]) for depth in range(len(inside) + 1)]
        files = [
            other
            for folder in folders
            for other in self.folder(folder)
            if other.extension == extension and other.suffix == name.suffix
            if other.entities.items() <= name.entities.items()
        ]
        return sorted(files, key=_rank)

    def closest(self, name: BidsName, extension: str) -> Path | None:
        """Return the applicable file that is nearest to the data file."""
        files = self.applicable(name, extension)
        if not files:
            return None
        best = files[-1]
        rivals = [other.path.name for other in files if _rank(other) == _rank(best)]
        if len(rivals) > 1:
            problem = f"{' and '.join(rivals)} both apply to it, and BIDS allows one"
            remedy = "remove or rename one"
            self.errors.append(DatasetError(problem, remedy=remedy, path=name.path))
        return best.path

    def _folders(self, path: Path, prefix: str) -> list[Path]:
        entries = (entry for entry in self._entries(path) if entry.name.startswith(prefix))
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())

    def _entries(self, path: Path) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.errors.append(unreadable(path, error))
            return []
