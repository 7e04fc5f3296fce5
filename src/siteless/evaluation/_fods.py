"""Inputs and outputs of spherical deconvolution, for any engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from siteless.acquisition import Array, GradientTable

# lmax of FODs, and number of maxima of each.
ORDER, MAXIMA = 8, 3


@dataclass(frozen=True, eq=False)
class Responses:
    """Response functions of tissues, for any scan with the same shells."""

    engine: str  # that estimated them, as named by `find_engine`
    b: tuple[int, ...]  # b-values, ascending, the first 0; s/mm2
    # Zonal harmonics of a single fibre along z, degrees 0, 2, ... 8, shape (b, 5), in the units of
    # the signal; and harmonics of degree 0, shape (b,).
    white: Array
    grey: Array
    fluid: Array


@dataclass(frozen=True, eq=False)
class Fods:
    """Fibre orientation distributions of white matter.

    Attributes
    ----------
    coefficients
        Spherical harmonics, shape (voxel, 45), in MRtrix3's basis and world axes.
    peaks
        Up to three maxima of positive amplitude, shape (voxel, 3, 3): unit vectors in world axes
        times the amplitude, the largest first, zero where there are fewer.
    """

    coefficients: Array
    peaks: Array


def idealised_table(gradients: GradientTable, b: tuple[int, ...]) -> Array:
    """Return rows of x y z b in world axes, with the b-value of its shell for every volume.

    Engines group b-values differently; these are grouped like the shells of siteless.
    """
    table = np.hstack([gradients.directions, np.zeros((len(gradients), 1))])
    for shell, value in zip(gradients.shells, b[1:], strict=True):
        table[shell.volumes, 3] = value
    return table


def in_words(b: tuple[int, ...]) -> str:
    return ", ".join(f"b={value}" for value in b[1:])
