"""Coefficients of a scan, and what can be computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from siteless.acquisition import Array, GradientTable, group_by_b, same_b
from siteless.errors import GradientTableError
from siteless.harmonics._basis import sh_basis
from siteless.harmonics._channels import Channels


@dataclass(frozen=True, eq=False, repr=False)
class Coefficients:
    """Mean b0 and each shell's harmonics, for the voxels of a mask.

    Attributes
    ----------
    values
        Shape (voxel, channel), float32; the channels are those of `Channels`.
    mask
        Where the voxels are, shape (x, y, z). Voxels follow the order of NIfTI files, x fastest.
    bs
        b-value of each shell, ascending, s/mm2.
    order
        Highest degree of the harmonics, the same for every shell.
    penalties
        Laplace-Beltrami weight that each shell was fitted with; 0 for the pseudo-inverse.
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
        """Which channel is what."""
        return Channels(self.order, len(self.bs))

    @property
    def b0(self) -> Array:
        """Mean b0, shape (voxel,)."""
        return self.values[:, 0]

    def shell(self, index: int) -> Array:
        """Return the harmonics of one shell, shape (voxel, coefficient), without a copy."""
        return self.values[:, self.channels.shell(index)]

    def on_grid(self, values: Array) -> Array:
        """Put per-voxel values, shape (voxel, ...), on the image grid, zero outside the mask."""
        flat = np.zeros((self.mask.size, *values.shape[1:]), dtype=values.dtype)
        flat[np.flatnonzero(self.mask.T)] = values
        grid = flat.reshape(*self.mask.shape[::-1], *values.shape[1:])
        return grid.swapaxes(0, 2)  # z y x ... -> x y z ...


def project(coefficients: Coefficients, gradients: GradientTable) -> Array:
    """Evaluate coefficients at b-vectors.

    b0 volumes are the mean b0, passed through.

    Returns
    -------
    Array
        Shape (voxel, volume), float32.

    Raises
    ------
    GradientTableError
        When the table has a shell that the coefficients do not.
    """
    mixing = projection_matrix(gradients, bs=coefficients.bs, order=coefficients.order)
    return coefficients.values @ mixing


def projection_matrix(gradients: GradientTable, *, bs: Sequence[float], order: int) -> Array:
    """Return the matrix from the channels of `Coefficients` to the volumes of a gradient table.

    Returns
    -------
    Array
        Shape (channel, volume), float32.

    Raises
    ------
    GradientTableError
        When the table has a shell that the coefficients do not.
    """
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
    """Return the position in `bs` of the shell that each volume belongs to, and -1 for b0.

    Shells are compared by their medians: single volumes of a shell scatter more.
    """
    known, nearest = np.array(bs), np.full(len(gradients), -1)
    for volumes in group_by_b(gradients.b):
        b = np.median(gradients.b[volumes])
        nearest[volumes] = position = int(np.abs(known - b).argmin())
        if not same_b(b, known[position]):
            raise GradientTableError(
                f"coefficients are of {', '.join(f'b={b:.0f}' for b in known)}, but the gradient "
                f"table has b={b:.0f}",
                remedy="project to b-values that were fitted",
            )
    return nearest
