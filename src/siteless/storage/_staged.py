"""Outputs that are moved into place when they are whole."""

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

# Errors after which nothing else can be written either.
_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


@contextmanager
def staged(folder: Path, last: str = "") -> Iterator[Path]:
    """Give a hidden folder to write into; its files move to `folder` only when all succeeded.

    Parameters
    ----------
    folder
        Where files go.
    last
        The file that is moved last, and that tells that all are there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with TemporaryDirectory(dir=folder, prefix=_stage_prefix(os.getpid())) as stage:
            yield Path(stage)
            # What is replaced goes first, so that new files never stand beside an old image.
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


def _stage_prefix(process: int) -> str:
    return f".siteless-{platform.node()}-{process}-"


def _sweep(folder: Path) -> None:
    """Remove what killed processes of this machine have left behind."""
    for stage in folder.glob(f".siteless-{platform.node()}-*"):
        process = stage.name.split("-")[-2]
        if process.isdigit() and not _is_alive(int(process)):
            shutil.rmtree(stage, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # asks only
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        pass
    return True


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file, which appears when it is whole."""
    with staged(path.parent) as stage:
        data = content.encode() if isinstance(content, str) else content
        (stage / path.name).write_bytes(data)


def require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before hours are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write here ({error.strerror})", remedy="choose another folder", path=folder
        ) from None
