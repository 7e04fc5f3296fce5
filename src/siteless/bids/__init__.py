"""Scans on disk to `Scan` objects and back: BIDS, QSIPrep output, and manifests."""

from siteless.bids._dataset import Dataset, ScanFiles, find_scans
from siteless.bids._gradient_files import read_gradients
from siteless.bids._names import NAMES, derivative_path
from siteless.bids._nifti import Header, read_header, read_signal
from siteless.bids._read import (
    read_brain_mask,
    read_mask,
    read_scan,
    read_sidecar,
    read_volumes,
)
from siteless.bids._tree import ENTITIES
from siteless.bids._write import write_description, write_json, write_scan

__all__ = [
    "ENTITIES",
    "NAMES",
    "Dataset",
    "Header",
    "ScanFiles",
    "derivative_path",
    "find_scans",
    "read_brain_mask",
    "read_gradients",
    "read_header",
    "read_mask",
    "read_scan",
    "read_sidecar",
    "read_signal",
    "read_volumes",
    "write_description",
    "write_json",
    "write_scan",
]
