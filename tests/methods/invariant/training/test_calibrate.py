from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from siteless.acquisition import Array
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.invariant.training import calibrate_last, calibrate_sites, train
from siteless.methods.invariant.training._calibrate import _log_amplitudes
from siteless.methods.training import TrainingSet
from training_scans import QUICK


@pytest.fixture(scope="module")
def trained(training_set: TrainingSet) -> Autoencoder:
    return train(training_set, QUICK).network


@pytest.fixture
def network(trained: Autoencoder) -> Autoencoder:
    return deepcopy(trained)


def _amplitudes(network: Autoencoder, training_set: TrainingSet) -> Array:
    numbers = [training_set.sites.index(scan.site) for scan in training_set.scans]
    return _log_amplitudes(network, training_set.scans, numbers)


def test_renderings_of_a_code_differ_as_far_as_they_should(
    network: Autoencoder, training_set: TrainingSet
) -> None:
    rng = np.random.default_rng(0)
    before = _amplitudes(network, training_set)
    expected = 0.1 * rng.normal(size=before.shape)
    calibrate_sites(network, training_set.scans, training_set.sites, expected)
    after = _amplitudes(network, training_set)
    np.testing.assert_allclose(
        after - after.mean(axis=0), expected - expected.mean(axis=0), atol=1e-4
    )
    # What all sites share stays.
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), atol=1e-4)


def test_nothing_changes_where_renderings_differ_as_they_should(
    network: Autoencoder, training_set: TrainingSet
) -> None:
    calibrate_sites(
        network, training_set.scans, training_set.sites, _amplitudes(network, training_set) + 0.3
    )
    torch.testing.assert_close(network.gain, torch.ones_like(network.gain))


def test_the_last_site_gets_a_gain_of_its_own_and_the_others_stay(
    network: Autoencoder, training_set: TrainingSet
) -> None:
    count = len(training_set.sites)
    last = [scan for scan in training_set.scans if scan.site == training_set.sites[-1]]
    network.gain[:-1] = 1.25
    calibrate_last(network, last, np.zeros((count, _amplitudes(network, training_set).shape[1])))
    after = _log_amplitudes(network, last, [count - 1] * len(last))
    np.testing.assert_allclose(after[-1], after[:-1].mean(axis=0), atol=1e-4)
    assert (network.gain[:-1] == 1.25).all()


def test_a_site_whose_people_differ_keeps_their_difference(training_set: TrainingSet) -> None:
    """One site is shown scans of lower b=1200 signal, which its profile has left to its people.

    A decoder that is given the site renders it lower; calibrated, it no longer does.
    """
    first = training_set.sites[0]
    scans = [
        replace(
            scan, signal=scan.signal * np.where((scan.shell == 1) & (scan.site == first), 0.9, 1)
        )
        for scan in training_set.scans
    ]
    scans = [replace(scan, signal=scan.signal.astype(np.float32)) for scan in scans]
    network = train(replace(training_set, scans=scans), QUICK).network
    before = _amplitudes(network, training_set)[:, 1]
    assert before[0] < before[1:].mean() - 0.005
    calibrate_sites(
        network, training_set.scans, training_set.sites, np.zeros((len(training_set.sites), 5))
    )
    after = _amplitudes(network, training_set)[:, 1]
    assert np.ptp(after) < 1e-4
