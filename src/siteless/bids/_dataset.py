"""Finding the scans of a dataset, with everything that belongs to each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siteless.acquisition import Site
from siteless.bids._sites import SiteFinder, site_from_sidecar
from siteless.bids._tables import Row, missing, read_json, read_table
from siteless.bids._tree import BidsName, Tree
from siteless.errors import DatasetError, SitelessError

# Entities that say which acquisition a file belongs to; a mask must agree on them with its scan.
_ACQUISITION = ("sub", "ses", "acq", "ce", "rec", "dir", "run", "space", "res")
# Reconstructions of the signal that are not its magnitude.
_NOT_MAGNITUDE = ("phase", "real", "imag")
_MANIFEST_COLUMNS = ("subject", "site", "dwi")
_MANIFEST_PATHS = ("dwi", "bval", "bvec", "mask", "wm_mask")


@dataclass(frozen=True)
class ScanFiles:
    """Where the parts of a scan are on disk.

    Attributes
    ----------
    dwi
        The image.
    entities
        Of the image's name, `sub` always among them.
    bval, bvec
        FSL gradient files, None when there are none.
    world_table
        MRtrix gradient table (``.b``), in scanner axes; it goes before bval and bvec.
    sidecars
        JSON files that apply, the most general first.
    mask, white_matter
        Masks, None when they are to be computed.
    site
        Where the scan was acquired, None when nothing tells.
    attributes
        What tables say of the person and the session, such as age and sex.
    written_by_qsiprep
        Whether QSIPrep wrote the image; its ``.bvec`` files do not follow FSL's convention.
    """

    dwi: Path
    entities: Mapping[str, str]
    bval: Path | None = None
    bvec: Path | None = None
    world_table: Path | None = None
    sidecars: tuple[Path, ...] = ()
    mask: Path | None = None
    white_matter: Path | None = None
    site: Site | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    written_by_qsiprep: bool = False

    @property
    def name(self) -> str:
        """The image's file name without its extension."""
        return self.dwi.name.partition(".nii")[0]

    @property
    def subject(self) -> str:
        """Label of the person."""
        return self.entities["sub"]


@dataclass(frozen=True)
class Dataset:
    """The scans that were found, and what was wrong with the tables they were found by."""

    root: Path
    scans: tuple[ScanFiles, ...]
    errors: tuple[SitelessError, ...] = ()


def find_scans(
    dataset: Path | str,
    *,
    site_from: str | None = None,
    filters: Mapping[str, Collection[str]] | None = None,
) -> Dataset:
    """Find the scans of a BIDS dataset, raw or derivative, or of a TSV manifest.

    Parameters
    ----------
    dataset
        A folder, or a manifest with the columns subject, site and dwi, and optionally session,
        bval, bvec, mask and wm_mask; its paths are relative to it.
    site_from
        Entity that tells the site, such as ``ses`` or ``acq``, where no table does.
    filters
        Allowed labels by entity, such as ``{"sub": ["01", "02"]}``.

    Raises
    ------
    SitelessError
        When the dataset cannot be read at all. What is wrong with single tables is in the
        result's `errors`.
    """
    path = Path(dataset)
    if not path.exists():
        raise missing(path)
    found = _from_tree(path, site_from) if path.is_dir() else _from_manifest(path)
    scans = tuple(scan for scan in found.scans if _passes(scan, filters or {}))
    if not scans:
        raise DatasetError(
            "no diffusion scan was found" + (" that passes the filters" if found.scans else ""),
            remedy="expected sub-*/[ses-*/]dwi/*_dwi.nii[.gz], or a manifest",
            path=path,
        )
    return Dataset(path, scans, found.errors)


def _passes(scan: ScanFiles, filters: Mapping[str, Collection[str]]) -> bool:
    return all(scan.entities.get(entity) in allowed for entity, allowed in filters.items())


def _from_tree(root: Path, site_from: str | None) -> Dataset:
    tree = Tree(root)
    errors: list[SitelessError] = []
    sites = SiteFinder(tree, site_from, errors)
    qsiprep = _is_qsiprep(root, errors)
    images = [name for name in tree.diffusion_files() if _is_dwi(name)]
    scans = []
    for image in images:
        attributes, site = sites.find(image)
        scans.append(
            ScanFiles(
                dwi=image.path,
                entities=image.entities,
                bval=tree.closest(image, ".bval"),
                bvec=tree.closest(image, ".bvec"),
                world_table=tree.closest(image, ".b"),
                sidecars=tuple(other.path for other in tree.applicable(image, ".json")),
                mask=_find_mask(tree, image, _is_brain_mask),
                white_matter=_find_mask(tree, image, _is_white_matter_mask),
                site=site,
                attributes=attributes,
                written_by_qsiprep=qsiprep,
            )
        )
    return Dataset(root, tuple(scans), tuple(errors))


