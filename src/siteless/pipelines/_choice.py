"""Which scans a command works on, and with which model."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from siteless.bids import ScanSelection, read_header
from siteless.errors import DatasetError, ModelError
from siteless.methods import load_model
from siteless.model import Model
from siteless.pipelines._parallel import available_cpus

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


@cache
def read_model(path: Path, identity: str) -> Model:
    """Read a model once a process; it must be the one that was meant."""
    model = load_model(path)
    if model.identity != identity:
        raise ModelError(
            "the model has changed since the run began", remedy="run again", path=path
        )
    return model
