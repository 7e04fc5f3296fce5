from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phantoms import centred_affine, make_gradients, make_scan
from siteless.acquisition import Array, Scan, Site
from siteless.errors import DatasetError, TrainingError
from siteless.harmonics import projection_matrix
from siteless.methods.paired._training import (
    PairedSettings,
    PairedTraining,
    find_pairs,
    train_paired,
)
from siteless.methods.patches import TrainingScan
from siteless.methods.training import TrainingSet
from siteless.neighbourhood import cut
from training_scans import BS, ORDER, SHELLS, fitted_scan

QUICK = PairedSettings(batch=256, updates=60, hidden=(32, 32))
GAIN = 1.3  # of site b's shells
SNR = 30.0


def _scan(site: str, person: int, *, snr: float = SNR, **fields: Any) -> Scan:
    """Scan a person: another part of the phantom, on a grid of their own."""
    affine = centred_affine()
    affine[:3, 3] += np.random.default_rng(person).uniform(-2, 2, size=3)
    gradients = make_gradients(SHELLS)
    number = 2 * person + (site == "b")
    named: dict[str, Any] = {"site": Site(site), "name": f"{person}{site}"}
    scan = make_scan(gradients, affine=affine, snr=snr, seed=number, **(named | fields))
    gain = np.where(gradients.is_b0 | (site == "a"), 1, GAIN)
    return scan.with_signal(scan.signal * gain.astype(np.float32))


def _learnable(site: str, person: int, **options: Any) -> TrainingScan:
    return fitted_scan(_scan(site, person, **options), subject=str(person))


@pytest.fixture(scope="module")
def training_set() -> TrainingSet:
    scans = [_learnable(site, person) for person in range(7) for site in "ab"]
    return TrainingSet(scans[:12], scans[12:], ("a", "b"))


def _equal(first: PairedTraining, second: PairedTraining) -> bool:
    ours, theirs = first.network.state_dict(), second.network.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def _rms(difference: Array) -> float:
    return np.sqrt(np.square(difference).mean())


def test_pairs_join_one_person_at_two_sites_in_both_directions(
    training_set: TrainingSet,
) -> None:
    names = [(pair.source.name, pair.target.name) for pair in find_pairs(training_set.scans)]
    expected = [(f"{p}{s}", f"{p}{t}") for p in range(6) for s, t in ("ab", "ba")]
    assert sorted(names) == sorted(expected)


def test_people_without_a_name_are_nobodys_pair(training_set: TrainingSet) -> None:
    assert find_pairs([replace(scan, subject="") for scan in training_set.scans]) == []


def test_scans_of_a_person_at_one_site_are_not_a_pair(training_set: TrainingSet) -> None:
    assert find_pairs([training_set.scans[0], replace(training_set.scans[1], site="a")]) == []


def test_pairs_are_matched_by_position() -> None:
    """Masks differ; without noise, the same place has the same signal but for the gain."""
    whole = _scan("a", 0, snr=np.inf)
    cropped = whole.mask.copy()
    cropped[:8] = False
    holes = whole.mask & (np.random.default_rng(0).random(whole.mask.shape) < 0.8)
    masks = {"a": cropped, "b": holes}
    scans = [
        _learnable(site, 0, snr=np.inf, mask=mask, white_matter=whole.white_matter & mask)
        for site, mask in masks.items()
    ]
    pair, back = find_pairs(scans)
    assert len(pair.rows) == (whole.white_matter & cropped & holes).sum()
    np.testing.assert_array_equal(back.rows, pair.rows[:, ::-1])
    first, second = (scan.signal[rows] for scan, rows in zip(scans, pair.rows.T, strict=True))
    np.testing.assert_allclose(second[:, 1:], GAIN * first[:, 1:], rtol=1e-4)
    np.testing.assert_allclose(second[:, 0], first[:, 0], rtol=1e-4)


def test_weights_turn_errors_of_coefficients_into_errors_of_signal(
    training_set: TrainingSet,
) -> None:
    """The signal at many evenly spread directions is the reference."""
    pair = find_pairs(training_set.scans)[0]
    dense = make_gradients({1200: 1000, 3000: 1000}, b0=1)
    mixing = projection_matrix(dense, bs=BS, order=ORDER)
    error = np.random.default_rng(0).normal(size=(50, len(mixing)))
    squares = np.square(error @ mixing)
    means = [squares[:, dense.b == b].mean(axis=1) for b in (0, *BS)]
    expected = np.average(means, axis=0, weights=[1, 20, 20])
    np.testing.assert_allclose(np.square(error) @ pair.weights, expected, rtol=0.02)


@pytest.mark.parametrize("changes", ["shape", "affine"])
def test_scans_on_different_grids_are_refused(training_set: TrainingSet, changes: str) -> None:
    first, second = training_set.scans[:2]
    affine = np.array(second.affine)
    affine[3] += 0.01
    other: Any = {"shape": (20, 22, 19), "affine": tuple(affine)}[changes]
    scans = [first, replace(second, **{changes: other})]
    with pytest.raises(DatasetError, match=r"0a and 0b on one grid.*resample them to one grid"):
        find_pairs(scans)


