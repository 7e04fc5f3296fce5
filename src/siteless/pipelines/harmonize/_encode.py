"""`siteless encode`: write latent codes as images and as a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from siteless.bids import (
    ScanFiles,
    ScanSelection,
    derivative_path,
    read_rows,
    read_scan,
    require_outside,
    sidecar_of,
    write_description,
    write_json,
    write_map,
    write_table,
)
from siteless.errors import DatasetError, ModelError, OutputError, errors_at
from siteless.methods import load_model
from siteless.model import LatentModel
from siteless.pipelines._choice import read_model, with_shells
from siteless.pipelines._run import Run


def encode_dataset(
    model: Path | str,
    dataset: ScanSelection | Path | str,
    out: Path | str,
    *,
    run: Run = Run(),
) -> Path:
    """Write the codes of every scan: an image with a volume per unit, and a row of a table.

    Parameters
    ----------
    model
        Model file from `siteless fit`.
    dataset
        Folder, manifest, or selection of scans. Scans without shells are left out.
    out
        Folder of the derivative dataset. Its ``codes.tsv`` contains the mean and standard
        deviation of each unit over voxels for each scan; rows of earlier runs with the same model
        are kept.
    run
        Processes and progress of the work.

    Returns
    -------
    Path
        The table.
    """
    out, path = Path(out), Path(model)
    learned = load_model(path)
    if not isinstance(learned, LatentModel):
        raise ModelError(
            f"a model of the method {learned.card.method} has no latent code",
            remedy="give a model that was fitted without --method",
            path=path,
        )
    study = ScanSelection.of(dataset).find()
    scans = with_shells(study.scans)
    for files, gradients in scans:
        with errors_at(files.dwi):
            learned.require_known(gradients, files.site)
    if not scans:
        raise DatasetError("no scan has a shell", remedy="give diffusion scans", path=study.root)
    require_outside(out, study.root)
    table = out / "codes.tsv"
    earlier = read_rows(table, "image", "model") if table.exists() else []
    if any(row.get("model") != learned.identity for row in earlier):
        raise OutputError(
            "the folder holds codes of another model", remedy="choose another folder", path=table
        )
    root = study.root if study.root.is_dir() else study.root.parent
    ignored = ("codes.tsv", "*_dwimap.*")
    write_description(out, name="Codes of scans", sources=(root,), ignored=ignored)
    encode = partial(_encode, path, learned.identity, out)
    rows = run.map("Encoding scans", encode, [files for files, _ in scans])
    fresh = {row["image"] for row in rows}
    kept = [row for row in earlier if row["image"] not in fresh]
    write_table(table, [*kept, *rows])
    return table


def _encode(path: Path, identity: str, out: Path, files: ScanFiles) -> dict[str, str]:
    scan = read_scan(files)
    with errors_at(files.dwi):
        model = read_model(path, identity)
        assert isinstance(model, LatentModel)
        codes = model.encode(model.prepare(scan))
    image = derivative_path(out, "code", files.entities)
    write_map(image, codes.on_grid(), scan.affine)
    sidecar = {"Model": identity, "Site": str(files.site or "n/a"), "Level": codes.level}
    write_json(sidecar_of(image), sidecar)
    means, deviations = codes.mean.mean(axis=0), codes.mean.std(axis=0)
    return {
        "participant_id": f"sub-{files.subject}",
        "session_id": f"ses-{files.entities['ses']}" if "ses" in files.entities else "n/a",
        "site": str(files.site or "n/a"),
        "image": image.relative_to(out).as_posix(),
        "model": identity,
        "voxels": str(len(codes.mean)),
        **{f"mean_{unit}": f"{value:.6g}" for unit, value in enumerate(means)},
        **{f"sd_{unit}": f"{value:.6g}" for unit, value in enumerate(deviations)},
    }
