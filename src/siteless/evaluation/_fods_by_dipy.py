"""Spherical deconvolution by DIPY."""

from __future__ import annotations

import warnings

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.errors import GradientTableError, SitelessError
from siteless.evaluation._fods import ORDER, Fods, Responses, idealised_table, in_words
from siteless.evaluation._peaks import find_peaks
from siteless.harmonics import sh_basis
from siteless.tissue import Tensor, fit_tensor

# Number of voxels per tissue for responses, as for single fibres in Tournier et al. (2013).
_CHOSEN = 300
_GREY_FA = 0.2
# mm2/s. Faster diffusion indicates cerebrospinal fluid.
_FLUID_MD = 1.2e-3


def estimate_responses(scan: Scan, b: tuple[int, ...]) -> tuple[Array, Array, Array]:
    from threadpoolctl import threadpool_limits

    if len(b) < 3:
        raise GradientTableError(
            f"DIPY tells three tissues apart by at least two shells, found {in_words(b)}",
            remedy="install MRtrix3, which takes white matter and fluid alone for one shell",
        )
    table = idealised_table(scan.gradients, b)
    with threadpool_limits(1, user_api="blas"):
        tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
        white, grey, fluid = _choose_voxels(tensor, scan.white_matter.T[scan.mask.T])
        signal = scan.volumes[:, scan.voxels[white]].T
        return (
            _zonal(signal, tensor.principal[white], table),
            _means(scan.volumes[:, scan.voxels[grey]], table),
            _means(scan.volumes[:, scan.voxels[fluid]], table),
        )


def _choose_voxels(tensor: Tensor, is_white: Array) -> tuple[Array, Array, Array]:
    """Choose typical voxels of white matter, grey matter and fluid."""
    is_fluid = (tensor.md > _FLUID_MD) & ~is_white
    is_grey = (tensor.fa < _GREY_FA) & ~is_fluid & ~is_white
    tissues = {"white matter": is_white, "grey matter": is_grey, "fluid": is_fluid}
    lacking = [name for name, there in tissues.items() if not there.any()]
    if lacking:
        raise SitelessError(
            f"responses need white matter, grey matter and fluid, found no {lacking[0]}",
            remedy="give the scan of a whole brain",
        )
    middle = np.abs(tensor.md - np.median(tensor.md[is_grey]))
    return (
        _smallest(-tensor.fa, is_white),
        _smallest(middle, is_grey),
        _smallest(-tensor.md, is_fluid),
    )


def _smallest(values: Array, among: Array) -> Array:
    order = np.argsort(np.where(among, values, np.inf), kind="stable")
    return order[: min(_CHOSEN, int(among.sum()))]


def _zonal(signal: Array, axes: Array, table: Array) -> Array:
    """Fit the zonal harmonics of fibres along known axes, shape (b, 5)."""
    cosines = axes @ table[:, :3].T
    tilted = np.stack([np.sqrt(np.maximum(0, 1 - cosines**2)), 0 * cosines, cosines], axis=-1)
    zonal = [degree * (degree + 1) // 2 for degree in range(0, ORDER + 1, 2)]
    response = []
    for b in np.unique(table[:, 3]):
        on_shell = table[:, 3] == b
        degrees = zonal if b else zonal[:1]
        basis = sh_basis(tilted[:, on_shell].reshape(-1, 3), ORDER)[:, degrees]
        fitted = np.linalg.lstsq(basis, signal[:, on_shell].ravel().astype(float))[0]
        response.append(np.pad(fitted, (0, len(zonal) - len(degrees))))
    return np.stack(response)


def _means(volumes: Array, table: Array) -> Array:
    """Return the harmonic of degree 0 of the mean signal, shape (b,)."""
    shells = [volumes[table[:, 3] == b] for b in np.unique(table[:, 3])]
    return np.sqrt(4 * np.pi) * np.array([shell.mean(dtype=float) for shell in shells])


def deconvolve(signal: Array, table: Array, responses: Responses) -> Fods:
    from dipy.core.gradients import gradient_table
    from dipy.reconst.mcsd import MultiShellDeconvModel, MultiShellResponse
    from dipy.reconst.shm import convert_sh_descoteaux_tournier
    from threadpoolctl import threadpool_limits

    # The solver's tolerance is absolute, so signal and responses must be of the order of 1.
    scale = responses.white[0, 0]
    columns = [responses.fluid[:, None], responses.grey[:, None], responses.white]
    response = MultiShellResponse(np.hstack(columns) / scale, ORDER, np.array(responses.b))
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        # Warnings about inaccurate solutions, and about DIPY's basis.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        gradients = gradient_table(table[:, 3], bvecs=table[:, :3])
        model = MultiShellDeconvModel(gradients, response, sh_order_max=ORDER)
        fitted = model.fit(signal.T.astype(float) / scale, verbose=False).shm_coeff
        coefficients = convert_sh_descoteaux_tournier(np.nan_to_num(fitted))
        peaks = find_peaks(coefficients)
    return Fods(coefficients.astype(np.float32), peaks.astype(np.float32))
