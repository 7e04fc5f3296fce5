"""What can be wrong with what a user gives, as exceptions that print as one clear line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self


class SitelessError(Exception):
    """Something that the user can mend.

    Parameters
    ----------
    problem
        What was expected and what was found.
    remedy
        What to do about it.
    path
        The file at fault. Code that does not know the file leaves it out, and its caller adds
        it with `at`.

    Examples
    --------
    >>> error = SitelessError("3 b-values for 4 volumes", remedy="convert the scan again")
    >>> print(error.at("sub-01_dwi.bval"))
    sub-01_dwi.bval: 3 b-values for 4 volumes; convert the scan again
    """

    code: ClassVar[str] = "error"

    def __init__(self, problem: str, *, remedy: str = "", path: Path | str | None = None) -> None:
        super().__init__(problem, remedy, path)
        self.problem = problem
        self.remedy = remedy
        self.path = None if path is None else Path(path)

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        return f"{place}{self.problem}" + (f"; {self.remedy}" if self.remedy else "")

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by positional arguments, and these travel between processes.
        return _rebuild, (type(self), self.problem, self.remedy, self.path)

    def at(self, path: Path | str) -> Self:
        """Return the same error, naming the file it was found in."""
        return type(self)(self.problem, remedy=self.remedy, path=path)


def _rebuild(
    kind: type[SitelessError], problem: str, remedy: str, path: Path | None
) -> SitelessError:
    return kind(problem, remedy=remedy, path=path)


@contextmanager
def errors_at(path: Path) -> Iterator[None]:
    """Name a file in the errors raised inside that name none."""
    try:
        yield
    except SitelessError as error:
        raise error if error.path else error.at(path) from None


class MissingFileError(SitelessError):
    """A file that should be there is not."""

    code = "missing-file"


class UnreadableFileError(SitelessError):
    """A file is there but cannot be read: truncated, of another format, or not permitted."""

    code = "unreadable-file"


class GradientTableError(SitelessError):
    """b-values or b-vectors that cannot be those of the image."""

    code = "gradient-table"


class NotShelledError(SitelessError):
    """b-values that do not lie on a few shells, as in Cartesian or DSI schemes."""

    code = "not-shelled"


class SignalError(SitelessError):
    """Signal that no scanner measures."""

    code = "signal"


class MaskError(SitelessError):
    """A mask that cannot be used with its scan."""

    code = "mask"


class DatasetError(SitelessError):
    """A dataset, manifest or option that cannot be understood."""

    code = "dataset"


class ModelError(SitelessError):
    """A model that cannot be read or used."""

    code = "model"


class TrainingError(SitelessError):
    """Training that cannot go on."""

    code = "training"


class OutputError(SitelessError):
    """An output that could not be written."""

    code = "output"


class DiskError(OutputError):
    """An output that could not be written, and after which no other can."""

    code = "disk"
