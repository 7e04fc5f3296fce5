"""Coefficients of a scan, and what can be computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from siteless.acquisition import Array, GradientTable, group_by_b, same_b
from siteless.errors import GradientTableError
from siteless.harmonics._basis import coefficient_orders, count_coefficients, sh_basis


@dataclass(frozen=True, eq=False, repr=False)
class Coefficients:
    """Mean b0 and each shell's harmonics, for the voxels of a mask.

    Attributes
    ----------
    values
        Shape (voxel, channel), float32. Channel 0 is the mean b0; then come the shells, each
        with `count_coefficients(order)` channels.
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
        expected = (np.count_nonzero(self.mask), 1 + len(self.bs) * count_coefficients(self.order))
        if self.values.shape != expected:
            raise ValueError(f"expected values of shape {expected}, got {self.values.shape}")

    @property
    def b0(self) -> Array:
        """Mean b0, shape (voxel,)."""
        return self.values[:, 0]

    def shell(self, index: int) -> Array:
        """Return the harmonics of one shell, shape (voxel, coefficient), without a copy."""
        count = count_coefficients(self.order)
        return self.values[:, 1 + index * count : 1 + (index + 1) * count]

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
    count = count_coefficients(order)
    mixing = np.zeros((1 + len(bs) * count, len(gradients)), dtype=np.float32)
    mixing[0, gradients.is_b0] = 1
    nearest = nearest_shells(gradients, bs)
    for index in range(len(bs)):
        volumes = np.flatnonzero(nearest == index)
        basis = sh_basis(gradients.directions[volumes], order)
        mixing[1 + index * count : 1 + (index + 1) * count, volumes] = basis.T
    return mixing


def rish(coefficients: Coefficients) -> Array:
    """Rotation-invariant energy of each shell and degree: the sum over m of c_lm squared.

    Returns
    -------
    Array
        Shape (voxel, shell, order / 2 + 1), float32.
    """
    return degree_energies(coefficients.values, coefficients.order)


def degree_energies(values: Array, order: int) -> Array:
    """Return `rish` of the channels of `Coefficients`, shape (voxel, channel), without a mask."""
    degrees = coefficient_orders(order)
    starts = np.flatnonzero(np.diff(degrees, prepend=-1))
    shells = values[:, 1:].reshape(len(values), -1, len(degrees))
    return np.add.reduceat(np.square(shells), starts, axis=2)


def amplitude_of_channels(order: int, shells: int) -> Array:
    """Return the amplitude that each channel follows, shape (channel,).

    Amplitudes are numbered: b0, then degrees 0 and 2 of each shell. Higher degrees follow the
    latter.

    Examples
    --------
    >>> amplitude_of_channels(2, shells=2)
    array([0, 1, 2, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4])
    """
    degrees = np.minimum(coefficient_orders(order) // 2, 1)
    first = 1 + 2 * np.arange(shells)
    return np.concatenate([[0], (first[:, None] + degrees).ravel()])


def mean_over_directions(squares: Array, shells: int) -> Array:
    """Return b0's square and each shell's mean square over all directions.

    The basis is orthonormal: the mean over the sphere is the sum over its 4 pi.

    Parameters
    ----------
    squares
        Of the channels of `Coefficients`, shape (voxel, channel).
    shells
        How many there are.

    Returns
    -------
    Array
        Shape (voxel, 1 + shell).
    """
    sums = squares[:, 1:].reshape(len(squares), shells, -1).sum(axis=2)
    return np.column_stack([squares[:, 0], sums / np.float32(4 * np.pi)])


def mean_channels(order: int, shells: int) -> Array:
    """Return the channels of b0 and of each shell's mean over directions, shape (1 + shell,).

    Examples
    --------
    >>> mean_channels(2, 2)
    array([0, 1, 7])
    """
    return np.array([0, *(1 + count_coefficients(order) * np.arange(shells))])


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
