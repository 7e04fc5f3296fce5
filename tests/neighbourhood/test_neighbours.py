import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from siteless.acquisition import Array
from siteless.neighbourhood import FACES, _neighbours, cut, index_neighbours, surrounded

masks = arrays(bool, st.tuples(*[st.integers(1, 5)] * 3)).filter(lambda mask: mask.any())


@given(masks)
def test_neighbours_are_those_of_a_plain_loop(mask: Array) -> None:
    rows: dict[tuple[int, ...], int] = {}
    for z, y, x in np.ndindex(mask.shape[::-1]):
        if mask[x, y, z]:
            rows[x, y, z] = len(rows)
    table = index_neighbours(mask)
    assert table.shape == (len(rows), 7)
    for (x, y, z), row in rows.items():
        expected = [rows.get((x + dx, y + dy, z + dz), row) for dx, dy, dz in FACES]
        assert table[row].tolist() == expected


@given(masks, st.permutations(range(3)), st.tuples(*[st.sampled_from([-1, 1])] * 3))
def test_neighbours_do_not_depend_on_how_an_image_is_stored(
    mask: Array, order: list[int], signs: tuple[int, ...]
) -> None:
    """Number voxels by their place in the world, and store them along other axes."""
    number = np.arange(mask.size).reshape(mask.shape)
    other = np.transpose(number, order)[tuple(slice(None, None, sign) for sign in signs)]
    affine = np.zeros((4, 4))
    for image_axis, world_axis in enumerate(order):
        affine[world_axis, image_axis] = 2.0 * signs[image_axis]
    affine[3, 3] = 1
    in_world = _neighbours_by_number(number, mask, np.diag([2.0, 2, 2, 1]))
    stored = np.transpose(mask, order)[tuple(slice(None, None, sign) for sign in signs)]
    assert _neighbours_by_number(other, stored, affine) == in_world


def _neighbours_by_number(number: Array, mask: Array, affine: Array) -> dict[int, list[int]]:
    names = number.T[mask.T]
    return {names[row[0]]: names[row].tolist() for row in index_neighbours(mask, affine)}


@given(masks)
def test_a_patch_begins_with_its_centre(mask: Array) -> None:
    values = np.random.default_rng(0).normal(size=(mask.sum(), 5)).astype(np.float32)
    patches = cut(values, index_neighbours(mask))
    assert patches.shape == (len(values), 7, 5)
    assert np.array_equal(patches[:, 0], values)


@given(masks, st.lists(st.integers(1, 4), unique=True, max_size=2).map(sorted))
def test_surroundings_are_means_of_means(mask: Array, passes: list[int]) -> None:
    values = np.random.default_rng(0).normal(size=(mask.sum(), 3))
    near, selected = index_neighbours(mask), values[:, 0] > 0
    rows, patches = surrounded(values, near, selected, passes)
    assert np.array_equal(cut(rows, patches)[:, :7], cut(values, near)[selected])
    for column, count in enumerate(passes, start=7):
        expected = values
        for _ in range(count):
            expected = cut(expected, near).mean(axis=1)
        np.testing.assert_allclose(cut(rows, patches)[:, column], expected[selected], atol=1e-12)


def test_surroundings_do_not_depend_on_how_channels_are_parted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).normal(size=(27, 7))
    near, selected = index_neighbours(np.ones((3, 3, 3))), np.arange(27) % 2 == 0
    whole, _ = surrounded(values, near, selected, (1, 3))
    monkeypatch.setattr(_neighbours, "_BLOCK_BYTES", 2 * values[:, 0].nbytes)
    np.testing.assert_allclose(surrounded(values, near, selected, (1, 3))[0], whole, atol=1e-12)
