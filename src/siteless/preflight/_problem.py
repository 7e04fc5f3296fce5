"""A problem of a scan or dataset, with a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from siteless.errors import SitelessError


class Severity(StrEnum):
    """Whether a scan cannot be used, or should be inspected."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Problem:
    """A finding of the preflight.

    Attributes
    ----------
    code
        Stable, machine-readable name of the kind of problem.
    severity
        Errors must be fixed; warnings should be inspected.
    path
        File with the problem.
    what
        Description of the problem: what was expected and what was found.
    remedy
        What to do about it.
    """

    code: str
    severity: Severity
    path: Path
    what: str
    remedy: str

    @classmethod
    def error(cls, code: str, path: Path, what: str, remedy: str) -> Problem:
        """Make a problem that must be fixed."""
        return cls(code, Severity.ERROR, path, what, remedy)

    @classmethod
    def warning(cls, code: str, path: Path, what: str, remedy: str) -> Problem:
        """Make a problem that should be inspected."""
        return cls(code, Severity.WARNING, path, what, remedy)

    @classmethod
    def from_error(cls, error: SitelessError, path: Path) -> Problem:
        """Convert an error from reading; `path` is used if the error names no file."""
        return cls(error.code, Severity.ERROR, error.path or path, error.problem, error.remedy)
