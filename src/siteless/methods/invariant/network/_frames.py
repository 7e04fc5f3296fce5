"""Rotate patches into the frame of their fibres.

The same tissue looks different when its fibres run along other axes. In the frame of its fibres it
looks the same, so a code need not represent their orientation: the frame does, and renderings are
rotated back. Coefficients are those of `siteless.harmonics`: real, even harmonics, ordered by
degree and phase.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

# Positions of degree 2 among the harmonics of a shell.
DEGREE_2 = slice(1, 6)


def fibre_frames(second: Tensor) -> Tensor:
    """Return rotations from the frames of fibres to scanner axes, shape (patch, 3, 3).

    They are computed from harmonics of degree 2 of the signal, shape (patch, 5). The signal is
    strongest along the first axis of the frame, and weakest along the third. The largest component
    of an axis is positive.
    """
    matrices = (second @ _as_matrix().to(second)).unflatten(1, (3, 3))
    # Non-finite values have no axes; they are rotated arbitrarily, and detected by the loss. Small
    # matrices are solved on the CPU, as not every device can.
    axes = torch.linalg.eigh(matrices.nan_to_num().cpu()).eigenvectors.to(second.device)
    strong, weak = (
        axis * torch.sign(axis.gather(1, axis.abs().argmax(dim=1, keepdim=True)))
        for axis in (axes[:, :, 2], axes[:, :, 0])
    )
    return torch.stack([strong, torch.linalg.cross(weak, strong), weak], dim=2)


def rotate(coefficients: Tensor, rotation: Tensor) -> Tensor:
    """Rotate functions on the sphere, so that a value at u is moved to ``rotation u``.

    Coefficients have the shape (patch, function, coefficient), rotations (patch, 3, 3).
    """
    # Rotations about z are cheap. One about y is one about z between two quarter turns about x.
    order = _order_of(coefficients.shape[-1])
    quarter = _quarter_turn(order).to(coefficients)
    first, tilt, last = _euler_angles(rotation)
    turned = _turn_about_z(coefficients, last) @ quarter
    return _turn_about_z(_turn_about_z(turned, tilt) @ quarter.T, first)


def _euler_angles(rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Euler angles about z, y and z of rotations; the last one is applied first.

    Without a tilt the outer two are ambiguous: the last is computed after undoing the first.
    """
    first = torch.atan2(rotation[:, 1, 2], rotation[:, 0, 2])
    tilt = torch.atan2(torch.hypot(rotation[:, 0, 2], rotation[:, 1, 2]), rotation[:, 2, 2])
    cosine, sine = first.cos().unsqueeze(1), first.sin().unsqueeze(1)
    row = cosine * rotation[:, 1] - sine * rotation[:, 0]
    return first, tilt, torch.atan2(row[:, 0], row[:, 1])


def _turn_about_z(coefficients: Tensor, angle: Tensor) -> Tensor:
    """Rotate about z by angles of shape (patch,), which mixes harmonics of phases m and -m."""
    # Products with matrices of zeros and ones are faster than indexing.
    order = _order_of(coefficients.shape[-1])
    even, odd, opposite = (table.to(coefficients) for table in _phases(order))
    steps = angle.unsqueeze(1) * torch.arange(order + 1, device=angle.device)
    cosine, sine = (steps.cos() @ even).unsqueeze(1), (steps.sin() @ odd).unsqueeze(1)
    return torch.addcmul(coefficients * cosine, coefficients @ opposite, sine)


@lru_cache
@torch.inference_mode(mode=False)  # so that training can use cached tensors
def _phases(order: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrices that expand functions of phases 0, 1, ... to coefficients.

    The first two, (phase, coefficient), are for even functions, and for odd ones with the opposite
    sign. The third exchanges coefficients of opposite phases, (coefficient, coefficient).
    """
    phases = torch.cat([torch.arange(-degree, degree + 1) for degree in range(0, order + 1, 2)])
    even = (torch.arange(order + 1).unsqueeze(1) == phases.abs()).float()
    opposite = torch.eye(len(phases))[torch.arange(len(phases)) - 2 * phases]
    return even, -even * phases.sign(), opposite


@lru_cache
@torch.inference_mode(mode=False)  # so that training can use cached tensors
def _quarter_turn(order: int) -> Tensor:
    """Return the matrix of the rotation about x that takes z to y, degree by degree."""
    return torch.block_diag(*map(_quarter_turn_of_degree, range(0, order + 1, 2)))


def _quarter_turn_of_degree(degree: int) -> Tensor:
    """Return the rotation of real harmonics, from exp(i pi / 2 J_x) for complex ones."""
    phases = torch.arange(-degree, degree + 1, dtype=torch.float64)
    ladder = torch.sqrt(degree * (degree + 1) - phases[:-1] * phases[1:])
    generator = (torch.diag(ladder, 1) + torch.diag(ladder, -1)) / 2
    real = torch.zeros(2 * degree + 1, 2 * degree + 1, dtype=torch.complex128)
    real[degree, degree] = 1
    for phase in range(1, degree + 1):  # sqrt(2) Re Y and sqrt(2) Im Y, from Y of both phases
        sign = (-1) ** phase / math.sqrt(2)
        plus, minus = degree + phase, degree - phase
        real[plus, plus], real[minus, plus] = 1 / math.sqrt(2), sign
        real.imag[plus, minus], real.imag[minus, minus] = -1 / math.sqrt(2), sign
    turned = torch.linalg.matrix_exp(0.5j * math.pi * generator)
    return (real.mH @ turned @ real).real


@lru_cache
@torch.inference_mode(mode=False)  # so that training can use cached tensors
def _as_matrix() -> Tensor:
    """Return the map from degree 2 to the matrix M of the form u' M u, shape (5, 9)."""
    whole, part = math.sqrt(15 / math.pi) / 4, math.sqrt(5 / math.pi) / 4
    forms = torch.zeros(5, 3, 3, dtype=torch.float64)
    forms[0, 0, 1] = forms[0, 1, 0] = whole
    forms[1, 1, 2] = forms[1, 2, 1] = -whole
    forms[2] = torch.diag(torch.tensor([-part, -part, 2 * part]))
    forms[3, 0, 2] = forms[3, 2, 0] = -whole
    forms[4] = torch.diag(torch.tensor([whole, -whole, 0]))
    return forms.flatten(1)


def _order_of(coefficients: int) -> int:
    """Return the order with a number of even harmonics: (order + 1)(order + 2) / 2."""
    return (math.isqrt(8 * coefficients + 1) - 3) // 2
