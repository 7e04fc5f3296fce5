"""Gradient tables on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siteless.acquisition import Array, GradientTable
from siteless.bids._dataset import ScanFiles
from siteless.bids._tables import read_text
from siteless.errors import GradientTableError, MissingFileError, SitelessError


def read_gradients(files: ScanFiles, affine: Array) -> GradientTable:
    """Read a scan's gradient table into world axes.

    The ``.b`` table goes first, since it is in world axes already. Without it, ``.bvec`` files
    are read by FSL's convention, which BIDS prescribes, except for QSIPrep's, which have used
    another: those are refused rather than guessed.
    """
    if files.world_table is not None:
        return _read_world(files.world_table)
    if files.written_by_qsiprep:
        raise GradientTableError(
            "QSIPrep wrote this scan, and its .bvec files do not follow FSL's convention; "
            "expected its .b file beside the image, found none",
            remedy="restore the .b file, or list the scan in a manifest with a bvec that does",
            path=files.dwi,
        )
    if files.bval is None or files.bvec is None:
        lacking = [kind for kind in ("bval", "bvec") if getattr(files, kind) is None]
        raise MissingFileError(
            f"the image has no .{' and no .'.join(lacking)} file",
            remedy="expected it beside the image, or further up with fewer entities (BIDS)",
            path=files.dwi,
        )
    return _read_fsl(files.bval, files.bvec, affine)


def write_gradients(gradients: GradientTable, affine: Array, bval: Path, bvec: Path) -> None:
    """Write a table as FSL's two files, with digits enough to read the same numbers."""
    bvals, bvecs = gradients.to_fsl(affine)
    bval.write_text(_line(bvals), encoding="ascii")
    bvec.write_text("".join(_line(row) for row in bvecs.T), encoding="ascii")


def _line(numbers: Array) -> str:
    # Adding 0.0 turns -0.0, which rotation leaves behind, into 0.0.
    return " ".join(f"{number + 0.0:.9g}" for number in numbers.round(12)) + "\n"


def _read_world(path: Path) -> GradientTable:
    try:
        return GradientTable.from_mrtrix(_numbers(path))
    except SitelessError as error:
        raise error.at(path) from None


def _read_fsl(bval: Path, bvec: Path, affine: Array) -> GradientTable:
    bvals = _numbers(bval)
    if bvals.ndim != 2 or 1 not in bvals.shape:
        raise GradientTableError(
            f"expected one line of b-values, found shape {bvals.shape}",
            remedy="correct the file",
            path=bval,
        )
    vectors = _numbers(bvec)
    # Three volumes, or a file stored by rows as (volume, 3), cannot be told from the shape alone:
    # BIDS says (3, volume), and only a file that cannot be that is turned round.
    if vectors.shape[0] != 3 and vectors.shape[1] == 3:
        vectors = vectors.T
    if vectors.shape[0] != 3:
        raise GradientTableError(
            f"expected 3 lines of b-vector components, found shape {vectors.shape}",
            remedy="correct the file",
            path=bvec,
        )
    if vectors.shape[1] != bvals.size:
        raise GradientTableError(
            f"expected as many b-vectors as the {bvals.size} b-values of {bval.name}, "
            f"found {vectors.shape[1]}",
            remedy="convert the scan again",
            path=bvec,
        )
    try:
        return GradientTable.from_fsl(bvals.ravel(), vectors.T, affine)
    except SitelessError as error:
        raise error.at(bvec) from None


def _numbers(path: Path) -> Array:
    """Read lines of numbers separated by blanks, tabs or commas, as a matrix."""
    text = read_text(path).replace(",", " ")
    lines = [line.split() for line in text.splitlines()]
    lines = [line for line in lines if line and not line[0].startswith("#")]
    try:
        matrix = np.array([[float(word) for word in line] for line in lines])
    except ValueError as error:
        raise GradientTableError(
            f"expected lines of numbers, equally many on each ({error})",
            remedy="correct the file",
            path=path,
        ) from None
    if matrix.size == 0:
        raise GradientTableError("the file is empty", remedy="convert the scan again", path=path)
    return matrix
