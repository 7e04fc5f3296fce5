"""Select scans of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from siteless.bids._dataset import Dataset, find_scans
from siteless.errors import DatasetError


@dataclass(frozen=True)
class ScanSelection:
    """A selection of the scans of a dataset.

    Attributes
    ----------
    dataset, site_from, filters
        As for `find_scans`.
    sites
        Labels of the selected sites; None for all sites.
    """

    dataset: Path | str
    site_from: str | None = None
    filters: Mapping[str, Collection[str | None]] = field(default_factory=dict)
    sites: Collection[str] | None = None

    @classmethod
    def of(cls, dataset: Self | Path | str) -> Self:
        """Return a selection unchanged, or select all scans of a dataset."""
        return dataset if isinstance(dataset, cls) else cls(Path(str(dataset)))

    @property
    def path(self) -> Path:
        """Path of the dataset."""
        return Path(self.dataset)

    def absolute(self) -> Self:
        """Return the same selection for processes with another working folder."""
        return replace(self, dataset=self.path.absolute())

    def search(self) -> Dataset:
        """Find the scans of all sites, with the errors in the tables."""
        return find_scans(self.dataset, site_from=self.site_from, filters=self.filters)

    def find(self) -> Dataset:
        """Find the scans of the selected sites.

        Raises
        ------
        SitelessError
            When a table is broken, the site of a scan is unknown, or a selected site has no scan.
        """
        dataset = self.search()
        if dataset.errors:
            raise dataset.errors[0]
        unknown = next((scan for scan in dataset.scans if scan.site is None), None)
        if unknown and self.sites is None:
            raise DatasetError(
                "the scan's site is unknown",
                remedy="add a site column to participants.tsv or sessions.tsv, or use --site-from",
                path=unknown.dwi,
            )
        known = {str(scan.site) for scan in dataset.scans if scan.site}
        missing = [site for site in self.sites or () if site not in known]
        if missing:
            raise DatasetError(
                f"no scan is of site {missing[0]!r}",
                remedy=f"choose from {', '.join(sorted(known))}",
                path=dataset.root,
            )
        chosen = known if self.sites is None else self.sites
        return replace(dataset, scans=tuple(s for s in dataset.scans if str(s.site) in chosen))
