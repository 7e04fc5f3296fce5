import numpy as np
import pytest
from hypothesis import given

from phantoms import make_gradients, spread_directions
from siteless.acquisition import Array, GradientTable, fsl_axes
from siteless.errors import GradientTableError
from strategies import affines


@given(affines())
def test_fsl_files_hold_the_same_table(affine: Array) -> None:
    table = make_gradients()
    again = GradientTable.from_fsl(*table.to_fsl(affine), affine)
    np.testing.assert_allclose(again.bvecs, table.bvecs, atol=1e-12)
    assert np.array_equal(again.bvals, table.bvals)


@given(affines())
def test_fsl_axes_follow_the_image_but_for_the_sign_of_x(affine: Array) -> None:
    columns = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    sign = -1 if np.linalg.det(affine[:3, :3]) > 0 else 1
    np.testing.assert_allclose(fsl_axes(affine), columns * [sign, 1, 1], atol=1e-12)


def test_lengths_are_kept_as_stored_and_directions_are_unit() -> None:
    stored = np.array([[0.1, 0, 0], [0, 0.445, 0.895]])
    table = GradientTable(np.array([0.003, 1500]), stored)
    assert np.array_equal(table.bvecs, stored)
    assert np.array_equal(table.directions[0], [0, 0, 0])
    assert np.linalg.norm(table.directions[1]) == pytest.approx(1)
    assert table.b[1] == 1500


def test_lengths_that_encode_b_are_understood() -> None:
    lengths = np.r_[0, np.full(20, np.sqrt(1 / 3)), np.full(30, 1.0)]
    vectors = (
        lengths[:, None] * np.r_[[[0, 0, 0]], spread_directions(20), spread_directions(30, 1)]
    )
    table = GradientTable(np.full(51, 3000.0), vectors)
    assert [(round(shell.b), len(shell)) for shell in table.shells] == [(1000, 20), (3000, 30)]
    assert table.is_b0.tolist() == [True] + [False] * 50


def test_lengths_beside_b_values_that_differ_are_refused_not_guessed() -> None:
    directions = np.r_[spread_directions(20) * np.sqrt(1 / 3), spread_directions(30, seed=1)]
    with pytest.raises(GradientTableError, match=r"length 1, found 0\.577"):
        GradientTable(np.repeat([1000.0, 3000.0], [20, 30]), directions)


def test_lengths_above_one_encode_nothing() -> None:
    directions = np.r_[spread_directions(20) * 0.5, spread_directions(30, seed=1) * 1.5]
    with pytest.raises(GradientTableError, match="length 1"):
        GradientTable(np.full(50, 3000.0), directions)


@pytest.mark.parametrize(
    ("affine", "stored", "world"),
    [
        # Components are along the image's axes, with the sign of x turned when det > 0 (FSL).
        (np.diag([2.0, 2, 2, 1]), [0.6, 0, 0.8], [-0.6, 0, 0.8]),
        (np.diag([-2.0, 2, 2, 1]), [0.6, 0, 0.8], [-0.6, 0, 0.8]),
        (np.diag([-2.0, -2, 2, 1]), [0.6, 0.8, 0], [0.6, -0.8, 0]),
        # Columns of the affine: image x runs along world y, image y along world x (det < 0).
        (np.eye(4)[[1, 0, 2, 3]], [0.6, 0, 0.8], [0, 0.6, 0.8]),
        # Image x along world y, y along z, z along x (det > 0).
        (np.eye(4)[[2, 0, 1, 3]], [0.6, 0.8, 0], [0, -0.6, 0.8]),
    ],
)
def test_fsl_vectors_by_hand(affine: Array, stored: list[float], world: list[float]) -> None:
    table = GradientTable.from_fsl([1000], [stored], affine)
    np.testing.assert_allclose(table.bvecs, [world], atol=1e-12)


@pytest.mark.parametrize("length", [0.3, 0.7, 2.0])
def test_one_vector_of_wrong_length_is_named(length: float) -> None:
    vectors = spread_directions(30)
    vectors[17] *= length
    with pytest.raises(GradientTableError, match=f"found {length:.3f} in volume 17"):
        GradientTable(np.full(30, 1000.0), vectors)


def test_all_vectors_of_wrong_length_are_refused() -> None:
    with pytest.raises(GradientTableError, match="volumes 0, 1, 2 and 27 more"):
        GradientTable(np.full(30, 1000.0), 0.5 * spread_directions(30))


@pytest.mark.parametrize(
    ("bvals", "bvecs", "message"),
    [
        (np.zeros(30), np.zeros((3, 30)), r"stored as \(3, volume\)"),
        (np.zeros(4), np.zeros((5, 3)), r"4 b-values need \(4, 3\) b-vectors, got \(5, 3\)"),
        ([0, -5], np.zeros((2, 3)), "got -5.0"),
        ([0, np.nan], np.zeros((2, 3)), "got nan"),
        ([0, 1000], np.zeros((2, 3)), "a b-vector of zero in volume 1 "),
        ([0, 1000], [[0, 0, 0], [np.nan, 0, 1]], "found NaN in the b-vector of volume 1 "),
        ([[0, 1000]], np.zeros((2, 3)), r"one row of numbers, got shape \(1, 2\)"),
    ],
)
def test_wrong_tables_are_refused_with_what_was_found(
    bvals: Array | list[float | list[int]], bvecs: Array | list[list[float]], message: str
) -> None:
    with pytest.raises(GradientTableError, match=message):
        GradientTable(np.array(bvals), np.array(bvecs))


def test_not_a_number_is_zero_at_b0() -> None:
    table = GradientTable(np.array([5, 1000]), np.array([[np.nan] * 3, [1, 0, 0]]))
    assert np.array_equal(table.bvecs[0], [0, 0, 0])


def test_tables_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make_gradients().bvals[0] = 1
