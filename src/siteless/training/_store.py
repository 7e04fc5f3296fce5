"""Training scans on disk, mapped into memory: cohorts larger than memory train too."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.errors import OutputError
from siteless.training._scan import TrainingScan

_ARRAYS = {
    "values": torch.float32,
    "neighbours": torch.int32,
    "voxels": torch.int32,
    "signal": torch.float32,
    "mixing": torch.float32,
    "shell": torch.int64,
}
_PLAIN = tuple(field.name for field in fields(TrainingScan) if field.name not in _ARRAYS)


def store_scan(scan: TrainingScan, folder: Path) -> None:
    """Write a scan into a new folder, which appears when it is whole."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".siteless-", dir=folder.parent) as stage:
            aside = Path(stage) / "scan"
            _write(scan, aside)
            if folder.exists() and not is_stored(folder):
                with suppress(FileNotFoundError):  # another fit has taken it away
                    folder.replace(Path(stage) / "broken")
            if not folder.exists():
                aside.replace(folder)
    except OSError as error:
        if is_stored(folder):
            return  # another fit has stored the same scan at the same time
        raise OutputError(
            f"cannot write here ({error.strerror or error})",
            remedy="check space and permissions, then run again",
            path=folder.parent,
        ) from None


def is_stored(folder: Path) -> bool:
    """Whether a folder holds a scan as it was written."""
    try:
        stored = json.loads((folder / "scan.json").read_text(encoding="utf-8"))
        return bool(open_scan(folder).content == stored["content"])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return False


def open_scan(folder: Path) -> TrainingScan:
    """Map a stored scan into memory."""
    stored = json.loads((folder / "scan.json").read_text(encoding="utf-8"))
    arrays = {name: _map(folder / name, stored["shapes"][name]) for name in _ARRAYS}
    return TrainingScan(**(stored["scan"] | arrays))


def _write(scan: TrainingScan, folder: Path) -> None:
    folder.mkdir()
    arrays = {name: np.ascontiguousarray(getattr(scan, name)) for name in _ARRAYS}
    for name, array in arrays.items():
        array.tofile(folder / name)
    described = {
        "scan": {name: getattr(scan, name) for name in _PLAIN},
        "shapes": {name: array.shape for name, array in arrays.items()},
        "content": scan.content,
    }
    (folder / "scan.json").write_text(json.dumps(described), encoding="utf-8")


def _map(path: Path, shape: list[int]) -> Array:
    # Not numpy's memmap: it keeps a file open for each array, and systems allow few.
    kind = _ARRAYS[path.name]
    if path.stat().st_size != prod(shape) * kind.itemsize:
        raise ValueError("the file is truncated")
    return (
        torch.from_file(str(path), shared=False, size=prod(shape), dtype=kind)
        .numpy()
        .reshape(shape)
    )
