"""Which scans a command works on, and with which model."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from siteless.acquisition import GradientTable
from siteless.bids import ScanFiles, ScanSelection, read_gradients, read_header
from siteless.errors import DatasetError, ModelError
from siteless.methods import load_model
from siteless.model import Model
from siteless.pipelines._parallel import available_cpus
from siteless.storage import cache_key, size_and_time

# Bytes of a process with its libraries; and copies of a float32 scan that it holds at most.
_PROCESS, _COPIES = 700_000_000, 4


def read_number(text: str | None) -> float | None:
    """Return the number that a cell of a table holds; None where it holds none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def processes_within(memory: int, dataset: ScanSelection | Path | str, nprocs: int | None) -> int:
    """Return how many processes that each hold a scan fit into memory, in bytes.

    Parameters
    ----------
    memory
        Bytes.
    dataset
        Scans that are to be read.
    nprocs
        The most to use; None for one for each core that may be used.

    Raises
    ------
    DatasetError
        When there is no room for one.
    """
    found = ScanSelection.of(dataset).search()
    headers = (read_header(scan.dwi)[0] for scan in found.scans)
    largest = max((4 * math.prod(header.get_data_shape()) for header in headers), default=0)
    need = _PROCESS + _COPIES * largest
    if memory < need:
        raise DatasetError(
            f"a process needs {need / 1e6:.0f} MB for the largest scan, and --mem-mb gives "
            f"{memory / 1e6:.0f}",
            remedy="give more",
            path=found.root,
        )
    return min(nprocs or available_cpus(), memory // need)


def fingerprint(files: ScanFiles) -> str:
    """Return a hash that changes when a file of a scan does: by names, sizes and times."""
    parts = (
        *(files.dwi, files.bval, files.bvec, files.world_table),
        *(files.mask, files.white_matter, *files.sidecars),
    )
    return cache_key([size_and_time(path) for path in parts if path is not None], str(files.site))


def read_table(files: ScanFiles) -> GradientTable:
    """Read a scan's gradient table, and no signal."""
    header, affine = read_header(files.dwi)
    shape = header.get_data_shape()
    return read_gradients(files, affine, shape[3] if len(shape) > 3 else 1)


@cache
def read_model(path: Path, identity: str) -> Model:
    """Read a model once a process; it must be the one that was meant."""
    model = load_model(path)
    if model.identity != identity:
        raise ModelError(
            "the model has changed since the run began", remedy="run again", path=path
        )
    return model
