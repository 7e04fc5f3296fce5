from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan
from siteless.errors import GradientTableError
from siteless.evaluation import match_volumes
from siteless.evaluation._signal import (
    BLOCK,
    LEAST_VOXELS,
    anisotropy,
    block_means,
    noise_level,
    volume_groups,
)
from strategies import jittered_shells, rotations, seeds, voxel_sizes

# Enough directions for every harmonic up to the order that is fitted.
SHELLS = {1000: 60, 2500: 60}
# Brain voxels are a part of the grid, and no two axes are alike.
SHAPE = (7, 6, 5)


def smooth_scan(gradients: GradientTable, *, b0: Array | float = 900.0) -> Scan:
    """Make a scan of polynomials of degree 4 of the directions, another in each voxel."""
    axes = np.random.default_rng(3).normal(size=(2, *SHAPE, 3))
    u, v = axes / np.linalg.norm(axes, axis=-1, keepdims=True)
    along, across = u @ gradients.directions.T, v @ gradients.directions.T
    signal = 500 + 90 * along**4 - 200 * (along * across) ** 2 + across**2 * gradients.b / 20
    signal[..., gradients.is_b0] = b0
    mask = np.zeros(SHAPE, dtype=bool)
    mask[1:, :-1, 1:] = True
    return Scan(signal, np.diag([2.0, 3.0, 4.0, 1.0]), gradients, mask, mask)


def turned(gradients: GradientTable, rotation: Array) -> GradientTable:
    return replace(gradients, bvecs=gradients.bvecs @ np.asarray(rotation).T)


def some_flipped(gradients: GradientTable, seed: int) -> GradientTable:
    signs = np.random.default_rng(seed).choice([-1, 1], size=(len(gradients), 1))
    return replace(gradients, bvecs=signs * gradients.bvecs)


@given(seeds)
def test_a_scan_at_its_own_measurements_is_left_as_it_is(seed: int) -> None:
    gradients = make_gradients(SHELLS)
    scan = smooth_scan(gradients)
    scatter = np.random.default_rng(seed).uniform(-4, 4, len(gradients)) * ~gradients.is_b0
    for same in (
        gradients,
        GradientTable(gradients.bvals, gradients.bvecs),
        some_flipped(gradients, seed),
        turned(gradients, Rotation.from_euler("z", 0.05, degrees=True).as_matrix()),
        replace(gradients, bvals=gradients.bvals + scatter),
    ):
        assert match_volumes(scan, same) is scan


@pytest.mark.parametrize(
    "change",
    [
        lambda table: turned(table, Rotation.from_euler("z", 1, degrees=True).as_matrix()),
        lambda table: replace(table, bvals=table.bvals + 15 * ~table.is_b0),
        lambda table: GradientTable(table.bvals[::-1], table.bvecs[::-1]),
        lambda table: GradientTable(table.bvals[1:], table.bvecs[1:]),
    ],
    ids=["turned", "other b", "other order", "fewer"],
)
def test_other_measurements_are_projected(
    change: Callable[[GradientTable], GradientTable],
) -> None:
    scan = smooth_scan(make_gradients(SHELLS))
    other = change(scan.gradients)
    projected = match_volumes(scan, other)
    assert projected is not scan
    assert projected.gradients is other
    assert projected.signal.shape == (*SHAPE, len(other))


@given(rotations, st.integers(1, 3))
def test_smooth_signal_is_known_at_all_directions(rotation: Array, b0: int) -> None:
    scan = smooth_scan(make_gradients(SHELLS))
    other = turned(make_gradients({1000: 25, 2500: 31}, b0=b0, seed=5), rotation)
    projected, expected = match_volumes(scan, other), smooth_scan(other)
    inside = scan.mask
    np.testing.assert_allclose(projected.signal[inside], expected.signal[inside], rtol=1e-4)
    assert not projected.signal[~inside].any()


def test_each_b0_is_the_mean_of_all() -> None:
    gradients = make_gradients(SHELLS, b0=3)
    scan = smooth_scan(gradients, b0=np.array([700.0, 800.0, 1200.0]))
    other = make_gradients(SHELLS, b0=2, seed=9)
    b0s = match_volumes(scan, other).signal[scan.mask][:, other.is_b0]
    np.testing.assert_allclose(b0s, 900, rtol=1e-6)


@given(seeds)
def test_opposite_directions_are_the_same_measurement(seed: int) -> None:
    scan = make_scan(make_gradients(SHELLS), shape=SHAPE)
    other = make_gradients(SHELLS, seed=11)
    plain, flipped = (match_volumes(scan, t) for t in (other, some_flipped(other, seed)))
    np.testing.assert_allclose(flipped.signal, plain.signal, rtol=1e-4, atol=1e-2)


def test_other_shells_are_refused() -> None:
    scan = smooth_scan(make_gradients({1000: 30}))
    with pytest.raises(GradientTableError, match="b=2500"):
        match_volumes(scan, make_gradients({1000: 30, 2500: 30}))


