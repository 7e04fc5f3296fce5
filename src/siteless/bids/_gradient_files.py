"""Read and write gradient tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siteless.acquisition import Array, GradientTable
from siteless.bids._dataset import ScanFiles
from siteless.bids._tables import read_text
from siteless.errors import GradientTableError, MissingFileError, errors_at


def read_gradients(files: ScanFiles, affine: Array, volumes: int | None = None) -> GradientTable:
    """Read a scan's gradient table into world axes.

    The ``.b`` table takes precedence, since it is already in world axes. Otherwise ``.bvec`` files
    are read in FSL's convention, which BIDS prescribes. QSIPrep has used other conventions, so its
    ``.bvec`` files are rejected. The number of volumes is not checked when it is None, as for an
    image that could not be read.
    """
    if files.world_table is not None:
        with errors_at(files.world_table):
            table = _numbers(files.world_table)
            _require_count(len(table), volumes)
            return GradientTable.from_mrtrix(table)
    if files.written_by_qsiprep:
        raise GradientTableError(
            "QSIPrep wrote this scan, and its .bvec files do not follow FSL's convention; "
            "expected its .b file beside the image, found none",
            remedy="restore the .b file, or list the scan in a manifest with a bvec that does",
            path=files.dwi,
        )
    if files.bval is None or files.bvec is None:
        lacking = [f".{kind}" for kind in ("bval", "bvec") if getattr(files, kind) is None]
        raise MissingFileError(
            f"the image has no {' and no '.join(lacking)} file",
            remedy="put it beside the image, further up (BIDS), or into a column of the manifest",
            path=files.dwi,
        )
    return read_gradient_pair(files.bval, files.bvec, affine, volumes)


def read_gradient_pair(
    bval: Path, bvec: Path, affine: Array, volumes: int | None = None
) -> GradientTable:
    """Read FSL's two files for an image with this affine into world axes."""
    with errors_at(bval):
        bvals = _read_bvals(bval, volumes)
    with errors_at(bvec):
        return GradientTable.from_fsl(bvals, _read_bvecs(bvec, len(bvals)), affine)


def write_gradients(gradients: GradientTable, affine: Array, bval: Path, bvec: Path) -> None:
    """Write a table as FSL's two files, with enough digits to read the same numbers."""
    bvals, bvecs = gradients.to_fsl(affine)
    bval.write_text(_line(bvals), encoding="ascii")
    bvec.write_text("".join(_line(row) for row in bvecs.T), encoding="ascii")


def _line(numbers: Array) -> str:
    # Adding 0.0 turns the -0.0 that rotation can produce into 0.0.
    return " ".join(f"{number + 0.0:.9g}" for number in numbers.round(12)) + "\n"


def _read_bvals(path: Path, volumes: int | None) -> Array:
    bvals = _numbers(path)
    if 1 not in bvals.shape:
        raise GradientTableError(
            f"expected one line of b-values, found shape {bvals.shape}", remedy="correct the file"
        )
    bvals = bvals.ravel()
    _require_count(len(bvals), volumes)
    if not (bvals >= 0).all():  # NaN fails this too
        worst = bvals[~(bvals >= 0)][0]
        raise GradientTableError(
            f"expected b-values of at least 0, found {worst:g}", remedy="correct it"
        )
    return bvals


def _read_bvecs(path: Path, count: int) -> Array:
    vectors = _numbers(path)
    # The shape (3, 3) is ambiguous. BIDS stores (3, volume), so a file is transposed only when it
    # cannot have that shape.
    if vectors.shape[0] != 3 and vectors.shape[1] == 3:
        vectors = vectors.T
    if vectors.shape != (3, count):
        raise GradientTableError(
            f"expected 3 lines of {count} b-vector components, found shape {vectors.shape}",
            remedy="convert the scan again",
        )
    return vectors.T


def _require_count(entries: int, volumes: int | None) -> None:
    if volumes is not None and entries != volumes:
        raise GradientTableError(
            f"expected {volumes} b-values for the {volumes} volumes of the image, found {entries}",
            remedy="convert the scan again",
        )


def _numbers(path: Path) -> Array:
    """Read lines of numbers separated by blanks, tabs or commas, as a matrix."""
    text = read_text(path).replace(",", " ")
    lines = [line.split() for line in text.splitlines()]
    lines = [line for line in lines if line and not line[0].startswith("#")]
    if not lines:
        raise GradientTableError("the file is empty", remedy="convert the scan again")
    counts = sorted({len(line) for line in lines})
    if len(counts) > 1:
        raise GradientTableError(
            f"expected as many numbers on each line, found {counts[0]} to {counts[-1]}",
            remedy="convert the scan again",
        )
    try:
        return np.array(lines, dtype=float)
    except ValueError:
        raise GradientTableError(
            "expected numbers, found other words", remedy="correct the file"
        ) from None
