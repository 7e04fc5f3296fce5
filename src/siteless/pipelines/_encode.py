"""`siteless encode`: the codes of scans, as images and as a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, partial
from pathlib import Path

from siteless.bids import (
    ScanFiles,
    derivative_path,
    find_scans,
    read_scan,
    write_description,
    write_map,
    write_table,
)
from siteless.errors import OutputError, SitelessError
from siteless.model import Model, load_model
from siteless.pipelines._parallel import Progress, run_all

Row = dict[str, object]


def encode_dataset(
    model: Path | str,
    dataset: Path | str,
    out: Path | str,
    *,
    site_from: str | None = None,
    filters: Mapping[str, Collection[str | None]] | None = None,
    nprocs: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write the codes of every scan: an image with a volume for each unit, and a row of a table.

    Parameters
    ----------
    model
        File that `siteless fit` wrote.
    dataset, site_from, filters
        As for `siteless.bids.find_scans`.
    out
        Folder of the derivative dataset. ``codes.tsv`` in it has, for each scan, the mean and the
        standard deviation of every unit over the voxels.
    nprocs
        Processes; by default one for each core that may be used.
    progress
        Called with the number of scans done, their total, and the name of the last.

    Returns
    -------
    Path
        The table.
    """
    out, model = Path(out), Path(model)
    load_model(model)
    found = find_scans(dataset, site_from=site_from, filters=filters)
    if found.errors:
        raise found.errors[0]
    root = found.root if found.root.is_dir() else found.root.parent
    if out.resolve() == root.resolve():
        raise OutputError("the output is the dataset", remedy="choose another folder", path=out)
    write_description(
        out, name="Codes of scans", sources=(root,), ignored=("codes.tsv", "*_dwimap.*")
    )
    rows: dict[int, Row] = {}
    work = partial(_encode, model, out)
    for position, row in run_all(work, found.scans, nprocs=nprocs):
        rows[position] = row
        if progress:
            progress(len(rows), len(found.scans), found.scans[position].name)
    table = out / "codes.tsv"
    write_table(table, [rows[position] for position in sorted(rows)])
    return table


@cache
def _model(path: Path) -> Model:
    return load_model(path)


def _encode(path: Path, out: Path, files: ScanFiles) -> Row:
    scan = read_scan(files)
    try:
        codes = _model(path).encode(scan)
    except SitelessError as error:
        raise error if error.path else error.at(files.dwi) from None
    image = derivative_path(out, "code", files.entities)
    write_map(image, codes.on_grid(), scan.affine)
    means, spreads = codes.mean.mean(axis=0), codes.mean.std(axis=0)
    return {
        "participant_id": f"sub-{files.subject}",
        "session_id": f"ses-{files.entities['ses']}" if "ses" in files.entities else "n/a",
        "site": str(files.site or "n/a"),
        "image": image.relative_to(out).as_posix(),
        "voxels": len(codes.mean),
        **{f"mean_{unit}": f"{value:.6g}" for unit, value in enumerate(means)},
        **{f"sd_{unit}": f"{value:.6g}" for unit, value in enumerate(spreads)},
    }
