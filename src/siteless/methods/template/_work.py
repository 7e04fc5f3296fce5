"""Build a study template, register scans to it, and log the registration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, write_table
from siteless.errors import SignalError
from siteless.harmonics import Coefficients
from siteless.methods.base import Workspace
from siteless.methods.store import ScanStore
from siteless.methods.template._likeness import (
    BrainMaps,
    Likeness,
    lay,
    mean_maps,
    typical_likeness,
)
from siteless.registration import Alignment, resample_grid
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays

# Number of references to try for a template, and largest number of scans in its first mean.
_REFERENCES, _FIRST = 3, 60
# mm. Finer than the resolution of site comparisons, and the resolution of registration.
_VOXEL_SIZE = 2.5
# Kind under which maps for registration are stored.
TEMPLATE = "template"
# Prefixes of standard spaces in the entity ``space``.
_TEMPLATES = ("MNI", "ICBM", "IXI549", "OASIS", "NIHPD", "UNCInfant", "Talairach")


@dataclass(frozen=True)
class TemplateWork(ABC):
    """Registration of single scans, which can run in several processes.

    Subclasses say which features of sites they compare on the template.
    """

    store: ScanStore
    same_space: bool

    @property
    @abstractmethod
    def key(self) -> str:
        """Return what `bring` depends on, apart from the scan and the template."""

    @abstractmethod
    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return the features to compare between sites, on the template."""

    def maps(self, scan: ScanFiles) -> BrainMaps:
        """Read the maps of a scan for registration."""
        return BrainMaps.from_arrays(self.store.read(TEMPLATE, scan))

    def aligned(self, scan: ScanFiles, template: BrainMaps) -> Path:
        """Return the file of a scan's maps and features on a template."""
        return self._file("aligned", scan, template, self.key)

    def _file(self, kind: str, scan: ScanFiles, template: BrainMaps, key: str = "") -> Path:
        return self.store.file(kind, scan, cache_key(*template.arrays.values(), key))

    def place(self, reference: BrainMaps, scan: ScanFiles) -> tuple[BrainMaps, Likeness]:
        """Align a scan with another, without deformation."""
        maps = self.maps(scan)
        alignment, likeness = lay(maps, reference, same_space=self.same_space, deform=False)
        return maps.on_static(alignment), likeness

    def align(self, template: BrainMaps, scan: ScanFiles) -> Likeness:
        """Register a scan to a template and store its features there, unless they exist."""
        path = self.aligned(scan, template)
        if is_whole(path):
            return Likeness(*load_arrays(path)["likeness"].tolist())
        maps = self.maps(scan)
        alignment, likeness = self._lay(maps, template, scan)
        kept = {**maps.on_static(alignment).arrays, **self.bring(scan, alignment)}
        save_arrays(path, {**kept, "likeness": np.array(astuple(likeness))})
        return likeness

    def _lay(
        self, maps: BrainMaps, template: BrainMaps, scan: ScanFiles
    ) -> tuple[Alignment, Likeness]:
        """Register a scan to a template, unless a registration is stored."""
        path = self._file("registrations", scan, template)
        if is_whole(path) and not self.same_space:
            stored = load_arrays(path)
            alignment = Alignment.from_arrays(maps.grid, template.grid, stored)
            return alignment, Likeness(*stored["likeness"].tolist())
        alignment, likeness = lay(maps, template, same_space=self.same_space)
        if not self.same_space:
            save_arrays(path, {**alignment.arrays, "likeness": np.array(astuple(likeness))})
        return alignment, likeness


def bring_to_template(
    workspace: Workspace,
    work: TemplateWork,
    scans: Sequence[ScanFiles],
    sites: Sequence[str],
) -> tuple[BrainMaps, tuple[ScanFiles, ...], dict[str, Any]]:
    """Build a template of scans, register them to it, and write the log.

    Returns the template, the scans that match it well enough, and a summary for the card.
    """
    template = _first_template(work, _some_of_each_site(scans), workspace)
    likenesses = workspace.map("Registering scans", partial(work.align, template), scans)
    typical = typical_likeness(likenesses)
    poor = [s for s, own in zip(scans, likenesses, strict=True) if own.is_poor(typical)]
    rows = [
        {
            "scan": scan.name,
            "site": str(scan.site),
            **{name: f"{value:.4f}" for name, value in asdict(likeness).items()},
            "registered": "no" if scan in poor else "yes",
        }
        for scan, likeness in zip(scans, likenesses, strict=True)
    ]
    write_table(workspace.log, rows)
    accepted = tuple(scan for scan in scans if scan not in poor)
    counts = Counter(str(scan.site) for scan in accepted)
    summary = {
        "likeness": asdict(typical),
        "not_registered": [scan.name for scan in poor],
        "training_scans": {site: counts[site] for site in sites},
    }
    return template, accepted, summary


def _some_of_each_site(scans: Sequence[ScanFiles]) -> list[ScanFiles]:
    """Return a limited number of scans for a first mean, balanced over sites."""
    sites = sorted({str(scan.site) for scan in scans})
    by_site = [[scan for scan in scans if str(scan.site) == site] for site in sites]
    most = max(1, _FIRST // len(sites))
    return [scan for group in by_site for scan in group[:: -(-len(group) // most)]]


def template_maps(scan: Scan, coefficients: Coefficients) -> Mapping[str, Array]:
    """Return the maps of a scan for registration."""
    return BrainMaps.of(scan, coefficients).arrays


def is_common_space(scans: Sequence[ScanFiles], *, requested: bool | None) -> bool:
    """Whether scans share a space, according to the user or the file names."""
    if requested is not None:
        return requested
    spaces = {scan.entities.get("space", "") for scan in scans}
    return len(spaces) == 1 and spaces.pop().startswith(_TEMPLATES)


def _first_template(
    work: TemplateWork, scans: Sequence[ScanFiles], workspace: Workspace
) -> BrainMaps:
    """Return the mean of scans after affine alignment with one of them.

    The reference has median size; another one is tried if most scans do not match it.
    """
    for reference in _references(work, scans):
        placed = workspace.map("Aligning scans", partial(work.place, reference), scans)
        typical = typical_likeness([likeness for _, likeness in placed])
        good = [maps for maps, likeness in placed if not likeness.is_poor(typical)]
        if 2 * len(good) > len(scans):
            return mean_maps(good)
    raise SignalError(
        "expected scans that can be registered to each other, but most do not lie on any of "
        f"{_REFERENCES} that were tried ({typical})",
        remedy="check orientations and masks by `siteless check`",
    )


def _references(work: TemplateWork, scans: Sequence[ScanFiles]) -> Iterator[BrainMaps]:
    """Yield some scans on grids along the world axes, those of median size first."""
    sizes = []
    for scan in scans:
        maps = work.maps(scan)
        sizes.append(float((maps.image > 0).sum() * np.prod(maps.grid.voxel_size)))
    off = np.abs(np.array(sizes) - np.median(sizes))
    for number in np.argsort(off, kind="stable")[:_REFERENCES]:
        maps = work.maps(scans[number])
        yield maps.on_static(Alignment(maps.grid, resample_grid(maps.grid, _VOXEL_SIZE)))
