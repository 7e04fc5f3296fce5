import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import expm
from scipy.special import ive

from siteless.acquisition import Array
from siteless.neighbourhood import _neighbours, diffuse

VOXEL = np.array([2.0, 2.5, 3.0])


def _mask(seed: int = 0, shape: tuple[int, int, int] = (5, 4, 6)) -> Array:
    return np.random.default_rng(seed).random(shape) < 0.7


def _laplacian(mask: Array) -> Array:
    """Loop over pairs of face neighbours in a mask; voxels are ordered x fastest."""
    voxels = [tuple(xyz[::-1]) for xyz in np.argwhere(mask.T)]
    matrix = np.zeros((len(voxels), len(voxels)))
    for row, voxel in enumerate(voxels):
        for axis in range(3):
            for step in (-1, 1):
                near = tuple(np.add(voxel, step * np.eye(3, dtype=int)[axis]))
                if near in voxels:
                    matrix[row, voxels.index(near)] += 1 / VOXEL[axis] ** 2
                    matrix[row, row] -= 1 / VOXEL[axis] ** 2
    return matrix


LAPLACIANS = [(mask, _laplacian(mask)) for mask in map(_mask, range(4))]


@given(variance=st.floats(0.0, 30.0), which=st.sampled_from(LAPLACIANS))
def test_a_blur_is_the_exponential_of_the_laplacian(
    variance: float, which: tuple[Array, Array]
) -> None:
    mask, laplacian = which
    values = np.random.default_rng(1).normal(size=(mask.sum(), 3)).astype(np.float32)
    expected = expm(variance / 2 * laplacian) @ values
    np.testing.assert_allclose(diffuse(values, mask, VOXEL, variance), expected, atol=2e-5)


def test_channels_do_not_depend_on_how_they_are_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = _mask(2)
    values = np.random.default_rng(1).normal(size=(mask.sum(), 7)).astype(np.float32)
    whole = diffuse(values, mask, VOXEL, 3.0)
    monkeypatch.setattr(_neighbours, "_BLOCK_BYTES", 2 * values[:, 0].nbytes)
    np.testing.assert_allclose(diffuse(values, mask, VOXEL, 3.0), whole, atol=1e-6)


def test_nothing_is_left_of_an_empty_mask() -> None:
    values = np.empty((0, 4), dtype=np.float32)
    assert diffuse(values, np.zeros((3, 3, 3), dtype=bool), VOXEL, 3.0).shape == (0, 4)


@given(variance=st.floats(0.0, 30.0))
def test_sums_stay_whatever_the_mask(variance: float) -> None:
    mask = _mask(3)
    values = np.random.default_rng(2).random((mask.sum(), 2)).astype(np.float32)
    blurred = diffuse(values, mask, VOXEL, variance)
    np.testing.assert_allclose(blurred.sum(axis=0), values.sum(axis=0), rtol=1e-4)
    assert blurred.min() > -1e-4


def test_a_point_becomes_the_discrete_gaussian_of_the_variance_asked_for() -> None:
    mask = np.ones((21, 21, 21), dtype=bool)
    point = np.zeros((*mask.shape, 1), dtype=np.float32)
    point[10, 10, 10] = 1
    variance = 3.0
    blurred = diffuse(point.reshape(-1, 1, order="F"), mask, VOXEL, variance)
    grid = blurred.reshape(mask.shape, order="F")
    for axis, size in enumerate(VOXEL):
        profile = grid.sum(axis=tuple({0, 1, 2} - {axis}))
        steps = np.arange(-10, 11)
        np.testing.assert_allclose(profile, ive(np.abs(steps), variance / size**2), atol=1e-6)
        assert (profile * (steps * size) ** 2).sum() == pytest.approx(variance, rel=1e-4)


def test_variances_add_up() -> None:
    mask, values = _mask(5), np.random.default_rng(0).random((_mask(5).sum(), 4))
    values = values.astype(np.float32)
    twice = diffuse(diffuse(values, mask, VOXEL, 1.5), mask, VOXEL, 2.5)
    np.testing.assert_allclose(twice, diffuse(values, mask, VOXEL, 4.0), atol=1e-5)


def test_no_variance_changes_nothing() -> None:
    values = np.ones((_mask().sum(), 1), dtype=np.float32)
    assert diffuse(values, _mask(), VOXEL, 0.0) is values
