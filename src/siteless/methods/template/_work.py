"""Scans brought to a template of them all: registration, and a log of how well it went."""

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
from siteless.registration import Alignment, place, resample_grid
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays

# Scans that are tried as the start of a template, and that its first mean is of at most.
_REFERENCES, _FIRST = 3, 60
# mm. Finer than sites are compared at, and what registration works at.
_VOXEL_SIZE = 2.5
# Kind under which what registration sees of a scan is stored.
TEMPLATE = "template"
# Names of spaces that people share begin so, in the entity ``space``.
_TEMPLATES = ("MNI", "ICBM", "IXI549", "OASIS", "NIHPD", "UNCInfant", "Talairach")


@dataclass(frozen=True)
class TemplateWork(ABC):
    """What is done to each scan; the same in this process and in others."""

    store: ScanStore
    same_space: bool

    @property
    @abstractmethod
    def key(self) -> str:
        """Say what `bring` depends on, beside the scan and the template."""

    @abstractmethod
    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return what sites are compared by, on the template."""

    def maps(self, scan: ScanFiles) -> BrainMaps:
        """Read what registration sees of a scan."""
        return BrainMaps.from_arrays(self.store.read(TEMPLATE, scan))

    def aligned(self, scan: ScanFiles, template: BrainMaps) -> Path:
        """Return the file of a scan's maps on a template."""
        return self._file("aligned", scan, template, self.key)

    def _file(self, kind: str, scan: ScanFiles, template: BrainMaps, key: str = "") -> Path:
        return self.store.file(kind, scan, cache_key(*template.arrays.values(), key))

    def place(self, reference: BrainMaps, scan: ScanFiles) -> tuple[BrainMaps, Likeness]:
        """Bring a scan to another, without deformation."""
        maps = self.maps(scan)
        alignment, found = lay(maps, reference, same_space=self.same_space, deform=False)
        return maps.on_static(alignment), found

    def align(self, template: BrainMaps, scan: ScanFiles) -> Likeness:
        """Register a scan to a template, and keep what it has there, unless that is done."""
        path = self.aligned(scan, template)
        if is_whole(path):
            return Likeness(*load_arrays(path)["likeness"].tolist())
        maps = self.maps(scan)
        alignment, found = self._lay(maps, template, scan)
        kept = {**maps.on_static(alignment).arrays, **self.bring(scan, alignment)}
        save_arrays(path, {**kept, "likeness": np.array(astuple(found))})
        return found

    def _lay(
        self, maps: BrainMaps, template: BrainMaps, scan: ScanFiles
    ) -> tuple[Alignment, Likeness]:
        """Register a scan to a template, unless another method has."""
        path = self._file("registrations", scan, template)
        if is_whole(path) and not self.same_space:
            stored = load_arrays(path)
            alignment = Alignment.from_arrays(maps.grid, template.grid, stored)
            return alignment, Likeness(*stored["likeness"].tolist())
        alignment, found = lay(maps, template, same_space=self.same_space)
        if not self.same_space:
            save_arrays(path, {**alignment.arrays, "likeness": np.array(astuple(found))})
        return alignment, found


@dataclass(frozen=True, eq=False)
class OnTemplate:
    """Scans that were brought to a template.

    Attributes
    ----------
    template
        That they were brought to.
    accepted
        Those that lie on it as scans typically do.
    summary
        How well they lie, and which do not, for the card.
    """

    template: BrainMaps
    accepted: tuple[ScanFiles, ...]
    summary: Mapping[str, Any]


def bring_to_template(
    workspace: Workspace,
    work: TemplateWork,
    scans: Sequence[ScanFiles],
    sites: Sequence[str],
) -> OnTemplate:
    """Build a template of scans, bring them to it, and write the log.

    Raises
    ------
    SignalError
        When most scans cannot be registered to each other.
    """
    some = _some_of_each_site(scans)
    template = _first_template(work, some, workspace)
    found = workspace.map("Registering scans", partial(work.align, template), scans)
    typical = typical_likeness(found)
    poor = [scan for scan, one in zip(scans, found, strict=True) if one.is_poor(typical)]
    _write_log(workspace.log, scans, found, poor)
    accepted = tuple(scan for scan in scans if scan not in poor)
    counts = Counter(str(scan.site) for scan in accepted)
    summary = {
        "likeness": asdict(typical),
        "not_registered": [scan.name for scan in poor],
        "training_scans": {site: counts[site] for site in sites},
    }
    return OnTemplate(template, accepted, summary)


def _some_of_each_site(scans: Sequence[ScanFiles]) -> list[ScanFiles]:
    """Return few enough scans for a first mean, of all sites alike."""
    sites = sorted({str(scan.site) for scan in scans})
    own = [[scan for scan in scans if str(scan.site) == site] for site in sites]
    most = max(1, _FIRST // len(sites))
    return [scan for group in own for scan in group[:: -(-len(group) // most)]]


def template_maps(scan: Scan, coefficients: Coefficients) -> Mapping[str, Array]:
    """Return what registration sees of a scan."""
    return BrainMaps.of(scan, coefficients).arrays


def is_common_space(scans: Sequence[ScanFiles], *, asked: bool | None) -> bool:
    """Whether scans are in one space already, as the user or their names say."""
    if asked is not None:
        return asked
    spaces = {scan.entities.get("space", "") for scan in scans}
    return len(spaces) == 1 and spaces.pop().startswith(_TEMPLATES)


def _first_template(
    work: TemplateWork, scans: Sequence[ScanFiles], workspace: Workspace
) -> BrainMaps:
    """Return the mean of scans that lie on one of them, not yet deformed.

    The one is of median size; another is tried when most scans do not lie on it.

    Raises
    ------
    SignalError
        When there is none that most scans lie on.
    """
    for reference in _references(work, scans):
        placed = workspace.map("Aligning scans", partial(work.place, reference), scans)
        typical = typical_likeness([found for _, found in placed])
        good = [maps for maps, found in placed if not found.is_poor(typical)]
        if 2 * len(good) > len(scans):
            return mean_maps(good)
    raise SignalError(
        "expected scans that can be registered to each other, but most do not lie on any of "
        f"{_REFERENCES} that were tried ({typical})",
        remedy="check orientations and masks by `siteless check`",
    )


def _references(work: TemplateWork, scans: Sequence[ScanFiles]) -> Iterator[BrainMaps]:
    """Give some scans, those of median size first, on grids along the world's axes."""
    sizes = []
    for scan in scans:
        maps = work.maps(scan)
        sizes.append(float((maps.image > 0).sum() * np.prod(maps.grid.voxel_size)))
    off = np.abs(np.array(sizes) - np.median(sizes))
    for number in np.argsort(off, kind="stable")[:_REFERENCES]:
        maps = work.maps(scans[number])
        yield maps.on_static(place(maps.grid, resample_grid(maps.grid, _VOXEL_SIZE)))


def _write_log(
    path: Path,
    scans: Sequence[ScanFiles],
    found: Sequence[Likeness],
    poor: Sequence[ScanFiles],
) -> None:
    """Write how well each scan lies on the template."""
    rows = [
        {
            "scan": scan.name,
            "site": str(scan.site),
            **{name: f"{value:.4f}" for name, value in asdict(one).items()},
            "registered": "no" if scan in poor else "yes",
        }
        for scan, one in zip(scans, found, strict=True)
    ]
    write_table(path, rows)
