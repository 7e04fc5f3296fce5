from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.evaluation import _leakage
from siteless.evaluation._leakage import Sample, _Trained, measure_leakage


def travellers(
    people: int = 10,
    sites: str = "ab",
    *,
    voxels: int = 400,
    features: int = 3,
    shift: float = 0.0,
    seed: int = 0,
) -> list[Sample]:
    """Everybody at every site; the first feature is shifted from site to site."""
    rng = np.random.default_rng(seed)
    offset = np.eye(features)[0] * shift
    return [
        Sample(f"{person:02}", site, rng.standard_normal((voxels, features)) + number * offset)
        for person in range(people)
        for number, site in enumerate(sites)
    ]


def information(shift: float) -> float:
    """Mutual information of site and value, nats: two normal distributions of equal weight."""

    def integrand(x: float) -> float:
        densities = np.asarray(stats.norm.pdf(x, [0.0, shift]))
        return float(np.mean(densities * np.log(densities / densities.mean())))

    return integrate.quad(integrand, -8, 8 + shift)[0]


def test_values_without_site_leak_nothing() -> None:
    leakage = measure_leakage(travellers(12, "abc"))
    assert leakage.chance == 1 / 3
    assert leakage.accuracy == pytest.approx(1 / 3, abs=0.02)
    assert -0.01 < leakage.nats < 0.001
    assert leakage.nats_low <= leakage.nats <= leakage.nats_high
    assert (leakage.people, leakage.voxels) == (12, 12 * 3 * 400)


def test_site_as_a_feature_leaks_all() -> None:
    leakage = measure_leakage(travellers(8, "abcd", shift=100.0))
    assert leakage.accuracy == 1
    assert np.log(4) - 0.02 < leakage.nats <= np.log(4)


@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_bound_is_below_the_information_and_close_to_it(shift: float) -> None:
    leakage = measure_leakage(travellers(20, voxels=2000, shift=shift))
    truth = information(shift)
    # Twice the sampling error of 80,000 voxels' cross-entropy, which is below 0.6 nats a voxel.
    assert 0.9 * truth < leakage.nats < truth + 2 * 0.6 / np.sqrt(80_000)
    assert leakage.accuracy == pytest.approx(stats.norm.cdf(shift / 2), abs=0.01)


def test_what_is_a_persons_is_not_a_sites() -> None:
    rng = np.random.default_rng(3)
    offsets = 5 * rng.standard_normal((24, 1, 8))
    values = offsets + rng.standard_normal((24, 300, 8))
    samples = [Sample(f"{n:02}", "ab"[n % 2], row) for n, row in enumerate(values)]
    leakage = measure_leakage(samples)
    assert leakage.accuracy < 0.7
    assert leakage.nats < 0.05
    # The same voxels, as if each part of a person's were somebody else's: a split by voxel.
    parts = [
        Sample(f"{sample.subject}-{block}", sample.site, sample.values[block::10])
        for sample in samples
        for block in range(10)
    ]
    assert measure_leakage(parts).accuracy > 0.9


def test_sites_count_equally() -> None:
    # A rare site: naming the common one always would be right for 90 % of the voxels.
    samples = travellers(20, shift=0.0)
    kept = [sample for sample in samples if sample.site == "a" or sample.subject < "04"]
    leakage = measure_leakage(kept)
    assert leakage.accuracy == pytest.approx(0.5, abs=0.05)
    assert leakage.nats < 0.005


@pytest.mark.parametrize("training", [[f"{person:02}" for person in range(6)], None])
def test_tested_people_do_not_change_the_adversary(training: list[str] | None) -> None:
    samples = _leakage._in_order(travellers(shift=1.0))
    adversary, tested = next(_leakage._adversaries(samples, training, 0))
    people = {sample.subject for sample in tested}
    changed = [
        replace(sample, values=-7 * sample.values + 3) if sample.subject in people else sample
        for sample in samples
    ]
    again, tested_again = next(_leakage._adversaries(changed, training, 0))
    assert people == {sample.subject for sample in tested_again}
    assert people.isdisjoint(training or ())
    assert adversary.confidence == again.confidence
    np.testing.assert_array_equal(adversary.centre, again.centre)
    np.testing.assert_array_equal(adversary.gain, again.gain)
    for name, weights in adversary.network.state_dict().items():
        assert torch.equal(weights, again.network.state_dict()[name])


