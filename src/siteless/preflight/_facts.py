"""What is known of each scan when scans are compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# With fewer people, a site cannot be separated from those who were scanned there.
MIN_PEOPLE = 3


@dataclass(frozen=True)
class ScanFacts:
    """What the comparison between scans needs to know of each.

    Attributes
    ----------
    path
        The image.
    subject
        Label of the person.
    site
        Label of the site, None when nothing tells.
    attributes
        From tables: age and sex among them, where known.
    site_origin
        What told the site.
    brain_mask
        The mask's file, or how it was computed.
    shells
        b-value and number of directions of each, ascending; None when they could not be read.
    voxel_size
        mm; None when the image could not be read.
    orientation
        Anatomical directions of the image axes, such as ``LAS``.
    fingerprint
        Equal for images that hold the same signal; None when it could not be read.
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


def group_scans(
    scans: Iterable[ScanFacts], key: Callable[[ScanFacts], str | None]
) -> dict[str, list[ScanFacts]]:
    """Return scans by a label; those without one are left out."""
    groups: defaultdict[str, list[ScanFacts]] = defaultdict(list)
    for scan in scans:
        if (label := key(scan)) is not None:
            groups[label].append(scan)
    return dict(groups)
