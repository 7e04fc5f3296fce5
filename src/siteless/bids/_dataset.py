"""Find the scans of a dataset and the files that belong to each scan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from siteless.acquisition import Site
from siteless.bids._names import derivative_path
from siteless.bids._sites import SiteFinder, site_from_sidecar
from siteless.bids._tables import Row, missing, read_json, read_rows
from siteless.bids._tree import ENTITIES, BidsName, Tree
from siteless.errors import DatasetError, SitelessError

# Entities that identify an acquisition; those of a mask must agree with its scan.
_ACQUISITION = ("sub", "ses", "acq", "ce", "rec", "dir", "run", "space", "res")
# Reconstructions other than the magnitude.
_NOT_MAGNITUDE = ("phase", "real", "imag")
_MANIFEST_PATHS = ("dwi", "bval", "bvec", "mask", "wm_mask")


@dataclass(frozen=True)
class ScanFiles:
    """Files of a scan.

    Attributes
    ----------
    dwi
        The image.
    entities
        Entities of the image's name; `sub` is always among them.
    bval, bvec
        FSL gradient files, or None.
    world_table
        MRtrix gradient table (``.b``), in scanner axes; it takes precedence over bval and bvec.
    sidecars
        JSON files that apply, from general to specific.
    mask, white_matter
        Mask files; a missing mask is computed.
    site
        Where the scan was acquired; None if unknown.
    attributes
        Columns of the participant and session tables, such as age and sex.
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
        """Label of the participant."""
        return self.entities["sub"]


@dataclass(frozen=True)
class Dataset:
    """The scans of a dataset, and the errors in its tables."""

    root: Path
    scans: tuple[ScanFiles, ...]
    errors: tuple[SitelessError, ...] = ()


def find_scans(
    dataset: Path | str,
    *,
    site_from: str | None = None,
    filters: Mapping[str, Collection[str | None]] | None = None,
) -> Dataset:
    """Find the scans of a BIDS dataset, raw or derivative, or of a TSV manifest.

    Parameters
    ----------
    dataset
        A folder, or a manifest with the columns subject, site and dwi, and optionally session,
        bval, bvec, mask and wm_mask; relative paths start at its folder.
    site_from
        Entity that identifies the site, such as ``ses`` or ``acq``, if no table does.
    filters
        Allowed labels by entity, such as ``{"sub": ["01", "02"]}``; None matches a missing entity.

    Raises
    ------
    SitelessError
        When the dataset cannot be read at all. Errors in single tables are collected in the
        result's `errors`.
    """
    path = Path(dataset)
    if not path.exists():
        raise missing(path)
    if path.name.endswith((".nii", ".nii.gz", ".json")):
        raise DatasetError(
            "expected a folder or a manifest, found a single file",
            remedy="list scans in a tab-separated table: subject, site, dwi",
            path=path,
        )
    site_from = ENTITIES.get(site_from or "", site_from)
    candidates = (_from_tree if path.is_dir() else _from_manifest)(path, site_from)
    if not candidates.scans:
        raise next(iter(candidates.errors), None) or DatasetError(
            "no diffusion scan was found",
            remedy="expected sub-*/[ses-*/]dwi/*_dwi.nii[.gz] in a folder, or rows in a manifest",
            path=path,
        )
    scans = _filtered(candidates, filters or {})
    return Dataset(path, scans, (*candidates.errors, *_clashes(scans)))


def _filtered(
    dataset: Dataset, filters: Mapping[str, Collection[str | None]]
) -> tuple[ScanFiles, ...]:
    """Return the scans that pass all filters; a label that no scan has is an error."""
    scans = dataset.scans
    for entity, allowed in filters.items():
        known = {scan.entities.get(entity) for scan in dataset.scans}
        unknown = [label for label in allowed if label not in known]
        if unknown:
            raise DatasetError(
                f"no scan has {entity}-{unknown[0]}",
                remedy=f"choose from {', '.join(sorted(str(label) for label in known))}",
                path=dataset.root,
            )
        scans = tuple(scan for scan in scans if scan.entities.get(entity) in allowed)
    if not scans:
        raise DatasetError(
            f"none of {len(dataset.scans)} scans passes all filters",
            remedy="relax them",
            path=dataset.root,
        )
    return scans


def _clashes(scans: tuple[ScanFiles, ...]) -> Iterator[DatasetError]:
    """Yield an error for each scan whose outputs would overwrite those of another."""
    first: dict[Path, ScanFiles] = {}
    for scan in scans:
        earlier = first.setdefault(derivative_path(Path(), "harmonized", scan.entities), scan)
        if earlier is not scan:
            yield DatasetError(
                f"its outputs would have the names of those of {earlier.dwi.name}",
                remedy="give scans different subjects or sessions, or choose one with "
                "--bids-filter-file",
                path=scan.dwi,
            )


