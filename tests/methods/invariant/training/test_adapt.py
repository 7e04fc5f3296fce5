from dataclasses import replace

import numpy as np
import pytest
import torch

import training_scans
from siteless.methods.invariant.network import Autoencoder, NetworkSettings
from siteless.methods.invariant.training import adapt, train
from siteless.methods.invariant.training._units import channel_units, units_beside
from siteless.methods.patches import TrainingScan
from siteless.methods.training import TrainingSet
from siteless.population import Design
from training_scans import QUICK


@pytest.fixture(scope="module")
def trained() -> Autoencoder:
    training_set = training_scans.make_training_set()
    scans = [_brighter(scan, 0.2) if scan.site == "b" else scan for scan in training_set.scans]
    settings = replace(QUICK, updates=200)
    return train(replace(training_set, scans=scans, validation=[]), settings, seed=0).network


def _brighter(scan: TrainingScan, more: float) -> TrainingScan:
    """Return a scan whose measured shells are brighter than its patches."""
    signal = scan.signal + np.where(scan.shell > 0, more, 0)
    return replace(scan, signal=signal.astype(np.float32))


@pytest.fixture(scope="module")
def fresh() -> TrainingSet:
    return TrainingSet(
        [_brighter(replace(training_scans.training_scan("a", 5), site="c"), 0.3)], (), ("c",)
    )


@pytest.fixture(scope="module")
def progress() -> list[tuple[int, int]]:
    """Steps and their total, as reported while the larger network is trained."""
    return []


@pytest.fixture(scope="module")
def larger(
    trained: Autoencoder, fresh: TrainingSet, progress: list[tuple[int, int]]
) -> Autoencoder:
    return adapt(
        trained, fresh, QUICK, progress=lambda done, total: progress.append((done, total))
    )


def test_what_is_known_stays(trained: Autoencoder, larger: Autoencoder) -> None:
    code = torch.randn(20, trained.settings.code)
    patch = torch.randn(20, trained.settings.neighbours * trained.settings.channels)
    frames = trained.frames(patch)
    for site in range(2):
        here = torch.full((20,), site)
        torch.testing.assert_close(
            larger.decode(code, here, frames), trained.decode(code, here, frames), rtol=0, atol=0
        )
        code_after, code_before = (
            net.encode(patch, here, frames).mean for net in (larger, trained)
        )
        torch.testing.assert_close(code_after, code_before, rtol=0, atol=0)


def test_the_new_site_is_rendered_as_it_looks(
    trained: Autoencoder, fresh: TrainingSet, larger: Autoencoder
) -> None:
    [scan] = fresh.scans
    patch = torch.from_numpy(scan.values[scan.neighbours]).flatten(1)
    here, signal = torch.full((len(patch),), 2), torch.from_numpy(scan.signal)
    frames = larger.frames(patch)
    code = larger.encode(patch, here, frames).mean
    error, unadapted = (
        (network.decode(code, site, frames) @ torch.from_numpy(scan.mixing) - signal)
        .square()
        .mean()
        for network, site in ((larger, here), (trained, here - 2))
    )
    assert error < 0.4 * unadapted


def test_the_same_seed_gives_the_same_weights(
    trained: Autoencoder, fresh: TrainingSet, larger: Autoencoder
) -> None:
    weights, again = larger.state_dict(), adapt(trained, fresh, QUICK).state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_codes_of_the_new_site_have_the_covariance_of_the_others_and_their_own_mean(
    trained: Autoencoder, fresh: TrainingSet, larger: Autoencoder
) -> None:
    unaligned = adapt(trained, fresh, replace(QUICK, aligned=False))
    [scan] = fresh.scans
    patch = torch.from_numpy(scan.values[scan.neighbours]).flatten(1)
    here, frames = torch.tensor([2]), larger.frames(patch)
    with torch.no_grad():
        after, before = (net.encode(patch, here, frames).mean for net in (larger, unaligned))
    torch.testing.assert_close(after.mean(dim=0), before.mean(dim=0), rtol=0, atol=1e-4)
    covariance = torch.cov(after.T, correction=0)
    torch.testing.assert_close(covariance, trained.code_covariance, rtol=0.03, atol=0.03)
    assert (torch.cov(before.T, correction=0) - trained.code_covariance).abs().max() > 0.1


def _travelled(training_set: TrainingSet) -> Design:
    people = [scan.name[1:] for scan in training_set.scans]
    return Design.of([scan.site for scan in training_set.scans], people, training_set.sites)


def test_units_of_a_new_site_are_those_that_training_would_give() -> None:
    training_set = training_scans.make_training_set()
    of_site = [scan for scan in training_set.scans if scan.site == "a"]
    network = Autoencoder(
        NetworkSettings(training_set.scans[0].values.shape[1], sites=2, turned=True)
    )
    for of_sites in (True, False):
        design = _travelled(training_set) if of_sites else None
        known = [unit.expand(2, -1) for unit in channel_units(training_set.scans, design, network)]
        network.set_units(*known)
        scales = units_beside(network, of_site, of_sites=of_sites)
        for scale, expected in zip(scales, known, strict=True):
            torch.testing.assert_close(scale, expected[0], rtol=0.02, atol=1e-5)


@pytest.mark.usefixtures("larger")
def test_progress_is_reported(progress: list[tuple[int, int]]) -> None:
    assert progress[0] == (1, len(progress))
    assert progress[-1] == (len(progress), len(progress))
