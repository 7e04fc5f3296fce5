"""Why siteless walks BIDS itself: indexing time of the libraries that are installed.

``pip install pybids bids2table ancpbids``, then ``python -m benchmarks.bids_libraries``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.ground_floor import write_empty_tree
from benchmarks.measure import best_time, row
from siteless.bids import find_scans


def _pybids(root: Path) -> object:
    pybids = import_module("bids")
    return pybids.BIDSLayout(root, validate=False).get(suffix="dwi", extension=".nii.gz")


def _bids2table(root: Path) -> object:
    return import_module("bids2table").index_dataset(root)


def _ancpbids(root: Path) -> object:
    return import_module("ancpbids").BIDSLayout(str(root)).get(suffix="dwi", extension=".nii.gz")


LIBRARIES: dict[str, Callable[[Path], object]] = {
    "siteless": find_scans,
    "bids": _pybids,
    "bids2table": _bids2table,
    "ancpbids": _ancpbids,
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_empty_tree(Path(folder), people=1000)
        for name, index in LIBRARIES.items():
            if find_spec(name):
                [seconds] = best_time(lambda: index(Path(folder)), repeats=1)  # noqa: B023
                row(f"indexing 1000 people with {name}", f"{seconds:.1f} s")
            else:
                row(f"indexing 1000 people with {name}", "not installed")
