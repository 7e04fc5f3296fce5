from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan
from siteless.evaluation import (
    WHITE_MATTER,
    Angles,
    Target,
    maps_within,
    rmse_map,
    score_angles,
    score_maps,
    score_signal,
    summarise_map,
)
from siteless.microstructure import compute_maps
from strategies import seeds

GRADIENTS = make_gradients({1000: 20, 2500: 16})
SHAPE = (18, 17, 16)
PARTS = ("b0", "b1000", "b2500")
SPREAD = 20.0


def clean_scan(gradients: GradientTable = GRADIENTS) -> Scan:
    return make_scan(gradients, shape=SHAPE, snr=np.inf)


def noisy(scan: Scan, seed: int = 0, sigma: float = SPREAD) -> Scan:
    noise = np.random.default_rng(seed).normal(0, sigma, scan.signal.shape)
    return scan.with_signal(scan.signal + noise)


@pytest.fixture(scope="module")
def target() -> Target:
    """A target with truth, and two regions: the lower half of the brain and the upper."""
    truth = clean_scan()
    lower = truth.mask.copy()
    lower[:, :, SHAPE[2] // 2 :] = False
    regions = {"lower": lower, "upper": truth.mask & ~lower}
    return Target(noisy(truth), truth=truth, regions=regions)


@pytest.fixture
def white(target: Target) -> Array:
    return target.scan.white_matter


def truth_of(target: Target) -> Scan:
    assert target.truth is not None
    return target.truth


def plain_rmse(estimated: Array, expected: Array, volumes: list[int] | range) -> list[float]:
    """Return each voxel's error, a number at a time; both have shape (voxel, volume)."""
    return [
        sqrt(fmean((float(voxel[v]) - float(other[v])) ** 2 for v in volumes))
        for voxel, other in zip(estimated, expected, strict=True)
    ]


def plain_percentile(values: Sequence[float], percent: int) -> float:
    """Interpolate between the two values around a percentile."""
    ordered, rank = sorted(values), (len(values) - 1) * percent / 100
    low = min(int(rank), len(values) - 2)
    return ordered[low] + (rank - low) * (ordered[low + 1] - ordered[low])


def plain_block_means(
    values: Array, where: Array, voxel_size: Sequence[float]
) -> dict[tuple[int, ...], float]:
    """Return means over 10 mm cubes of at least 8 voxels; values of shape (x, y, z)."""
    blocks: dict[tuple[int, ...], list[float]] = {}
    for voxel in zip(*(axis.tolist() for axis in np.nonzero(where)), strict=True):
        cube = tuple(n * size // 10 for n, size in zip(voxel, voxel_size, strict=True))
        blocks.setdefault(cube, []).append(float(values[voxel]))
    return {cube: fmean(block) for cube, block in blocks.items() if len(block) >= 8}


def errors_of(scores: dict[str, float]) -> dict[str, float]:
    """Leave out what is not an error."""
    return {name: value for name, value in scores.items() if name != "level"}


@pytest.mark.parametrize(("name", "to"), [("rmse", "scan"), ("rmse_truth", "truth")])
def test_errors_of_voxels_one_by_one(target: Target, white: Array, name: str, to: str) -> None:
    given_scan, expected = noisy(truth_of(target), seed=5), getattr(target, to)
    scores = score_signal(given_scan, target, white)
    given_signal, expected_signal = given_scan.signal[white], expected.signal[white]
    errors = plain_rmse(given_signal, expected_signal, range(len(GRADIENTS)))
    assert scores[name] == pytest.approx(fmean(errors))
    assert scores[f"{name}_median"] == pytest.approx(plain_percentile(errors, 50))
    assert scores[f"{name}_p90"] == pytest.approx(plain_percentile(errors, 90))
    b = GRADIENTS.bvals.tolist()
    for volume_kind in PARTS:
        volumes = [volume for volume, bval in enumerate(b) if bval == float(volume_kind[1:])]
        mean_error = fmean(plain_rmse(given_signal, expected_signal, volumes))
        assert scores[f"{name}_{volume_kind}"] == pytest.approx(mean_error)


def test_per_cents_refer_to_the_median_b0_of_white_matter(target: Target, white: Array) -> None:
    b0 = [fmean(map(float, voxel[:2])) for voxel in target.scan.signal[white]]
    level = plain_percentile(b0, 50)
    scores = score_signal(noisy(truth_of(target), seed=6), target, white)
    assert target.level == pytest.approx(level)
    assert scores["rmse_percent"] == pytest.approx(100 * scores["rmse"] / level)
    assert scores["rmse_truth_percent"] == pytest.approx(100 * scores["rmse_truth"] / level)


@given(seeds, st.floats(0, 100))
def test_a_scan_has_no_error_to_itself(seed: int, sigma: float) -> None:
    scan = noisy(clean_scan(make_gradients({1000: 8})), seed, sigma)
    target = Target(scan)
    maps = maps_within(scan, target.maps, target.masks.values())
    signal = errors_of(score_signal(scan, target, scan.white_matter))
    scores = signal | score_maps(maps, target, scan.white_matter)
    assert {"block_percent", "shell_error", "fa_cv", "md_block_percent"} <= set(scores)
    assert set(scores.values()) == {0.0}
    assert not rmse_map(scan, target)[scan.white_matter].any()


def test_the_truth_has_no_systematic_error(target: Target, white: Array) -> None:
    scores = score_signal(truth_of(target), target, white)
    maps = maps_within(truth_of(target), target.maps, target.masks.values())
    scores |= score_maps(maps, target, white)
    known = ("rmse_truth", "shell_error", "block_", "fa_block", "md_block")
    errors = [value for name, value in scores.items() if name.startswith(known)]
    assert len(errors) == 8 + 4 + 3 + 2
    assert set(errors) == {0.0}
    assert scores["rmse"] == pytest.approx(SPREAD, rel=0.03)
    assert scores["fa_cv"] > 0


def test_systematic_errors_are_measured_against_the_scan_without_a_truth(
    target: Target, white: Array
) -> None:
    alone, other = Target(target.scan), noisy(truth_of(target), seed=7)
    scores = score_signal(other, alone, white)
    assert not [name for name in scores if "truth" in name]
    means = [scan.signal[white][:, 0:2].mean(dtype=float) for scan in (other, target.scan)]
    assert scores["shell_error_b0"] == pytest.approx(100 * (means[0] / means[1] - 1), abs=1e-4)
    assert score_signal(truth_of(target), alone, white)["block_percent"] > 0


def test_an_offset_is_an_error_of_voxels_and_blocks_alike(target: Target, white: Array) -> None:
    moved = truth_of(target).with_signal(truth_of(target).signal + 0.02 * target.level)
    scores = score_signal(moved, target, white)
    assert scores["rmse_truth_percent"] == pytest.approx(2, rel=1e-4)
    assert scores["block_percent"] == pytest.approx(2, rel=1e-4)


@given(st.floats(0.2, 5.0))
def test_a_gain_is_no_error_of_a_scan_at_the_targets_level(gain: float) -> None:
    truth = clean_scan()
    target = Target(noisy(truth, seed=3), truth=truth)
    scores = score_signal(truth.with_signal(gain * truth.signal), target, truth.white_matter)
    assert scores["rmse_truth_matched_percent"] == pytest.approx(0, abs=1e-3)
    assert scores["block_matched_percent"] == pytest.approx(0, abs=1e-3)
    plain = score_signal(truth, target, truth.white_matter)
    matched = scores["rmse_matched_percent"]
    assert matched == pytest.approx(plain["rmse_matched_percent"], rel=1e-3)
    assert matched == pytest.approx(plain["rmse_percent"], rel=0.05)


@given(st.floats(0.5, 1.5))
def test_means_of_shells_show_a_scale(scale: float) -> None:
    truth = clean_scan()
    target = Target(truth)
    weights = np.where(GRADIENTS.bvals == 2500, 1.0, scale)
    scores = score_signal(truth.with_signal(weights * truth.signal), target, truth.white_matter)
    error = 100 * (scale - 1)
    shell_errors = [scores[f"shell_error_{volume_kind}"] for volume_kind in PARTS]
    assert shell_errors == pytest.approx([error, error, 0], abs=1e-4)
    assert scores["shell_error"] == pytest.approx(2 / 3 * abs(error), abs=1e-4)


@given(st.floats(0.2, 2.0))
def test_anisotropy_shows_a_contrast_between_directions(contrast: float) -> None:
    truth = clean_scan()
    signal = truth.signal.astype(float)
    strongest = GRADIENTS.bvals == 2500
    mean = signal[..., strongest].mean(axis=-1, keepdims=True)
    signal[..., strongest] = mean + contrast * (signal[..., strongest] - mean)
    scores = score_signal(truth.with_signal(signal), Target(truth), truth.white_matter)
    expected = 100 * abs(contrast - 1)
    assert scores["block_anisotropy"] == pytest.approx(expected, abs=1e-3)


def test_errors_of_blocks_one_by_one(target: Target, white: Array) -> None:
    scores = score_signal(target.scan, target, white)
    squares = []
    for measured, true in zip(target.scan.volumes, truth_of(target).volumes, strict=True):
        difference = (measured - true).reshape(SHAPE, order="F")
        means = plain_block_means(difference, white, target.scan.voxel_size.tolist())
        squares += [mean**2 for mean in means.values()]
    expected = 100 * sqrt(fmean(squares)) / target.level
    assert scores["block_percent"] == pytest.approx(expected, rel=1e-4)


def test_scans_are_compared_at_the_volumes_of_the_target() -> None:
    scan, other = (clean_scan(make_gradients({1000: 40}, seed=seed)) for seed in (0, 8))
    target = Target(scan)
    near, far = (
        score_signal(compared, target, scan.white_matter) for compared in (other, noisy(other))
    )
    assert 0 < near["rmse"] < SPREAD / 4 < far["rmse"]
    mean = np.nanmean(rmse_map(other, target))
    assert mean == pytest.approx(near["rmse"], rel=1e-4)


def test_noise_is_what_a_perfect_estimate_has(target: Target) -> None:
    for where in target.masks.values():
        perfect, floor = score_signal(truth_of(target), target, where), target.noise(where)
        for name in ("rmse", "rmse_percent", "rmse_p90", "rmse_b2500"):
            assert floor[name] == perfect[name]
        assert floor["rmse_truth"] == 0
        assert all(name.startswith("rmse") for name in floor)


def test_noise_is_estimated_without_a_truth() -> None:
    truth = clean_scan(make_gradients({1000: 40}))
    target = Target(noisy(truth))
    floor = target.noise(truth.white_matter)
    known = replace(target, truth=truth).noise(truth.white_matter)
    assert set(floor) == {"rmse", "rmse_percent"}
    assert floor == pytest.approx({name: known[name] for name in floor}, rel=0.1)


def test_regions_are_scored_apart(target: Target, white: Array) -> None:
    assert list(target.masks) == [WHITE_MATTER, "lower", "upper"]
    assert target.masks[WHITE_MATTER] is white
    upper = target.masks["upper"]
    wrong = truth_of(target).with_signal(
        truth_of(target).signal * np.where(upper, 1.2, 1.0)[..., None]
    )
    scores = {name: score_signal(wrong, target, where) for name, where in target.masks.items()}
    assert scores["lower"]["rmse_truth"] == scores["lower"]["block_percent"] == 0
    assert scores["upper"]["shell_error"] == pytest.approx(20, rel=1e-4)
    assert 0 < scores[WHITE_MATTER]["shell_error"] < 20


def test_a_region_without_blocks_has_the_other_scores(target: Target) -> None:
    few = np.zeros(SHAPE, dtype=bool)
    few[8, 8, 7:9] = True
    scores = score_signal(target.scan, target, few)
    scores |= score_maps(target.measured_maps, target, few)
    assert not [name for name in scores if "block" in name]
    assert scores["rmse_truth"] > 0
    assert scores["fa_cv"] == 0


def test_scores_are_numbers(target: Target) -> None:
    given_scan = noisy(truth_of(target), seed=9, sigma=60)
    maps = maps_within(given_scan, target.maps, target.masks.values())
    for where in target.masks.values():
        scores = score_signal(given_scan, target, where) | score_maps(maps, target, where)
        assert np.isfinite(list(scores.values())).all()


def test_maps_within_masks_are_those_of_the_brain(target: Target) -> None:
    scan, names = target.scan, ("fa", "md", "mk")
    lower = target.regions["lower"]
    whole, within = compute_maps(scan, names), maps_within(scan, names, [lower])
    inside = scan.white_matter | lower
    assert (scan.mask & ~inside).any()
    for name in names:
        np.testing.assert_allclose(within[name][inside], whole[name][inside], rtol=1e-5)
        assert not within[name][~inside].any()


def test_maps_of_a_target_are_those_of_its_scans(target: Target, white: Array) -> None:
    for scan, maps in (
        (target.scan, target.measured_maps),
        (truth_of(target), target.reference_maps),
    ):
        whole = compute_maps(scan, ("fa", "md"))
        assert list(maps) == ["fa", "md"]
        for name, values in whole.items():
            np.testing.assert_allclose(maps[name][white], values[white], rtol=1e-5)
    alone = Target(target.scan)
    assert alone.reference_maps is alone.measured_maps
    assert alone.reference is target.scan
    assert target.reference is target.truth


def test_voxels_of_maps_are_compared_with_the_scan(target: Target, white: Array) -> None:
    observed = target.measured_maps["fa"]
    scores = score_maps({"fa": np.float32(1.05) * observed}, target, white)
    values = [float(value) for value in observed[white]]
    for kind in ("pe", "ape", "pe_median", "ape_median"):
        assert scores[f"fa_{kind}"] == pytest.approx(0.05, rel=1e-5)
    expected = 0.05 * sqrt(fmean(value**2 for value in values)) / fmean(values)
    assert scores["fa_cv"] == pytest.approx(expected, rel=1e-4)


def test_blocks_of_maps_are_compared_with_the_truth(target: Target, white: Array) -> None:
    measured, true = target.measured_maps["md"], target.reference_maps["md"]
    size = target.scan.voxel_size.tolist()
    blocks, true_blocks = (plain_block_means(values, white, size) for values in (measured, true))
    error = sqrt(fmean((blocks[block] - true_blocks[block]) ** 2 for block in true_blocks))
    scores = score_maps({"md": measured}, target, white)
    expected = 100 * error / fmean(true_blocks.values())
    assert expected > 0.1
    assert scores["md_block_percent"] == pytest.approx(expected, rel=1e-5)


def test_only_given_maps_are_scored(target: Target, white: Array) -> None:
    scores = score_maps({"md": target.reference_maps["md"]}, target, white)
    assert {name.partition("_")[0] for name in scores} == {"md"}


def test_a_map_is_summarised() -> None:
    values = np.random.default_rng(0).permutation(np.arange(101)).astype(np.float32)
    summary = summarise_map("md", values)
    sd = sqrt(fmean((value - 50) ** 2 for value in range(101)))
    assert summary == pytest.approx(
        {"md_mean": 50, "md_sd": sd, "md_p05": 5, "md_p50": 50, "md_p95": 95}
    )


def test_map_of_errors_covers_white_matter(target: Target, white: Array) -> None:
    errors = rmse_map(noisy(truth_of(target), seed=5), target)
    assert errors.dtype == np.float32
    assert (np.isfinite(errors) == white).all()
    score = score_signal(noisy(truth_of(target), seed=5), target, white)["rmse"]
    assert errors[white].mean(dtype=float) == pytest.approx(score, rel=1e-5)


def test_angles_come_from_voxels_that_have_fibres() -> None:
    closest = np.array([np.nan, 10.0, 20.0, 30.0, 90.0])
    angles = Angles(closest, closest[::-1])
    scores = score_angles(angles, np.array([True, True, True, True, False]))
    assert scores["angle_closest_median"] == 20
    assert scores["angle_closest_p90"] == pytest.approx(28)
    assert scores["angle_largest_median"] == 25
    assert scores["angle_largest_p90"] == pytest.approx(30 + 0.7 * 60)


def test_without_fibres_there_are_no_angles() -> None:
    nothing = np.full(3, np.nan)
    assert score_angles(Angles(nothing, nothing), np.ones(3, dtype=bool)) == {}
    some = np.ones(3)
    assert score_angles(Angles(some, some), np.zeros(3, dtype=bool)) == {}
