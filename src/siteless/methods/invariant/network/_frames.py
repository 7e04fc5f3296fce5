"""Patches in the frame of their own fibres.

The same tissue looks different when its fibres run along other axes. Turned into the axes of its
fibres it looks the same, so that a code need not hold where they point: the frame does, and what
is rendered is turned back. Coefficients are those of `siteless.harmonics`: real, even harmonics,
in the order of degrees and, of a degree, of phases.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

# Harmonics of degree 2 among those of a shell.
DEGREE_2 = slice(1, 6)


def fibre_frames(second: Tensor) -> Tensor:
    """Return the axes of fibres.

    Parameters
    ----------
    second
        Harmonics of degree 2 of the signal, shape (patch, 5).

    Returns
    -------
    Tensor
        Rotations of shape (patch, 3, 3): from the frame, whose third axis is where the signal is
        weakest and whose first is where it is strongest, to scanner axes. Of the two senses of an
        axis, that with a positive largest component is taken.
    """
    matrices = (second @ _as_matrix().to(second)).unflatten(1, (3, 3))
    # What is not finite has no axes: it is turned somewhere, and stays to be found by the loss.
    # Small matrices are solved on the processor, as not every device can.
    axes = torch.linalg.eigh(matrices.nan_to_num().cpu()).eigenvectors.to(second.device)
    strong, weak = axes[:, :, 2], axes[:, :, 0]
    strong, weak = (
        axis * torch.sign(axis.gather(1, axis.abs().argmax(dim=1, keepdim=True)))
        for axis in (strong, weak)
    )
    return torch.stack([strong, torch.linalg.cross(weak, strong), weak], dim=2)


def rotate(coefficients: Tensor, rotation: Tensor) -> Tensor:
    """Rotate functions on the sphere.

    Parameters
    ----------
    coefficients
        Shape (patch, function, coefficient).
    rotation
        Shape (patch, 3, 3). A function's value at u is moved to ``rotation @ u``.

    Returns
    -------
    Tensor
        Shape (patch, function, coefficient).
    """
    # Turns about z are cheap. Those about y are, between a quarter turn about x and its inverse.
    order = _order_of(coefficients.shape[-1])
    quarter = _quarter_turn(order).to(coefficients)
    first, tilt, last = _euler_angles(rotation)
    turned = _turn_about_z(coefficients, last) @ quarter
    return _turn_about_z(_turn_about_z(turned, tilt) @ quarter.T, first)


def _euler_angles(rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the angles of the turns about z, y and z that a rotation is, the last one first done.

    Where there is no tilt the outer two are one: the last is told with the first undone.
    """
    first = torch.atan2(rotation[:, 1, 2], rotation[:, 0, 2])
    tilt = torch.atan2(torch.hypot(rotation[:, 0, 2], rotation[:, 1, 2]), rotation[:, 2, 2])
    cosine, sine = first.cos().unsqueeze(1), first.sin().unsqueeze(1)
    row = cosine * rotation[:, 1] - sine * rotation[:, 0]
    return first, tilt, torch.atan2(row[:, 0], row[:, 1])


def _turn_about_z(coefficients: Tensor, angle: Tensor) -> Tensor:
    """Turn by angles of shape (patch,): harmonics of phases m and -m mix."""
    # Products with matrices of zeros and ones, where picking columns takes longer.
    order = _order_of(coefficients.shape[-1])
    even, odd, opposite = (table.to(coefficients) for table in _phases(order))
    steps = angle.unsqueeze(1) * torch.arange(order + 1, device=angle.device)
    cosine, sine = (steps.cos() @ even).unsqueeze(1), (steps.sin() @ odd).unsqueeze(1)
    return torch.addcmul(coefficients * cosine, coefficients @ opposite, sine)


@lru_cache
@torch.inference_mode(mode=False)  # or training could not use what rendering has made
def _phases(order: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what makes, of functions of phases, those of coefficients.

    Returns
    -------
    even, odd
        From functions of phases 0, 1, ... to those of each coefficient's phase, even or odd (with
        the opposite sign) in it, shape (phase, coefficient).
    opposite
        From coefficients to those of the opposite phases, shape (coefficient, coefficient).
    """
    phases = torch.cat([torch.arange(-degree, degree + 1) for degree in range(0, order + 1, 2)])
    even = (torch.arange(order + 1).unsqueeze(1) == phases.abs()).float()
    opposite = torch.eye(len(phases))[torch.arange(len(phases)) - 2 * phases]
    return even, -even * phases.sign(), opposite


@lru_cache
@torch.inference_mode(mode=False)  # or training could not use what rendering has made
def _quarter_turn(order: int) -> Tensor:
    """Return the matrix of the rotation about x that takes z to y, degree by degree."""
    blocks = [_rotation_about_x(degree, -math.pi / 2) for degree in range(0, order + 1, 2)]
    return torch.block_diag(*blocks)


def _rotation_about_x(degree: int, angle: float) -> Tensor:
    """Return the matrix of a rotation of real harmonics, exp(-i angle J_x) in complex ones."""
    phases = torch.arange(-degree, degree + 1, dtype=torch.float64)
    ladder = torch.sqrt(degree * (degree + 1) - phases[:-1] * phases[1:])
    generator = (torch.diag(ladder, 1) + torch.diag(ladder, -1)) / 2
    real = torch.zeros(2 * degree + 1, 2 * degree + 1, dtype=torch.complex128)
    real[degree, degree] = 1
    for phase in range(1, degree + 1):  # sqrt(2) Re Y and sqrt(2) Im Y, by Y of both phases
        sign = (-1) ** phase / math.sqrt(2)
        plus, minus = degree + phase, degree - phase
        real[plus, plus], real[minus, plus] = 1 / math.sqrt(2), sign
        real.imag[plus, minus], real.imag[minus, minus] = -1 / math.sqrt(2), sign
    turned = torch.linalg.matrix_exp(-1j * angle * generator)
    return (real.mH @ turned @ real).real


@lru_cache
@torch.inference_mode(mode=False)  # or training could not use what rendering has made
def _as_matrix() -> Tensor:
    """Return what makes of degree 2 the matrix M whose u' M u it is, shape (5, 9)."""
    whole, part = math.sqrt(15 / math.pi) / 4, math.sqrt(5 / math.pi) / 4
    forms = torch.zeros(5, 3, 3, dtype=torch.float64)
    forms[0, 0, 1] = forms[0, 1, 0] = whole
    forms[1, 1, 2] = forms[1, 2, 1] = -whole
    forms[2] = torch.diag(torch.tensor([-part, -part, 2 * part]))
    forms[3, 0, 2] = forms[3, 2, 0] = -whole
    forms[4] = torch.diag(torch.tensor([whole, -whole, 0]))
    return forms.flatten(1)


def _order_of(coefficients: int) -> int:
    """Return the highest degree of so many even harmonics: (order + 1)(order + 2) / 2."""
    return (math.isqrt(8 * coefficients + 1) - 3) // 2
