"""Fit the diffusion tensor by log-linear least squares."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from siteless.acquisition import MIN_DIRECTIONS, Array, GradientTable
from siteless.errors import GradientTableError

# s/mm2. At higher b-values kurtosis biases the tensor.
TENSOR_LIMIT = 1300.0
_BLOCK = 16_384


@dataclass(frozen=True, eq=False)
class Tensor:
    """Eigenvalues and principal direction of many voxels."""

    # Shape (voxel, 3), ascending, mm2/s; negative ones are set to zero.
    eigenvalues: Array
    # Unit vector of the largest eigenvalue, in the axes of the gradient table, (voxel, 3).
    principal: Array

    @cached_property
    def md(self) -> Array:
        """Mean diffusivity, shape (voxel,), mm2/s."""
        return self.eigenvalues.mean(axis=1)

    @cached_property
    def fa(self) -> Array:
        """Fractional anisotropy, shape (voxel,), between 0 and 1."""
        size = np.square(self.eigenvalues).sum(axis=1)
        deviation = np.square(self.eigenvalues - self.md[:, None]).sum(axis=1)
        return np.sqrt(1.5 * np.divide(deviation, size, out=np.zeros_like(size), where=size > 0))


def fit_tensor(volumes: Array, voxels: Array, gradients: GradientTable) -> Tensor:
    """Fit a tensor to some voxels of `volumes`, which are shaped (volume, voxel) as in `Scan`.

    The fit uses b0 and the shells up to 1300 s/mm2, or the weakest shell if all are above.
    """
    used = _tensor_volumes(gradients)
    inverse = np.linalg.pinv(_design(gradients.b[used], gradients.directions[used]))
    eigenvalues, principal = np.empty((len(voxels), 3)), np.empty((len(voxels), 3))
    for start in range(0, len(voxels), _BLOCK):
        block = slice(start, start + _BLOCK)
        signal = volumes[np.ix_(used, voxels[block])].astype(float)
        floor = np.maximum(1e-3 * signal.max(axis=0), np.finfo(np.float32).tiny)
        xx, yy, zz, xy, xz, yz = (inverse @ np.log(np.maximum(signal, floor)))[:6]
        matrices = np.stack([xx, xy, xz, xy, yy, yz, xz, yz, zz], axis=-1).reshape(-1, 3, 3)
        values, vectors = np.linalg.eigh(matrices)
        eigenvalues[block], principal[block] = np.maximum(values, 0), vectors[:, :, 2]
    return Tensor(eigenvalues, principal)


def _tensor_volumes(gradients: GradientTable) -> Array:
    shells = [shell for shell in gradients.shells if len(shell) >= MIN_DIRECTIONS]
    if not shells or not gradients.is_b0.any():
        raise GradientTableError(
            f"a tensor needs a b0 and a shell of at least {MIN_DIRECTIONS} directions, "
            f"found {gradients}",
            remedy="leave the scan out",
        )
    chosen = [shell for shell in shells if shell.b <= TENSOR_LIMIT] or shells[:1]
    weighted = np.concatenate([shell.volumes for shell in chosen])
    return np.concatenate([np.flatnonzero(gradients.is_b0), weighted])


def _design(b: Array, directions: Array) -> Array:
    """Return the linear model of the log signal: six tensor elements and log b0."""
    x, y, z = directions.T
    products = np.stack([x * x, y * y, z * z, 2 * x * y, 2 * x * z, 2 * y * z], axis=1)
    return np.hstack([-b[:, None] * products, np.ones((len(b), 1))])
