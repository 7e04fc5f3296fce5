"""Write a `Scan` as a BIDS derivative, completely or not at all.

Signal is written as float32, the type that methods compute in. Reading returns the same numbers,
and no integer scale rounds weak signal at high b-values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan
from siteless.bids._dataset import ScanFiles
from siteless.bids._gradient_files import write_gradients
from siteless.bids._names import derivative_path
from siteless.bids._nifti import Header, make_header, read_header, write_image
from siteless.bids._read import read_sidecar
from siteless.bids._tables import read_json
from siteless.errors import OutputError
from siteless.storage import staged, write_whole

BIDS_VERSION = "1.10.0"
# BIDS allows a desc entity for derived images, but its validator not yet for their gradients.
_NOT_YET_IN_BIDS = ("*.bval", "*.bvec")


@dataclass(frozen=True, eq=False)
class Map:
    """A map or mask with its sidecar.

    Attributes
    ----------
    values
        Shape (x, y, z) or (x, y, z, volume); booleans are written as bytes.
    sidecar
        Content of the JSON file.
    """

    values: Array
    sidecar: Mapping[str, Any]


def write_scan(
    scan: Scan,
    files: ScanFiles,
    out: Path,
    *,
    output: str = "harmonized",
    metadata: Mapping[str, Any] | None = None,
    maps: Mapping[str, Map] | None = None,
) -> Path:
    """Write all files of a scan derived from the scan in `files`, or none.

    The header is that of the source except for shape, type and, where it differs, the affine.
    ``.bval``, ``.bvec`` and ``.json`` are written beside the image; the JSON file adds the origin
    of the masks and `metadata` to that of the source.

    Parameters
    ----------
    scan
        Scan to write.
    files
        Files of the source scan.
    out
        Root of the derivative dataset.
    output
        A key of `NAMES`.
    metadata
        Fields to add to the sidecar.
    maps
        Maps to write beside the scan, by their keys in `NAMES`.

    Returns
    -------
    Path
        The image; it is written last, so its presence means that all files exist.
    """
    image = derivative_path(out, output, files.entities)
    header, _ = read_header(files.dwi)
    attributes = {
        "SkullStripped": not any(volume[~scan.mask.T].any() for volume in scan.signal.T),
        "BrainMask": scan.mask_origin,
        "WhiteMatterMask": scan.white_matter_origin,
    }
    sidecar = read_sidecar(files) | attributes | dict(metadata or {})
    with staged(image.parent, last=image.name) as stage:
        for name, output_map in (maps or {}).items():
            path = stage / derivative_path(out, name, files.entities).name
            write_image(path, _stored(output_map.values), make_header(scan.affine), scan.affine)
            sidecar_of(path).write_text(_json(output_map.sidecar), encoding="utf-8")
        _write_dwi(stage / image.name, scan.signal, scan.gradients, header, scan.affine, sidecar)
    return image


def sidecar_of(image: Path) -> Path:
    """Return the path of an image's JSON file."""
    return image.with_name(image.name.removesuffix(".gz").removesuffix(".nii") + ".json")


def write_dwi(
    image: Path,
    signal: Array,
    gradients: GradientTable,
    header: Header,
    affine: Array,
    sidecar: Mapping[str, Any],
) -> None:
    """Write an image with ``.bval``, ``.bvec`` and ``.json`` beside it, all or none of them."""
    with staged(image.parent, last=image.name) as stage:
        _write_dwi(stage / image.name, signal, gradients, header, affine, sidecar)


def _write_dwi(
    image: Path,
    signal: Array,
    gradients: GradientTable,
    header: Header,
    affine: Array,
    sidecar: Mapping[str, Any],
) -> None:
    stem = image.name.removesuffix(".nii.gz")
    bval, bvec = image.with_name(f"{stem}.bval"), image.with_name(f"{stem}.bvec")
    write_gradients(gradients, affine, bval, bvec)
    sidecar_of(image).write_text(_json(sidecar), encoding="utf-8")
    write_image(image, signal, header, affine)


def write_map(path: Path, values: Array, affine: Array) -> None:
    """Write a mask or a map; booleans become bytes."""
    with staged(path.parent) as stage:
        write_image(stage / path.name, _stored(values), make_header(affine), affine)


def _stored(values: Array) -> Array:
    return values.astype(np.uint8) if values.dtype == bool else values


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the same keys as a TSV file."""
    lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    write_whole(path, text)


def write_description(
    out: Path, *, name: str, sources: tuple[Path, ...] = (), ignored: tuple[str, ...] = ()
) -> None:
    """Write ``dataset_description.json`` and ``.bidsignore`` at the root of a derivative.

    Raises
    ------
    OutputError
        When the folder contains a dataset with another name.
    """
    _require_same(out / "dataset_description.json", name)
    ignore = "".join(f"{pattern}\n" for pattern in (*_NOT_YET_IN_BIDS, *ignored))
    content = _description(name, "derivative") | {
        "SourceDatasets": [{"URL": source.absolute().as_uri()} for source in sources]
    }
    if sources:
        content["DatasetLinks"] = {"source": sources[0].absolute().as_uri()}
    _write_root(out, {".bidsignore": ignore, "dataset_description.json": _json(content)})


def write_raw_description(out: Path, *, name: str, readme: str) -> None:
    """Write ``dataset_description.json`` and ``README`` at the root of a raw dataset."""
    description = _json(_description(name, "raw"))
    _write_root(out, {"README": readme, "dataset_description.json": description})


def _description(name: str, kind: str) -> dict[str, Any]:
    return {
        "Name": name,
        "BIDSVersion": BIDS_VERSION,
        "DatasetType": kind,
        "GeneratedBy": [{"Name": "siteless", "Version": version("siteless")}],
    }


def _write_root(out: Path, contents: Mapping[str, str]) -> None:
    with staged(out) as stage:
        for name, text in contents.items():
            (stage / name).write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a JSON file completely or not at all, through links and to devices."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(_json(content), encoding="utf-8")
        return path
    write_whole(path, _json(content))
    return path


def _require_same(description: Path, name: str) -> None:
    if not description.exists():
        return
    try:
        content = json.loads(description.read_text(encoding="utf-8"))
        makers = [maker.get("Name") for maker in content.get("GeneratedBy", [])]
        existing = content.get("Name")
    except (OSError, ValueError, AttributeError):
        makers, existing = [], None
    if existing != name or makers != ["siteless"]:
        raise OutputError(
            f"the folder holds another dataset ({existing or 'whose description is broken'})",
            remedy="choose another folder",
            path=description.parent,
        )


def require_outside(out: Path, dataset: Path) -> None:
    """Raise an error for an output in a dataset's folder outside its derivatives."""
    if not dataset.is_dir() or not out.resolve().is_relative_to(dataset.resolve()):
        return
    if out.resolve().relative_to(dataset.resolve()).parts[:1] != ("derivatives",):
        raise OutputError(
            "the output is inside the dataset", remedy="choose another folder", path=out
        )


def claim_folder(out: Path, record: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a folder was begun with: these, if it is new or empty.

    The file that records them lies in the folder. Without it, anything else there is an error.
    """
    if not record.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OutputError(
                "expected a new or empty folder, found something else",
                remedy="choose another folder",
                path=out,
            )
        write_json(record, settings)
    return read_json(record)


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