def _is_dwi(name: BidsName) -> bool:
    return (
        name.suffix == "dwi"
        and name.is_image
        and "sub" in name.entities
        and name.entities.get("part") not in _NOT_MAGNITUDE
    )


def _is_qsiprep(root: Path, errors: list[SitelessError]) -> bool:
    description = root / "dataset_description.json"
    if not description.exists():
        return False
    try:
        content = read_json(description)
    except SitelessError as error:
        errors.append(error)
        return False
    generators: list[Any] = content.get("GeneratedBy") or [content.get("PipelineDescription")]
    names = [str(entry.get("Name", "")) for entry in generators if isinstance(entry, dict)]
    return any(name.lower() == "qsiprep" for name in names)


def _find_mask(tree: Tree, image: BidsName, is_wanted: Callable[[BidsName], bool]) -> Path | None:
    """Look for a mask beside the image, then in the dataset's own derivatives."""
    inside = image.path.parent.relative_to(tree.root)
    for folder in (image.path.parent, *(derivative / inside for derivative in tree.derivatives)):
        masks = [name for name in tree.folder(folder) if name.is_image and is_wanted(name)]
        fitting = [mask for mask in masks if _same_acquisition(mask, image)]
        if fitting:
            return max(fitting, key=lambda mask: len(mask.entities)).path
    return None


def _is_brain_mask(name: BidsName) -> bool:
    return name.suffix == "mask" and name.entities.get("desc") == "brain"


def _is_white_matter_mask(name: BidsName) -> bool:
    labels = (name.entities.get("label", ""), name.entities.get("desc", ""))
    return name.suffix in ("mask", "probseg") and "wm" in [label.lower() for label in labels]


def _same_acquisition(mask: BidsName, image: BidsName) -> bool:
    told = {key: value for key, value in mask.entities.items() if key in _ACQUISITION}
    return told.items() <= image.entities.items() and "sub" in told


def _from_manifest(path: Path) -> Dataset:
    rows = read_table(path, *_MANIFEST_COLUMNS)
    scans: list[ScanFiles] = []
    errors: list[SitelessError] = []
    for number, row in enumerate(rows, start=2):
        lacking = [column for column in ("subject", "dwi") if column not in row]
        if lacking:
            error = DatasetError(
                f"line {number} has no {' and no '.join(lacking)}", remedy="fill it in", path=path
            )
            errors.append(error)
        else:
            scans.append(_scan_of_row(row, path, errors))
    return Dataset(path, tuple(scans), tuple(errors))


def _scan_of_row(row: Row, manifest: Path, errors: list[SitelessError]) -> ScanFiles:
    given = {column: manifest.parent / row[column] for column in _MANIFEST_PATHS if column in row}
    dwi = given["dwi"]
    entities = {"sub": row["subject"].removeprefix("sub-")}
    if "session" in row:
        entities["ses"] = row["session"].removeprefix("ses-")
    sidecars = (sidecar,) if (sidecar := _beside(dwi, ".json")) else ()
    explicit = "bvec" in given
    return ScanFiles(
        dwi=dwi,
        entities=entities,
        bval=given.get("bval") or _beside(dwi, ".bval"),
        bvec=given.get("bvec") or _beside(dwi, ".bvec"),
        world_table=None if explicit else _beside(dwi, ".b"),
        sidecars=sidecars,
        mask=given.get("mask"),
        white_matter=given.get("wm_mask"),
        site=Site(row["site"], origin=manifest.name)
        if "site" in row
        else site_from_sidecar(sidecars, errors),
        attributes={key: row[key] for key in row if key not in _MANIFEST_PATHS},
        written_by_qsiprep=not explicit and _is_qsiprep(_dataset_root(dwi), errors),
    )


def _beside(dwi: Path, extension: str) -> Path | None:
    path = dwi.with_name(dwi.name.partition(".nii")[0] + extension)
    return path if path.exists() else None


def _dataset_root(path: Path) -> Path:
    described = (
        folder for folder in path.parents if (folder / "dataset_description.json").exists()
    )
    return next(described, path.parent)
