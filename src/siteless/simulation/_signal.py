"""The noiseless signal of a voxel with known tissue.

Each fibre is a stick (inside axons) and a zeppelin (between them). Dispersion tilts fibres from
their population's direction (single sticks, and the mean tensor of zeppelins). Grey matter is a
fast and a slow ball, and may have sticks perpendicular to the surface of white matter; fluid is a
free ball. Each compartment has a T2, so the contrast depends on the echo time. Water that is
hindered between axons or restricted in grey matter diffuses the less the longer it is observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from siteless.acquisition import Array, GradientTable
from siteless.simulation._person import Anatomy

# s. Diffusion time at which diffusivities are those of `Biology`.
REFERENCE_DIFFUSION_TIME = 0.043
# Exponents of the diffusion time in diffusivities, negated.
_HINDERED, _RESTRICTED = 0.15, 0.5
# Weights of one straight fibre and six tilted by two standard deviations, which approximate normal
# dispersion: they are exact for polynomials of the tilt up to degree 5.
_SPREAD = np.array([1 / 2, *[1 / 12] * 6], dtype=np.float32)
_BLOCK = 4096
# White matter has a b0 of about 1000 at an echo time of 89 ms.
_UNITS = 4600.0


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a scanner does to water, without its effects on images.

    Attributes
    ----------
    gradients
        Gradient table in world axes.
    echo_time, diffusion_time
        Times, s.
    distortion
        Matrices L, shape (voxel, 3, 3), that turn the nominal gradient g into the actual one, L g.
    """

    gradients: GradientTable
    echo_time: float
    diffusion_time: float = REFERENCE_DIFFUSION_TIME
    distortion: Array | None = None

    def slowed(self, diffusivity: float, exponent: float) -> float:
        """Return a diffusivity at the diffusion time."""
        return diffusivity * (REFERENCE_DIFFUSION_TIME / self.diffusion_time) ** exponent


def clean_signal(anatomy: Anatomy, encoding: Encoding) -> Array:
    """Return the noiseless signal of every brain voxel, shape (voxel, volume), float32."""
    voxels = len(anatomy.tissue)
    signal = np.empty((voxels, len(encoding.gradients)), dtype=np.float32)
    for start in range(0, voxels, _BLOCK):
        block = slice(start, start + _BLOCK)
        distortion = encoding.distortion
        coils = np.eye(3)[None] if distortion is None else distortion[block]
        signal[block] = _block_signal(anatomy, block, encoding, coils)
    return signal


def _block_signal(anatomy: Anatomy, block: slice, encoding: Encoding, coils: Array) -> Array:
    biology, gradients = anatomy.biology, encoding.gradients
    directions = gradients.directions.astype(np.float32)
    # actual b-values of the voxel: b |L g|^2
    seen = coils.astype(np.float32) @ directions.T
    b = gradients.b.astype(np.float32) * np.square(seen).sum(axis=1)
    b[:, gradients.is_b0] = 0
    white, grey, fluid = anatomy.tissue[block].astype(np.float32).T[..., None]

    def decay(t2: float) -> Any:
        return np.exp(-encoding.echo_time / (t2 * anatomy.relaxation_of(block)))

    total = (
        grey
        * biology.water_grey
        * decay(biology.t2_grey)
        * _grey_signal(anatomy, block, encoding, b)
    )
    free = np.exp(-b * biology.free)
    total += fluid * biology.water_fluid * decay(biology.t2_fluid) * free
    decays = decay(biology.t2_intra), decay(biology.t2_extra)
    fibres = _fibre_signal(anatomy, block, encoding, coils, b, decays)
    return _UNITS * (total + white * biology.water_white * fibres)


def _grey_signal(anatomy: Anatomy, block: slice, encoding: Encoding, b: Array) -> Array:
    """Return the signal of grey matter without its relaxation."""
    biology, fast = anatomy.biology, anatomy.grey_fast_of(block)
    slow = encoding.slowed(biology.grey_slow, _RESTRICTED)
    balls: Array = fast * np.exp(-b * biology.grey_fast) + (1 - fast) * np.exp(-b * slow)
    if anatomy.radial is None:
        return balls
    radial = anatomy.radial[block].astype(np.float32)
    cosines = radial @ encoding.gradients.directions.astype(np.float32).T
    sticks = np.exp(-b * np.square(cosines) * biology.along_axon)
    share = biology.cortical_sticks * np.square(radial).sum(axis=1, keepdims=True)
    return (1 - share) * balls + share * sticks


def _fibre_signal(
    anatomy: Anatomy,
    block: slice,
    encoding: Encoding,
    coils: Array,
    b: Array,
    decays: tuple[Any, Any],
) -> Array:
    """Sum the signal of populations; nonlinearity acts on fibres by the transposed matrix."""
    gradients, along_axon = encoding.gradients, anatomy.biology.along_axon
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
        sticks = np.einsum("vcn,c->vn", np.exp(-along_axon * along), _SPREAD)
        across = encoding.slowed(along_axon, _HINDERED) * (1 - intra)  # tortuosity
        mean_along = np.einsum("vcn,c->vn", along, _SPREAD)
        zeppelins = np.exp(-across * b[here] - (along_axon - across) * mean_along)
        of_intra, of_extra = (decay if np.ndim(decay) == 0 else decay[here] for decay in decays)
        fibres[here] += volume[here, None] * (
            intra * of_intra * sticks + (1 - intra) * of_extra * zeppelins
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
