import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siteless.errors import TrainingError
from siteless.methods.invariant.training import Training, train
from siteless.methods.training import TrainingSet, one_cycle
from training_scans import QUICK


def _equal(first: Training, second: Training) -> bool:
    ours, theirs = first.network.state_dict(), second.network.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture(scope="module")
def trained(training_set: TrainingSet) -> Training:
    return train(training_set, replace(QUICK, updates=300))


def test_training_learns_a_code_that_is_used(trained: Training) -> None:
    first, best = trained.log[0], trained.best
    assert best["val_loss"] < first["val_loss"] - 20
    assert best["val_rmse_percent"] < 0.6 * first["val_rmse_percent"]
    assert best["val_active_units"] >= 3
    assert best["val_loss"] == min(row["val_loss"] for row in trained.log)
    assert all(math.isfinite(value) for row in trained.log for value in row.values())


def test_the_site_that_is_asked_for_changes_what_is_rendered(trained: Training) -> None:
    codes = torch.randn(5, QUICK.code)
    with torch.no_grad():
        frames = torch.eye(3).expand(5, 3, 3)
        sites = (torch.full((5,), site) for site in (0, 1))
        rendered = [trained.network.decode(codes, site, frames) for site in sites]
    assert not torch.allclose(rendered[0], rendered[1])


def test_terms_without_weight_are_left_out(training_set: TrainingSet) -> None:
    plain = train(training_set, replace(QUICK, updates=20, adversary=0.0, marginal=0.0))
    armed = train(training_set, replace(QUICK, updates=20, adversary=0.5, marginal=0.1))
    assert "train_adversary" not in plain.best
    assert plain.best["train_marginal"] == 0
    assert 0 < armed.best["train_adversary"] < 2
    assert armed.best["train_marginal"] > 0
    assert not _equal(plain, armed)


def test_one_seed_gives_the_same_weights_and_another_others(training_set: TrainingSet) -> None:
    first, again, other = (train(training_set, QUICK, seed=seed) for seed in (0, 0, 1))
    assert _equal(first, again)
    assert not _equal(first, other)


@pytest.mark.parametrize("stop", [25, 41])
def test_an_interrupted_training_goes_on_to_the_same_weights(
    training_set: TrainingSet, tmp_path: Path, stop: int
) -> None:
    state = tmp_path / "state"

    def interrupt(update: int, *_: object) -> None:
        if update == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(training_set, QUICK, checkpoint=state, progress=interrupt)
    resumed = train(training_set, QUICK, checkpoint=state)
    whole = train(training_set, QUICK)
    assert _equal(resumed, whole)
    drop = "patches_per_second"
    for ours, theirs in zip(resumed.log, whole.log, strict=True):
        assert {k: v for k, v in ours.items() if k != drop} == {
            k: v for k, v in theirs.items() if k != drop
        }


def test_another_training_is_not_resumed(training_set: TrainingSet, tmp_path: Path) -> None:
    state = tmp_path / "state"
    train(training_set, replace(QUICK, updates=20), checkpoint=state)
    with pytest.raises(TrainingError, match="had other settings or other scans"):
        train(training_set, replace(QUICK, updates=20, prior=0.5), checkpoint=state)
    with pytest.raises(TrainingError, match="had other settings or other scans"):
        train(training_set, replace(QUICK, updates=20), seed=1, checkpoint=state)
    other = replace(training_set.scans[0], values=training_set.scans[0].values * np.float32(1.01))
    changed = TrainingSet(
        [other, *training_set.scans[1:]], training_set.validation, training_set.sites
    )
    with pytest.raises(TrainingError, match="had other settings or other scans"):
        train(changed, replace(QUICK, updates=20), checkpoint=state)
    with pytest.raises(TrainingError, match="had other settings or other scans"):
        train(training_set, replace(QUICK, updates=20), minutes=1, checkpoint=state)
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(TrainingError, match="cannot be read"):
        train(training_set, replace(QUICK, updates=20), checkpoint=state)


def test_a_loss_that_is_not_finite_ends_training(training_set: TrainingSet) -> None:
    broken = replace(
        training_set.scans[0], values=np.full_like(training_set.scans[0].values, np.nan)
    )
    bad = TrainingSet(
        [broken, *training_set.scans[1:]], training_set.validation, training_set.sites
    )
    with pytest.raises(TrainingError, match="the loss is no longer finite at update 0"):
        train(bad, QUICK)


def test_a_validation_loss_that_is_not_finite_ends_training(training_set: TrainingSet) -> None:
    broken = replace(training_set.validation[0], signal=training_set.validation[0].signal * np.nan)
    bad = TrainingSet(training_set.scans, [broken], training_set.sites)
    with pytest.raises(TrainingError, match="validation scans is no longer finite at update 20"):
        train(bad, QUICK)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1}, "expected either epochs or updates"),
        ({"updates": None}, "expected either epochs or updates"),
        ({"updates": 0}, "updates must be above 0"),
        ({"updates": None, "epochs": 0}, "epochs must be above 0"),
        ({"noise": 0.0}, "noise must be above 0"),
        ({"patience": 0}, "patience must be above 0"),
        ({"adversary_share": 0.0}, "adversary_share must be in"),
    ],
)
def test_settings_check_themselves(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(QUICK, **changes)


def test_training_ends_when_validation_has_not_improved(training_set: TrainingSet) -> None:
    hopeless = replace(QUICK, learning_rate=0.0, updates=1000, patience=3)
    assert train(training_set, hopeless).log[-1]["update"] == 4 * 20


def test_without_validation_scans_the_last_weights_are_kept(training_set: TrainingSet) -> None:
    alone = TrainingSet(training_set.scans, (), training_set.sites)
    trained = train(alone, QUICK)
    assert trained.best is trained.log[-1]


def test_minutes_bound_the_number_of_updates(training_set: TrainingSet) -> None:
    quick = train(training_set, QUICK, minutes=0.005).log[-1]["update"]
    assert 1 <= quick < 2000


def test_epochs_are_passes_over_the_patches(training_set: TrainingSet) -> None:
    patches = sum(len(scan.neighbours) for scan in training_set.scans)
    seen = []
    train(
        training_set,
        replace(QUICK, updates=None, epochs=2),
        progress=lambda *progress: seen.append(progress[:2]),
    )
    assert seen[-1] == (math.ceil(2 * patches / QUICK.batch),) * 2


def test_the_rate_rises_and_falls_to_zero() -> None:
    rates = [one_cycle(update, 100) for update in range(100)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert max(rates) == 1
    assert rates[-1] < 0.001
    assert all(a >= b for a, b in pairwise(rates[9:]))
