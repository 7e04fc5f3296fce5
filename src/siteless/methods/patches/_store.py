"""Store training scans as memory-mapped files, for cohorts larger than memory."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from siteless.errors import SitelessError
from siteless.methods.patches._scan import TrainingScan
from siteless.storage import map_arrays, save_arrays


def store_scan(scan: TrainingScan, path: Path) -> None:
    """Write a scan to a file, completely or not at all."""
    values = {field.name: getattr(scan, field.name) for field in fields(scan)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in values.items() if name not in arrays}
    save_arrays(path, arrays, {"scan": json.dumps(plain), "content": scan.content})


def is_stored(path: Path) -> bool:
    """Whether a file contains an intact scan."""
    try:
        scan, content = _open(path)
        return scan.content == content
    except (SitelessError, ValueError, KeyError, TypeError):
        return False


def open_scan(path: Path) -> TrainingScan:
    """Map a stored scan into memory."""
    return _open(path)[0]


def _open(path: Path) -> tuple[TrainingScan, str]:
    arrays, labels = map_arrays(path)
    return TrainingScan(**(json.loads(labels["scan"]) | arrays)), labels["content"]