def test_a_grid_may_differ_by_rounding(training_set: TrainingSet) -> None:
    first, second = training_set.scans[:2]
    rounded = replace(second, affine=tuple((np.array(second.affine, np.float32) + 1e-4).tolist()))
    assert len(find_pairs([first, rounded])) == 2


def test_scans_that_share_no_voxel_are_refused(training_set: TrainingSet) -> None:
    first, second = training_set.scans[:2]
    apart = replace(second, voxels=second.voxels + first.voxels.max() + 1)
    with pytest.raises(DatasetError, match="0a and 0b to show the same places"):
        find_pairs([first, apart])


def test_without_travellers_there_is_nothing_to_learn(training_set: TrainingSet) -> None:
    strangers = [replace(scan, subject=scan.name) for scan in training_set.scans]
    message = "expected people who were scanned at two or more sites, found none; give travelling"
    with pytest.raises(DatasetError, match=message):
        train_paired(TrainingSet(strangers, (), training_set.sites), QUICK)


@pytest.fixture(scope="module")
def trained(training_set: TrainingSet) -> PairedTraining:
    return train_paired(training_set, replace(QUICK, updates=900, hidden=(64, 64)))


def test_the_loss_falls_and_the_best_weights_are_kept(trained: PairedTraining) -> None:
    assert trained.log[-1]["train_loss"] < 0.3 * trained.log[0]["train_loss"]
    assert trained.best["val_loss"] == min(row["val_loss"] for row in trained.log)
    assert trained.best["val_rmse_percent"] == pytest.approx(
        100 * np.sqrt(trained.best["val_loss"])
    )


@pytest.mark.parametrize(("source", "target"), ["ab", "ba"])
def test_a_known_effect_is_learned_to_within_the_noise(
    trained: PairedTraining, source: str, target: str
) -> None:
    """Somebody unseen is rendered as close to the target's scan as the true gain brings them."""
    seen, scanned = _learnable(source, 9), _learnable(target, 9)
    goal = cut(scanned.values, scanned.neighbours)[:, 0]
    patch = cut(seen.values, seen.neighbours)
    sites = [torch.full((len(patch),), "ab".index(site)) for site in (source, target)]
    with torch.no_grad():
        translated = trained.network(torch.from_numpy(patch).flatten(1), *sites).numpy()
    knowing = patch[:, 0].copy()
    knowing[:, 1:] *= GAIN if target == "b" else 1 / GAIN
    assert _rms(translated - goal) < _rms(knowing - goal)
    assert _rms(translated - goal) < 0.5 * _rms(patch[:, 0] - goal)


def test_one_seed_gives_the_same_weights_and_another_others(training_set: TrainingSet) -> None:
    first, again, other = (train_paired(training_set, QUICK, seed=seed) for seed in (0, 0, 1))
    assert _equal(first, again)
    assert not _equal(first, other)


def test_an_interrupted_training_goes_on_to_the_same_weights(
    training_set: TrainingSet, tmp_path: Path
) -> None:
    state = tmp_path / "state"

    def interrupt(update: int, *_: object) -> None:
        if update == 41:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_paired(training_set, QUICK, checkpoint=state, progress=interrupt)
    resumed = train_paired(training_set, QUICK, checkpoint=state)
    whole = train_paired(training_set, QUICK)
    assert _equal(resumed, whole)
    assert [row["train_loss"] for row in resumed.log] == [row["train_loss"] for row in whole.log]


def test_another_training_is_not_resumed(training_set: TrainingSet, tmp_path: Path) -> None:
    state = tmp_path / "state"
    train_paired(training_set, QUICK, checkpoint=state)
    with pytest.raises(TrainingError, match="had other settings or other scans"):
        train_paired(training_set, QUICK, seed=1, checkpoint=state)
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(TrainingError, match="cannot be read"):
        train_paired(training_set, QUICK, checkpoint=state)


def test_a_loss_that_is_not_finite_ends_training(training_set: TrainingSet) -> None:
    broken = replace(
        training_set.scans[0], values=np.full_like(training_set.scans[0].values, np.nan)
    )
    with pytest.raises(TrainingError, match="the loss is no longer finite at update 0"):
        train_paired(
            TrainingSet([broken, *training_set.scans[1:2]], (), training_set.sites), QUICK
        )
    broken = replace(training_set.validation[0], values=training_set.validation[0].values * np.nan)
    bad = TrainingSet(training_set.scans, [broken, training_set.validation[1]], training_set.sites)
    with pytest.raises(TrainingError, match="validation scans is no longer finite at update 20"):
        train_paired(bad, QUICK)


def test_training_ends_when_validation_has_not_improved(training_set: TrainingSet) -> None:
    hopeless = replace(QUICK, learning_rate=0.0, updates=1000, patience=3)
    assert train_paired(training_set, hopeless).log[-1]["update"] == 4 * 20


def test_without_validation_pairs_the_last_weights_are_kept(training_set: TrainingSet) -> None:
    alone = TrainingSet(training_set.scans, training_set.validation[:1], training_set.sites)
    trained = train_paired(alone, QUICK)
    assert trained.best is trained.log[-1]


@pytest.mark.parametrize("name", ["batch", "updates", "patience"])
def test_settings_check_themselves(name: str) -> None:
    changes: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        replace(QUICK, **changes)
