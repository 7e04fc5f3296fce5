"""Exceptions for user errors, which print as one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, Self


class SitelessError(Exception):
    """An error that the user can fix.

    Parameters
    ----------
    problem
        Description of the problem: what was expected and what was found.
    remedy
        What to do about it.
    path
        File with the problem. If the code does not know it, the caller adds it with `at`.

    Examples
    --------
    >>> error = SitelessError("3 b-values for 4 volumes", remedy="convert the scan again")
    >>> print(error.at("sub-01_dwi.bval"))
    sub-01_dwi.bval: 3 b-values for 4 volumes; convert the scan again
    """

    code: ClassVar[str] = "error"

    def __init_subclass__(cls, *, code: str = "") -> None:
        cls.code = code or cls.code

    def __init__(self, problem: str, *, remedy: str = "", path: Path | str | None = None) -> None:
        super().__init__(problem, remedy, path)
        self.problem = problem
        self.remedy = remedy
        self.path = None if path is None else Path(path)

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        return f"{place}{self.problem}" + (f"; {self.remedy}" if self.remedy else "")

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are pickled by positional arguments, and sent between processes.
        return partial(type(self), self.problem, remedy=self.remedy, path=self.path), ()

    def at(self, path: Path | str) -> Self:
        """Return the same error with the path of the file."""
        return type(self)(self.problem, remedy=self.remedy, path=path)


@contextmanager
def errors_at(path: Path) -> Iterator[None]:
    """Add a path to errors raised inside that have none."""
    try:
        yield
    except SitelessError as error:
        raise error if error.path else error.at(path) from None


class MissingFileError(SitelessError, code="missing-file"):
    """A file does not exist."""


class UnreadableFileError(SitelessError, code="unreadable-file"):
    """A file cannot be read: it is truncated, of another format, or not permitted."""


class GradientTableError(SitelessError, code="gradient-table"):
    """b-values or b-vectors are invalid or do not match the image."""


class NotShelledError(SitelessError, code="not-shelled"):
    """b-values do not lie on a few shells, as in Cartesian or DSI schemes."""


class SignalError(SitelessError, code="signal"):
    """The signal is invalid."""


class MaskError(SitelessError, code="mask"):
    """A mask does not fit its scan."""


class DatasetError(SitelessError, code="dataset"):
    """A dataset, manifest or option is invalid."""


class ModelError(SitelessError, code="model"):
    """A model cannot be read or used."""


class TrainingError(SitelessError, code="training"):
    """Training cannot continue."""


class OutputError(SitelessError, code="output"):
    """An output cannot be written."""


class DiskError(OutputError, code="disk"):
    """Neither this output nor any other can be written."""
