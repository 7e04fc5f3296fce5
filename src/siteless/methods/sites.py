"""Site properties that are learned for every method."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mode

from siteless.bids import ScanFiles, read_gradient_table
from siteless.harmonics import table_at_shells
from siteless.methods.patches import TrainingScan
from siteless.model import LearnedSite, Preparation, Typical

# Largest number of voxels that describe a typical site: per scan, and in total.
_TYPICAL_PER_SCAN, _TYPICAL_PER_SITE = 20_000, 2_000_000


def learned_site(
    scans: Sequence[TrainingScan],
    files: Sequence[ScanFiles],
    preparation: Preparation,
    *,
    level: float,
) -> LearnedSite:
    """Return the properties of a site from its training scans.

    The protocol is that of the first scan with the most common number of volumes.
    """
    most = min(_TYPICAL_PER_SCAN, _TYPICAL_PER_SITE // len(scans))
    centres = (scan.neighbours[:, 0] for scan in scans)
    rows = [chosen[:: max(1, len(chosen) // most)] for chosen in centres]
    samples = [scan.values[chosen] for scan, chosen in zip(scans, rows, strict=True)]
    tables = [read_gradient_table(scan) for scan in files]
    usual = mode(len(table) for table in tables)
    typical_table = next(table for table in tables if len(table) == usual)
    protocol, _ = table_at_shells(typical_table, preparation.shells)
    return LearnedSite(
        level=level,
        bvals=tuple(protocol.bvals.tolist()),
        bvecs=tuple(map(tuple, protocol.bvecs.round(9).tolist())),
        typical=Typical.of(samples, preparation.order),
    )
