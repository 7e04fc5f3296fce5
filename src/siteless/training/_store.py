"""Training scans on disk, mapped into memory: cohorts larger than memory train too."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from siteless.acquisition import Array
from siteless.training._scan import TrainingScan

_ARRAYS = ("values", "neighbours", "signal", "mixing", "shell")
_PLAIN = tuple(field.name for field in fields(TrainingScan) if field.name not in _ARRAYS)


def store_scan(scan: TrainingScan, folder: Path) -> None:
    """Write a scan into a new folder, which appears when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(mkdtemp(prefix=".siteless-", dir=folder.parent))
    try:
        arrays = {name: np.ascontiguousarray(getattr(scan, name)) for name in _ARRAYS}
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", array)
        told = {name: getattr(scan, name) for name in _PLAIN} | {"hash": _hash(arrays)}
        (aside / "scan.json").write_text(json.dumps(told), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def open_scan(folder: Path) -> TrainingScan | None:
    """Map a stored scan into memory; None when there is none, or it is not as it was written."""
    try:
        told = json.loads((folder / "scan.json").read_text(encoding="utf-8"))
        # Mapped to be copied when written to: torch takes no array that must not be written to.
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in _ARRAYS}
    except (OSError, ValueError):
        return None
    if told.pop("hash") != _hash(arrays):
        return None
    return TrainingScan(**told, **arrays)


def _hash(arrays: dict[str, Array]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