def test_everybody_is_tested_once_by_an_adversary_that_has_not_seen_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples, learned = _leakage._in_order(travellers(7)), []
    learn = _leakage._learn

    def watched(some: Sequence[Sample], *rest: Any) -> _Trained:
        learned.append({sample.subject for sample in some})
        return learn(some, *rest)

    monkeypatch.setattr(_leakage, "_learn", watched)
    tested = [others for _, others in _leakage._adversaries(samples, None, 0)]
    assert len(tested) == 5
    assert sorted(sample.subject for others in tested for sample in others) == [
        sample.subject for sample in samples
    ]
    for others, seen in zip(tested, learned, strict=True):
        assert seen.isdisjoint(sample.subject for sample in others)


def test_seeds_repeat_whatever_the_order_and_threads() -> None:
    samples = travellers(6, shift=0.7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = measure_leakage(samples, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_num_threads(threads + 1)
    try:
        assert measure_leakage(samples[::-1], seed=4) == first
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert measure_leakage(samples, seed=5) != first


def test_units_of_features_do_not_matter() -> None:
    samples = travellers(6, shift=1.0)
    unit = np.array([1e-4, 1.0, 1e4], dtype=np.float32)
    scaled = [replace(sample, values=sample.values * unit) for sample in samples]
    ours, theirs = measure_leakage(samples), measure_leakage(scaled)
    assert theirs.nats == pytest.approx(ours.nats, abs=0.01)


def test_a_feature_that_is_constant_while_learning_is_left_out() -> None:
    samples = travellers(6, shift=1.0)
    learners = ["00", "01", "02"]

    def with_constant(sample: Sample, value: float) -> Sample:
        column = np.full((len(sample.values), 1), value, dtype=np.float32)
        return replace(sample, values=np.hstack([sample.values, column]))

    other = [
        with_constant(sample, 5.0 if sample.subject in learners else 1e6) for sample in samples
    ]
    same = [with_constant(sample, 5.0) for sample in samples]
    assert measure_leakage(other, training=learners) == measure_leakage(same, training=learners)


def test_one_learning_person_a_site_is_enough_and_one_tested_gives_no_interval() -> None:
    samples = [
        Sample(f"{site}{number}", site, sample.values)
        for number in range(2)
        for site, sample in zip(
            "ab", travellers(1, voxels=2000, shift=4.0, seed=number), strict=True
        )
    ]
    leakage = measure_leakage(samples, training=["a0", "b0"])
    assert leakage.accuracy > 0.9
    assert leakage.nats < np.log(2)
    assert np.isnan([leakage.nats_low, leakage.accuracy_high]).all()


def test_interval_holds_the_mean_of_new_people() -> None:
    # People differ in how far their sites are apart; 12 of them are tested in each study.
    rng = np.random.default_rng(1)
    scans = np.ones((12, 2))
    truth, held = 0.3, 0
    for study in range(200):
        distances = truth + 0.1 * rng.standard_normal((12, 1, 1))
        low, high = _leakage._interval(scans, np.broadcast_to(distances, (12, 2, 2)), study)
        held += low[0] < truth < high[0]
    assert 0.86 < held / 200 < 0.99


@pytest.mark.parametrize(
    ("samples", "training", "problem"),
    [
        (travellers(4, "a"), None, "at least two sites, found 1"),
        (travellers(2), None, "at least 3 people, found 2"),
        ([*travellers(4, "a"), travellers(1)[1]], None, "learned from was scanned at b"),
        ([*travellers(4, "a"), travellers(1)[1]], ["01", "02"], "learned from was scanned at b"),
        ([*travellers(4, "a"), travellers(1)[1]], ["00", "01"], "tested was scanned at b"),
        (travellers(3), [], "learned from was scanned at a, b"),
        ([*travellers(3), *travellers(1, features=2)], None, "as many features, found 2, 3"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    samples: list[Sample], training: list[str] | None, problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem) as caught:
        measure_leakage(samples, training=training)
    assert caught.value.remedy


@pytest.mark.parametrize("values", [np.ones(3), np.ones((0, 3)), np.full((2, 2), np.nan)])
def test_values_that_are_no_table_are_refused(values: Array) -> None:
    with pytest.raises(DatasetError, match="subject 01 at site a"):
        Sample("01", "a", values)
