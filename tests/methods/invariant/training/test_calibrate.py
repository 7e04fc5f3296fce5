from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from lessons import QUICK
from siteless.acquisition import Array
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.invariant.training import calibrate_last, calibrate_sites, train
from siteless.methods.invariant.training._calibrate import _log_amplitudes
from siteless.methods.patches import TrainingSet


@pytest.fixture(scope="module")
def trained(lesson: TrainingSet) -> Autoencoder:
    return train(lesson, QUICK).network


@pytest.fixture
def network(trained: Autoencoder) -> Autoencoder:
    return deepcopy(trained)


def _amplitudes(network: Autoencoder, lesson: TrainingSet) -> Array:
    numbers = [lesson.sites.index(scan.site) for scan in lesson.scans]
    return _log_amplitudes(network, lesson.scans, numbers)


def test_renderings_of_a_code_differ_as_far_as_they_should(
    network: Autoencoder, lesson: TrainingSet
) -> None:
    rng = np.random.default_rng(0)
    before = _amplitudes(network, lesson)
    expected = 0.1 * rng.normal(size=before.shape)
    calibrate_sites(network, lesson.scans, lesson.sites, expected)
    after = _amplitudes(network, lesson)
    np.testing.assert_allclose(
        after - after.mean(axis=0), expected - expected.mean(axis=0), atol=1e-4
    )
    # What all sites share stays.
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), atol=1e-4)


def test_nothing_changes_where_renderings_differ_as_they_should(
    network: Autoencoder, lesson: TrainingSet
) -> None:
    calibrate_sites(network, lesson.scans, lesson.sites, _amplitudes(network, lesson) + 0.3)
    torch.testing.assert_close(network.gain, torch.ones_like(network.gain))


def test_the_last_site_gets_a_gain_of_its_own_and_the_others_stay(
    network: Autoencoder, lesson: TrainingSet
) -> None:
    count = len(lesson.sites)
    last = [scan for scan in lesson.scans if scan.site == lesson.sites[-1]]
    network.gain[:-1] = 1.25
    calibrate_last(network, last, np.zeros((count, _amplitudes(network, lesson).shape[1])))
    after = _log_amplitudes(network, last, [count - 1] * len(last))
    np.testing.assert_allclose(after[-1], after[:-1].mean(axis=0), atol=1e-4)
    assert (network.gain[:-1] == 1.25).all()


def test_a_site_whose_people_differ_keeps_their_difference(lesson: TrainingSet) -> None:
    """One site is shown scans of lower b=1200 signal, which its profile has left to its people.

    A decoder that is told the site renders it lower; calibrated, it no longer does.
    """
    first = lesson.sites[0]
    scans = [
        replace(
            scan, signal=scan.signal * np.where((scan.shell == 1) & (scan.site == first), 0.9, 1)
        )
        for scan in lesson.scans
    ]
    scans = [replace(scan, signal=scan.signal.astype(np.float32)) for scan in scans]
    network = train(replace(lesson, scans=scans), QUICK).network
    before = _amplitudes(network, lesson)[:, 1]
    assert before[0] < before[1:].mean() - 0.005
    calibrate_sites(network, lesson.scans, lesson.sites, np.zeros((len(lesson.sites), 5)))
    after = _amplitudes(network, lesson)[:, 1]
    assert np.ptp(after) < 1e-4
