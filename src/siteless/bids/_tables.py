"""Read tables and JSON files; errors name the file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from siteless.errors import DatasetError, MissingFileError, UnreadableFileError

Row = dict[str, str]

_EMPTY = ("", "n/a", "na", "nan")


def read_text(path: Path) -> str:
    """Read a text file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise missing(path) from None
    except UnicodeDecodeError:
        raise UnreadableFileError(
            "expected text in UTF-8, found something else", remedy="correct the path", path=path
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UnreadableFileError(
            f"expected JSON, but line {error.lineno} is not ({error.msg})",
            remedy="correct the file",
            path=path,
        ) from None
    if not isinstance(content, dict):
        raise UnreadableFileError("expected a JSON object", remedy="correct the file", path=path)
    return content


def read_rows(path: Path, *required: str) -> list[Row]:
    """Read a TSV file, column names in lower case.

    Cells that are empty or ``n/a`` are left out of their row.
    """
    header, _, body = read_text(path).partition("\n")
    columns = [column.strip().lower() for column in header.split("\t")]
    lacking = [column for column in required if column not in columns]
    if lacking:
        raise DatasetError(
            f"expected the tab-separated columns {', '.join(required)}, found "
            + (" | ".join(columns) if header else "an empty file"),
            remedy="separate columns by tabs"
            if len(columns) == 1
            else f"add {', '.join(lacking)}",
            path=path,
        )
    reader = csv.DictReader(
        body.splitlines(), fieldnames=columns, delimiter="\t", quoting=csv.QUOTE_NONE
    )
    rows = []
    for cells in reader:
        if None in cells or None in cells.values():
            raise DatasetError(
                f"line {reader.line_num + 1} does not have {len(columns)} cells, one a column",
                remedy="separate cells by single tabs",
                path=path,
            )
        filled = {key: cell.strip() for key, cell in cells.items()}
        rows.append({key: cell for key, cell in filled.items() if cell.lower() not in _EMPTY})
    return rows


def missing(path: Path) -> MissingFileError:
    """Return the error for a missing file or a broken link."""
    if path.is_symlink():
        return MissingFileError(
            "the file is a link to content that is not here",
            remedy="fetch it, e.g. with: datalad get",
            path=path,
        )
    return MissingFileError(
        "there is no such file", remedy="correct the path or restore it", path=path
    )


def unreadable(path: Path, error: Exception) -> UnreadableFileError:
    """Return the error for a file that could not be read."""
    if isinstance(error, PermissionError):
        return UnreadableFileError(
            "no permission to read the file", remedy="ask its owner", path=path
        )
    reason = getattr(error, "strerror", None) or error
    return UnreadableFileError(
        f"the file cannot be read ({reason})", remedy="copy or convert it again", path=path
    )
