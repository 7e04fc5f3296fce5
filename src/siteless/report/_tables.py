"""Tables as Markdown and as TSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siteless.bids import write_table


@dataclass(frozen=True)
class Table:
    """A table of numbers.

    Attributes
    ----------
    name
        Name of its file.
    title
        Title, with units.
    rows
        Numbers or words, by row and column.
    decimals
        Number of decimals in Markdown.
    corner
        Heading of the row names.
    """

    name: str
    title: str
    rows: Mapping[str, Mapping[str, float | str]]
    decimals: int = 2
    corner: str = "method"

    @property
    def columns(self) -> list[str]:
        """Names of columns, in order of first appearance."""
        return list(dict.fromkeys(column for row in self.rows.values() for column in row))

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
            [name, *(self._shown(row.get(column, np.nan)) for column in self.columns)]
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
            {self.corner: name, **{c: _exact(row.get(c, np.nan)) for c in self.columns}}
            for name, row in self.rows.items()
        ]
        write_table(path, rows)
        return path

    def _shown(self, cell: float | str) -> str:
        if isinstance(cell, str):
            return cell
        return f"{cell:.{self.decimals}f}" if np.isfinite(cell) else "-"


def _exact(cell: float | str) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:.6g}" if np.isfinite(cell) else "n/a"
