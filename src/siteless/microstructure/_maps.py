"""The supported maps and how they are computed from a scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from siteless.acquisition import Array, GradientTable, Scan, count_axes
from siteless.errors import DatasetError, GradientTableError
from siteless.microstructure._kurtosis import mean_kurtosis
from siteless.microstructure._mapmri import return_to_origin
from siteless.tissue import fit_tensor

# s/mm2. Above this, terms beyond kurtosis matter.
_KURTOSIS_LIMIT = 3100.0
# Elements of a kurtosis tensor, which require as many directions.
_KURTOSIS_NUMBERS = 15
# mm^-3. RTOP of isotropic diffusion by 1e-4 mm2/s, slower than in any tissue. Where noise hides
# the decay, a fit can be arbitrarily large.
_MOST_RESTRICTED = (np.pi / 1e-4) ** 1.5


@dataclass(frozen=True)
class MapKind:
    """A map, its units as in BIDS, its range, and the least number of shells it needs."""

    description: str
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
        _MOST_RESTRICTED,
        shells=2,
    ),
}


def default_maps(gradients: GradientTable) -> tuple[str, ...]:
    """Return the maps that a gradient table supports, except RTOP, which must be requested."""
    return ("fa", "md", "mk") if _lacks(["mk"], gradients) is None else ("fa", "md")


def require_maps(names: Sequence[str], gradients: GradientTable) -> None:
    """Raise an error for maps that are unknown or not supported by a gradient table."""
    unknown = [name for name in names if name not in MAPS]
    if unknown or not names:
        raise DatasetError(
            f"there is no map {unknown[0]!r}" if unknown else "no map is named",
            remedy=f"choose from {', '.join(MAPS)}",
        )
    lacking = _lacks(names, gradients)
    if lacking:
        raise GradientTableError(lacking, remedy="name other maps")


def compute_maps(scan: Scan, names: Sequence[str]) -> dict[str, Array]:
    """Compute maps of a scan.

    Parameters
    ----------
    scan
        Scan with the required shells.
    names
        Keys of `MAPS`.

    Returns
    -------
    dict
        Maps by name, in the order of `names`: shape (x, y, z), float32, zero outside the brain and
            where b0 is zero.

    Raises
    ------
    SitelessError
        When a map is unknown, or the scan's shells do not support it.
    """
    require_maps(names, scan.gradients)
    maps: dict[str, Array] = {}
    with threadpool_limits(1, user_api="blas"):  # sums over several threads round differently
        if {"fa", "md"} & set(names):
            tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
            maps |= {"fa": tensor.fa, "md": tensor.md}
        if "mk" in names:
            maps["mk"] = mean_kurtosis(*_seen(scan, _kurtosis_volumes(scan.gradients)))
        if "rtop" in names:
            maps["rtop"] = return_to_origin(*_seen(scan, np.arange(len(scan.gradients))))
    return {name: _on_grid(maps[name], scan, MAPS[name]) for name in names}


def _lacks(names: Sequence[str], gradients: GradientTable) -> str | None:
    """Describe what a gradient table lacks for maps; None if it supports them."""
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


def _kurtosis_volumes(gradients: GradientTable) -> Array:
    """Return the volumes of b0 and of shells for kurtosis: at least the two weakest."""
    weak = [shell for shell in gradients.shells if shell.b <= _KURTOSIS_LIMIT]
    shells = weak if len(weak) > 1 else gradients.shells[:2]
    weighted = [shell.volumes for shell in shells]
    return np.sort(np.concatenate([np.flatnonzero(gradients.is_b0), *weighted]))


def _seen(scan: Scan, volumes: Array) -> tuple[Array, Any]:
    """Return the brain's signal in some volumes, (voxel, volume), and their DIPY table."""
    from dipy.core.gradients import gradient_table

    signal = scan.volumes[np.ix_(volumes, scan.voxels)].T
    b = np.where(scan.gradients.is_b0, 0, scan.gradients.b)[volumes]
    return signal, gradient_table(b, bvecs=scan.gradients.directions[volumes])