def _from_tree(root: Path, site_from: str | None) -> Dataset:
    tree = Tree(root)
    sites = SiteFinder(tree, site_from)
    qsiprep = _is_qsiprep(root, tree.errors)
    images = [name for name in tree.diffusion_files() if _is_dwi(name)]
    if site_from and images and not any(site_from in image.entities for image in images):
        raise DatasetError(
            f"no file name has the entity {site_from!r} to take the site from",
            remedy=f"choose from {', '.join(sorted(images[0].entities))}",
            path=root,
        )
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
    return Dataset(root, tuple(scans), tuple(tree.errors))


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
    generator = content.get("GeneratedBy") or content.get("PipelineDescription") or []
    generators = generator if isinstance(generator, list) else [generator]
    names = [str(entry.get("Name", "")) for entry in generators if isinstance(entry, dict)]
    return any(name.lower() == "qsiprep" for name in names)


def _find_mask(tree: Tree, image: BidsName, is_wanted: Callable[[BidsName], bool]) -> Path | None:
    """Look for a mask beside the image, then in the dataset's derivatives."""
    inside = image.path.parent.relative_to(tree.root)
    for folder in (image.path.parent, *(derivative / inside for derivative in tree.derivatives)):
        masks = [name for name in tree.folder(folder) if name.is_image and is_wanted(name)]
        fitting = [mask for mask in masks if _same_acquisition(mask, image)]
        if fitting:
            return max(fitting, key=lambda mask: len(mask.entities)).path
    return None


def _same_acquisition(mask: BidsName, image: BidsName) -> bool:
    acquisition = {key: value for key, value in mask.entities.items() if key in _ACQUISITION}
    return acquisition.items() <= image.entities.items() and "sub" in acquisition


def _is_brain_mask(name: BidsName) -> bool:
    return name.suffix == "mask" and name.entities.get("desc") == "brain"


def _is_white_matter_mask(name: BidsName) -> bool:
    labels = (name.entities.get("label", ""), name.entities.get("desc", ""))
    return name.suffix in ("mask", "probseg") and "wm" in [label.lower() for label in labels]


def _from_manifest(path: Path, site_from: str | None) -> Dataset:
    scans: list[ScanFiles] = []
    errors: list[SitelessError] = []
    for number, row in enumerate(read_rows(path, "subject", "site", "dwi"), start=1):
        lacking = " and no ".join(column for column in ("subject", "dwi") if column not in row)
        if lacking:
            problem = f"row {number} has no {lacking}"
            errors.append(DatasetError(problem, remedy="fill it in", path=path))
        else:
            scans.append(_scan_of_row(row, path, site_from, errors))
    return Dataset(path, tuple(scans), tuple(errors))


def _scan_of_row(
    row: Row, manifest: Path, site_from: str | None, errors: list[SitelessError]
) -> ScanFiles:
    paths = {column: manifest.parent / row[column] for column in _MANIFEST_PATHS if column in row}
    dwi = paths["dwi"]
    entities = {"sub": row["subject"].removeprefix("sub-")}
    if "session" in row:
        entities["ses"] = row["session"].removeprefix("ses-")
    elif "site" in row:
        entities["ses"] = row["site"]  # distinguishes the scans of a travelling subject
    site = Site(row["site"], origin=manifest.name) if "site" in row else None
    if site is None and site_from in entities:
        site = Site(entities[site_from], origin=f"{site_from} of {manifest.name}")
    sidecars = (sidecar,) if (sidecar := _beside(dwi, ".json")) else ()
    explicit = "bvec" in paths
    root = next((f for f in dwi.parents if (f / "dataset_description.json").exists()), dwi.parent)
    return ScanFiles(
        dwi=dwi,
        entities=entities,
        bval=paths.get("bval") or _beside(dwi, ".bval"),
        bvec=paths.get("bvec") or _beside(dwi, ".bvec"),
        world_table=None if explicit else _beside(dwi, ".b"),
        sidecars=sidecars,
        mask=paths.get("mask"),
        white_matter=paths.get("wm_mask"),
        site=site or site_from_sidecar(sidecars, errors),
        attributes={key: row[key] for key in row if key not in _MANIFEST_PATHS},
        written_by_qsiprep=not explicit and _is_qsiprep(root, errors),
    )


def _beside(dwi: Path, extension: str) -> Path | None:
    path = dwi.with_name(dwi.name.partition(".nii")[0] + extension)
    return path if path.exists() else None
