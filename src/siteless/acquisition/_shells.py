"""Group b-values, as scanners actually write them, into shells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from siteless.acquisition._array import Array
from siteless.errors import NotShelledError

# s/mm2. Scanners store b0 as 0, 5, 1.25 or 0.003; clinical protocols have no shell this weak.
B0_LIMIT = 50.0
# The smallest model that a shell must support is a symmetric tensor, with six coefficients.
MIN_DIRECTIONS = 6


@dataclass(frozen=True, eq=False)
class Shell:
    """The volumes of a scan that share a b-value.

    Attributes
    ----------
    b
        Median b-value, s/mm2.
    volumes
        Indices of the shell's volumes in the scan, ascending.
    """

    b: float
    volumes: Array

    def __len__(self) -> int:
        return len(self.volumes)

    def __str__(self) -> str:
        return f"b={self.b:.0f}"


def find_shells(b: ArrayLike, directions: ArrayLike) -> tuple[Shell, ...]:
    """Group diffusion-weighted volumes by b-value; an error if they do not form shells.

    Neighbours in the sorted b-values belong together when `same_b` holds, so a shell stored as
    985, 990, ... 1010 is one shell, while 1000 and 1200 are two. Directions are unit vectors,
    shape (volume, 3), in any axes.

    Examples
    --------
    >>> axes = np.vstack([np.zeros(3), np.eye(3), [[0.6, 0.8, 0], [0.6, 0, 0.8], [0, 0.6, 0.8]]])
    >>> [shell] = find_shells([1.25, 995, 1000, 1005, 990, 1000, 1010], axes)
    >>> print(shell, len(shell))
    b=1000 6
    """
    b = np.asarray(b, dtype=float)
    directions = np.asarray(directions, dtype=float)
    groups = group_by_b(b)
    # In a Cartesian grid some b-values have only three or four axes, others many.
    thin = [group for group in groups if count_axes(directions[group]) < MIN_DIRECTIONS]
    wide = [group for group in groups if np.ptp(b[group]) > max(60.0, 0.15 * b[group].max())]
    if wide or (len(thin) >= 2 and (len(thin) > len(groups) / 2 or len(groups) >= 5)):
        weighted = b[b > B0_LIMIT]
        raise NotShelledError(
            f"expected b-values on a few shells, found {len(weighted)} volumes spread over "
            f"{len(np.unique(weighted.round()))} b-values from {weighted.min():.0f} to "
            f"{weighted.max():.0f}",
            remedy="Cartesian, DSI and free schemes are not supported; leave the scan out, or "
            "keep only volumes on shells",
        )
    return tuple(Shell(float(np.median(b[group])), np.sort(group)) for group in groups)


def group_by_b(b: Array) -> list[Array]:
    """Return the indices of the diffusion-weighted volumes, grouped by ascending b-value."""
    weighted = np.flatnonzero(b > B0_LIMIT)
    ascending = weighted[np.argsort(b[weighted], kind="stable")]
    gaps = ~same_b(b[ascending[:-1]], b[ascending[1:]])
    return np.split(ascending, np.flatnonzero(gaps) + 1) if len(ascending) else []


def same_b(first: ArrayLike, second: ArrayLike) -> Array:
    """Whether two b-values are close enough to belong to one shell.

    Examples
    --------
    >>> bool(same_b(1985, 2010)), bool(same_b(1000, 1200))
    (True, False)
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    return np.abs(first - second) <= np.maximum(30.0, 0.06 * np.maximum(first, second))


def same_shells(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two sets of shells have the same nominal b-values."""
    return len(first) == len(second) and bool(same_b(first, second).all())


def show_bs(bs: Iterable[float]) -> str:
    """Format b-values for messages."""
    return ", ".join(f"b={b:.0f}" for b in bs) or "b0 only"


def describe_shells(shells: Sequence[Shell]) -> str:
    """Describe shells, for example as ``b=1200 x 30, b=3000 x 60``."""
    return ", ".join(f"{shell} x {len(shell)}" for shell in shells) or "b0 only"


def count_axes(directions: Array) -> int:
    """Count axes that differ by more than 5 degrees; opposite directions share an axis."""
    close = np.abs(directions @ directions.T) > np.cos(np.deg2rad(5))
    return len(np.unique(close.argmax(axis=1)))
