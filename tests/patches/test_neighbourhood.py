import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from siteless.patches import FACES, cut, index_neighbours, stitch

masks = arrays(bool, st.tuples(*[st.integers(1, 5)] * 3)).filter(lambda mask: mask.any())


@given(masks)
def test_neighbours_are_those_of_a_plain_loop(mask):
    rows = {}
    for z, y, x in np.ndindex(mask.shape[::-1]):
        if mask[x, y, z]:
            rows[x, y, z] = len(rows)
    table = index_neighbours(mask)
    assert table.shape == (len(rows), 7)
    for (x, y, z), row in rows.items():
        expected = [rows.get((x + dx, y + dy, z + dz), row) for dx, dy, dz in FACES]
        assert table[row].tolist() == expected


@given(masks)
def test_stitch_undoes_cut(mask):
    values = np.random.default_rng(0).normal(size=(mask.sum(), 5)).astype(np.float32)
    patches = cut(values, index_neighbours(mask))
    assert patches.shape == (len(values), 7, 5)
    assert np.array_equal(stitch(patches), values)
