"""Registration laws, on a head of blobs whose every point is known in the world."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage
from scipy.spatial.transform import Rotation

from siteless.acquisition import Array
from siteless.errors import SitelessError
from siteless.registration import (
    Alignment,
    Grid,
    correlation,
    overlap,
    register,
    register_affine,
    resample_grid,
)

VOXEL = 4.0
SEMIAXES = np.array([48.0, 60.0, 42.0])


def make_grid(
    shape: tuple[int, int, int] = (34, 40, 30),
    voxels: tuple[float, float, float] = (VOXEL, VOXEL, VOXEL),
    turn: tuple[int, int, int] = (0, 0, 0),
    centre: Array | tuple[int, int, int] = (0, 0, 0),
) -> Grid:
    """Make a grid around a centre (mm), turned by angles in degrees; negative voxels flip."""
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", turn, degrees=True).as_matrix() * voxels
    affine[:3, 3] = np.array(centre) - affine[:3, :3] @ (np.array(shape) - 1) / 2
    return Grid(shape, affine)


def centres(grid: Grid) -> Array:
    return np.moveaxis(np.indices(grid.shape), 0, -1) @ grid.affine[:3, :3].T + grid.affine[:3, 3]


def head(points: Array) -> Array:
    """Intensity of an asymmetric head at points (mm), shape (..., 3): rim, core and blobs."""
    depth = np.linalg.norm(points / SEMIAXES, axis=-1)
    inside = 1 / (1 + np.exp((depth - 1) / 0.03))
    blobs = np.random.default_rng(5).uniform(-0.6, 0.6, size=(14, 3)) * SEMIAXES
    heights = np.linspace(0.4, -0.45, len(blobs))
    distance = np.linalg.norm(points[..., None, :] - blobs, axis=-1)
    return inside * (0.5 + np.exp(-0.5 * np.square(distance / 9.0)) @ heights)


def draw(grid: Grid, to_head: Callable[[Array], Array] = lambda points: points) -> Array:
    """Draw the head as it is seen after points of the grid's world are mapped to the head's."""
    image = head(to_head(centres(grid)))
    return np.where(image > 0.02, image, 0).astype(np.float32)


def linear(matrix: Array, shift: Array | list[float]) -> Callable[[Array], Array]:
    return lambda points: points @ np.asarray(matrix).T + shift


def mean_error(alignment: Alignment, grid: Grid, expected: Callable[[Array], Array]) -> float:
    """Mean distance (mm), in the head, of where static points go and where they should."""
    points = centres(grid)[head(centres(grid)) > 0.1].T
    return np.linalg.norm(alignment.points_in_moving(points) - expected(points.T).T, axis=0).mean()


TURN = Rotation.from_euler("xyz", [9, -7, 12], degrees=True).as_matrix()
STRETCH = TURN @ np.array([[1.1, 0.04, 0], [0, 0.93, -0.03], [0.02, 0, 1.05]])
SHIFT = np.array([11.0, -8.0, 14.0])


@pytest.mark.parametrize("matrix", [TURN, STRETCH], ids=["rigid", "affine"])
@pytest.mark.parametrize(
    "moving_grid",
    [
        make_grid(centre=SHIFT),
        make_grid(voxels=(-VOXEL, VOXEL, VOXEL), centre=SHIFT),
        make_grid((60, 52, 32), voxels=(2.6, -3.1, 5.0), turn=(12, 20, -15), centre=SHIFT),
    ],
    ids=["same", "flipped", "anisotropic-oblique"],
)
def test_a_moved_head_is_brought_back(matrix: Array, moving_grid: Grid) -> None:
    static_grid = make_grid()
    inverse = np.linalg.inv(matrix)
    moving = draw(moving_grid, lambda points: (points - SHIFT) @ inverse.T)
    alignment = register_affine(moving, moving_grid, draw(static_grid), static_grid)
    assert mean_error(alignment, static_grid, lambda points: points) > 2 * VOXEL
    assert mean_error(alignment, static_grid, linear(matrix, SHIFT)) < 0.25 * VOXEL


def test_the_worlds_origin_does_not_matter() -> None:
    near, far = make_grid(), make_grid(centre=(300, -500, 200))
    moving, shift = draw(near, linear(TURN, [0, 0, 0])), far.affine[:3, 3] - near.affine[:3, 3]
    expected = register_affine(moving, near, draw(near), near)
    alignment = register_affine(moving, far, draw(near), near)
    np.testing.assert_allclose(alignment.affine[:3, :3], expected.affine[:3, :3], atol=1e-3)
    np.testing.assert_allclose(alignment.affine[:3, 3], expected.affine[:3, 3] + shift, atol=0.05)


def bend(points: Array) -> Array:
    """Displace smoothly by up to 8 mm."""
    x, y, z = np.moveaxis(points, -1, 0) / 25
    return points + 8 * np.stack(
        [np.sin(y) * np.cos(z), np.sin(z), np.cos(x) * np.sin(y)], axis=-1
    )


@pytest.fixture(scope="module")
def bent() -> tuple[Array, Array, Alignment, Alignment]:
    """The head and a bent one on other voxels, with the affine and the smooth alignment."""
    static_grid = make_grid()
    moving_grid = make_grid((44, 48, 36), voxels=(-3.2, 3.5, 3.8), turn=(5, 0, 10))
    moving, static = draw(moving_grid, bend), draw(static_grid)
    arguments = (moving, moving_grid, static, static_grid)
    return moving, static, register_affine(*arguments), register(*arguments)


def test_a_bent_head_is_straightened(bent: tuple[Array, Array, Alignment, Alignment]) -> None:
    moving, static, affine, smooth = bent
    inside, blobs = static > 0.1, static > 0.6
    before = Alignment(affine.moving, affine.static)
    scores = [correlation(a.to_static(moving), static, inside) for a in (before, affine, smooth)]
    overlaps = [overlap(a.to_static(moving) > 0.6, blobs) for a in (before, affine, smooth)]
    assert scores[0] < scores[1] < scores[2]
    assert overlaps[0] < overlaps[2]
    assert scores[2] > 0.97
    assert overlaps[2] > 0.85


def test_points_follow_the_bend(bent: tuple[Array, Array, Alignment, Alignment]) -> None:
    _, static, affine, smooth = bent
    points = centres(smooth.static)[static > 0.1]
    normal = points / SEMIAXES**2
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    # The rim beyond the blobs is bare: the image does not show how points slide along it.
    marked = np.linalg.norm(points / SEMIAXES, axis=1) < 0.8
    misses = [bend(a.points_in_moving(points.T).T) - points for a in (affine, smooth)]
    inner = [np.linalg.norm(miss[marked], axis=1).mean() for miss in misses]
    across = [np.abs(np.sum(miss * normal, axis=1)).mean() for miss in misses]
    assert inner[1] < 0.25 * VOXEL < 0.5 * inner[0]
    assert across[1] < 0.15 * VOXEL < 0.5 * across[0]


def test_an_alignment_comes_back_from_its_arrays(
    bent: tuple[Array, Array, Alignment, Alignment],
) -> None:
    *_, alignment = bent
    back = Alignment.from_arrays(alignment.moving, alignment.static, alignment.arrays)
    points = np.random.default_rng(0).uniform(-30, 30, size=(3, 50))
    np.testing.assert_array_equal(
        back.points_in_moving(points), alignment.points_in_moving(points)
    )
    np.testing.assert_array_equal(
        back.points_in_static(points), alignment.points_in_static(points)
    )


def test_to_moving_undoes_to_static(bent: tuple[Array, Array, Alignment, Alignment]) -> None:
    _, _, _, smooth = bent
    x, y, z = np.moveaxis(centres(smooth.moving), -1, 0)
    values = np.stack([np.sin(x / 40) + y / 60, np.cos(z / 30)], axis=-1).astype(np.float32)
    inside = np.linalg.norm(centres(smooth.moving) / SEMIAXES, axis=-1) < 0.9
    back = smooth.to_moving(smooth.to_static(values))
    assert back.shape == values.shape
    assert np.abs(back - values)[inside].mean() < 0.01
    assert np.abs(back - values)[inside].max() < 0.1


def test_points_return_where_they_were(bent: tuple[Array, Array, Alignment, Alignment]) -> None:
    _, static, _, smooth = bent
    points = centres(smooth.static)[static > 0.1].T
    back = smooth.points_in_static(smooth.points_in_moving(points))
    assert np.linalg.norm(back - points, axis=0).mean() < 0.1 * VOXEL


def test_what_is_constant_stays_so_inside_and_is_zero_beyond(
    bent: tuple[Array, Array, Alignment, Alignment],
) -> None:
    _, static, _, smooth = bent
    constant = smooth.to_static(np.full(smooth.moving.shape, 3.0, dtype=np.float32))
    assert constant.dtype == np.float32
    np.testing.assert_allclose(constant[static > 0.1], 3, rtol=1e-6)
    far = make_grid(centre=(1000, 0, 0))
    assert not Alignment(smooth.moving, far).to_static(np.ones(smooth.moving.shape)).any()


def test_features_are_moved_one_by_one(bent: tuple[Array, Array, Alignment, Alignment]) -> None:
    moving, _, _, smooth = bent
    stacked = smooth.to_static(np.stack([moving, moving**2], axis=-1))
    np.testing.assert_array_equal(stacked[..., 0], smooth.to_static(moving))
    np.testing.assert_array_equal(stacked[..., 1], smooth.to_static(moving**2))


def test_place_interpolates_at_world_coordinates() -> None:
    moving = make_grid((9, 8, 7), voxels=(-2, 2, 3), turn=(10, 20, 30))
    static = make_grid((12, 11, 10), voxels=(1.5, 1.5, 1.5), turn=(0, -5, 0), centre=(2, 1, 0))
    values = np.random.default_rng(0).normal(size=moving.shape).astype(np.float32)
    inverse = np.linalg.inv(moving.affine)
    voxels = centres(static) @ inverse[:3, :3].T + inverse[:3, 3]
    expected = ndimage.map_coordinates(
        values, np.moveaxis(voxels, -1, 0), order=1, mode="grid-constant"
    )
    np.testing.assert_allclose(Alignment(moving, static).to_static(values), expected, atol=1e-6)
    assert np.ptp(expected) > 1


def test_placing_on_the_same_grid_changes_nothing_not_even_the_edge() -> None:
    grid = make_grid((9, 8, 7), voxels=(-2, 2, 3), turn=(10, 20, 30), centre=(7, 3, 1))
    values = np.random.default_rng(0).normal(size=grid.shape).astype(np.float32)
    np.testing.assert_allclose(Alignment(grid, grid).to_static(values), values, atol=1e-5)


@pytest.mark.parametrize("turn", [(0, 0, 0), (10, 20, 30)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_resampled_grid_covers_the_field_of_view(turn: tuple[int, int, int], sign: int) -> None:
    grid = make_grid((9, 8, 7), voxels=(sign * 2, 2, 3), turn=turn, centre=(7, 3, 1))
    resampled = resample_grid(grid, 1.7)
    np.testing.assert_array_equal(resampled.affine[:3, :3], np.diag([1.7, 1.7, 1.7]))
    low = resampled.affine[:3, 3] - 1.7 / 2
    high = low + 1.7 * np.array(resampled.shape)
    edges = np.stack(np.meshgrid(*([-0.5, size - 0.5] for size in grid.shape)), axis=-1)
    corners = (edges @ grid.affine[:3, :3].T + grid.affine[:3, 3]).reshape(-1, 3)
    assert (corners >= low - 2e-3).all()
    assert (corners <= high + 2e-3).all()
    assert (high - low - np.ptp(corners, axis=0) <= 1.7).all()
    np.testing.assert_allclose((low + high) / 2, (7, 3, 1))


def test_measures_of_agreement() -> None:
    a, b = np.zeros((2, 4, 4, 4), dtype=bool)
    assert overlap(a, b) == 0
    a[:2], b[1:3] = True, True
    assert overlap(a, b) == 0.5
    assert overlap(a, a) == 1
    first, second = np.random.default_rng(0).normal(size=(2, 4, 4, 4))
    expected = np.corrcoef(first[a], second[a])[0, 1]
    assert correlation(first, second, a) == pytest.approx(expected)
    assert correlation(first, np.ones_like(first), a) == 0


@pytest.mark.parametrize("value", [0.0, 0.7, np.nan])
def test_an_image_that_shows_nothing_is_refused(value: float) -> None:
    grid = make_grid()
    nothing, image = np.full(grid.shape, value, dtype=np.float32), draw(grid)
    for arguments in ((nothing, grid, image, grid), (image, grid, nothing, grid)):
        with pytest.raises(SitelessError, match=r"constant|not finite") as caught:
            register(*arguments)
        assert caught.value.remedy


def test_values_of_another_shape_are_refused() -> None:
    grid = make_grid()
    with pytest.raises(SitelessError, match="got"):
        Alignment(grid, grid).to_static(np.zeros((3, 3, 3)))


@pytest.mark.parametrize(
    ("shape", "affine"),
    [((4, 4), np.eye(4)), ((4, 4, 0), np.eye(4)), ((4, 4, 4), np.diag([1.0, 1, 0, 1]))],
)
def test_a_grid_that_cannot_be_is_refused(shape: tuple[int, ...], affine: Array) -> None:
    with pytest.raises(SitelessError):
        Grid(shape, affine)  # type: ignore[arg-type]


def digest_of_a_small_head() -> str:
    grid = make_grid((18, 22, 16))
    static, moving = draw(grid, lambda points: 2.5 * points), draw(grid, lambda x: bend(2.5 * x))
    alignment = register(moving, grid, static, grid)
    assert alignment.warp is not None
    return hashlib.sha256(
        alignment.affine.tobytes() + alignment.warp.forward.tobytes()
    ).hexdigest()


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from test_register import digest_of_a_small_head
print(digest_of_a_small_head())
"""


def test_bytes_are_the_same_whatever_the_threads(capfd: pytest.CaptureFixture[str]) -> None:
    expected = digest_of_a_small_head()
    assert capfd.readouterr() == ("", "")
    for threads in ("1", "2"):
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        script = SCRIPT.format(folder=str(Path(__file__).parent))
        output = subprocess.check_output(
            [sys.executable, "-c", script], env=os.environ | counts, text=True
        )
        assert output.strip() == expected


@pytest.mark.parametrize("slices", [2, 7])
def test_a_slab_of_few_slices_is_registered_too(slices: int) -> None:
    grid = make_grid(shape=(34, 40, slices))
    image = draw(grid)
    moved = draw(grid, linear(np.eye(3), [3.0, -2.0, 0.0]))
    alignment = register(moved, grid, image, grid)
    inside = image > 0
    after = correlation(alignment.to_static(moved), image, inside)
    assert after > max(0.9, correlation(moved, image, inside))
