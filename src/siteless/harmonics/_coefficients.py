"""Coefficients of a scan and their projection to gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from siteless.acquisition import Array, GradientTable, group_by_b, on_grid, same_b, show_bs
from siteless.errors import GradientTableError
from siteless.harmonics._basis import sh_basis
from siteless.harmonics._channels import Channels


@dataclass(frozen=True, eq=False, repr=False)
class Coefficients:
    """Mean b0 and spherical harmonics of each shell, for the voxels of a mask.

    Attributes
    ----------
    values
        Shape (voxel, channel), float32; the channels are those of `Channels`.
    mask
        Voxels with coefficients, shape (x, y, z), in NIfTI order (x fastest).
    bs
        b-value of each shell, ascending, s/mm2.
    order
        Highest degree of the harmonics, the same for every shell.
    penalties
        Laplace-Beltrami weight in the fit of each shell; 0 for the pseudo-inverse.
    """

    values: Array
    mask: Array
    bs: tuple[float, ...]
    order: int
    penalties: tuple[float, ...]

    def __repr__(self) -> str:
        shells = ", ".join(f"b={b:.0f}" for b in self.bs)
        return f"<Coefficients of {len(self.values)} voxels: b0, {shells} to order {self.order}>"

    def __post_init__(self) -> None:
        expected = (np.count_nonzero(self.mask), self.channels.count)
        if self.values.shape != expected:
            raise ValueError(f"expected values of shape {expected}, got {self.values.shape}")

    @property
    def channels(self) -> Channels:
        """Layout of the channels."""
        return Channels(self.order, len(self.bs))

    @property
    def b0(self) -> Array:
        """Mean b0, shape (voxel,)."""
        return self.values[:, 0]

    def shell(self, index: int) -> Array:
        """Return the harmonics of one shell, shape (voxel, coefficient), without a copy."""
        return self.values[:, self.channels.shell(index)]

    def on_grid(self, values: Array) -> Array:
        """Place voxel values, shape (voxel, ...), on the image grid, zero outside the mask."""
        return on_grid(values, self.mask)


def project(coefficients: Coefficients, gradients: GradientTable) -> Array:
    """Evaluate coefficients at b-vectors.

    All b0 volumes equal the mean b0.

    Returns
    -------
    Array
        Shape (voxel, volume), float32.

    Raises
    ------
    GradientTableError
        When the table has a shell that the coefficients lack.
    """
    mixing = projection_matrix(gradients, bs=coefficients.bs, order=coefficients.order)
    return coefficients.values @ mixing


def projection_matrix(gradients: GradientTable, *, bs: Sequence[float], order: int) -> Array:
    """Return the matrix from the channels of `Coefficients` to volumes, (channel, volume)."""
    channels = Channels(order, len(bs))
    mixing = np.zeros((channels.count, len(gradients)), dtype=np.float32)
    mixing[0, gradients.is_b0] = 1
    nearest = nearest_shells(gradients, bs)
    for index in range(len(bs)):
        volumes = np.flatnonzero(nearest == index)
        basis = sh_basis(gradients.directions[volumes], order)
        mixing[channels.shell(index), volumes] = basis.T
    return mixing


def rish(coefficients: Coefficients) -> Array:
    """Rotation-invariant energy of each shell and degree: the sum over m of c_lm squared.

    Returns
    -------
    Array
        Shape (voxel, shell, order / 2 + 1), float32.
    """
    return coefficients.channels.energies(coefficients.values)


def nearest_shells(gradients: GradientTable, bs: Sequence[float]) -> Array:
    """Return the index in `bs` of each volume's shell, -1 for b0; a shell without one is an error.

    Shells are matched by their median b-value, which varies less than single volumes.
    """
    known, nearest = np.array(bs), np.full(len(gradients), -1)
    for volumes in group_by_b(gradients.b):
        b = np.median(gradients.b[volumes])
        nearest[volumes] = position = int(np.abs(known - b).argmin())
        if not same_b(b, known[position]):
            raise GradientTableError(
                f"coefficients are of {show_bs(bs)}, but the gradient table has {show_bs([b])}",
                remedy="project to b-values that were fitted",
            )
    return nearest
