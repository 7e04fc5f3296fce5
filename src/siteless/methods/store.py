"""What is made of each scan once, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan
from siteless.bids import ScanFiles, fingerprint, read_scan
from siteless.errors import errors_at
from siteless.methods.patches import (
    TrainingScan,
    is_stored,
    make_training_scan,
    open_scan,
    store_scan,
)
from siteless.model import Preparation
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays

if TYPE_CHECKING:
    from siteless.methods.base import Feature

# Raised when what is stored of a scan changes.
_FORMAT = 12
_PATCHES, _SIGNAL = "patches", "signal"


@dataclass(frozen=True)
class ScanStore:
    """A folder of what methods learn from.

    Attributes
    ----------
    folder
        Fits may share it.
    preparation
        How scans are prepared: a part of the key that a stored scan is known by.
    """

    folder: Path
    preparation: Preparation

    def file(self, kind: str, scan: ScanFiles, *parts: str) -> Path:
        """Return the file of something that is stored of a scan."""
        source = str(scan.dwi.resolve()), scan.subject, fingerprint(scan)
        key = f"{scan.name}-{cache_key(source, asdict(self.preparation), _FORMAT)}"
        return self.folder / kind / f"{'-'.join([key, *parts])}.safetensors"

    def read(self, kind: str, scan: ScanFiles, *parts: str) -> dict[str, Array]:
        """Read something that is stored of a scan."""
        return load_arrays(self.file(kind, scan, *parts))

    def patches(self, scan: ScanFiles) -> TrainingScan:
        """Return the patches of a scan that `make` has stored."""
        return open_scan(self.file(_PATCHES, scan))

    def make(
        self, files: ScanFiles, *, features: Mapping[str, Feature], with_signal: bool
    ) -> None:
        """Read a scan and store what is made of it, but for what is there already.

        Parameters
        ----------
        files
            The scan.
        features
            What is stored beside the patches, by its kind.
        with_signal
            Whether the denoised signal of the brain is stored too, for `derive`.
        """
        patches = self.file(_PATCHES, files)
        lacking = [kind for kind in features if not is_whole(self.file(kind, files))]
        lacks_patches = not is_stored(patches)
        lacks_signal = with_signal and not is_whole(self.file(_SIGNAL, files))
        if not (lacking or lacks_patches or lacks_signal):
            return
        scan = read_scan(files)
        with errors_at(files.dwi):
            scan = self.preparation.denoised(scan)
            if lacks_signal:
                save_arrays(self.file(_SIGNAL, files), _arrays_of(scan))
            scan = self.preparation.at_shells(scan)
            coefficients = self.preparation.coefficients(scan)
            if lacks_patches:
                made = make_training_scan(scan, coefficients, self.preparation, files.subject)
                store_scan(made, patches)
            for kind in lacking:
                save_arrays(self.file(kind, files), features[kind](scan, coefficients))

    def signal(self, files: ScanFiles) -> Scan:
        """Return a scan, denoised, whose signal is stored; it is zero outside the brain."""
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
        make: Callable[[Scan, ScanFiles], Sequence[TrainingScan]],
        key: str,
        count: int,
    ) -> None:
        """Make training scans of a scan whose signal is stored, unless they are there already."""
        paths = self.derived(files, key, count)
        if all(map(is_stored, paths)):
            return
        with errors_at(files.dwi):
            for scan, path in zip(make(self.signal(files), files), paths, strict=True):
                store_scan(scan, path)

    def derived(self, scan: ScanFiles, key: str, count: int) -> list[Path]:
        """Return the files of the training scans that `derive` stores."""
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
