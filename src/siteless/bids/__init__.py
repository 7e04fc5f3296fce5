"""Read and write scans: BIDS datasets, QSIPrep output and manifests."""

from siteless.bids._dataset import Dataset, ScanFiles, find_scans
from siteless.bids._gradient_files import read_gradient_pair, read_gradients
from siteless.bids._names import NAMES, derivative_path
from siteless.bids._nifti import make_header, read_header, read_signal
from siteless.bids._read import (
    fingerprint,
    read_brain_mask,
    read_gradient_table,
    read_mask,
    read_scan,
    read_sidecar,
    read_volumes,
)
from siteless.bids._selection import ScanSelection
from siteless.bids._tables import read_json, read_rows
from siteless.bids._tree import ENTITIES
from siteless.bids._write import (
    Map,
    claim_folder,
    require_outside,
    sidecar_of,
    write_description,
    write_dwi,
    write_json,
    write_map,
    write_raw_description,
    write_scan,
    write_table,
    write_text,
)

__all__ = [
    "ENTITIES",
    "NAMES",
    "Dataset",
    "Map",
    "ScanFiles",
    "ScanSelection",
    "claim_folder",
    "derivative_path",
    "find_scans",
    "fingerprint",
    "make_header",
    "read_brain_mask",
    "read_gradient_pair",
    "read_gradient_table",
    "read_gradients",
    "read_header",
    "read_json",
    "read_mask",
    "read_rows",
    "read_scan",
    "read_sidecar",
    "read_signal",
    "read_volumes",
    "require_outside",
    "sidecar_of",
    "write_description",
    "write_dwi",
    "write_json",
    "write_map",
    "write_raw_description",
    "write_scan",
    "write_table",
    "write_text",
]
