"""Run external programs in scratch folders."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from siteless.errors import OutputError, SitelessError


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Provide a temporary folder."""
    try:
        with TemporaryDirectory(prefix="siteless-") as folder:
            yield Path(folder)
    except OSError as error:
        raise OutputError(
            f"cannot write temporary files ({error.strerror or error})",
            remedy="let TMPDIR name a folder with room for three copies of a scan",
        ) from None


def find_version(program: str) -> str | None:
    """Return the version of an MRtrix3 program; None if it is not installed."""
    place = shutil.which(program)
    if place is None:
        return None
    output = run_program(program, ["-version"], Path.cwd())
    release = re.search(rf"{program} (\d\S*)", output)
    if release is None:
        raise SitelessError(
            f"expected {program} to tell its version, found {output[:80]!r}",
            remedy="install MRtrix3 again",
            path=place,
        )
    return release[1]


def run_program(program: str, arguments: Sequence[str], folder: Path) -> str:
    """Run an MRtrix3 program in a folder, and return its output.

    If it fails, the error contains the first message of the program.
    """
    executable = shutil.which(program)
    if executable is None:
        raise SitelessError(
            f"expected MRtrix3, found no {program} on PATH",
            remedy="install MRtrix3 (`apt install mrtrix3`, or by conda)",
        )
    try:
        done = subprocess.run(
            [str(Path(executable).absolute()), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise _failed(program, error.strerror or str(error)) from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if "[ERROR]" in line]
        raise _failed(program, (errors or said or [f"exit status {done.returncode}"])[0])
    return done.stdout


def _failed(program: str, reason: str) -> SitelessError:
    return SitelessError(
        f"{program} failed ({reason})",
        remedy="see that it runs by itself, or install MRtrix3 again",
    )
