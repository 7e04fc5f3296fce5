"""Which scans of a dataset to work on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from siteless.bids._dataset import Dataset, ScanFiles, find_scans
from siteless.errors import DatasetError


@dataclass(frozen=True)
class ScanSelection:
    """Scans of a dataset.

    Attributes
    ----------
    dataset, site_from, filters
        As for `find_scans`.
    sites
        Labels of the sites whose scans are chosen; None for all sites.
    """

    dataset: Path | str
    site_from: str | None = None
    filters: Mapping[str, Collection[str | None]] = field(default_factory=dict)
    sites: Collection[str] | None = None

    @classmethod
    def of(cls, given: Self | Path | str) -> Self:
        """Return a selection as it is, or all scans of a dataset."""
        return given if isinstance(given, cls) else cls(Path(str(given)))

    @property
    def path(self) -> Path:
        """Where the dataset is."""
        return Path(self.dataset)

    def absolute(self) -> Self:
        """Return the same selection for processes that have another working folder."""
        return replace(self, dataset=self.path.absolute())

    def search(self) -> Dataset:
        """Find the scans of any site, and what is wrong with the tables."""
        return find_scans(self.dataset, site_from=self.site_from, filters=self.filters)

    def find(self) -> Dataset:
        """Find the scans of the chosen sites.

        Raises
        ------
        SitelessError
            When a table is broken, the site of a scan is unknown, or a chosen site has no scan.
        """
        found = self.search()
        if found.errors:
            raise found.errors[0]
        return replace(found, scans=self._of_sites(found))

    def _of_sites(self, found: Dataset) -> tuple[ScanFiles, ...]:
        unknown = next((scan for scan in found.scans if scan.site is None), None)
        if unknown and self.sites is None:
            raise DatasetError(
                "the scan's site is unknown",
                remedy="add a site column to participants.tsv or sessions.tsv, or use --site-from",
                path=unknown.dwi,
            )
        known = {str(scan.site) for scan in found.scans if scan.site}
        missing = [site for site in self.sites or () if site not in known]
        if missing:
            raise DatasetError(
                f"no scan is of site {missing[0]!r}",
                remedy=f"choose of {', '.join(sorted(known))}",
                path=found.root,
            )
        return tuple(
            scan for scan in found.scans if self.sites is None or str(scan.site) in self.sites
        )
