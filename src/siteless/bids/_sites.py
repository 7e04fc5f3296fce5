"""Find the site of a scan.

The site comes from, in order: a ``site`` column of the sessions, scans or participants table; an
entity chosen by the user; the manufacturer, model, serial number and protocol in the JSON sidecar.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from siteless.acquisition import Site
from siteless.bids._tables import Row, read_json, read_rows
from siteless.bids._tree import BidsName, Tree
from siteless.errors import DatasetError, SitelessError

_SIDECAR_FIELDS = ("Manufacturer", "ManufacturersModelName", "DeviceSerialNumber", "ProtocolName")


@dataclass
class SiteFinder:
    """Looks scans up in the tables of a dataset; each unreadable table is reported once."""

    tree: Tree
    site_from: str | None
    _tables: dict[Path, dict[str, Row]] = field(default_factory=dict, init=False)

    def find(self, image: BidsName) -> tuple[Row, Site | None]:
        """Return the attributes of a scan from the tables, and its site."""
        rows = self._rows(image)
        attributes = {key: value for row, _ in reversed(rows) for key, value in row.items()}
        for row, origin in rows:
            if "site" in row:
                return attributes, Site(row["site"], origin=origin)
        if self.site_from in image.entities:
            label = image.entities[self.site_from]
            return attributes, Site(label, origin=f"{self.site_from} in the file name")
        sidecars = tuple(name.path for name in self.tree.applicable(image, ".json"))
        return attributes, site_from_sidecar(sidecars, self.tree.errors)

    def _rows(self, image: BidsName) -> list[tuple[Row, str]]:
        """Find the table rows of a scan, from specific to general, with the kind of table."""
        subject = f"sub-{image.entities['sub']}"
        session = f"ses-{image.entities.get('ses', '')}"
        parts = image.path.relative_to(self.tree.root).parts
        in_subject, in_session = "/".join(parts[1:]), "/".join(parts[2:])
        places = [
            (f"{subject}/{subject}_sessions.tsv", "session_id", session),
            (f"{subject}/{subject}_scans.tsv", "filename", in_subject),
            (f"{subject}/{session}/{subject}_{session}_scans.tsv", "filename", in_session),
            ("participants.tsv", "participant_id", subject),
        ]
        return [
            (row, name.rpartition("_")[2])
            for root in self._roots
            for name, key, value in places
            if (row := self._table(root / name, key).get(value))
        ]

    def _table(self, path: Path, key: str) -> dict[str, Row]:
        if path not in self._tables:
            self._tables[path] = self._read(path, key) if path.exists() else {}
        return self._tables[path]

    def _read(self, path: Path, key: str) -> dict[str, Row]:
        try:
            rows = [row for row in read_rows(path, key) if key in row]
        except SitelessError as error:
            self.tree.errors.append(error)
            return {}
        # BIDS requires a prefix, which some tables lack.
        prefix = {"participant_id": "sub-", "session_id": "ses-"}.get(key, "")
        names = [prefix + row[key].removeprefix(prefix) for row in rows]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            problem = f"{twice[0]} is listed twice"
            self.tree.errors.append(DatasetError(problem, remedy="remove a row", path=path))
        return dict(zip(names, rows, strict=True))

    @cached_property
    def _roots(self) -> list[Path]:
        """The dataset and, for a derivative, its raw dataset."""
        above = self.tree.root.absolute().parent
        return [self.tree.root, *([above.parent] if above.name == "derivatives" else [])]


def site_from_sidecar(sidecars: tuple[Path, ...], errors: list[SitelessError]) -> Site | None:
    """Name a site after the scanner and protocol in the sidecar, if it names the scanner."""
    merged: dict[str, object] = {}
    for path in sidecars:
        try:
            merged |= read_json(path)
        except SitelessError as error:
            if str(error) not in map(str, errors):
                errors.append(error)
    parts = [str(merged[name]) for name in _SIDECAR_FIELDS if merged.get(name)]
    if not merged.get("ManufacturersModelName") and not merged.get("DeviceSerialNumber"):
        return None
    label = "-".join(re.sub(r"[^0-9A-Za-z]+", "_", part).strip("_") for part in parts)
    return Site(label, origin="JSON sidecar")
