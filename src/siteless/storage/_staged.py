"""Write outputs to a temporary folder, and move them when they are complete."""

from __future__ import annotations

import errno
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from siteless.errors import DiskError, OutputError

# Errors after which no other output can be written.
_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@contextmanager
def staged(folder: Path, last: str = "") -> Iterator[Path]:
    """Provide a hidden folder, whose files are moved to `folder` only if all succeed.

    The file `last` is moved last, so that its presence means that all files exist.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        prefix = f".siteless-{platform.node()}-{os.getpid()}-"
        with TemporaryDirectory(dir=folder, prefix=prefix) as stage:
            yield Path(stage)
            # The old file is removed first, so that new files are never beside an old image.
            if last:
                (folder / last).unlink(missing_ok=True)
            for path in sorted(Path(stage).iterdir(), key=lambda path: path.name == last):
                path.replace(folder / path.name)
    except OSError as error:
        kind = DiskError if error.errno in _NO_MORE else OutputError
        raise kind(
            f"cannot write here ({error.strerror or error})",
            remedy="check space and permissions, then run again",
            path=folder,
        ) from None


def _sweep(folder: Path) -> None:
    """Remove the folders of killed processes of this machine."""
    for stage in folder.glob(f".siteless-{platform.node()}-*"):
        process = stage.name.split("-")[-2]
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(stage, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # only checks
    except OSError as error:
        return isinstance(error, PermissionError)  # a process of another user
    return True


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file, completely or not at all."""
    with staged(path.parent) as stage:
        data = content.encode() if isinstance(content, str) else content
        (stage / path.name).write_bytes(data)


def require_writable(folder: Path) -> None:
    """Raise an error for a folder that cannot be written to, before long computations."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write here ({error.strerror})", remedy="choose another folder", path=folder
        ) from None
