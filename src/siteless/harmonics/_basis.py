"""The real, even, orthonormal spherical harmonics, in MRtrix3's convention.

The function of degree l and phase m has index l(l + 1)/2 + m, and is sqrt(2) Im Y_l^|m| for
m < 0, Y_l^0 for m = 0 and sqrt(2) Re Y_l^m for m > 0. These are MRtrix3's coefficients, and DIPY's
``tournier07`` with ``legacy=False``; DIPY's ``convert_sh_descoteaux_tournier`` turns them into its
``descoteaux07``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import sph_harm_y

from siteless.acquisition import Array


def sh_basis(directions: ArrayLike, order: int) -> Array:
    """Evaluate the basis at unit vectors, (direction, 3); return (direction, coefficient).

    Examples
    --------
    >>> sh_basis([[0, 0, 1]], order=2).round(3) + 0.0
    array([[0.282, 0.   , 0.   , 0.631, 0.   , 0.   ]])
    """
    x, y, z = np.asarray(directions, dtype=float).T
    polar, azimuth = np.arctan2(np.hypot(x, y), z), np.arctan2(y, x)
    degrees = coefficient_orders(order)
    phases = np.arange(len(degrees)) - degrees * (degrees + 1) // 2
    complex_harmonics = sph_harm_y(degrees, np.abs(phases), polar[:, None], azimuth[:, None])
    real = np.where(phases < 0, complex_harmonics.imag, complex_harmonics.real)
    return real * np.where(phases == 0, 1.0, np.sqrt(2.0))


def count_coefficients(order: int) -> int:
    """Count the even harmonics up to an order.

    Examples
    --------
    >>> [count_coefficients(order) for order in (0, 2, 4, 6, 8)]
    [1, 6, 15, 28, 45]
    """
    if order < 0 or order % 2:
        raise ValueError(f"the order of an even basis is 0, 2, 4, ..., got {order}")
    return (order + 1) * (order + 2) // 2


def coefficient_orders(order: int) -> Array:
    """Return the degree l of each coefficient.

    Examples
    --------
    >>> coefficient_orders(2)
    array([0, 2, 2, 2, 2, 2])
    """
    count_coefficients(order)
    return np.concatenate([np.full(2 * degree + 1, degree) for degree in range(0, order + 1, 2)])


def max_order(directions: int) -> int:
    """Return the highest order that a number of directions supports.

    It needs at least two directions for every three coefficients; the penalty determines the rest.
    So 30 directions give order 8, as in the paper, and 12 give order 4.

    Examples
    --------
    >>> [max_order(count) for count in (6, 12, 20, 30, 60)]
    [2, 4, 6, 8, 10]
    """
    order = 0
    while 3 * directions >= 2 * count_coefficients(order + 2):
        order += 2
    return order