def test_a_table_of_fewer_shells_takes_those() -> None:
    scan = smooth_scan(make_gradients(SHELLS))
    other = make_gradients({2500: 30}, seed=4)
    projected, expected = match_volumes(scan, other).signal, smooth_scan(other).signal
    np.testing.assert_allclose(projected[scan.mask], expected[scan.mask], rtol=1e-4)


@given(jittered_shells())
def test_every_volume_is_in_the_group_of_its_b(table: tuple[Array, Array, list[float]]) -> None:
    bvals, bvecs, nominal = table
    gradients = GradientTable(bvals, bvecs)
    groups = volume_groups(gradients)
    assert next(iter(groups)) == "b0"
    together = np.concatenate(list(groups.values()))
    assert sorted(together) == list(range(len(bvals)))
    for b, (name, volumes) in zip([0.0, *nominal], groups.items(), strict=True):
        assert np.abs(gradients.b[volumes] - b).max() <= max(20, 0.03 * b)
        assert float(name[1:]) == pytest.approx(b, rel=0.02)


def plain_blocks(where: Array, voxel_size: Sequence[float]) -> list[list[tuple[int, ...]]]:
    """Return the voxels of every block that has enough."""
    blocks = defaultdict(list)
    for voxel in zip(*(axis.tolist() for axis in np.nonzero(where)), strict=True):
        block = tuple(n * size // BLOCK for n, size in zip(voxel, voxel_size, strict=True))
        blocks[block].append(voxel)
    return [voxels for voxels in blocks.values() if len(voxels) >= LEAST_VOXELS]


@given(seeds, voxel_sizes, st.floats(0.1, 1.0))
def test_block_means_one_by_one(seed: int, voxel_size: Array, share: float) -> None:
    rng = np.random.default_rng(seed)
    values, where = rng.random((9, 8, 7)), rng.random((9, 8, 7)) < share
    where[4, 4, 4] = True
    expected = [
        fmean(values[voxel] for voxel in voxels)
        for voxels in plain_blocks(where, voxel_size.tolist())
    ]
    means = block_means(where, voxel_size) @ values[where]
    np.testing.assert_allclose(np.sort(means), np.sort(expected))


def test_noise_averages_out_of_blocks() -> None:
    rng = np.random.default_rng(0)
    where = rng.random((24, 23, 22)) < 0.7
    averaging = block_means(where, np.full(3, 3.0))
    noise = averaging @ rng.normal(0, 20.0, size=(int(where.sum()), 60))
    counts = [len(voxels) for voxels in plain_blocks(where, [3.0] * 3)]
    expected = 20 * np.sqrt(np.mean([1 / count for count in counts]))
    assert np.sqrt(np.square(noise).mean()) == pytest.approx(expected, rel=0.05)


def test_anisotropy_is_measured_on_the_strongest_shell_over_b0() -> None:
    groups = {"b0": np.array([3]), "b1000": np.array([1]), "b3000": np.array([0, 2])}
    blocks = np.array([[10.0, 500, 30, 100], [40, 0, 40, 300]])
    assert anisotropy(blocks, groups) == pytest.approx((10 + 0) / 2 / 200)


def noisy(clean: Scan, sigma: Array | float, seed: int) -> Scan:
    noise = np.random.default_rng(seed).normal(0, sigma, clean.signal.shape)
    return clean.with_signal(clean.signal + noise)


# The tolerance is three standard errors, of 150 voxels, or more.
@pytest.mark.parametrize(("b0", "tolerance"), [(1, 0.05), (2, 0.18), (16, 0.05)])
@pytest.mark.parametrize("sigma", [5.0, 20.0, 60.0])
def test_noise_is_estimated_from_repeated_b0_or_from_residuals_of_harmonics(
    b0: int, tolerance: float, sigma: float
) -> None:
    clean = smooth_scan(make_gradients(SHELLS, b0=b0))
    assert noise_level(noisy(clean, sigma, 1), clean.mask) == pytest.approx(sigma, rel=tolerance)


@pytest.mark.parametrize("b0", [1, 16])
def test_noise_is_that_of_the_voxels_asked_for(b0: int) -> None:
    clean = smooth_scan(make_gradients(SHELLS, b0=b0))
    sigma = np.full(SHAPE, 10.0)
    sigma[:, 2:] = 40.0
    scan = noisy(clean, sigma[..., None], 2)
    for sd in (10.0, 40.0):
        assert noise_level(scan, clean.mask & (sigma == sd)) == pytest.approx(sd, rel=0.1)


def test_few_directions_do_not_matter_to_repeated_b0() -> None:
    clean = smooth_scan(make_gradients({1000: 6}, b0=16))
    assert noise_level(noisy(clean, 20.0, 3), clean.mask) == pytest.approx(20, rel=0.05)


def test_a_scan_without_noise_has_none() -> None:
    for b0 in (1, 2):
        clean = smooth_scan(make_gradients(SHELLS, b0=b0))
        assert noise_level(clean, clean.mask) == pytest.approx(0, abs=0.1)
