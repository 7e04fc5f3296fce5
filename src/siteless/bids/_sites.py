"""Find the site of a scan.

The site comes from, in order: a ``site`` column of the sessions, scans or participants table; an
entity chosen by the user; the manufacturer, model, serial number and protocol in the JSON sidecar.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from siteless.acquisition import Site
from siteless.bids._tables import Row, read_json, read_table
from siteless.bids._tree import BidsName, Tree
from siteless.errors import DatasetError, SitelessError

_SIDECAR_FIELDS = ("Manufacturer", "ManufacturersModelName", "DeviceSerialNumber", "ProtocolName")


class SiteFinder:
    """Looks scans up in the tables of a dataset; each unreadable table is reported once."""

    def __init__(self, tree: Tree, site_from: str | None) -> None:
        self.tree = tree
        self.site_from = site_from
        self.errors = tree.errors
        self._tables: dict[Path, dict[str, Row]] = {}

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
        return attributes, site_from_sidecar(sidecars, self.errors)

    def _rows(self, image: BidsName) -> list[tuple[Row, str]]:
        """Find the table rows of a scan, from specific to general, with the kind of table."""
        subject = f"sub-{image.entities['sub']}"
        session = f"ses-{image.entities.get('ses', '')}"
        rows = []
        for root in self._roots:
            folder = root / subject
            relative = Path(*image.path.relative_to(self.tree.root).parts[1:])
            sessions = folder / f"{subject}_sessions.tsv"
            rows += [
                self._lookup(sessions, "session_id", session),
                self._lookup(folder / f"{subject}_scans.tsv", "filename", relative.as_posix()),
                self._lookup(
                    folder / session / f"{subject}_{session}_scans.tsv",
                    "filename",
                    Path(*relative.parts[1:]).as_posix(),
                ),
                self._lookup(root / "participants.tsv", "participant_id", subject),
            ]
        return [(row, path.name.rpartition("_")[2]) for row, path in rows if row]

    def _lookup(self, path: Path, key: str, value: str) -> tuple[Row, Path]:
        if path not in self._tables:
            self._tables[path] = self._read(path, key)
        return self._tables[path].get(value, {}), path

    def _read(self, path: Path, key: str) -> dict[str, Row]:
        if not path.exists():
            return {}
        try:
            rows = [row for row in read_table(path, key) if key in row]
        except SitelessError as error:
            self.errors.append(error)
            return {}
        names = [_identifier(key, row[key]) for row in rows]
        if twice := [name for name in set(names) if names.count(name) > 1]:
            self.errors.append(
                DatasetError(f"{twice[0]} is listed twice", remedy="remove a row", path=path)
            )
        return dict(zip(names, rows, strict=True))

    @cached_property
    def _roots(self) -> list[Path]:
        """The dataset and, for a derivative, its raw dataset."""
        root = self.tree.root.absolute()
        if root.parent.name == "derivatives":
            return [self.tree.root, root.parent.parent]
        return [self.tree.root]


def _identifier(key: str, value: str) -> str:
    """Add the prefix that BIDS requires to a participant or session, if it is missing."""
    prefix = {"participant_id": "sub-", "session_id": "ses-"}.get(key, "")
    return value if value.startswith(prefix) else prefix + value


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
