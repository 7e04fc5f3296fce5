"""One thing that is wrong, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from siteless.errors import SitelessError


class Severity(StrEnum):
    """Whether a scan cannot be used as it is, or should be looked at."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Problem:
    """A finding of the preflight.

    Attributes
    ----------
    code
        Stable short name of the kind of problem, for machines.
    severity
        Errors must be mended; warnings should be understood.
    path
        The file at fault.
    what
        What was expected and what was found.
    remedy
        What to do.
    """

    code: str
    severity: Severity
    path: Path
    what: str
    remedy: str

    @classmethod
    def from_error(cls, error: SitelessError, path: Path) -> Problem:
        """Take an error that reading raised; `path` stands in where it names no file."""
        return cls(error.code, Severity.ERROR, error.path or path, error.problem, error.remedy)
