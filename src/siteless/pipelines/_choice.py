"""Helpers of pipelines for tables, memory and models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from siteless.acquisition import GradientTable
from siteless.bids import ScanFiles, ScanSelection, read_gradient_table, read_header
from siteless.errors import DatasetError, ModelError, errors_at
from siteless.methods import load_model
from siteless.model import Model
from siteless.pipelines._parallel import available_cpus

# Memory of a process with its libraries, bytes; and largest number of float32 copies of a scan.
_PROCESS, _COPIES = 700_000_000, 6


def read_number(text: str | None) -> float | None:
    """Parse the number in a table cell; None if there is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def with_shells(scans: Sequence[ScanFiles]) -> list[tuple[ScanFiles, GradientTable]]:
    """Return the scans with a shell, and their gradient tables."""
    weighted = []
    for files in scans:
        with errors_at(files.dwi):
            table = read_gradient_table(files)
            if table.shells:
                weighted.append((files, table))
    return weighted


def read_splits(scans: Sequence[ScanFiles]) -> list[str | None]:
    """Return the ``split`` column of scans; raise an error for an unknown word."""
    splits = [files.attributes.get("split") for files in scans]
    unknown = [word for word in splits if word not in (None, "train", "val", "test")]
    if unknown:
        raise DatasetError(
            f"expected train, val or test in the split column, found {unknown[0]!r}",
            remedy="correct it",
        )
    return splits


def processes_within(memory: int, dataset: ScanSelection | Path | str, nprocs: int | None) -> int:
    """Return how many processes that read scans fit into memory, bytes; at most `nprocs`."""
    study = ScanSelection.of(dataset).search()
    headers = (read_header(scan.dwi)[0] for scan in study.scans)
    largest = max((4 * math.prod(header.get_data_shape()) for header in headers), default=0)
    need = _PROCESS + _COPIES * largest
    if memory < need:
        raise DatasetError(
            f"a process needs {need / 1e6:.0f} MB for the largest scan, and --mem-mb gives "
            f"{memory / 1e6:.0f}",
            remedy="give more",
            path=study.root,
        )
    return min(nprocs or available_cpus(), memory // need)


@cache
def read_model(path: Path, identity: str) -> Model:
    """Read a model once per process, and verify its identity."""
    model = load_model(path)
    if model.identity != identity:
        raise ModelError(
            "the model has changed since the run began", remedy="run again", path=path
        )
    return model
