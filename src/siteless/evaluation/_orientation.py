"""Errors of fibre orientations: angles between FOD maxima, as in Moyer et al. (2020).

Responses of white matter, grey matter and fluid are estimated once, from the target's scan.
Multi-tissue constrained spherical deconvolution (Jeurissen et al. 2014) with them gives the fibre
orientation distributions (FODs) of any scan with the same shells. The engine is MRtrix3, or else
DIPY.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, describe_shells, same_b
from siteless.errors import GradientTableError, MaskError, SitelessError
from siteless.evaluation import _fods_by_dipy, _fods_by_mrtrix
from siteless.evaluation._fods import MAXIMA, ORDER, Fods, Responses, idealised_table, in_words
from siteless.harmonics import count_coefficients
from siteless.programs import find_version

_MRTRIX, _DIPY = "MRtrix3", "DIPY"
_PROGRAMS = ("dwi2response", "dwi2fod", "sh2peaks")
_ENGINES = {_MRTRIX: _fods_by_mrtrix, _DIPY: _fods_by_dipy}


def find_engine() -> str:
    """Return the name and version of the available engine: MRtrix3, or else DIPY."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if not missing:
        return f"{_MRTRIX} {find_version('dwi2fod')}"
    if find_spec("cvxpy") is None:
        raise SitelessError(
            f"fibre orientations need MRtrix3, or DIPY with CVXPY; found no {', '.join(missing)} "
            "on PATH and no CVXPY",
            remedy="install MRtrix3 (`apt install mrtrix3`, or by conda), or `pip install "
            "'siteless[fod]'`",
        )
    return f"{_DIPY} {version('dipy')}"


def estimate_responses(scan: Scan, engine: str) -> Responses:
    """Estimate tissue responses from a whole brain with b0 and a shell, or two shells for DIPY.

    The engine is named as by `find_engine`; any version of that program is accepted. MRtrix3 uses
    the algorithm of Dhollander et al. (2016, 2019). For DIPY the responses are means over the
    voxels of largest FA in white matter, of largest MD in fluid, and of median MD among the
    others. Responses do not depend on the number of threads.
    """
    b = _shell_bvalues(scan.gradients)
    white, grey, fluid = _kind(engine).estimate_responses(scan, b)
    return Responses(engine, b, white[:, : ORDER // 2 + 1], grey, fluid)


def find_fods(scan: Scan, responses: Responses, where: Array) -> Fods:
    """Deconvolve a scan with responses of this or another scan.

    With b0 and one shell only white matter and fluid can be separated; with more shells grey
    matter too. Maxima are those of MRtrix3's sh2peaks, or for DIPY those of `find_peaks`.

    Parameters
    ----------
    scan
        Scan with the shells of the responses.
    responses
        Responses, whose engine is used.
    where
        Voxels to deconvolve, within the brain, shape (x, y, z).

    Returns
    -------
    Fods
        FODs of the voxels, in the order of `Scan.volumes`: x fastest.

    Raises
    ------
    SitelessError
        When the engine is missing or fails, or the scan has other shells.
    """
    engine = _kind(responses.engine)
    measured = _shell_bvalues(scan.gradients)
    if len(measured) != len(responses.b) or not same_b(measured, responses.b).all():
        raise GradientTableError(
            f"expected the shells of the responses, {in_words(responses.b)}; found "
            f"{describe_shells(scan.gradients.shells)}",
            remedy="keep the shells that both scans have, and estimate the responses from those",
        )
    if where.shape != scan.mask.shape or (where & ~scan.mask).any():
        raise MaskError(
            f"expected voxels of the brain, shape {scan.mask.shape}; found "
            f"{int(where.sum())} voxels, shape {where.shape}",
            remedy="keep to the brain mask",
        )
    voxels = np.flatnonzero(where.T)
    if not len(voxels):
        return Fods(
            np.zeros((0, count_coefficients(ORDER)), np.float32),
            np.zeros((0, MAXIMA, 3), np.float32),
        )
    table = idealised_table(scan.gradients, responses.b)
    return engine.deconvolve(scan.volumes[:, voxels], table, responses)


def _shell_bvalues(gradients: GradientTable) -> tuple[int, ...]:
    """Return 0 and the b-values of the shells, rounded as MRtrix3 does."""
    if not gradients.is_b0.any() or not gradients.shells:
        raise GradientTableError(
            f"fibre orientations need b0 and at least one shell, found {gradients}",
            remedy="leave the scan out",
        )
    return (0, *(round(shell.b) for shell in gradients.shells))


def _kind(engine: str) -> ModuleType:
    name = engine.partition(" ")[0]
    if name not in _ENGINES:
        raise SitelessError(
            f"expected a version of {' or '.join(_ENGINES)} to deconvolve by, found {engine!r}",
            remedy=f"give a name such as '{_DIPY} {version('dipy')}'",
        )
    if name == _DIPY and find_spec("cvxpy") is None:
        raise SitelessError(
            "DIPY's deconvolution needs CVXPY, which is not installed",
            remedy="pip install 'siteless[fod]'",
        )
    return _ENGINES[name]
