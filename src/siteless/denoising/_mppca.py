"""Marchenko-Pastur PCA (Veraart et al. 2016) by MRtrix3's dwidenoise or DIPY's mppca.

Both compute the principal components in a window around each voxel and discard those explained by
noise. dwidenoise keeps the window's centre, mppca averages all windows that contain a voxel, and
their thresholds differ, so scans denoised by different programs must not be mixed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.errors import SitelessError
from siteless.programs import find_version, run_program, scratch_folder

_DWIDENOISE = "MRtrix3 dwidenoise"
_MPPCA = "DIPY mppca"


def find_denoiser() -> str:
    """Return the name and version of the available denoiser: dwidenoise or else DIPY's."""
    release = find_version("dwidenoise")
    return f"{_DWIDENOISE} {release}" if release else f"{_MPPCA} {version('dipy')}"


def denoise(scan: Scan, denoiser: str) -> Scan:
    """Denoise a scan within the brain; the result is not negative there, and unchanged elsewhere.

    The scan must be as acquired: interpolation or smoothing makes noise look like signal. The
    window is the smallest cube of odd side with at least as many voxels as there are volumes. The
    result does not depend on the number of threads. The denoiser is named as by `find_denoiser`;
    any version of that program is accepted.
    """
    kind = denoiser.rpartition(" ")[0]
    if kind not in _DENOISERS:
        raise SitelessError(
            f"expected a version of {' or '.join(_DENOISERS)} to denoise by, found {denoiser!r}",
            remedy=f"give a name such as '{_MPPCA} {version('dipy')}'",
        )
    # Windows reach beyond the brain, where a scan may hold NaN.
    finite = np.nan_to_num(scan.signal, posinf=0.0, neginf=0.0)
    denoised = _DENOISERS[kind](finite, scan.mask, _window(scan))
    denoised.clip(min=0, out=denoised)
    np.copyto(denoised, scan.signal, where=~scan.mask[..., None])
    return scan.with_signal(denoised)


def _window(scan: Scan) -> int:
    """Choose the window's side in voxels, as MRtrix3 does by default."""
    shape, count = scan.mask.shape, scan.signal.shape[3]
    side = 3
    while side**3 < count:
        side += 2
    if count < 2 or min(shape) < side:
        raise SitelessError(
            f"denoising needs at least 2 volumes, and {side} voxels along each axis for {count}; "
            f"found {' x '.join(map(str, shape))} voxels and {count} volumes",
            remedy="use the scan as it is",
        )
    return side


def _by_dwidenoise(signal: Array, mask: Array, side: int) -> Array:
    """Denoise with MRtrix3; the result is 0 outside the mask."""
    import nibabel as nib
    from threadpoolctl import threadpool_info

    # Each worker process has its share of threads.
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    threads = max((library["num_threads"] for library in blas), default=1)
    options = ["-extent", f"{side},{side},{side}", "-datatype", "float32", "-mask", "mask.nii"]
    options += ["-quiet", "-nthreads", str(threads)]
    with scratch_folder() as folder:
        # With the scan's affine, MRtrix3 would reorder the axes.
        nib.Nifti1Image(signal, np.eye(4)).to_filename(folder / "dwi.nii")
        nib.Nifti1Image(mask.astype(np.uint8), np.eye(4)).to_filename(folder / "mask.nii")
        run_program("dwidenoise", [*options, "dwi.nii", "out.nii"], folder)
        denoised = nib.Nifti1Image.from_filename(folder / "out.nii", mmap=False)
        return np.asarray(denoised.dataobj, dtype=np.float32)


def _by_mppca(signal: Array, mask: Array, side: int) -> Array:
    """Denoise with DIPY; the result is 0 outside the mask, except for a few voxels near it."""
    from dipy.denoise.localpca import mppca
    from threadpoolctl import threadpool_limits

    radius = side // 2
    centres = np.argwhere(mask).clip(radius, np.array(mask.shape) - 1 - radius)
    # DIPY has no windows at the image's edge, so neighbouring windows must cover the brain there.
    covered = mask.copy()
    covered[tuple(centres.T)] = True
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        # Voxels without a window give 0 / 0, and windows without noise also warn.
        warnings.simplefilter("ignore", RuntimeWarning)
        signal = np.ascontiguousarray(signal)
        return mppca(signal, mask=covered, patch_radius=radius, suppress_warning=True)


_DENOISERS: dict[str, Callable[[Array, Array, int], Array]] = {
    _DWIDENOISE: _by_dwidenoise,
    _MPPCA: _by_mppca,
}
