"""Hash keys of results."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

from siteless.errors import UnreadableFileError


def cache_key(*parts: object) -> str:
    """Return a hash of arrays and values that JSON can represent, and of the version of siteless.

    Examples
    --------
    >>> cache_key("scan", [1, 2]) == cache_key("scan", (1, 2))
    True
    >>> cache_key(np.zeros(2)) == cache_key(np.zeros(3))
    False
    >>> cache_key(1, 23) == cache_key(12, 3)
    False
    """
    digest = hashlib.blake2b(version("siteless").encode(), digest_size=8)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(json.dumps(part, sort_keys=True).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def size_and_time(path: Path) -> tuple[str, int, int]:
    """Return a file's name, size and modification time, which detect changes."""
    try:
        stat = path.stat()
    except OSError as error:
        raise UnreadableFileError(
            f"the file cannot be read ({error.strerror})", remedy="restore it", path=path
        ) from None
    return path.name, stat.st_size, stat.st_mtime_ns
