from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from siteless.acquisition import Array
from siteless.methods.invariant.network import Autoencoder, Posterior
from siteless.methods.invariant.training import train
from siteless.methods.invariant.training._align import _transport, align_codes
from siteless.methods.patches import TrainingScan
from siteless.methods.training import TrainingSet
from training_scans import QUICK


def _covariance(rng: np.random.Generator, size: int) -> Array:
    mixed = rng.normal(size=(size, 2 * size))
    return mixed @ mixed.T / size


@pytest.mark.parametrize("seed", range(3))
def test_codes_of_one_covariance_get_another(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given, goal = _covariance(rng, 6), _covariance(rng, 6)
    matrix = _transport(given, goal)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
    np.testing.assert_allclose(matrix @ given @ matrix, goal, atol=0.02)
    assert (np.linalg.eigvalsh(matrix) > 0).all()
    np.testing.assert_allclose(_transport(given, given), np.eye(6), atol=1e-9)


def test_an_unused_unit_does_not_change() -> None:
    given, goal = np.diag([1.0, 1e-7]), np.diag([4.0, 1e-9])
    np.testing.assert_allclose(_transport(given, goal), np.diag([2.0, 1.0]), atol=1e-2)


@pytest.fixture(scope="module")
def unaligned(training_set: TrainingSet) -> Autoencoder:
    return train(training_set, replace(QUICK, aligned=False)).network


@pytest.fixture
def travelled(training_set: TrainingSet) -> list[TrainingScan]:
    return [replace(scan, subject=scan.name[1:]) for scan in training_set.scans]


@pytest.fixture
def network(
    unaligned: Autoencoder, travelled: list[TrainingScan], training_set: TrainingSet
) -> Autoencoder:
    aligned = deepcopy(unaligned)
    align_codes(aligned, travelled, training_set.design(travelled))
    return aligned


def test_training_ends_with_codes_that_are_aligned(
    unaligned: Autoencoder,
    travelled: list[TrainingScan],
    training_set: TrainingSet,
    network: Autoencoder,
) -> None:
    weights = train(replace(training_set, scans=travelled), QUICK).network.state_dict()
    for name, weight in network.state_dict().items():
        torch.testing.assert_close(weights[name], weight)
    assert not torch.equal(weights["code_mixing"], unaligned.code_mixing)


def _codes(network: Autoencoder, scan: TrainingScan, site: int) -> Posterior:
    patch = torch.from_numpy(scan.values[scan.neighbours]).flatten(1)
    with torch.no_grad():
        return network.encode(patch, torch.tensor([site]), network.frames(patch))


def test_codes_of_all_sites_have_one_mean_and_covariance(
    training_set: TrainingSet, network: Autoencoder
) -> None:
    codes = [
        [
            _codes(network, scan, site).mean.numpy()
            for scan in training_set.scans
            if scan.site == label
        ]
        for site, label in enumerate(training_set.sites)
    ]
    means = [np.mean([of_scan.mean(axis=0) for of_scan in scans], axis=0) for scans in codes]
    covariances = [
        np.mean([np.cov(of_scan.T, bias=True) for of_scan in scans], axis=0) for scans in codes
    ]
    np.testing.assert_allclose(means[0], means[1], atol=0.01)
    np.testing.assert_allclose(covariances[0], covariances[1], rtol=0.03, atol=0.03)
    np.testing.assert_allclose(covariances[0], network.code_covariance, rtol=0.03, atol=0.03)


def test_variances_follow_the_codes(
    training_set: TrainingSet, network: Autoencoder, unaligned: Autoencoder
) -> None:
    """A posterior's variance is that of codes drawn from it and brought to the common ones."""
    after, before = (_codes(net, training_set.scans[0], 0) for net in (network, unaligned))
    torch.manual_seed(0)
    drawn = torch.stack([before.sample()[0] for _ in range(4000)])
    moved = drawn @ network.code_mixing[0] + network.code_shift[0]
    torch.testing.assert_close(moved.var(dim=0), after.variance[0], rtol=0.15, atol=1e-6)


def test_few_patches_do_not_change_the_covariance(
    training_set: TrainingSet, unaligned: Autoencoder
) -> None:
    network = deepcopy(unaligned)
    scans = [
        replace(scan, neighbours=scan.neighbours[:5]) if scan.site == "a" else scan
        for scan in training_set.scans
    ]
    align_codes(network, scans, training_set.design(scans))
    gains = torch.linalg.eigvalsh(network.code_mixing[0])
    assert 0.5 < gains.min() < gains.max() < 2


def test_aligning_again_gives_the_same(
    training_set: TrainingSet, network: Autoencoder, travelled: list[TrainingScan]
) -> None:
    before = network.code_mixing.clone(), network.code_shift.clone()
    align_codes(network, travelled, training_set.design(travelled))
    torch.testing.assert_close((network.code_mixing, network.code_shift), before)
