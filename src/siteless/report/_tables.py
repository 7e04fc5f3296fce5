"""Tables as Markdown and as TSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siteless.bids import write_table
from siteless.report._style import inner_names


@dataclass(frozen=True)
class Table:
    """A table of numbers and words."""

    name: str  # of its file
    title: str  # with units
    rows: Mapping[str, Mapping[str, float | str]]
    decimals: int = 2  # in Markdown
    corner: str = "method"  # heading of the row names

    @property
    def columns(self) -> list[str]:
        """Names of columns, in order of first appearance."""
        return inner_names(self.rows)

    def markdown(self) -> str:
        """Return the table as Markdown, under its title.

        Examples
        --------
        >>> print(Table("t", "Errors", {"rish": {"a>b": 1.234, "b>a": float("nan")}}).markdown())
        **Errors**
        <BLANKLINE>
        | method | a>b | b>a |
        |---|---:|---:|
        | rish | 1.23 | - |
        """
        cells = [
            [name, *(_shown(row.get(c, np.nan), f".{self.decimals}f", "-") for c in self.columns)]
            for name, row in self.rows.items()
        ]
        lines = [[self.corner, *self.columns], *cells]
        head, *body = (f"| {' | '.join(line)} |" for line in lines)
        rule = "|---|" + "---:|" * len(self.columns)
        return "\n".join([f"**{self.title}**", "", head, rule, *body])

    def write(self, folder: Path) -> Path:
        """Write the table as TSV."""
        path = folder / f"{self.name}.tsv"
        rows = [
            {self.corner: name}
            | {c: _shown(row.get(c, np.nan), ".6g", "n/a") for c in self.columns}
            for name, row in self.rows.items()
        ]
        write_table(path, rows)
        return path


def _shown(cell: float | str, form: str, missing: str) -> str:
    if isinstance(cell, str):
        return cell
    return format(cell, form) if np.isfinite(cell) else missing
