"""`siteless encode`: the codes of scans, as images and as a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from siteless.bids import (
    Dataset,
    ScanFiles,
    ScanSelection,
    derivative_path,
    read_gradient_table,
    read_rows,
    read_scan,
    require_outside,
    write_description,
    write_json,
    write_map,
    write_table,
)
from siteless.errors import DatasetError, ModelError, OutputError, errors_at
from siteless.methods import load_model
from siteless.model import LatentModel, Model
from siteless.pipelines._choice import read_model
from siteless.pipelines._run import Run

Row = dict[str, str]


def encode_dataset(
    model: Path | str,
    dataset: ScanSelection | Path | str,
    out: Path | str,
    *,
    run: Run = Run(),
) -> Path:
    """Write the codes of every scan: an image with a volume for each unit, and a row of a table.

    Parameters
    ----------
    model
        File that `siteless fit` wrote.
    dataset
        Its folder, a manifest, or a selection of its scans. Scans without shells are left out.
    out
        Folder of the derivative dataset. ``codes.tsv`` in it has, for each scan, the mean and the
        standard deviation of every unit over the voxels; rows of earlier runs with the same
        model are kept.
    run
        How the work is done.

    Returns
    -------
    Path
        The table.
    """
    out, path = Path(out), Path(model)
    learned = _require_latent(load_model(path), path)
    found = ScanSelection.of(dataset).find()
    scans = _usable(learned, found)
    require_outside(out, found.root)
    table = out / "codes.tsv"
    earlier = _earlier_rows(table, learned.identity)
    root = found.root if found.root.is_dir() else found.root.parent
    ignored = ("codes.tsv", "*_dwimap.*")
    write_description(out, name="Codes of scans", sources=(root,), ignored=ignored)
    rows = run.map("Encoding scans", partial(_encode, path, learned.identity, out), scans)
    fresh = {row["image"] for row in rows}
    kept = [row for row in earlier if row["image"] not in fresh]
    write_table(table, [*kept, *rows])
    return table


def _require_latent(model: Model, path: Path) -> LatentModel:
    """Refuse a model of a method that has no latent code."""
    if not isinstance(model, LatentModel):
        raise ModelError(
            f"a model of the method {model.card.method} has no latent code",
            remedy="give a model that was fitted without --method",
            path=path,
        )
    return model


def _earlier_rows(table: Path, identity: str) -> list[Row]:
    """Return what earlier runs wrote; codes of two models must not be mixed."""
    if not table.exists():
        return []
    rows = read_rows(table, "image", "model")
    if any(row.get("model") != identity for row in rows):
        raise OutputError(
            "the folder holds codes of another model", remedy="choose another folder", path=table
        )
    return [dict(row) for row in rows]


def _usable(model: Model, found: Dataset) -> list[ScanFiles]:
    """Return the scans that have shells, which all must be the model's."""
    usable = []
    for files in found.scans:
        gradients = read_gradient_table(files)
        if gradients.shells:
            with errors_at(files.dwi):
                model.require_known(gradients, files.site)
            usable.append(files)
    if not usable:
        raise DatasetError("no scan has a shell", remedy="give diffusion scans", path=found.root)
    return usable


def _encode(path: Path, identity: str, out: Path, files: ScanFiles) -> Row:
    scan = read_scan(files)
    with errors_at(files.dwi):
        model = _require_latent(read_model(path, identity), path)
        codes = model.encode(model.prepare(scan))
    image = derivative_path(out, "code", files.entities)
    write_map(image, codes.on_grid(), scan.affine)
    told = {"Model": identity, "Site": str(files.site or "n/a"), "Level": codes.level}
    write_json(image.with_name(image.name.replace(".nii.gz", ".json")), told)
    means, spreads = codes.mean.mean(axis=0), codes.mean.std(axis=0)
    return {
        "participant_id": f"sub-{files.subject}",
        "session_id": f"ses-{files.entities['ses']}" if "ses" in files.entities else "n/a",
        "site": str(files.site or "n/a"),
        "image": image.relative_to(out).as_posix(),
        "model": identity,
        "voxels": str(len(codes.mean)),
        **{f"mean_{unit}": f"{value:.6g}" for unit, value in enumerate(means)},
        **{f"sd_{unit}": f"{value:.6g}" for unit, value in enumerate(spreads)},
    }
