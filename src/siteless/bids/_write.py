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
    """A map or mask with the content of its JSON file."""

    values: Array  # shape (x, y, z) or (x, y, z, volume)
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
    maps = {derivative_path(out, key, files.entities).name: m for key, m in (maps or {}).items()}
    write_dwi(image, scan.signal, scan.gradients, header, scan.affine, sidecar, maps)
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
    maps: Mapping[str, Map] | None = None,
) -> None:
    """Write an image, ``.bval``, ``.bvec``, ``.json`` and maps by file name, all or none."""
    with staged(image.parent, last=image.name) as stage:
        for name, output_map in (maps or {}).items():
            write_image(stage / name, output_map.values, make_header(affine), affine)
            sidecar_of(stage / name).write_text(_json(output_map.sidecar), encoding="utf-8")
        stem = stage / image.name.removesuffix(".nii.gz")
        write_gradients(gradients, affine, Path(f"{stem}.bval"), Path(f"{stem}.bvec"))
        sidecar_of(stage / image.name).write_text(_json(sidecar), encoding="utf-8")
        write_image(stage / image.name, signal, header, affine)


def write_map(path: Path, values: Array, affine: Array) -> None:
    """Write a mask or a map; booleans become bytes."""
    with staged(path.parent) as stage:
        write_image(stage / path.name, values, make_header(affine), affine)


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

    A folder that contains a dataset with another name is an error.
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
    else:
        write_whole(path, _json(content))
    return path


def _require_same(description: Path, name: str) -> None:
    if not description.exists():
        return
    try:
        content = json.loads(description.read_text(encoding="utf-8"))
        makers = [maker.get("Name") for maker in content.get("GeneratedBy", [])]
        existing = content.get("Name")
    except (OSError, ValueError, AttributeError, TypeError):
        makers, existing = [], None
    if existing != name or makers != ["siteless"]:
        raise OutputError(
            f"the folder holds another dataset ({existing or 'whose description is broken'})",
            remedy="choose another folder",
            path=description.parent,
        )


def require_outside(out: Path, dataset: Path) -> None:
    """Raise an error for an output in a dataset's folder outside its derivatives."""
    inside, root = out.resolve(), dataset.resolve()
    if (
        dataset.is_dir()
        and inside.is_relative_to(root)
        and not inside.is_relative_to(root / "derivatives")
    ):
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
