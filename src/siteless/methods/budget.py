"""How much of a study is stored, so that the folder of a fit has a bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Self

from siteless.bids import ScanFiles, read_header
from siteless.errors import DatasetError
from siteless.harmonics import Channels
from siteless.methods.cohort import Cohort
from siteless.model import Preparation

# Largest fractions of an image that are brain and white matter.
_BRAIN, _WHITE_MATTER = 0.3, 0.12
# Stored rows of coefficients per voxel: in patches, and in those derived from the signal.
_ROWS, _DERIVED_ROWS = 2, 11
# Fraction of a limited folder for patches of all scans; and the fewest patches per scan.
_FOR_PATCHES, _LEAST_PATCHES = 0.2, 256


@dataclass(frozen=True)
class Budget:
    """The largest number of patches per scan, and the images whose signal is stored.

    None stands for all.
    """

    patches: int | None = None
    signals: frozenset[Path] | None = None

    @classmethod
    def within(
        cls, limit: float, cohort: Cohort, preparation: Preparation, *, with_signal: bool
    ) -> Self:
        """Return the budget of a cohort for a folder of at most `limit` bytes.

        Patches of all scans are stored, and the signal of as many as fit: the same number of
        each site, the reference group first, and validating scans in proportion. One scan of each
        site and one to validate by must fit.
        """
        shapes = [read_header(scan.dwi)[0].get_data_shape() for scan in cohort.scans]
        sizes = {
            scan.dwi: _bytes_of(shape, preparation, with_signal=with_signal)
            for scan, shape in zip(cohort.scans, shapes, strict=True)
        }
        if sum(sizes.values()) <= limit:
            return cls()
        for_patches = _FOR_PATCHES * limit if with_signal else limit
        channels = Channels(preparation.order, len(preparation.shells)).count
        of_a_patch = 4 * (_ROWS * channels + max(shape[3] for shape in shapes))
        patches = max(_LEAST_PATCHES, for_patches / (len(shapes) * of_a_patch))
        # A power of two, so that a study that grows a little keeps what is stored.
        rounded = 2 ** int(math.log2(patches))
        if not with_signal:
            return cls(rounded, frozenset())
        return cls(rounded, frozenset(_chosen(cohort, sizes, limit - for_patches)))

    def keeps_signal(self, scan: ScanFiles) -> bool:
        """Whether the signal of a scan is stored."""
        return self.signals is None or scan.dwi in self.signals


def _bytes_of(shape: Sequence[int], preparation: Preparation, *, with_signal: bool) -> float:
    """Return about how many bytes are stored for a scan of shape (x, y, z, volume)."""
    *grid, volumes = shape
    channels = Channels(preparation.order, len(preparation.shells)).count
    tissue = _WHITE_MATTER if preparation.tissue == "white-matter" else _BRAIN
    values = tissue * (_ROWS * channels + volumes)
    if with_signal:
        values += _BRAIN * volumes + tissue * (_DERIVED_ROWS * channels + volumes)
    return 4 * math.prod(grid) * values


def _chosen(cohort: Cohort, sizes: dict[Path, float], limit: float) -> set[Path]:
    """Return the images of scans whose signal fits."""
    reference = {scan.dwi for scan in cohort.reference or cohort.learning}
    learning = sorted(cohort.learning, key=lambda scan: scan.dwi not in reference)
    share = len(cohort.validating) / len(cohort.scans)
    parts = (
        (list(_dealt(learning)), len(cohort.sites)),
        (list(_dealt(cohort.validating)), min(1, len(cohort.validating))),
    )
    fewest = [sum(sizes[scan.dwi] for scan in scans[:least]) for scans, least in parts]
    # In proportion, but each part has room for the scans that it must have.
    for_learning = min(max((1 - share) * limit, fewest[0]), limit - fewest[1])
    chosen: set[Path] = set()
    for (scans, least), room in zip(parts, (for_learning, limit - for_learning), strict=True):
        left = room
        for number, scan in enumerate(scans):
            left -= sizes[scan.dwi]
            if left < 0 and number >= least:
                break
            chosen.add(scan.dwi)
    needed = sum(sizes[path] for path in chosen)
    if needed > limit:
        raise DatasetError(
            "the work folder must hold one scan of each site and one to validate by, which take "
            f"about {needed / (1 - _FOR_PATCHES) / 1e9:.1f} GB",
            remedy="give as much with --work-gb, or name fewer --sites",
        )
    return chosen


def _dealt(scans: Sequence[ScanFiles]) -> Iterator[ScanFiles]:
    """Yield scans, alternating between sites."""
    of_sites: dict[str, list[ScanFiles]] = {}
    for scan in scans:
        of_sites.setdefault(str(scan.site), []).append(scan)
    for dealt in zip_longest(*of_sites.values()):
        yield from (scan for scan in dealt if scan is not None)
