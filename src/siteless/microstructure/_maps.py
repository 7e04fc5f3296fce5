"""Which maps there are, and how each comes from a scan."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from siteless.acquisition import Array, GradientTable, Scan, count_axes
from siteless.errors import DatasetError, GradientTableError
from siteless.tissue import fit_tensor

# s/mm2. Above this more than kurtosis bends the signal.
_KURTOSIS_LIMIT = 3100.0
# Numbers of a kurtosis tensor, which as many directions must tell.
_KURTOSIS_NUMBERS = 15
# Keeps equations solvable where directions do not tell all numbers; far below what data tell.
_RIDGE = 1e-12
_BLOCK = 4096
# Of MAP-MRI. Two or three shells do not tell the radial order of 6: RTOP of a noiseless Gaussian
# is then wrong by up to 30 %, with order 4 and this weight of the Laplacian by at most 6 %.
_RADIAL_ORDER, _LAPLACIAN = 4, 0.05


@dataclass(frozen=True)
class MapKind:
    """A map, and what it can show.

    Attributes
    ----------
    told
        What it is, in a line.
    units
        As BIDS writes them.
    lowest, highest
        Values that it can have.
    shells
        How many it needs.
    """

    told: str
    units: str
    lowest: float
    highest: float
    shells: int = 1


MAPS = {
    "fa": MapKind("fractional anisotropy of the diffusion tensor", "1", 0.0, 1.0),
    "md": MapKind("mean diffusivity of the diffusion tensor", "mm2/s", 0.0, np.inf),
    "mk": MapKind("mean kurtosis", "1", 0.0, 3.0, shells=2),
    "rtop": MapKind(
        "return-to-origin probability by MAP-MRI, at a diffusion time of 1/(4 pi^2) s",
        "mm^-3",
        0.0,
        np.inf,
        shells=2,
    ),
}


def default_maps(gradients: GradientTable) -> tuple[str, ...]:
    """Return the maps that a gradient table supports, but for those that take minutes."""
    return ("fa", "md", "mk") if _lacks(["mk"], gradients) is None else ("fa", "md")


def require_maps(names: Sequence[str], gradients: GradientTable) -> None:
    """Refuse maps that there are not, or that a gradient table does not support."""
    unknown = [name for name in names if name not in MAPS]
    if unknown or not names:
        raise DatasetError(
            f"there is no map {unknown[0]!r}" if unknown else "no map is named",
            remedy=f"choose of {', '.join(MAPS)}",
        )
    lacking = _lacks(names, gradients)
    if lacking:
        raise GradientTableError(lacking, remedy="name other maps")


def compute_maps(scan: Scan, names: Sequence[str]) -> dict[str, Array]:
    """Compute maps of a scan.

    Parameters
    ----------
    scan
        With the shells that the maps need.
    names
        Of `MAPS`.

    Returns
    -------
    dict
        By name, in their order: shape (x, y, z), float32, zero outside the brain and where there
        is no b0.

    Raises
    ------
    SitelessError
        When there is no such map, or the scan's shells do not support it.
    """
    require_maps(names, scan.gradients)
    found: dict[str, Array] = {}
    with threadpool_limits(1, user_api="blas"):  # sums by threads would change the last bits
        if {"fa", "md"} & set(names):
            tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
            found |= {"fa": tensor.fa, "md": tensor.md}
        if "mk" in names:
            found["mk"] = _mean_kurtosis(scan)
        if "rtop" in names:
            found["rtop"] = _return_to_origin(scan)
    return {name: _on_grid(found[name], scan, MAPS[name]) for name in names}


def _lacks(names: Sequence[str], gradients: GradientTable) -> str | None:
    """Say what the shells lack for maps; None if nothing."""
    bs = ", ".join(f"b={shell.b:.0f}" for shell in gradients.shells) or "b0 only"
    for name in names:
        if len(gradients.shells) < MAPS[name].shells:
            return f"{name} needs at least {MAPS[name].shells} shells, found {bs}"
        if name == "mk" and _most_axes(gradients) < _KURTOSIS_NUMBERS:
            return (
                f"mk needs a shell of at least {_KURTOSIS_NUMBERS} directions, found {gradients}"
            )
    return None


def _most_axes(gradients: GradientTable) -> int:
    return max(count_axes(gradients.directions[shell.volumes]) for shell in gradients.shells)


def _on_grid(values: Array, scan: Scan, kind: MapKind) -> Array:
    grid = np.zeros(scan.mask.shape, dtype=np.float32)
    lit = scan.volumes[np.ix_(scan.gradients.is_b0, scan.voxels)].max(axis=0) > 0
    known = np.where(lit & np.isfinite(values), values, 0)
    grid.T[scan.mask.T] = known.clip(kind.lowest, kind.highest)
    return grid


def _mean_kurtosis(scan: Scan) -> Array:
    """Fit DIPY's kurtosis model, and return the mean over directions, shape (voxel,)."""
    from dipy.reconst.dki import DiffusionKurtosisModel, mean_kurtosis

    shells = [shell for shell in scan.gradients.shells if shell.b <= _KURTOSIS_LIMIT]
    used = shells if len(shells) > 1 else scan.gradients.shells[:2]
    weighted = np.concatenate([shell.volumes for shell in used])
    volumes = np.sort(np.concatenate([np.flatnonzero(scan.gradients.is_b0), weighted]))
    model = DiffusionKurtosisModel(_dipy_table(scan.gradients, volumes))
    signal, kind = _signal(scan, volumes), MAPS["mk"]
    found = np.empty(len(signal))
    for start in range(0, len(signal), _BLOCK):
        block = slice(start, start + _BLOCK)
        fitted = _fit_kurtosis(model, signal[block])
        found[block] = mean_kurtosis(fitted, min_kurtosis=kind.lowest, max_kurtosis=kind.highest)
    return found


