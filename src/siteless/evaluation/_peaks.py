"""Maxima of fibre orientation distributions, and the angles between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from siteless.acquisition import Array
from siteless.evaluation._fods import MAXIMA, ORDER
from siteless.harmonics import sh_basis

# Number of start directions on the half sphere, about 4.5 degrees apart.
_STARTS = 1000
_NEIGHBOURS = 8
# Number of lobes to search, and cosine above which maxima are the same, as in sh2peaks.
_LOBES = 6
_SAME_LOBE = 0.99
_BLOCK = 512


@dataclass(frozen=True, eq=False)
class Angles:
    """Angles of the largest maximum to expected maxima, degrees from 0 to 90, shape (voxel,)."""

    closest: Array
    largest: Array


def peak_angles(peaks: Array, expected: Array) -> Angles:
    """Measure the angle of the largest maximum to the expected maxima.

    Opposite directions are equal. As in the paper, small maxima are included: where the target has
    ripples beside one large lobe, `closest` may refer to one of those. `largest` does not depend
    on them.

    Parameters
    ----------
    peaks, expected
        Maxima as in `Fods.peaks`, shape (voxel, peak, 3).

    Returns
    -------
    Angles
        Angles; NaN where either has no maximum.

    Examples
    --------
    >>> x, y, none = [1.0, 0, 0], [0, 0.5, 0], [0.0, 0, 0]
    >>> angles = peak_angles(np.array([[y, none]]), np.array([[x, y]]))
    >>> angles.closest, angles.largest
    (array([0.]), array([90.]))
    """
    first, others = np.asarray(peaks, float)[:, :1], np.asarray(expected, float)
    across = np.linalg.norm(np.cross(first, others), axis=-1)
    # Unlike the arc cosine, exact for small angles.
    degrees = np.rad2deg(np.arctan2(across, np.abs((first * others).sum(axis=-1))))
    there = np.any(first, axis=-1) & np.any(others, axis=-1)
    closest = np.where(there, degrees, np.inf).min(axis=1)
    return Angles(
        np.where(there.any(axis=1), closest, np.nan), np.where(there[:, 0], degrees[:, 0], np.nan)
    )


def find_peaks(coefficients: Array) -> Array:
    """Find the three largest maxima of FODs, shape (voxel, 45), as in `Fods.peaks`."""
    starts, neighbours, basis = _start_directions()
    peaks = np.zeros((len(coefficients), MAXIMA, 3))
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
    """Return unit vectors along a spiral over half the sphere.

    Returns the vectors, (start, 3), the indices of their nearest neighbours, (start, neighbour),
    and their harmonics, (start, 45).
    """
    height = (np.arange(_STARTS) + 0.5) / _STARTS
    azimuth = np.pi * (1 + np.sqrt(5)) * np.arange(_STARTS)
    ring = np.sqrt(1 - height**2)
    starts = np.stack([ring * np.cos(azimuth), ring * np.sin(azimuth), height], axis=1)
    nearest = np.argsort(-np.abs(starts @ starts.T), axis=1, kind="stable")
    return starts, nearest[:, 1 : _NEIGHBOURS + 1], sh_basis(starts, ORDER)


def _climb(coefficients: Array, directions: Array) -> Array:
    """Move directions, (maximum, 3), to the maxima of their lobes, scaled by amplitude."""
    top = _amplitudes(coefficients, directions[:, None])[:, 0]
    for reach in np.deg2rad([4.0, 2.0, 1.0, 0.5]):
        moved = _newton_step(coefficients, directions, reach)
        amplitude = _amplitudes(coefficients, moved[:, None])[:, 0]
        better = amplitude > top
        directions = np.where(better[:, None], moved, directions)
        top = np.where(better, amplitude, top)
    return directions * top[:, None]


def _newton_step(coefficients: Array, directions: Array, reach: float) -> Array:
    """Step towards the maximum of a parabola through nine points, by at most `reach`."""
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
    """Return two unit vectors perpendicular to each direction, shape (direction, 3)."""
    helper = np.eye(3)[np.abs(directions).argmin(axis=1)]
    first = _unit(np.cross(directions, helper))
    return first, np.cross(directions, first)


def _unit(vectors: Array) -> Array:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _amplitudes(coefficients: Array, directions: Array) -> Array:
    """Evaluate each FOD at its directions, (fod, direction, 3); return (fod, direction)."""
    basis = sh_basis(directions.reshape(-1, 3), ORDER).reshape(
        *directions.shape[:2], coefficients.shape[1]
    )
    return np.einsum("fdc,fc->fd", basis, coefficients)


def _largest(peaks: Array) -> Array:
    """Return the three largest distinct maxima, (voxel, 3, 3), of (voxel, lobe, 3)."""
    length = np.linalg.norm(peaks, axis=2)
    order = np.argsort(-length, axis=1, kind="stable")
    peaks, length = peaks[np.arange(len(peaks))[:, None], order], -np.sort(-length, axis=1)
    cosines = np.abs(np.einsum("vai,vbi->vab", peaks, peaks))
    same = cosines > _SAME_LOBE * length[:, :, None] * length[:, None]
    again = np.tril(same, -1).any(axis=2)
    peaks[again] = 0
    first = np.argsort(again, axis=1, kind="stable")[:, :MAXIMA]
    return np.take_along_axis(peaks, first[..., None], axis=1)
