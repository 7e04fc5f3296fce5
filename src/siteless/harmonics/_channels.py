"""The layout of coefficient channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from siteless.acquisition import Array
from siteless.harmonics._basis import coefficient_orders, count_coefficients


@dataclass(frozen=True)
class Channels:
    """Channel layout: the mean b0, followed by the harmonics of each shell up to an order.

    Examples
    --------
    >>> channels = Channels(order=2, shells=2)
    >>> channels.count, channels.means
    (13, array([0, 1, 7]))
    >>> channels.shell(1)
    slice(7, 13, None)
    """

    order: int
    shells: int

    @classmethod
    def of(cls, values: Array, order: int) -> Self:
        """Infer the channels from the last axis of values."""
        return cls(order, (values.shape[-1] - 1) // count_coefficients(order))

    @property
    def count(self) -> int:
        """Total number of channels."""
        return 1 + self.shells * count_coefficients(self.order)

    def shell(self, index: int) -> slice:
        """Return the channels of a shell."""
        size = count_coefficients(self.order)
        return slice(1 + index * size, 1 + (index + 1) * size)

    @cached_property
    def degrees(self) -> Array:
        """Degree of each channel, 0 for b0, shape (channel,)."""
        return np.concatenate([[0], np.tile(coefficient_orders(self.order), self.shells)])

    @property
    def means(self) -> Array:
        """Channels of b0 and of each shell's mean over directions, shape (1 + shell,)."""
        return np.flatnonzero(self.degrees == 0)

    @property
    def amplitudes(self) -> Array:
        """Index of the amplitude that scales each channel, shape (channel,).

        Amplitudes are b0, then degrees 0 and 2 of each shell. Higher degrees follow degree 2.

        Examples
        --------
        >>> Channels(2, 2).amplitudes
        array([0, 1, 2, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4])
        """
        first = 1 + 2 * np.repeat(np.arange(self.shells), count_coefficients(self.order))
        return np.concatenate([[0], first + np.minimum(self.degrees[1:] // 2, 1)])

    def spread_degrees(self, factors: Array) -> Array:
        """Repeat factors, (..., 1 + shell * degree), for all channels, (..., channel).

        They are the factors of b0 and of each shell's degrees.
        """
        sizes = [1, *[2 * degree + 1 for degree in range(0, self.order + 1, 2)] * self.shells]
        return np.repeat(factors, sizes, axis=-1)

    def energies(self, values: Array) -> Array:
        """Return the sum of squares of each shell and degree, shape (voxel, shell, degree)."""
        degrees = coefficient_orders(self.order)
        starts = np.flatnonzero(np.diff(degrees, prepend=-1))
        shells = values[:, 1:].reshape(len(values), -1, len(degrees))
        return np.add.reduceat(np.square(shells), starts, axis=2)

    def mean_squares(self, squares: Array) -> Array:
        """Return b0's square and each shell's mean square over directions, (voxel, 1 + shell).

        They follow from the squares of the channels, (voxel, channel): as the basis is
        orthonormal, the mean over the sphere is the sum divided by 4 pi.
        """
        sums = squares[:, 1:].reshape(len(squares), self.shells, -1).sum(axis=2)
        return np.column_stack([squares[:, 0], sums / np.float32(4 * np.pi)])
