"""Test whether a gradient table fits its image, by the coherence of fibres.

White matter runs in bundles, so the principal direction of a voxel points to neighbours whose
directions point back. A flipped or swapped axis of the table changes the directions but not the
voxels, which destroys this coherence. The tensor is fitted only once: a signed permutation of the
table permutes the fitted directions in the same way. All 24 tables with swapped and flipped axes
are tried (after Aganj 2018, Schilling et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from siteless.acquisition import Array, Scan, fsl_axes
from siteless.tissue import fit_tensor

_ANISOTROPIC = 0.25
_FLUID = 2e-3  # mm2/s
_ALIGNED = np.cos(np.deg2rad(30))
# Relative gain of coherence by another table before this one is called wrong. On whole brains the
# correct table always has the highest coherence; the margin is for noise.
_MARGIN = 1.02
_SIGMAS = 3.0
_AXES = "xyz"


@dataclass(frozen=True)
class AxisError:
    """A correction of b-vector components that makes a table fit its image.

    The order has the stored components to use for x, y and z; the sign of the flipped one, if any,
    then changes. The gain is the ratio of fibre coherence with and without the correction.
    """

    order: tuple[int, ...]
    flipped: int | None
    gain: float

    @property
    def matrix(self) -> Array:
        """Matrix from stored to corrected b-vectors, shape (3, 3)."""
        signs = np.ones(3)
        if self.flipped is not None:
            signs[self.flipped] = -1
        return signs[:, None] * np.eye(3)[list(self.order)]

    def __str__(self) -> str:
        moved = [_AXES[i] for i in range(3) if self.order[i] != i]
        problems = []
        if len(moved) == 2:
            problems.append(f"{' and '.join(moved)} are swapped")
        elif moved:
            stored = ", ".join(_AXES[self.order.index(i)] for i in range(3))
            problems.append(f"the components are stored in the order {stored}")
        if self.flipped is not None:
            problems.append(f"{_AXES[self.flipped]} has the wrong sign")
        return " and ".join(problems)

    @property
    def recipe(self) -> str:
        """Stored components, counted from 1, to write as x, y and z."""
        signs = ["-" if i == self.flipped else "" for i in range(3)]
        return ", ".join(f"{signs[i]}{self.order[i] + 1}" for i in range(3))


def find_axis_error(scan: Scan, axes: Array | None = None) -> AxisError | None:
    """Find the correction of b-vector axes, if any, that the fibres of a scan indicate.

    Axes are those of the stored table, as columns in world axes: by default those of a ``.bvec``
    file; the identity for a ``.b`` file.
    """
    changes = [
        AxisError(order, flipped, 1.0)
        for order, flipped in product(permutations(range(3)), (None, 0, 1, 2))
    ]
    scores, variances = np.zeros(len(changes)), np.zeros(len(changes))
    axes = fsl_axes(scan.affine) if axes is None else axes
    for first, second, step, weights in _neighbour_pairs(scan, axes):
        # A transformed direction is compared by transforming the step: (M d) . s = d . (M' s).
        steps = np.array([step @ change.matrix for change in changes])
        coherent = np.abs(steps @ first.T) > _ALIGNED
        coherent &= np.abs(steps @ second.T) > _ALIGNED
        scores += coherent @ weights
        variances += (coherent ^ coherent[0]) @ np.square(weights)
    best = int(np.argmax(scores))
    noise = np.sqrt(variances[best])
    if best == 0 or scores[best] < max(_MARGIN * scores[0], scores[0] + _SIGMAS * noise):
        return None
    gain = float(scores[best] / max(scores[0], 1e-12))
    return AxisError(changes[best].order, changes[best].flipped, gain)


def _neighbour_pairs(scan: Scan, axes: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Yield pairs of neighbouring anisotropic voxels for each step to a neighbour.

    Each item has both directions of the pairs, the step as a unit vector, and the pairs' weights;
    vectors are in the given axes.
    """
    tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
    anisotropic = (tensor.fa >= _ANISOTROPIC) & (tensor.md < _FLUID)
    row = np.full(np.array(scan.mask.shape) + 2, -1)
    z, y, x = (index[anisotropic] + 1 for index in np.nonzero(scan.mask.T))
    row[x, y, z] = np.arange(len(x))
    fa, directions = tensor.fa[anisotropic], tensor.principal[anisotropic] @ axes
    for i, j, k in (step for step in product((-1, 0, 1), repeat=3) if step > (0, 0, 0)):
        there = row[x + i, y + j, z + k]
        both = there >= 0
        step = scan.affine[:3, :3] @ [i, j, k] @ axes
        weights = np.minimum(fa[both], fa[there[both]])
        yield directions[both], directions[there[both]], step / np.linalg.norm(step), weights
