"""Spherical deconvolution by MRtrix3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.evaluation._fods import MAXIMA, ORDER, Fods, Responses, idealised_table
from siteless.programs import run_program, scratch_folder

# One thread: sums over threads are not reproducible, and callers run many processes.
_QUIETLY = ["-quiet", "-nthreads", "0"]


def estimate_responses(scan: Scan, b: tuple[int, ...]) -> tuple[Array, Array, Array]:
    signal = np.where(scan.mask[..., None], scan.signal, np.float32(0))
    with scratch_folder() as folder:
        _write(signal, folder / "dwi.nii")
        _write(scan.mask.astype(np.uint8), folder / "mask.nii")
        np.savetxt(folder / "table.b", idealised_table(scan.gradients, b))
        outputs = ["wm.txt", "gm.txt", "csf.txt"]
        options = ["-mask", "mask.nii", "-grad", "table.b", "-scratch", "."]
        run_program(
            "dwi2response", ["dhollander", "dwi.nii", *outputs, *options, *_QUIETLY], folder
        )
        white, grey, fluid = (_rounded(np.loadtxt(folder / name, ndmin=2)) for name in outputs)
    return white, grey[:, 0], fluid[:, 0]


def _rounded(response: Array) -> Array:
    """Round to ten digits: the last digits of MRtrix3 are not reproducible."""
    return np.round(response, 9 - int(np.floor(np.log10(np.abs(response).max()))))


def deconvolve(signal: Array, table: Array, responses: Responses) -> Fods:
    tissues = {"wm": responses.white, "csf": responses.fluid}
    if len(responses.b) > 2:
        tissues["gm"] = responses.grey
    pairs = [name for tissue in tissues for name in (f"{tissue}.txt", f"{tissue}.nii")]
    lmax = ",".join([str(ORDER), *["0"] * (len(tissues) - 1)])
    with scratch_folder() as folder:
        # A row of voxels, as deconvolution uses no neighbours and axes do not matter.
        _write(signal.T[:, None, None], folder / "dwi.nii")
        np.savetxt(folder / "table.b", table)
        for tissue, response in tissues.items():
            np.savetxt(folder / f"{tissue}.txt", response)
        options = ["-grad", "table.b", "-lmax", lmax, *_QUIETLY]
        run_program("dwi2fod", ["msmt_csd", "dwi.nii", *pairs, *options], folder)
        options = ["-num", str(MAXIMA), "-threshold", "0", *_QUIETLY]
        run_program("sh2peaks", ["wm.nii", "peaks.nii", *options], folder)
        peaks = np.nan_to_num(_read(folder / "peaks.nii"))
        return Fods(_read(folder / "wm.nii"), peaks.reshape(-1, MAXIMA, 3))


def _write(values: Array, path: Path) -> None:
    """Write an image for MRtrix3 with an identity affine, so that image and world axes agree."""
    import nibabel as nib

    # Version 2, since a row of voxels may be too long for version 1.
    nib.Nifti2Image(values, np.eye(4)).to_filename(path)


def _read(path: Path) -> Array:
    """Read a row of voxels that MRtrix3 wrote, shape (voxel, volume), float32."""
    import nibabel as nib

    image: Any = nib.load(path, mmap=False)
    values = np.asarray(image.dataobj, dtype=np.float32)
    return np.ascontiguousarray(values[:, 0, 0])
