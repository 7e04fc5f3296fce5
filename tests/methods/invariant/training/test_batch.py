import numpy as np
import pytest
import torch
from hypothesis import given

from siteless.distributed import GROUPS
from siteless.methods.invariant.training._batch import Sampler
from siteless.methods.training import TrainingSet
from siteless.neighbourhood import cut
from strategies import seeds
from training_scans import make_training_set

UNITS = 8


@pytest.fixture(scope="module")
def sampler(training_set: TrainingSet) -> Sampler:
    return Sampler(training_set.scans, training_set.sites, units=UNITS, device="cpu")


TRAINING_SET = make_training_set()


@given(seeds)
def test_every_site_has_its_share(seed: int) -> None:
    sampler = Sampler(TRAINING_SET.scans, TRAINING_SET.sites, units=UNITS, device="cpu")
    batch = sampler.draw(256, seed=(seed,))
    assert torch.bincount(batch.site).tolist() == [128, 128]
    assert batch.patch.shape == (256, 7 * TRAINING_SET.scans[0].values.shape[1])
    assert batch.noise.shape == (256, UNITS)
    assert len(batch.signal) == GROUPS


def test_patches_are_cut_from_their_scans(training_set: TrainingSet, sampler: Sampler) -> None:
    batch = sampler.draw_from_each(64, seed=(3,))
    rng = np.random.default_rng((3,))
    rows = [rng.integers(len(scan.neighbours), size=16) for scan in training_set.scans]
    for group, (scan, chosen) in enumerate(zip(training_set.scans, rows, strict=True)):
        expected = cut(scan.values, scan.neighbours[chosen]).reshape(16, -1)
        np.testing.assert_array_equal(batch.patch.split(16)[group].numpy(), expected)
        measured = batch.shell[group] >= 0
        assert measured.sum() == scan.signal.shape[1]
        np.testing.assert_array_equal(
            batch.signal[group][:, measured].numpy(), scan.signal[chosen]
        )
        np.testing.assert_array_equal(batch.mixing[group][:, measured].numpy(), scan.mixing)
        assert not batch.signal[group][:, ~measured].any()


@pytest.mark.parametrize("processes", [2, 4, 16])
def test_the_parts_of_processes_make_up_the_batch(sampler: Sampler, processes: int) -> None:
    whole = sampler.draw(256, seed=(7,))
    size = 256 // GROUPS
    for rank in range(processes):
        share = sampler.draw(256, seed=(7,), part=slice(rank, None, processes))
        rows = [torch.arange(g * size, (g + 1) * size) for g in range(rank, GROUPS, processes)]
        for name in ("patch", "site", "elsewhere", "noise"):
            torch.testing.assert_close(
                getattr(share, name), getattr(whole, name)[torch.cat(rows)], rtol=0, atol=0
            )


def test_one_seed_gives_one_batch_and_another_another(sampler: Sampler) -> None:
    first, again, other = (sampler.draw(64, seed=seed) for seed in ((0, 1), (0, 1), (0, 2)))
    assert torch.equal(first.patch, again.patch)
    assert torch.equal(first.noise, again.noise)
    assert not torch.equal(first.patch, other.patch)


def test_drawing_does_not_change_the_scans(training_set: TrainingSet, sampler: Sampler) -> None:
    before = training_set.scans[0].values.copy()
    batch = sampler.draw(64, seed=(0,))
    batch.patch.zero_()
    np.testing.assert_array_equal(training_set.scans[0].values, before)
