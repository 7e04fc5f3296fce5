"""Properties of scans that are compared between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# With fewer participants, a site cannot be separated from them.
MIN_PEOPLE = 3


@dataclass(frozen=True)
class ScanFacts:
    """Properties of a scan for comparison with others; None for what is unknown or unreadable.

    Shells are pairs of a b-value and its number of directions, ascending. Voxel sizes are in mm.
    The orientation names the directions of the image axes, such as ``LAS``. `brain_mask` is the
    path of the mask, or how it was computed. The fingerprint is a hash of the signal.
    """

    path: Path
    subject: str
    site: str | None
    attributes: Mapping[str, str]
    site_origin: str = ""
    brain_mask: str = ""
    shells: tuple[tuple[float, int], ...] | None = None
    voxel_size: tuple[float, ...] | None = None
    orientation: str | None = None
    fingerprint: str | None = None

    @property
    def bs(self) -> list[float]:
        """b-value of each shell."""
        return [b for b, _ in self.shells or ()]


def group_scans(
    scans: Iterable[ScanFacts], key: Callable[[ScanFacts], str | None]
) -> dict[str, list[ScanFacts]]:
    """Group scans by a label; those without one are left out."""
    groups: defaultdict[str, list[ScanFacts]] = defaultdict(list)
    for scan in scans:
        if (label := key(scan)) is not None:
            groups[label].append(scan)
    return dict(groups)
