"""Training scans on disk, mapped into memory: cohorts larger than memory train too."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields
from math import prod
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.training._scan import TrainingScan

_ARRAYS = {
    "values": torch.float32,
    "neighbours": torch.int32,
    "signal": torch.float32,
    "mixing": torch.float32,
    "shell": torch.int64,
}
_PLAIN = tuple(field.name for field in fields(TrainingScan) if field.name not in _ARRAYS)


def store_scan(scan: TrainingScan, folder: Path) -> None:
    """Write a scan into a new folder, which appears when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(mkdtemp(prefix=".siteless-", dir=folder.parent))
    try:
        arrays = {name: np.ascontiguousarray(getattr(scan, name)) for name in _ARRAYS}
        for name, array in arrays.items():
            array.tofile(aside / name)
        told = {name: getattr(scan, name) for name in _PLAIN}
        shapes = {name: array.shape for name, array in arrays.items()}
        described = json.dumps({"scan": told, "shapes": shapes, "hash": _hash(told, arrays)})
        (aside / "scan.json").write_text(described, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_stored(folder: Path) -> bool:
    """Whether a folder holds a scan as it was written."""
    try:
        stored, arrays = _read(folder)
        told = stored["scan"]
        return set(told) == set(_PLAIN) and bool(stored["hash"] == _hash(told, arrays))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return False


def open_scan(folder: Path) -> TrainingScan:
    """Map a stored scan into memory."""
    stored, arrays = _read(folder)
    return TrainingScan(**(stored["scan"] | arrays))


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    stored = json.loads((folder / "scan.json").read_text(encoding="utf-8"))
    return stored, {name: _map(folder / name, stored["shapes"][name]) for name in _ARRAYS}


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


def _hash(told: dict[str, Any], arrays: dict[str, Array]) -> str:
    digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
