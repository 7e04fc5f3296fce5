"""Inputs that vary: rotations, affines and b-values as scanners write them."""

import numpy as np
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from phantoms import spread_directions
from siteless.acquisition import Array

seeds = st.integers(0, 2**31 - 1)
rotations = st.builds(lambda seed: Rotation.random(random_state=seed).as_matrix(), seeds)
handedness = st.sampled_from([np.diag([1.0, 1, 1]), np.diag([-1.0, 1, 1])])
voxel_sizes = st.lists(st.floats(0.8, 5.0), min_size=3, max_size=3).map(np.array)


@st.composite
def affines(draw: st.DrawFn) -> Array:
    affine = np.eye(4)
    affine[:3, :3] = draw(rotations) @ draw(handedness) * draw(voxel_sizes)
    affine[:3, 3] = draw(st.lists(st.floats(-200, 200), min_size=3, max_size=3))
    return affine


@st.composite
def jittered_shells(draw: st.DrawFn) -> tuple[Array, Array, list[float]]:
    """b-values and directions in random order, and the nominal b-values of the shells."""
    protocols = [[1000], [1200, 3000], [700, 2000], [500, 1000, 2000, 3000]]
    nominal = draw(st.sampled_from(protocols))
    rng = np.random.default_rng(draw(seeds))
    b0 = rng.choice([0, 5, 1.25, 0.003, 15], size=draw(st.integers(1, 8)))
    counts = [draw(st.integers(6, 60)) for _ in nominal]
    b = np.concatenate(
        [b0, *(b * rng.uniform(0.985, 1.015, n) for b, n in zip(nominal, counts, strict=True))]
    )
    directions = [np.zeros((len(b0), 3)), *(spread_directions(n, i) for i, n in enumerate(counts))]
    order = rng.permutation(len(b))
    return b[order], np.concatenate(directions)[order], [float(value) for value in nominal]
