"""Store derived data of each scan on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan
from siteless.bids import ScanFiles, fingerprint, read_scan
from siteless.errors import errors_at
from siteless.methods.budget import Budget
from siteless.methods.patches import (
    TrainingScan,
    is_stored,
    make_training_scan,
    open_scan,
    same_places,
    store_scan,
)
from siteless.model import Preparation
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays

if TYPE_CHECKING:
    from siteless.methods.base import Feature

# Increased when the stored data change.
_FORMAT = 12
_PATCHES, _SIGNAL = "patches", "signal"


@dataclass(frozen=True)
class ScanStore:
    """A folder of stored scans that methods learn from, which fits may share.

    The preparation of a scan is part of its key; the budget limits how much is stored.
    """

    folder: Path
    preparation: Preparation
    budget: Budget = field(default_factory=Budget)

    def file(self, kind: str, scan: ScanFiles, *parts: str) -> Path:
        """Return the file of stored data of a scan."""
        source = str(scan.dwi.resolve()), scan.subject, fingerprint(scan)
        key = f"{scan.name}-{cache_key(source, asdict(self.preparation), _FORMAT)}"
        return self.folder / kind / f"{'-'.join([key, *parts])}.safetensors"

    def read(self, kind: str, scan: ScanFiles, *parts: str) -> dict[str, Array]:
        """Read stored data of a scan."""
        return load_arrays(self.file(kind, scan, *parts))

    def patches(self, scan: ScanFiles) -> TrainingScan:
        """Return the patches of a scan stored by `make`."""
        return open_scan(self._patches(scan))

    def _patches(self, scan: ScanFiles) -> Path:
        most = self.budget.patches
        return self.file(_PATCHES, scan, *([] if most is None else [str(most)]))

    def kept(self, scans: Sequence[ScanFiles]) -> tuple[ScanFiles, ...]:
        """Return the scans whose signal is stored."""
        return tuple(scan for scan in scans if self.budget.keeps_signal(scan))

    def make(
        self, files: ScanFiles, *, features: Mapping[str, Feature], with_signal: bool
    ) -> None:
        """Read a scan and store its patches and features, by their kind, unless they exist.

        The cleaned signal of the brain may be stored too, for `derive`.
        """
        patches, most = self._patches(files), self.budget.patches
        lacking = [kind for kind in features if not is_whole(self.file(kind, files))]
        lacks_patches = not is_stored(patches)
        wants_signal = with_signal and self.budget.keeps_signal(files)
        lacks_signal = wants_signal and not is_whole(self.file(_SIGNAL, files))
        if not (lacking or lacks_patches or lacks_signal):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            scan = self.preparation.cleaned(scan)
            if lacks_signal:
                save_arrays(self.file(_SIGNAL, files), _arrays_of(scan))
            scan = self.preparation.at_shells(scan)
            coefficients = self.preparation.coefficients(scan)
            if lacks_patches:
                choose = None if most is None else partial(same_places, most=most)
                made = make_training_scan(scan, coefficients, self.preparation, choose=choose)
                store_scan(replace(made, subject=files.subject), patches)
            for kind in lacking:
                save_arrays(self.file(kind, files), features[kind](scan, coefficients))

    def signal(self, files: ScanFiles) -> Scan:
        """Return a cleaned scan from its stored signal, which is zero outside the brain."""
        arrays = self.read(_SIGNAL, files)
        signal = np.zeros((*arrays["mask"].shape, len(arrays["bvals"])), np.float32, order="F")
        signal[arrays["mask"]] = arrays["signal"]
        return Scan(
            signal,
            arrays["affine"],
            GradientTable(arrays["bvals"], arrays["bvecs"]),
            arrays["mask"],
            arrays["white_matter"],
            files.site,
            files.name,
        )

    def derive(
        self,
        files: ScanFiles,
        *,
        make: Callable[[Scan], Sequence[TrainingScan]],
        key: str,
        count: int,
    ) -> None:
        """Derive training scans from a stored signal, unless they exist."""
        paths = self.derived(files, key, count)
        if all(map(is_stored, paths)):
            return
        with errors_at(files.dwi):
            for scan, path in zip(make(self.signal(files)), paths, strict=True):
                store_scan(replace(scan, subject=files.subject), path)

    def derived(self, scan: ScanFiles, key: str, count: int) -> list[Path]:
        """Return the files of the training scans stored by `derive`."""
        return [self.file("derived", scan, key, str(number)) for number in range(count)]


def _arrays_of(scan: Scan) -> Mapping[str, Array]:
    return {
        "signal": scan.signal[scan.mask],
        "affine": scan.affine,
        "bvals": scan.gradients.bvals,
        "bvecs": scan.gradients.bvecs,
        "mask": scan.mask,
        "white_matter": scan.white_matter,
    }
