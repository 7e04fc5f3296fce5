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
    """Properties of a scan for comparison with others.

    Attributes
    ----------
    path
        Path of the image.
    subject
        Label of the participant.
    site
        Label of the site; None if unknown.
    attributes
        Attributes from tables, such as age and sex.
    site_origin
        Origin of the site.
    brain_mask
        Path of the brain mask, or how it was computed.
    shells
        b-value and number of directions of each shell, ascending; None if they could not be read.
    voxel_size
        Voxel size, mm; None if the image could not be read.
    orientation
        Anatomical directions of the image axes, such as ``LAS``.
    fingerprint
        Hash of the signal; None if it could not be read.
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
    """Group scans by a label; those without one are left out."""
    groups: defaultdict[str, list[ScanFacts]] = defaultdict(list)
    for scan in scans:
        if (label := key(scan)) is not None:
            groups[label].append(scan)
    return dict(groups)
