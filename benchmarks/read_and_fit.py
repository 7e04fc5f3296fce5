"""Read one scan and fit it, in a process of its own whose memory is watched.

``python -m benchmarks.read_and_fit MANIFEST [nothing]``; with ``nothing`` only the imports count.
"""

from __future__ import annotations

import sys

import dipy.segment.mask  # noqa: F401 - imported in both runs, so that it cancels out

from siteless.bids import find_scans, read_scan
from siteless.harmonics import fit_coefficients

if __name__ == "__main__":
    [files] = find_scans(sys.argv[1]).scans
    if sys.argv[2:] != ["nothing"]:
        fit_coefficients(read_scan(files))
