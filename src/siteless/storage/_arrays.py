"""Store named arrays in a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from siteless.acquisition import Array
from siteless.errors import UnreadableFileError
from siteless.storage._staged import staged


def save_arrays(
    path: Path, arrays: Mapping[str, Array], labels: Mapping[str, str] | None = None
) -> None:
    """Write arrays with descriptive labels to a file, completely or not at all."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with staged(path.parent) as stage:
        # Without arrays, empty metadata would not be readable JSON.
        save_file(contiguous, stage / path.name, metadata=dict(labels) if labels else None)


def is_whole(path: Path) -> bool:
    """Whether a file of arrays exists and is not truncated."""
    try:
        with safe_open(path, framework="np"):
            return True
    except (OSError, SafetensorError):
        return False


def load_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a file into memory."""
    return _read(path, "np")[0]


def map_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Map the arrays of a file into memory, and read its labels.

    Pages are read on demand, so arrays may be larger than memory.
    """
    arrays, labels = _read(path, "pt")  # numpy would copy, and its own memmap keeps files open
    return {name: tensor.numpy() for name, tensor in arrays.items()}, labels


def _read(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with safe_open(path, framework=framework) as stored:
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            return arrays, dict(stored.metadata() or {})
    except (OSError, SafetensorError):
        raise UnreadableFileError(
            "the file is damaged, or was taken away", remedy="delete it and run again", path=path
        ) from None
