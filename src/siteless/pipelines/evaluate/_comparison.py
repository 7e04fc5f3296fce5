"""What is to be judged: what methods have made of the scans of a dataset, and against what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from siteless.acquisition import GRID_TOLERANCE, grid_offset, same_shells
from siteless.bids import (
    ScanFiles,
    derivative_path,
    find_scans,
    read_header,
    read_json,
    read_sidecar,
    sidecar_of,
)
from siteless.errors import DatasetError, MissingFileError
from siteless.evaluation import BEFORE, NOISE, RESCAN
from siteless.microstructure import MAPS
from siteless.model import AVERAGE
from siteless.pipelines._choice import read_table

# Names that mean something else.
_TAKEN = (BEFORE, NOISE, RESCAN, "floors")
# Entities that tell the scans of a person apart, whichever tool has written them.
_ACQUISITION = ("sub", "ses", "acq", "dir", "run")


@dataclass(frozen=True)
class Judged:
    """A scan that a method has rendered as a site, or maps of it.

    Attributes
    ----------
    method
        As the user calls it; `BEFORE` for the scan as it was.
    source
        The scan that it was made of.
    to
        The site that it was rendered as.
    image
        The rendered scan; None of a method that gives maps.
    maps
        Maps by name, of such a method.
    target
        The person's scan at the target site, when there is one to compare with.
    """

    method: str
    source: ScanFiles
    to: str
    image: ScanFiles | None
    maps: Mapping[str, Path] = field(default_factory=dict)
    target: ScanFiles | None = None

    @property
    def task(self) -> str:
        """From where to where."""
        return f"{self.source.site}>{self.to}"

    @property
    def files(self) -> list[ScanFiles]:
        """Scans that the scores depend on."""
        return [one for one in (self.source, self.image, self.target) if one is not None]


@dataclass(frozen=True)
class Contest:
    """All that is judged.

    Attributes
    ----------
    originals
        Scans of the dataset.
    judged
        What methods have made of them, and for each task the scans as they were.
    training
        People who are not scored: models, and adversaries, may learn from them. None when no
        table tells.
    notes
        What cannot be compared, and why.
    """

    originals: tuple[ScanFiles, ...]
    judged: tuple[Judged, ...]
    training: frozenset[str] | None
    notes: tuple[str, ...]

    def is_learned_from(self, files: ScanFiles) -> bool:
        """Whether a scan is of a person that models and adversaries learn from."""
        return files.subject in (self.training or ())

    @property
    def scored(self) -> list[Judged]:
        """What is judged of people that no model has learned from."""
        return [one for one in self.judged if self.is_scored(one.source)]

    def is_scored(self, files: ScanFiles) -> bool:
        """Whether a scan is of a person that no model has learned from."""
        return self.training is None or files.attributes.get("split") == "test"

    def rescan(self, target: ScanFiles) -> ScanFiles | None:
        """Return another scan of the same person at the same site and grid."""
        others = _at_site(self.originals, target.subject, str(target.site))
        return next((o for o in others if o != target and not _differ(o, target)), None)


def set_contest(
    originals: Sequence[ScanFiles],
    harmonized: Mapping[str, Sequence[Path]],
    *,
    to: str | None = None,
) -> Contest:
    """Find what methods have made of scans, and pair it with scans of the target site.

    Scans without shells, such as those of reversed phase encoding, are left out.

    Parameters
    ----------
    originals
        Scans with their sites.
    harmonized
        Folders of derivatives, by the name of the method.
    to
        The target site, for derivatives that do not tell it.
    """
    _require_site(originals, to)
    splits = _read_splits(originals)
    originals = [files for files in originals if read_table(files).shells]
    made = find_judged(originals, harmonized, to=to)
    targets = {one.to for one in made}
    at_home = [(files.dwi, str(files.site)) for files in originals if str(files.site) in targets]
    tasks = dict.fromkeys([*((one.source.dwi, one.to) for one in made), *at_home])
    by_path = {files.dwi: files for files in originals}
    before = [Judged(BEFORE, by_path[dwi], site, by_path[dwi]) for dwi, site in tasks]
    notes: dict[str, int] = {}
    judged = [_paired(one, originals, notes) for one in (*before, *made)]
    told = tuple(f"{note} ({count} scans)" for note, count in notes.items() if count)
    return Contest(tuple(originals), tuple(judged), splits, told)


def find_judged(
    originals: Sequence[ScanFiles],
    harmonized: Mapping[str, Sequence[Path]],
    *,
    to: str | None = None,
) -> list[Judged]:
    """Find what methods have made of scans; as for `set_contest`, but without pairs."""
    made = [
        one
        for method, folders in harmonized.items()
        for folder in folders
        for one in _find_judged(method, folder, originals, to)
    ]
    _by_key(originals)
    _require_once(made)
    return made


def folder_name(label: str) -> str:
    """Return a label as the name of a folder."""
    return re.sub(r"[^\w.-]", "-", label)


def require_names(harmonized: Mapping[str, Sequence[Path]]) -> None:
    """Refuse names of methods that mean something else, or that no folder can have."""
    for name in harmonized:
        if name in _TAKEN or name != re.sub(r"[/\\\t\n]", "", name) or name.startswith("."):
            raise DatasetError(
                f"a method cannot be called {name!r}", remedy="give another name, as NAME=DIR"
            )


def _require_site(originals: Sequence[ScanFiles], to: str | None) -> None:
    """Refuse a target that no scan is of, but for the mean of sites."""
    sites = sorted({str(files.site) for files in originals})
    if to not in (None, AVERAGE, *sites):
        raise DatasetError(f"no scan is of site {to!r}", remedy=f"choose of {', '.join(sites)}")


def _read_splits(originals: Sequence[ScanFiles]) -> frozenset[str] | None:
    """Return the people that were learned from; None where no split column tells."""
    told = {files.subject: files.attributes.get("split") for files in originals}
    unknown = [word for word in told.values() if word not in (None, "train", "val", "test")]
    if unknown:
        raise DatasetError(
            f"expected train, val or test in the split column, found {unknown[0]!r}",
            remedy="correct it",
        )
    if not any(told.values()):
        return None
    if "test" not in told.values():
        raise DatasetError(
            "the split column has no test people, and the others were learned from",
            remedy="mark some as test, or choose others",
        )
    return frozenset(subject for subject, split in told.items() if split == "train")


def _find_judged(
    method: str, folder: Path, originals: Sequence[ScanFiles], to: str | None
) -> Iterator[Judged]:
    """Yield what a folder holds of scans."""
    if not folder.is_dir():
        raise MissingFileError(
            "there is no such folder",
            remedy="give one that `siteless harmonize` wrote",
            path=folder,
        )
    images = _images(folder)
    count = 0
    for source in originals:
        image = images.get(_key(source))
        maps = {} if image else _maps(folder, source)
        if image or maps:
            count += 1
            told = read_sidecar(image) if image else read_sidecar_of_maps(maps)
            yield Judged(method, source, _target_site(told, to, folder), image, maps)
    if not count:
        raise DatasetError(
            "no scan or map in the folder is of a scan of the dataset",
            remedy="give what was made of these scans",
            path=folder,
        )


def _require_once(made: Sequence[Judged]) -> None:
    """Refuse two renderings of a scan by one method as one site: neither is the method's."""
    seen: set[tuple[str, Path, str]] = set()
    for one in made:
        key = one.method, one.source.dwi, one.to
        if key in seen:
            raise DatasetError(
                f"two folders of the method {one.method} hold it rendered as {one.to}",
                remedy="give them different names, as NAME=DIR",
                path=one.source.dwi,
            )
        seen.add(key)