def _fit_kurtosis(model: Any, signal: Array) -> Array:
    """Fit many voxels at once by weighted least squares, as DIPY fits one after the other.

    Parameters
    ----------
    model
        DIPY's, of which the design is used.
    signal
        Shape (voxel, volume).

    Returns
    -------
    Array
        DIPY's parameters: eigenvalues, eigenvectors and kurtosis tensor, shape (voxel, 27).
    """
    from dipy.reconst.dti import decompose_tensor, from_lower_triangular

    sizes = np.linalg.norm(model.design_matrix, axis=0)
    design = model.design_matrix / sizes
    logs = np.log(np.maximum(signal, model.min_signal))
    expected = logs @ (design @ np.linalg.pinv(design)).T
    weights = np.exp(2 * (expected - expected.max(axis=1, keepdims=True)))
    products = (design[:, :, None] * design[:, None]).reshape(len(design), -1)
    squares = (weights @ products).reshape(-1, len(sizes), len(sizes))
    squares += _RIDGE * np.eye(len(sizes))
    numbers = np.linalg.solve(squares, ((weights * logs) @ design)[..., None])[..., 0] / sizes
    tensors = from_lower_triangular(numbers[:, :6])
    values, vectors = decompose_tensor(tensors, min_diffusivity=model.min_diffusivity)
    size = np.square(values.mean(axis=1, keepdims=True))
    kurtosis = np.divide(numbers[:, 6:21], size, out=np.zeros((len(size), 15)), where=size > 0)
    return np.hstack([values, vectors.reshape(-1, 9), kurtosis])


def _return_to_origin(scan: Scan) -> Array:
    """Fit DIPY's MAP-MRI, voxel by voxel, and return the probability, shape (voxel,)."""
    from dipy.reconst.mapmri import MapmriModel

    volumes = np.arange(len(scan.gradients))
    model = MapmriModel(
        _dipy_table(scan.gradients, volumes),
        radial_order=_RADIAL_ORDER,
        laplacian_regularization=True,
        laplacian_weighting=_LAPLACIAN,
    )
    with warnings.catch_warnings():  # of voxels whose signal no tensor explains
        warnings.simplefilter("ignore")
        return np.asarray(model.fit(_signal(scan, volumes)).rtop())


def _signal(scan: Scan, volumes: Array) -> Array:
    """Return the brain's signal, shape (voxel, volume), float64."""
    return scan.volumes[np.ix_(volumes, scan.voxels)].T.astype(float)


def _dipy_table(gradients: GradientTable, volumes: Array) -> object:
    from dipy.core.gradients import gradient_table

    is_b0 = gradients.is_b0[volumes]
    b = np.where(is_b0, 0, gradients.b[volumes])
    return gradient_table(b, bvecs=np.where(is_b0[:, None], 0, gradients.directions[volumes]))
