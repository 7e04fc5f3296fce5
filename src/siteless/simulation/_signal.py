"""The noiseless signal of a voxel with known tissue.

Each fibre is a stick (inside axons) and a zeppelin (between them). Dispersion tilts fibres from
their population's direction (single sticks, and the mean tensor of zeppelins). Grey matter is a
fast and a slow ball, fluid a free one. Each compartment has a T2, so the contrast depends on the
echo time.
"""

from __future__ import annotations

import numpy as np

from siteless.acquisition import Array, GradientTable
from siteless.simulation._person import Anatomy

# mm2/s
_ALONG_AXON = 1.9e-3
_GREY_FAST, _GREY_SLOW, _FREE = 1.1e-3, 0.35e-3, 3.0e-3
_GREY_FAST_PART = 0.65
# s
_T2_INTRA, _T2_EXTRA, _T2_GREY, _T2_FLUID = 0.090, 0.060, 0.080, 0.500
_WATER_WHITE, _WATER_GREY, _WATER_FLUID = 0.70, 0.80, 1.00
# Weights of one straight fibre and six tilted by two standard deviations, which approximate normal
# dispersion: they are exact for polynomials of the tilt up to degree 5.
_SPREAD = np.array([1 / 2, *[1 / 12] * 6], dtype=np.float32)
_BLOCK = 4096
# White matter has a b0 of about 1000 at an echo time of 89 ms.
_UNITS = 4600.0


def clean_signal(
    anatomy: Anatomy,
    gradients: GradientTable,
    *,
    echo_time: float,
    distortion: Array | None = None,
) -> Array:
    """Return the noiseless signal of every brain voxel, shape (voxel, volume), float32.

    Gradients are in world axes, and the echo time is in seconds. With `distortion` by matrices L,
    shape (voxel, 3, 3), the actual gradient is L g.
    """
    voxels = len(anatomy.tissue)
    signal = np.empty((voxels, len(gradients)), dtype=np.float32)
    for start in range(0, voxels, _BLOCK):
        block = slice(start, start + _BLOCK)
        coils = np.eye(3)[None] if distortion is None else distortion[block]
        signal[block] = _block_signal(anatomy, block, gradients, echo_time, coils)
    return signal


def _block_signal(
    anatomy: Anatomy, block: slice, gradients: GradientTable, echo_time: float, coils: Array
) -> Array:
    directions = gradients.directions.astype(np.float32)
    # actual b-values of the voxel: b |L g|^2
    seen = coils.astype(np.float32) @ directions.T
    b = gradients.b.astype(np.float32) * np.square(seen).sum(axis=1)
    b[:, gradients.is_b0] = 0
    white, grey, fluid = anatomy.tissue[block].astype(np.float32).T[..., None]
    total = (
        grey
        * _WATER_GREY
        * np.exp(-echo_time / _T2_GREY)
        * (
            _GREY_FAST_PART * np.exp(-b * _GREY_FAST)
            + (1 - _GREY_FAST_PART) * np.exp(-b * _GREY_SLOW)
        )
    )
    total += fluid * _WATER_FLUID * np.exp(-echo_time / _T2_FLUID) * np.exp(-b * _FREE)
    fibres = _fibre_signal(anatomy, block, gradients, echo_time, coils, b)
    return _UNITS * (total + white * _WATER_WHITE * fibres)


def _fibre_signal(
    anatomy: Anatomy,
    block: slice,
    gradients: GradientTable,
    echo_time: float,
    coils: Array,
    b: Array,
) -> Array:
    """Sum the signal of populations; nonlinearity acts on fibres by the transposed matrix."""
    fibres = np.zeros((len(anatomy.tissue[block]), len(gradients)), dtype=np.float32)
    weighting = gradients.directions * np.sqrt(np.where(gradients.is_b0, 0, gradients.b))[:, None]
    coils = np.broadcast_to(coils, (len(fibres), 3, 3))
    b = np.broadcast_to(b, fibres.shape)
    for system in range(anatomy.populations.shape[1]):
        volume = anatomy.populations[block, system]
        here = np.flatnonzero((volume > 0) & (anatomy.tissue[block, 0] > 0))
        intra = anatomy.intra_axonal[block][here, None].astype(np.float32)
        cone = _cone(anatomy.directions[block][here, system], anatomy.dispersion[block][here])
        turned = np.einsum("vij,vci->vcj", coils[here], cone)
        along = np.square((turned @ weighting.T).astype(np.float32))  # b cos^2, (voxel, cone, vol)
        sticks = np.einsum("vcn,c->vn", np.exp(-_ALONG_AXON * along), _SPREAD)
        across = _ALONG_AXON * (1 - intra)  # tortuosity
        mean_along = np.einsum("vcn,c->vn", along, _SPREAD)
        zeppelins = np.exp(-across * b[here] - (_ALONG_AXON - across) * mean_along)
        fibres[here] += volume[here, None] * (
            intra * np.exp(-echo_time / _T2_INTRA) * sticks
            + (1 - intra) * np.exp(-echo_time / _T2_EXTRA) * zeppelins
        )
    return fibres


def _cone(direction: Array, dispersion: Array) -> Array:
    """Return each direction and six tilted ones, shape (voxel, 7, 3)."""
    helper = np.where(np.abs(direction[:, :1]) < 0.9, [[1.0, 0, 0]], [[0, 1.0, 0]])
    first = np.cross(direction, helper)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(direction, first)
    azimuth = np.arange(6)[:, None] * np.pi / 3
    sideways = np.cos(azimuth) * first[:, None] + np.sin(azimuth) * second[:, None]
    tilt = 2 * dispersion[:, None, None]
    tilted = np.cos(tilt) * direction[:, None] + np.sin(tilt) * sideways
    return np.concatenate([direction[:, None], tilted], axis=1)