def _images(folder: Path) -> dict[tuple[str, ...], ScanFiles]:
    if not any(folder.rglob("*_dwi.nii*")):
        return {}
    found = find_scans(folder)
    if found.errors:
        raise found.errors[0]
    return _by_key(found.scans)


def _by_key(scans: Sequence[ScanFiles]) -> dict[tuple[str, ...], ScanFiles]:
    """Return scans by what tells them apart; refuse two of which nothing does."""
    first: dict[tuple[str, ...], ScanFiles] = {}
    for files in scans:
        if (rival := first.setdefault(_key(files), files)) is not files:
            raise DatasetError(
                f"only {', '.join(_ACQUISITION)} tell scans apart, and {rival.dwi.name} has the "
                "same",
                remedy="choose one of them, e.g. with --bids-filter-file, or move it away",
                path=files.dwi,
            )
    return first


def _maps(folder: Path, source: ScanFiles) -> dict[str, Path]:
    paths = {name: derivative_path(folder, f"harmonized_{name}", source.entities) for name in MAPS}
    return {name: path for name, path in paths.items() if path.exists()}


def read_sidecar_of_maps(maps: Mapping[str, Path]) -> dict[str, Any]:
    """Return what is told of maps that a method gives, nothing where no sidecar is."""
    sidecar = sidecar_of(next(iter(maps.values())))
    return read_json(sidecar) if sidecar.exists() else {}


def _key(files: ScanFiles) -> tuple[str, ...]:
    return tuple(
        re.sub(r"[^0-9A-Za-z]", "", files.entities.get(entity, "")) for entity in _ACQUISITION
    )


def _target_site(sidecar: Mapping[str, object], to: str | None, folder: Path) -> str:
    told = sidecar.get("Siteless")
    site = told.get("TargetSite") if isinstance(told, dict) else to
    if site and to and site != to:
        raise DatasetError(
            f"its scans say that they were rendered as {site}, not as {to}",
            remedy="leave out --to",
            path=folder,
        )
    if not site:
        raise DatasetError(
            "the site that its scans were rendered as is unknown",
            remedy="name it with --to",
            path=folder,
        )
    return str(site)


def _paired(one: Judged, originals: Sequence[ScanFiles], notes: dict[str, int]) -> Judged:
    """Give what is judged a scan to compare with; or note why it has none."""
    if str(one.source.site) == one.to:
        return one
    reason = _NO_TARGET
    for target in _at_site(originals, one.source.subject, one.to):
        reason = _differ(one.image or one.source, target)
        if not reason:
            return replace(one, target=target)
    note = reason.format(task=one.task)
    notes[note] = notes.get(note, 0) + (one.method != BEFORE)
    return one


_NO_TARGET = "{task}: the person was not scanned at the target site, so no scan is compared"


def _at_site(originals: Sequence[ScanFiles], subject: str, site: str) -> list[ScanFiles]:
    return [files for files in originals if (files.subject, str(files.site)) == (subject, site)]


def _differ(first: ScanFiles, second: ScanFiles) -> str:
    """Say why two scans cannot be compared voxel by voxel; nothing where they can."""
    (header, affine), (other, other_affine) = (read_header(one.dwi) for one in (first, second))
    shape, other_shape = header.get_data_shape()[:3], other.get_data_shape()[:3]
    if shape != other_shape or grid_offset(affine, other_affine, shape) > GRID_TOLERANCE:
        return (
            "{task}: the person's scans are on different grids, so voxels are not compared; "
            "bring both to one space first"
        )
    bs, others = (tuple(s.b for s in read_table(one).shells) for one in (first, second))
    if not same_shells(bs, others):
        return "{task}: the scans have different shells, so they are not compared"
    return ""
