"""b-values as the scanner wrote them, and b-vectors in scanner axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from siteless.acquisition._array import Array
from siteless.acquisition._shells import (
    B0_LIMIT,
    MIN_DIRECTIONS,
    Shell,
    describe_shells,
    find_shells,
    group_by_b,
    same_b,
)
from siteless.errors import GradientTableError

# A rounded unit vector may differ from length 1 by this much.
LENGTH_TOLERANCE = 0.05


@dataclass(frozen=True, eq=False)
class GradientTable:
    """One b-value and one b-vector per volume, in world (scanner, RAS+) axes.

    The stored numbers are kept, so that a table is written as it was read; `b`, `directions` and
    `shells` interpret them.

    Parameters
    ----------
    bvals
        Stored b-values, shape (volume,), s/mm2.
    bvecs
        Stored b-vectors, shape (volume, 3), in world axes. NaN becomes zero at b0.

    Examples
    --------
    >>> table = GradientTable([0, 1000], [[np.nan] * 3, [0, 0, 0.999]])
    >>> table.directions
    array([[0., 0., 0.],
           [0., 0., 1.]])
    """

    bvals: Array
    bvecs: Array

    def __post_init__(self) -> None:
        bvals = np.array(self.bvals, dtype=float, ndmin=1)
        bvecs = np.array(self.bvecs, dtype=float, ndmin=2)
        _require_shapes(bvals, bvecs)
        weak = bvals <= B0_LIMIT
        bvecs[weak] = np.nan_to_num(bvecs[weak], nan=0.0, posinf=0.0, neginf=0.0)
        _require_finite(bvals, bvecs)
        for name, values in (("bvals", bvals), ("bvecs", bvecs)):
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        if not self._is_scaled:
            _require_unit_length(bvals, self._lengths)

    @classmethod
    def from_fsl(cls, bvals: ArrayLike, bvecs: ArrayLike, affine: ArrayLike) -> Self:
        """Convert b-vectors along the image axes, x flipped when det(affine) > 0 (FSL, BIDS).

        Parameters
        ----------
        bvals
            Shape (volume,).
        bvecs
            Shape (volume, 3).
        affine
            The image's voxel-to-world matrix, shape (4, 4).
        """
        bvals, bvecs = np.asarray(bvals), np.asarray(bvecs, dtype=float)
        _require_shapes(bvals, bvecs)
        return cls(bvals, bvecs @ fsl_axes(affine).T)

    @classmethod
    def from_mrtrix(cls, table: ArrayLike) -> Self:
        """Convert rows of x y z b in world axes, as in MRtrix3's and QSIPrep's ``.b`` files."""
        table = np.asarray(table, dtype=float)
        if table.ndim != 2 or table.shape[1] != 4:
            raise GradientTableError(
                f"an MRtrix gradient table has 4 columns (x y z b), got shape {table.shape}",
                remedy="export it again with mrinfo -export_grad_mrtrix",
            )
        return cls(table[:, 3], table[:, :3])

    def to_fsl(self, affine: ArrayLike) -> tuple[Array, Array]:
        """Return b-values (volume,) and b-vectors (volume, 3) in the convention of `from_fsl`."""
        return self.bvals, self.bvecs @ fsl_axes(affine)

    def __len__(self) -> int:
        return len(self.bvals)

    def __str__(self) -> str:
        return f"{int(self.is_b0.sum())} b0, {describe_shells(self.shells)}"

    @cached_property
    def _lengths(self) -> Array:
        return np.linalg.norm(self.bvecs, axis=1)

    @cached_property
    def _is_scaled(self) -> bool:
        """Whether b-vector lengths encode b-values, as some scanners store several shells.

        They then store the largest b for every volume and shorten the vector, so that b = stored b
        x length^2. A stray short vector does not count: every resulting b-value must have enough
        directions for a shell.
        """
        weighted = self.bvals > B0_LIMIT
        stored, lengths = self.bvals[weighted], self._lengths[weighted]
        if not len(stored) or not same_b(stored.min(), stored.max()):
            return False
        short = lengths < 1 - LENGTH_TOLERANCE
        some = (short & (lengths > 0)).any() and not short.all()
        if not some or lengths.max() > 1 + LENGTH_TOLERANCE:
            return False
        groups = group_by_b(self.bvals * self._lengths**2)
        return all(len(group) >= MIN_DIRECTIONS for group in groups)

    @cached_property
    def b(self) -> Array:
        """Effective b-values, shape (volume,), s/mm2."""
        return self.bvals * self._lengths**2 if self._is_scaled else self.bvals

    @cached_property
    def is_b0(self) -> Array:
        """Which volumes are not diffusion-weighted, shape (volume,)."""
        return self.b <= B0_LIMIT

    @cached_property
    def directions(self) -> Array:
        """Unit vectors in world axes, zero at b0, shape (volume, 3)."""
        lengths = np.where(self.is_b0, np.inf, self._lengths)
        return self.bvecs / lengths[:, None]

    @cached_property
    def shells(self) -> tuple[Shell, ...]:
        """Shells of the diffusion-weighted volumes, by ascending b-value.

        Raises
        ------
        NotShelledError
            When the b-values do not lie on a few shells.
        """
        return find_shells(self.b, self.directions)


def fsl_axes(affine: ArrayLike) -> Array:
    """Return the axes of an FSL b-vector as unit vectors in world axes, columns of (3, 3).

    They are the image axes, with the first one reversed when det(affine) > 0. The orthogonal
    matrix nearest to the affine is used (by polar decomposition), so that slight shear in a header
    does not distort directions.

    Examples
    --------
    >>> fsl_axes(np.diag([2.0, 2, 3, 1])).round(12) + 0.0
    array([[-1.,  0.,  0.],
           [ 0.,  1.,  0.],
           [ 0.,  0.,  1.]])
    """
    matrix = np.asarray(affine, dtype=float)[:3, :3]
    u, _, vh = np.linalg.svd(matrix / np.linalg.norm(matrix, axis=0))
    axes = u @ vh
    return axes * [-1, 1, 1] if np.linalg.det(axes) > 0 else axes


def _require_shapes(bvals: Array, bvecs: Array) -> None:
    if bvals.ndim != 1:
        raise GradientTableError(
            f"b-values are one row of numbers, got shape {bvals.shape}",
            remedy="a BIDS .bval file holds one line",
        )
    if bvecs.shape != (len(bvals), 3):
        hint = "a BIDS .bvec file is stored as (3, volume)"
        raise GradientTableError(
            f"{len(bvals)} b-values need ({len(bvals)}, 3) b-vectors, got {bvecs.shape}",
            remedy=hint if bvecs.shape == (3, len(bvals)) else "convert the scan again",
        )


def _require_finite(bvals: Array, bvecs: Array) -> None:
    wrong = bvals[~(np.isfinite(bvals) & (bvals >= 0))]
    if len(wrong):
        raise GradientTableError(
            f"b-values must be finite and not negative, got {wrong[0]}",
            remedy="correct the .bval file",
        )
    rows = np.flatnonzero(~np.isfinite(bvecs).all(axis=1))
    if len(rows):
        raise GradientTableError(
            f"expected numbers at b={bvals[rows[0]]:.0f}, found NaN in the b-vector of "
            f"{_volumes(rows)}",
            remedy="correct the .bvec file or remove the volume",
        )


def _require_unit_length(bvals: Array, lengths: Array) -> None:
    wrong = np.flatnonzero((bvals > B0_LIMIT) & (np.abs(lengths - 1) > LENGTH_TOLERANCE))
    if len(wrong) and (lengths[wrong] == 0).all():
        raise GradientTableError(
            f"expected a direction at b={bvals[wrong[0]]:.0f}, found a b-vector of zero in "
            f"{_volumes(wrong)}",
            remedy="remove trace or ADC volumes that the scanner added; a b0 has b <= "
            f"{B0_LIMIT:.0f}",
        )
    if len(wrong):
        raise GradientTableError(
            f"expected b-vectors of length 1, found {lengths[wrong[0]]:.3f} in {_volumes(wrong)}",
            remedy="correct the .bvec file",
        )


def _volumes(indices: Array) -> str:
    """Name volumes without listing hundreds."""
    shown = ", ".join(str(index) for index in indices[:3])
    more = f" and {len(indices) - 3} more" if len(indices) > 3 else ""
    return f"volume{'s' * (len(indices) > 1)} {shown}{more} (counted from 0)"
