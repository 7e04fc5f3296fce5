"""Find rendered scans, and pair them with scans of the target site."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from siteless.acquisition import GRID_TOLERANCE, grid_offset, same_shells
from siteless.bids import (
    ScanFiles,
    derivative_path,
    find_scans,
    read_gradient_table,
    read_header,
    read_json,
    read_sidecar,
    sidecar_of,
)
from siteless.errors import DatasetError, MissingFileError
from siteless.evaluation import BEFORE, NOISE, RESCAN
from siteless.microstructure import MAPS
from siteless.model import AVERAGE
from siteless.pipelines._choice import read_splits, with_shells

# Reserved names: rows of the scores, or a folder of records.
_RESERVED = (BEFORE, NOISE, RESCAN, "floors")
# Entities that distinguish the scans of a participant, for any tool.
ACQUISITION = ("sub", "ses", "acq", "dir", "run")


@dataclass(frozen=True)
class Derivatives:
    """Folders of derivatives by which methods harmonized a dataset.

    Attributes
    ----------
    folders
        Folders by the name of the method, which may have one for each target.
    to
        Target site, for derivatives that do not name it.
    """

    folders: Mapping[str, Sequence[Path | str]]
    to: str | None = None

    def __post_init__(self) -> None:
        for name in self.folders:
            is_folder_name = name == re.sub(r"[/\\\t\n]", "", name) and not name.startswith(".")
            if name in _RESERVED or not is_folder_name:
                raise DatasetError(
                    f"a method cannot be called {name!r}", remedy="give another name, as NAME=DIR"
                )

    @classmethod
    def of(
        cls, derivatives: Derivatives | Mapping[str, Sequence[Path | str]] | Sequence[Path | str]
    ) -> Derivatives:
        """Return derivatives unchanged, or make them from folders, by method or of one method."""
        if isinstance(derivatives, Derivatives):
            return derivatives
        if isinstance(derivatives, Mapping):
            return cls(derivatives)
        return cls({"harmonized": derivatives})

    def by_method(self) -> list[tuple[str, Path]]:
        """Return all folders, each with the name of its method."""
        return [(name, Path(path)) for name, paths in self.folders.items() for path in paths]


@dataclass(frozen=True)
class RenderedScan:
    """A scan that a method has rendered as a site, or maps of it."""

    method: str  # chosen by the user; `BEFORE` for the original scan
    source: ScanFiles
    to: str
    image: ScanFiles | None  # None from a method that harmonizes maps
    maps: Mapping[str, Path] = field(default_factory=dict)  # from such a method
    target: ScanFiles | None = None  # comparable scan of the participant at the target site

    @property
    def task(self) -> str:
        """Source and target site."""
        return f"{self.source.site}>{self.to}"

    @property
    def folder(self) -> str:
        """Folder of scores and maps of errors."""
        return f"{self.method}/to-{folder_name(self.to)}"

    @property
    def files(self) -> list[ScanFiles]:
        """Scans that the scores depend on."""
        return [scan for scan in (self.source, self.image, self.target) if scan is not None]

    def read_sidecar(self) -> dict[str, Any]:
        """Read the sidecar of the rendered scan or of its first map; empty for a map without."""
        if self.image:
            return read_sidecar(self.image)
        sidecar = sidecar_of(next(iter(self.maps.values())))
        return read_json(sidecar) if sidecar.exists() else {}


@dataclass(frozen=True)
class Comparison:
    """All scans to compare."""

    originals: tuple[ScanFiles, ...]
    renderings: tuple[RenderedScan, ...]  # rendered scans, and for each task the original scans
    # People who train models and adversaries, and are not scored; None if no table names them.
    training: frozenset[str] | None
    notes: tuple[str, ...]  # on scans that cannot be compared

    @property
    def scored(self) -> list[RenderedScan]:
        """Renderings of participants outside the training set."""
        return [rendered for rendered in self.renderings if self.is_scored(rendered.source)]

    def is_scored(self, files: ScanFiles) -> bool:
        """Whether the participant of a scan is scored."""
        return self.training is None or files.attributes.get("split") == "test"

    def is_used(self, files: ScanFiles) -> bool:
        """Whether the participant of a scan is scored or trains adversaries."""
        return self.is_scored(files) or files.subject in (self.training or ())

    def rescan(self, target: ScanFiles) -> ScanFiles | None:
        """Return another scan of the same participant at the same site and grid."""
        visits = _at_site(self.originals, target.subject, str(target.site))
        others = (scan for scan in visits if scan != target and not _differ(scan, target))
        return next(others, None)


def pair_scans(originals: Sequence[ScanFiles], derivatives: Derivatives) -> Comparison:
    """Find rendered scans, and pair them with scans of the target site.

    Scans without shells, such as those with reversed phase encoding, are left out.
    """
    sites = sorted({str(files.site) for files in originals})
    if derivatives.to not in (None, AVERAGE, *sites):
        raise DatasetError(
            f"no scan is of site {derivatives.to!r}", remedy=f"choose from {', '.join(sites)}"
        )
    training = _read_training(originals)
    originals = [files for files, _ in with_shells(originals)]
    renderings = find_renderings(originals, derivatives)
    targets = {rendered.to for rendered in renderings}
    tasks = {(r.source.dwi, r.to): r.source for r in renderings}
    tasks |= {(f.dwi, str(f.site)): f for f in originals if str(f.site) in targets}
    before = [RenderedScan(BEFORE, source, to, source) for (_, to), source in tasks.items()]
    pairs = [_pair(rendered, originals) for rendered in (*before, *renderings)]
    counts: Counter[str] = Counter()
    for rendered, reason in pairs:
        if reason:
            counts[f"{rendered.task}: {reason}"] += rendered.method != BEFORE
    notes = tuple(f"{note} ({count} scans)" for note, count in counts.items() if count)
    return Comparison(tuple(originals), tuple(rendered for rendered, _ in pairs), training, notes)


def find_renderings(
    originals: Sequence[ScanFiles], derivatives: Derivatives
) -> list[RenderedScan]:
    """Find rendered scans, without scans to compare them with."""
    renderings = [
        rendered
        for method, folder in derivatives.by_method()
        for rendered in _renderings_in(folder, method, originals, derivatives.to)
    ]
    _by_key(originals)
    counts = Counter((r.source.dwi, r.to, r.method) for r in renderings)
    for (dwi, to, method), count in counts.items():
        if count > 1:
            raise DatasetError(
                f"two folders of the method {method} hold it rendered as {to}",
                remedy="give them different names, as NAME=DIR",
                path=dwi,
            )
    return renderings


def folder_name(label: str) -> str:
    """Return a label as the name of a folder."""
    return re.sub(r"[^\w.-]", "-", label)


def _read_training(originals: Sequence[ScanFiles]) -> frozenset[str] | None:
    """Return the training participants; None without a split column."""
    people = [files.subject for files in originals]
    splits = dict(zip(people, read_splits(originals), strict=True))
    if not any(splits.values()):
        return None
    if "test" not in splits.values():
        raise DatasetError(
            "the split column has no test people, and the others were learned from",
            remedy="mark some as test, or choose others",
        )
    return frozenset(subject for subject, split in splits.items() if split == "train")


def _renderings_in(
    folder: Path, method: str, originals: Sequence[ScanFiles], to: str | None
) -> list[RenderedScan]:
    """Return the renderings in a folder; raise an error if there are none."""
    if not folder.is_dir():
        raise MissingFileError(
            "there is no such folder",
            remedy="give one that `siteless harmonize` wrote",
            path=folder,
        )
    images: dict[tuple[str, ...], ScanFiles] = {}
    if any(folder.rglob("*_dwi.nii*")):
        dataset = find_scans(folder)
        if dataset.errors:
            raise dataset.errors[0]
        images = _by_key(dataset.scans)
    renderings = []
    for source in originals:
        image = images.get(_key(source))
        maps = {} if image else _maps(folder, source)
        if image or maps:
            rendered = RenderedScan(method, source, "", image, maps)
            site = _target_site(rendered.read_sidecar(), to, folder)
            renderings.append(replace(rendered, to=site))
    if not renderings:
        raise DatasetError(
            "no scan or map in the folder belongs to a scan of the dataset",
            remedy="give what was made of these scans",
            path=folder,
        )
    return renderings


def _by_key(scans: Sequence[ScanFiles]) -> dict[tuple[str, ...], ScanFiles]:
    """Return scans by the entities that distinguish them; raise an error for duplicates."""
    by_key: dict[tuple[str, ...], ScanFiles] = {}
    for files in scans:
        if (earlier := by_key.setdefault(_key(files), files)) is not files:
            raise DatasetError(
                f"only {', '.join(ACQUISITION)} tell scans apart, and {earlier.dwi.name} has the "
                "same",
                remedy="choose one of them, e.g. with --bids-filter-file, or move it away",
                path=files.dwi,
            )
    return by_key


def _key(files: ScanFiles) -> tuple[str, ...]:
    labels = (files.entities.get(entity, "") for entity in ACQUISITION)
    return tuple(re.sub(r"[^0-9A-Za-z]", "", label) for label in labels)


def _maps(folder: Path, source: ScanFiles) -> dict[str, Path]:
    paths = {name: derivative_path(folder, f"harmonized_{name}", source.entities) for name in MAPS}
    return {name: path for name, path in paths.items() if path.exists()}


def _target_site(sidecar: Mapping[str, object], to: str | None, folder: Path) -> str:
    provenance = sidecar.get("Siteless")
    site = provenance.get("TargetSite") if isinstance(provenance, dict) else to
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


def _pair(rendered: RenderedScan, originals: Sequence[ScanFiles]) -> tuple[RenderedScan, str]:
    """Pair a rendered scan with a target scan; or return the reason why there is none."""
    if str(rendered.source.site) == rendered.to:
        return rendered, ""
    reason = "the person was not scanned at the target site, so no scan is compared"
    for target in _at_site(originals, rendered.source.subject, rendered.to):
        reason = _differ(rendered.image or rendered.source, target)
        if not reason:
            return replace(rendered, target=target), ""
    return rendered, reason


def _at_site(originals: Sequence[ScanFiles], subject: str, site: str) -> list[ScanFiles]:
    return [files for files in originals if (files.subject, str(files.site)) == (subject, site)]


def _differ(first: ScanFiles, second: ScanFiles) -> str:
    """Return why two scans cannot be compared by voxel; empty if they can."""
    (header, affine), (other, other_affine) = (read_header(scan.dwi) for scan in (first, second))
    shape, other_shape = header.get_data_shape()[:3], other.get_data_shape()[:3]
    if shape != other_shape or grid_offset(affine, other_affine, shape) > GRID_TOLERANCE:
        return (
            "the person's scans are on different grids, so voxels are not compared; "
            "bring both to one space first"
        )
    bs, others = (tuple(s.b for s in read_gradient_table(scan).shells) for scan in (first, second))
    if same_shells(bs, others):
        return ""
    return "the scans have different shells, so they are not compared"
