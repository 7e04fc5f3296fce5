"""Fibre orientations: how far a scan turns the maxima of another's, as Moyer et al. (2020) score.

Responses of white matter, grey matter and fluid are estimated once, from the target's scan.
Multi-tissue constrained spherical deconvolution (Jeurissen et al. 2014) with them gives the fibre
orientation distributions (FODs) of any scan with the same shells. MRtrix3 does it, or else DIPY.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, describe_shells, same_b
from siteless.errors import GradientTableError, MaskError, OutputError, SitelessError
from siteless.harmonics import count_coefficients, sh_basis
from siteless.tissue import Tensor, fit_tensor

_MRTRIX, _DIPY = "MRtrix3", "DIPY"
_PROGRAMS = ("dwi2response", "dwi2fod", "sh2peaks")
_ORDER = 8
_MAXIMA = 3
# Voxels that DIPY's responses are averaged over, for each tissue; as many as Tournier et al.
# (2013) take for single fibres.
_CHOSEN = 300
_GREY_FA = 0.2
# mm2/s. Voxels that diffuse faster hold cerebrospinal fluid.
_FLUID_MD = 1.2e-3
# Directions of the half sphere that the search for maxima starts from, about 4.5 degrees apart.
_STARTS = 1000
_NEIGHBOURS = 8
# Lobes that are climbed, and the cosine of directions that are one maximum, as in sh2peaks.
_LOBES = 6
_SAME_LOBE = 0.99
_BLOCK = 512
# One thread: sums over threads differ in their last digits, and callers run many processes.
_QUIETLY = ["-quiet", "-nthreads", "0"]


@dataclass(frozen=True, eq=False)
class Responses:
    """What each tissue gives, for any scan with the same shells.

    Attributes
    ----------
    engine
        What estimated them and deconvolves by them, as `find_engine` names it.
    b
        b-values, ascending, the first 0; s/mm2.
    white
        Zonal harmonics of a single fibre along z, of degree 0, 2, ... 8; shape (b, 5), in the
        units of the signal.
    grey, fluid
        Harmonic of degree 0, shape (b,).
    """

    engine: str
    b: tuple[int, ...]
    white: Array
    grey: Array
    fluid: Array


@dataclass(frozen=True, eq=False)
class Fods:
    """Fibre orientation distributions of white matter.

    Attributes
    ----------
    coefficients
        Shape (voxel, 45), in MRtrix3's basis and world axes.
    peaks
        Up to three maxima of positive amplitude, shape (voxel, 3, 3): unit vectors in world axes
        times the amplitude, the largest first, zero where there are fewer.
    """

    coefficients: Array
    peaks: Array


@dataclass(frozen=True, eq=False)
class Angles:
    """How far the largest maximum is turned, in degrees from 0 to 90.

    Attributes
    ----------
    closest
        To the closest of the expected maxima, shape (voxel,).
    largest
        To the largest of the expected maxima, shape (voxel,).
    """

    closest: Array
    largest: Array


def find_engine() -> str:
    """Name what this machine deconvolves by, with its version: MRtrix3, or else DIPY.

    Raises
    ------
    SitelessError
        When there is neither, or an MRtrix3 that does not work.
    """
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if not missing:
        told = _run("dwi2fod", ["-version"], Path.cwd())
        found = re.search(r"dwi2fod (\d\S*)", told)
        if found is None:
            raise SitelessError(
                f"expected dwi2fod to tell its version, found {told[:80]!r}",
                remedy="install MRtrix3 again",
            )
        return f"{_MRTRIX} {found[1]}"
    if find_spec("cvxpy") is None:
        raise SitelessError(
            f"fibre orientations need MRtrix3, or DIPY with CVXPY; found no {', '.join(missing)} "
            "on PATH and no CVXPY",
            remedy="install MRtrix3 (`apt install mrtrix3`, or by conda), or `pip install "
            "'siteless[fod]'`",
        )
    return f"{_DIPY} {version('dipy')}"


def estimate_responses(scan: Scan, engine: str) -> Responses:
    """Estimate the responses of a scan's tissues.

    MRtrix3 takes its algorithm of Dhollander et al. (2016, 2019). For DIPY the responses are
    means over the voxels of largest FA in white matter, of largest MD in fluid, and of middling
    MD among the others. The same scan gives the same responses, whatever the number of threads.

    Parameters
    ----------
    scan
        A whole brain, with b0 and at least one shell; at least two for DIPY.
    engine
        A name as `find_engine` gives it. Any version of the program is used, but no other
        program.

    Raises
    ------
    SitelessError
        When the engine is unknown, missing or fails, or the scan lacks shells or tissues.
    """
    b = _shell_bvalues(scan.gradients)
    estimate, _ = _kind(engine)
    white, grey, fluid = estimate(scan, b)
    return Responses(engine, b, white[:, : _ORDER // 2 + 1], grey, fluid)


def find_fods(scan: Scan, responses: Responses, where: Array) -> Fods:
    """Deconvolve a scan by responses of its own or of another scan.

    With b0 and one shell only two tissues can be told apart, and white matter and fluid are
    used; with more shells grey matter too. Maxima are those of MRtrix3's sh2peaks, or for DIPY
    those of `find_peaks`.

    Parameters
    ----------
    scan
        With the shells of the responses.
    responses
        The engine that estimated them is used.
    where
        Voxels to deconvolve, a part of the brain, shape (x, y, z).

    Returns
    -------
    Fods
        Voxels in the order of `Scan.volumes`: x fastest.

    Raises
    ------
    SitelessError
        When the engine is missing or fails, or the scan has other shells.
    """
    _, deconvolve = _kind(responses.engine)
    _require_shells(scan.gradients, responses.b)
    _require_brain(scan, where)
    voxels = np.flatnonzero(where.T)
    if not len(voxels):
        return Fods(
            np.zeros((0, count_coefficients(_ORDER)), np.float32),
            np.zeros((0, _MAXIMA, 3), np.float32),
        )
    table = _idealised(scan.gradients, responses.b)
    return deconvolve(scan.volumes[:, voxels], table, responses)


def peak_angles(found: Array, expected: Array) -> Angles:
    """Measure the angle of the largest maximum found to the expected maxima.

    A fibre has no sign: opposite directions are the same. As in the paper, no maximum is left out
    for being small: where the target has ripples beside one large lobe, `closest` may be to one
    of those. `largest` does not depend on them.

    Parameters
    ----------
    found, expected
        As `Fods.peaks`, shape (voxel, peak, 3).

    Returns
    -------
    Angles
        NaN where either has no maximum.

    Examples
    --------
    >>> x, y, none = [1.0, 0, 0], [0, 0.5, 0], [0.0, 0, 0]
    >>> angles = peak_angles(np.array([[y, none]]), np.array([[x, y]]))
    >>> angles.closest, angles.largest
    (array([0.]), array([90.]))
    """
    first, others = np.asarray(found, float)[:, :1], np.asarray(expected, float)
    across = np.linalg.norm(np.cross(first, others), axis=-1)
    # Unlike the arc cosine, exact for small angles.
    degrees = np.rad2deg(np.arctan2(across, np.abs((first * others).sum(axis=-1))))
    there = np.any(first, axis=-1) & np.any(others, axis=-1)
    closest = np.where(there, degrees, np.inf).min(axis=1)
    return Angles(
        np.where(there.any(axis=1), closest, np.nan), np.where(there[:, 0], degrees[:, 0], np.nan)
    )


def find_peaks(coefficients: Array) -> Array:
    """Find the three largest maxima of each FOD.

    Parameters
    ----------
    coefficients
        As `Fods.coefficients`, shape (voxel, 45).

    Returns
    -------
    Array
        As `Fods.peaks`, float64.
    """
    starts, neighbours, basis = _start_directions()
    peaks = np.zeros((len(coefficients), _MAXIMA, 3))
    for first in range(0, len(coefficients), _BLOCK):
        block = coefficients[first : first + _BLOCK].astype(float)
        amplitude = block @ basis.T
        highest = (amplitude > 0) & (amplitude >= amplitude[:, neighbours].max(axis=2))
        order = np.argsort(np.where(highest, -amplitude, 0), axis=1, kind="stable")[:, :_LOBES]
        voxel, place = np.nonzero(np.take_along_axis(highest, order, axis=1))
        climbed = np.zeros((*order.shape, 3))
        climbed[voxel, place] = _climb(block[voxel], starts[order[voxel, place]])
        peaks[first : first + _BLOCK] = _largest(climbed)
    return peaks


@cache
def _start_directions() -> tuple[Array, Array, Array]:
    """Spread unit vectors over half the sphere, along a spiral.

    Returns the vectors, (start, 3), each one's nearest others as (start, neighbour), and the
    harmonics at them, (start, 45).
    """
    height = (np.arange(_STARTS) + 0.5) / _STARTS
    azimuth = np.pi * (1 + np.sqrt(5)) * np.arange(_STARTS)
    ring = np.sqrt(1 - height**2)
    starts = np.stack([ring * np.cos(azimuth), ring * np.sin(azimuth), height], axis=1)
    nearest = np.argsort(-np.abs(starts @ starts.T), axis=1, kind="stable")
    return starts, nearest[:, 1 : _NEIGHBOURS + 1], sh_basis(starts, _ORDER)


def _climb(coefficients: Array, directions: Array) -> Array:
    """Move directions, (maximum, 3), to the top of their lobes, and multiply by amplitudes."""
    top = _amplitudes(coefficients, directions[:, None])[:, 0]
    for reach in np.deg2rad([4.0, 2.0, 1.0, 0.5]):
        moved = _newton_step(coefficients, directions, reach)
        amplitude = _amplitudes(coefficients, moved[:, None])[:, 0]
        better = amplitude > top
        directions = np.where(better[:, None], moved, directions)
        top = np.where(better, amplitude, top)
    return directions * top[:, None]


def _newton_step(coefficients: Array, directions: Array, reach: float) -> Array:
    """Go towards the top of the parabola through nine points `reach` apart, as far as they go."""
    first, second = _tangents(directions)
    across, along = (grid.ravel() for grid in np.meshgrid([-1, 0, 1], [-1, 0, 1]))
    offsets = across[:, None] * first[:, None] + along[:, None] * second[:, None]
    amplitude = _amplitudes(coefficients, _unit(directions[:, None] + reach * offsets))
    parabola = [across**0, across, along, across**2 / 2, along**2 / 2, across * along]
    _, x, y, xx, yy, xy = np.linalg.pinv(np.stack(parabola, axis=1)) @ amplitude.T
    bent = xx * yy - xy**2
    concave = (bent > 0) & (xx < 0)
    step = np.stack([xy * y - yy * x, xy * x - xx * y], axis=1)
    step = step * (concave / np.where(concave, bent, 1))[:, None]
    step /= np.maximum(1, np.abs(step).max(axis=1, keepdims=True))
    return _unit(directions + reach * (step[:, :1] * first + step[:, 1:] * second))


def _tangents(directions: Array) -> tuple[Array, Array]:
    """Return two unit vectors across each direction, shape (direction, 3)."""
    helper = np.eye(3)[np.abs(directions).argmin(axis=1)]
    first = _unit(np.cross(directions, helper))
    return first, np.cross(directions, first)


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _amplitudes(coefficients: Array, directions: Array) -> Array:
    """Evaluate each FOD at its own directions, (fod, direction, 3); shape (fod, direction)."""
    basis = sh_basis(directions.reshape(-1, 3), _ORDER).reshape(
        *directions.shape[:2], coefficients.shape[1]
    )
    return np.einsum("fdc,fc->fd", basis, coefficients)


def _largest(peaks: Array) -> Array:
    """Keep the three longest, (voxel, 3, 3), of (voxel, lobe, 3), each lobe once."""
    length = np.linalg.norm(peaks, axis=2)
    order = np.argsort(-length, axis=1, kind="stable")
    peaks, length = peaks[np.arange(len(peaks))[:, None], order], -np.sort(-length, axis=1)
    cosines = np.abs(np.einsum("vai,vbi->vab", peaks, peaks))
    same = cosines > _SAME_LOBE * length[:, :, None] * length[:, None]
    again = np.tril(same, -1).any(axis=2)
    peaks[again] = 0
    first = np.argsort(again, axis=1, kind="stable")[:, :_MAXIMA]
    return np.take_along_axis(peaks, first[..., None], axis=1)


def _shell_bvalues(gradients: GradientTable) -> tuple[int, ...]:
    """Return 0 and the b-values of the shells, rounded as MRtrix3 does."""
    if not gradients.is_b0.any() or not gradients.shells:
        raise GradientTableError(
            f"fibre orientations need b0 and at least one shell, found {gradients}",
            remedy="leave the scan out",
        )
    return (0, *(round(shell.b) for shell in gradients.shells))


def _require_shells(gradients: GradientTable, b: tuple[int, ...]) -> None:
    found = _shell_bvalues(gradients)
    if len(found) != len(b) or not same_b(found, b).all():
        raise GradientTableError(
            f"expected the shells of the responses, {_in_words(b)}; found "
            f"{describe_shells(gradients.shells)}",
            remedy="keep the shells that both scans have, and estimate the responses from those",
        )


def _in_words(b: tuple[int, ...]) -> str:
    return ", ".join(f"b={value}" for value in b[1:])


def _require_brain(scan: Scan, where: Array) -> None:
    if where.shape != scan.mask.shape or (where & ~scan.mask).any():
        raise MaskError(
            f"expected voxels of the brain, shape {scan.mask.shape}; found "
            f"{int(where.sum())} voxels, shape {where.shape}",
            remedy="keep to the brain mask",
        )


def _idealised(gradients: GradientTable, b: tuple[int, ...]) -> Array:
    """Return rows of x y z b in world axes, with the b-value of its shell for every volume.

    The engines group b-values in ways of their own; these they group as siteless does.
    """
    table = np.hstack([gradients.directions, np.zeros((len(gradients), 1))])
    for shell, value in zip(gradients.shells, b[1:], strict=True):
        table[shell.volumes, 3] = value
    return table


def _responses_by_mrtrix(scan: Scan, b: tuple[int, ...]) -> tuple[Array, Array, Array]:
    signal = np.where(scan.mask[..., None], scan.signal, np.float32(0))
    with _scratch() as folder:
        _write(signal, folder / "dwi.nii")
        _write(scan.mask.astype(np.uint8), folder / "mask.nii")
        np.savetxt(folder / "table.b", _idealised(scan.gradients, b))
        outputs = ["wm.txt", "gm.txt", "csf.txt"]
        options = ["-mask", "mask.nii", "-grad", "table.b", "-scratch", "."]
        _run("dwi2response", ["dhollander", "dwi.nii", *outputs, *options, *_QUIETLY], folder)
        white, grey, fluid = (_rounded(np.loadtxt(folder / name, ndmin=2)) for name in outputs)
    return white, grey[:, 0], fluid[:, 0]


def _rounded(response: Array) -> Array:
    """Keep ten digits: even one thread of MRtrix3 gives other last ones each time."""
    return np.round(response, 9 - int(np.floor(np.log10(np.abs(response).max()))))


def _fods_by_mrtrix(signal: Array, table: Array, responses: Responses) -> Fods:
    tissues = {"wm": responses.white, "csf": responses.fluid}
    if len(responses.b) > 2:
        tissues["gm"] = responses.grey
    pairs = [name for tissue in tissues for name in (f"{tissue}.txt", f"{tissue}.nii")]
    lmax = ",".join([str(_ORDER), *["0"] * (len(tissues) - 1)])
    with _scratch() as folder:
        # A row of voxels: deconvolution knows no neighbours, and there are no axes to mistake.
        _write(signal.T[:, None, None], folder / "dwi.nii")
        np.savetxt(folder / "table.b", table)
        for tissue, response in tissues.items():
            np.savetxt(folder / f"{tissue}.txt", response)
        options = ["-grad", "table.b", "-lmax", lmax, *_QUIETLY]
        _run("dwi2fod", ["msmt_csd", "dwi.nii", *pairs, *options], folder)
        options = ["-num", str(_MAXIMA), "-threshold", "0", *_QUIETLY]
        _run("sh2peaks", ["wm.nii", "peaks.nii", *options], folder)
        peaks = np.nan_to_num(_read(folder / "peaks.nii"))
        return Fods(_read(folder / "wm.nii"), peaks.reshape(-1, _MAXIMA, 3))


def _responses_by_dipy(scan: Scan, b: tuple[int, ...]) -> tuple[Array, Array, Array]:
    from threadpoolctl import threadpool_limits

    if len(b) < 3:
        raise GradientTableError(
            f"DIPY tells three tissues apart by at least two shells, found {_in_words(b)}",
            remedy="install MRtrix3, which takes white matter and fluid alone for one shell",
        )
    table = _idealised(scan.gradients, b)
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
    """Choose voxels that are surely white matter, grey matter and fluid."""
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
    zonal = [degree * (degree + 1) // 2 for degree in range(0, _ORDER + 1, 2)]
    response = []
    for b in np.unique(table[:, 3]):
        on_shell = table[:, 3] == b
        degrees = zonal if b else zonal[:1]
        basis = sh_basis(tilted[:, on_shell].reshape(-1, 3), _ORDER)[:, degrees]
        fitted = np.linalg.lstsq(basis, signal[:, on_shell].ravel().astype(float))[0]
        response.append(np.pad(fitted, (0, len(zonal) - len(degrees))))
    return np.stack(response)


def _means(volumes: Array, table: Array) -> Array:
    """Return the harmonic of degree 0 of the mean signal, shape (b,)."""
    shells = [volumes[table[:, 3] == b] for b in np.unique(table[:, 3])]
    return np.sqrt(4 * np.pi) * np.array([shell.mean(dtype=float) for shell in shells])


def _fods_by_dipy(signal: Array, table: Array, responses: Responses) -> Fods:
    from dipy.core.gradients import gradient_table
    from dipy.reconst.mcsd import MultiShellDeconvModel, MultiShellResponse
    from dipy.reconst.shm import convert_sh_descoteaux_tournier
    from threadpoolctl import threadpool_limits

    # The solver's tolerance is absolute, so signal and responses must be of the order of 1.
    scale = responses.white[0, 0]
    columns = [responses.fluid[:, None], responses.grey[:, None], responses.white]
    response = MultiShellResponse(np.hstack(columns) / scale, _ORDER, np.array(responses.b))
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        # Of solutions that may be inaccurate, and of the basis that DIPY itself uses.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        gradients = gradient_table(table[:, 3], bvecs=table[:, :3])
        model = MultiShellDeconvModel(gradients, response, sh_order_max=_ORDER)
        fitted = model.fit(signal.T.astype(float) / scale, verbose=False).shm_coeff
        coefficients = convert_sh_descoteaux_tournier(np.nan_to_num(fitted))
        peaks = find_peaks(coefficients)
    return Fods(coefficients.astype(np.float32), peaks.astype(np.float32))


_Estimate = Callable[[Scan, tuple[int, ...]], tuple[Array, Array, Array]]
_Deconvolve = Callable[[Array, Array, Responses], Fods]
_ENGINES: dict[str, tuple[_Estimate, _Deconvolve]] = {
    _MRTRIX: (_responses_by_mrtrix, _fods_by_mrtrix),
    _DIPY: (_responses_by_dipy, _fods_by_dipy),
}


def _kind(engine: str) -> tuple[_Estimate, _Deconvolve]:
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


@contextmanager
def _scratch() -> Iterator[Path]:
    """Give a temporary folder."""
    try:
        with TemporaryDirectory(prefix="siteless-") as folder:
            yield Path(folder)
    except OSError as error:
        raise OutputError(
            f"cannot write temporary files ({error.strerror or error})",
            remedy="let TMPDIR name a folder with room for three copies of a scan",
        ) from None


def _write(values: Array, path: Path) -> None:
    """Write an image for MRtrix3, without an affine: its axes are then the world's."""
    import nibabel as nib

    # Version 2, since a row of voxels may be longer than version 1 can say.
    nib.Nifti2Image(values, np.eye(4)).to_filename(path)


def _read(path: Path) -> Array:
    """Read a row of voxels that MRtrix3 wrote, shape (voxel, volume), float32."""
    import nibabel as nib

    image: Any = nib.load(path, mmap=False)
    values = np.asarray(image.dataobj, dtype=np.float32)
    return np.ascontiguousarray(values[:, 0, 0])


def _run(program: str, arguments: list[str], folder: Path) -> str:
    """Run a program in a folder, and return what it says."""
    found = shutil.which(program)
    if found is None:
        raise SitelessError(
            f"expected {_MRTRIX}, found no {program} on PATH",
            remedy="install MRtrix3 (`apt install mrtrix3`, or by conda)",
        )
    try:
        done = subprocess.run(
            [str(Path(found).absolute()), *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise _failed(program, error.strerror or str(error)) from None
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if "[ERROR]" in line]
        raise _failed(program, (errors or said or [f"exit status {done.returncode}"])[0])
    return done.stdout


def _failed(program: str, reason: str) -> SitelessError:
    return SitelessError(
        f"{program} failed ({reason})",
        remedy="see that it runs by itself, or install MRtrix3 again",
    )
