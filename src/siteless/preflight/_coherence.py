"""Does a gradient table fit its image? Fibres tell.

White matter runs in bundles, so the principal direction of a voxel points to neighbours whose
directions point back. A table with a flipped or swapped axis turns every direction but leaves the
voxels where they are, and that agreement is lost. The tensor need only be fitted once: a signed
permutation of the table permutes the fitted directions in the same way. All 24
tables that differ by swapped and flipped axes are tried (after Aganj 2018, Schilling et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from siteless.acquisition import Array, Scan, fsl_axes
from siteless.tissue import fit_tensor

_ANISOTROPIC = 0.25
_FLUID = 2e-3  # mm2/s
_ALIGNED = np.cos(np.deg2rad(30))
# How much more coherent another table must make the fibres before this one is called wrong.
# Right tables are 1.1 times or more ahead of every other; the rest is margin for noise.
_MARGIN = 1.05
_SIGMAS = 4.0
_AXES = "xyz"


@dataclass(frozen=True)
class AxisError:
    """How the components of the b-vectors should be changed to fit the image.

    Attributes
    ----------
    order
        Component of the stored table to use for x, y and z.
    flipped
        Component whose sign then has to change; None when none has.
    gain
        Coherence of the fibres with the change, as a multiple of that without.
    """

    order: tuple[int, ...]
    flipped: int | None
    gain: float

    @property
    def matrix(self) -> Array:
        """From stored to right b-vectors, shape (3, 3)."""
        signs = np.ones(3)
        if self.flipped is not None:
            signs[self.flipped] = -1
        return signs[:, None] * np.eye(3)[list(self.order)]

    def __str__(self) -> str:
        moved = [_AXES[i] for i in range(3) if self.order[i] != i]
        told = []
        if len(moved) == 2:
            told.append(f"{' and '.join(moved)} are swapped")
        elif moved:
            stored = ", ".join(_AXES[self.order.index(i)] for i in range(3))
            told.append(f"the components are stored in the order {stored}")
        if self.flipped is not None:
            told.append(f"{_AXES[self.flipped]} has the wrong sign")
        return " and ".join(told)


def find_axis_error(scan: Scan) -> AxisError | None:
    """Find the change of b-vector axes, if any, that the fibres of a scan ask for.

    Axes are those of the ``.bvec`` file: the image's, with FSL's sign.
    """
    first, second, steps, weights = _neighbour_pairs(scan)
    changes = [
        AxisError(order, flipped, 1.0)
        for order, flipped in product(permutations(range(3)), (None, 0, 1, 2))
    ]
    coherent = np.array([_aligned(first, second, steps, change.matrix) for change in changes])
    scores = coherent @ weights
    best = int(np.argmax(scores))
    noise = np.sqrt(np.square(weights) @ (coherent[0] ^ coherent[best]))
    if best == 0 or scores[best] < max(_MARGIN * scores[0], scores[0] + _SIGMAS * noise):
        return None
    gain = float(scores[best] / max(scores[0], 1e-12))
    return AxisError(changes[best].order, changes[best].flipped, gain)


def _neighbour_pairs(scan: Scan) -> tuple[Array, Array, Array, Array]:
    """Return directions of neighbouring anisotropic voxels, the steps between, and weights."""
    tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
    flat = np.zeros(scan.mask.size)
    flat[scan.voxels] = np.where(tensor.md < _FLUID, tensor.fa, 0)
    fa = np.pad(flat.reshape(scan.mask.shape, order="F"), 1)
    to_table = fsl_axes(scan.affine)  # rows of world vectors @ this: components of a .bvec file
    directions = np.zeros((scan.mask.size, 3))
    directions[scan.voxels] = tensor.principal @ to_table
    directions = np.pad(
        directions.reshape(*scan.mask.shape, 3, order="F"), [(1, 1), (1, 1), (1, 1), (0, 0)]
    )
    inside = np.argwhere(fa >= _ANISOTROPIC)
    pairs = []
    for offset in (step for step in product((-1, 0, 1), repeat=3) if step > (0, 0, 0)):
        both = fa[tuple((inside + offset).T)] >= _ANISOTROPIC
        here, there = tuple(inside[both].T), tuple((inside[both] + offset).T)
        step = scan.affine[:3, :3] @ offset @ to_table
        steps = np.broadcast_to(step / np.linalg.norm(step), (both.sum(), 3))
        pairs.append((directions[here], directions[there], steps, np.minimum(fa[here], fa[there])))
    first, second, steps, weights = map(np.concatenate, zip(*pairs, strict=True))
    return first, second, steps, weights


def _aligned(first: Array, second: Array, steps: Array, change: Array) -> Array:
    """Which pairs of changed directions both point along the step between them."""
    turned = steps @ change  # (change d) . s = d . (change' s), and changing steps is cheaper
    along_first = np.abs(np.einsum("ij,ij->i", first, turned)) > _ALIGNED
    along_second = np.abs(np.einsum("ij,ij->i", second, turned)) > _ALIGNED
    return along_first & along_second
