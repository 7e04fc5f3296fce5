"""How much of a site's difference is the scanner's."""

import numpy as np
import pytest

from siteless.acquisition import Array
from siteless.population import NUMBERS, Design, SiteVerdict, estimate_site_effects, judge_sites

SITES = ("a", "b", "c", "d")
FEATURES = 40
GROUPS = np.zeros(FEATURES, dtype=int)
UNITS = np.full(FEATURES, FEATURES**-0.5)


def verdicts(people: int, effect: float, seed: int = 0) -> tuple[list[SiteVerdict], Array]:
    """Draw people of standard deviation 1, at sites whose effects have a standard deviation."""
    rng = np.random.default_rng(seed)
    labels = [site for site in SITES for _ in range(people)]
    design = Design.of(labels, [str(n) for n in range(len(labels))], SITES)
    true = effect * rng.normal(size=(len(SITES), FEATURES))
    true -= true.mean(axis=0)
    values = true[design.sites] + rng.normal(size=(len(labels), FEATURES))
    effects = estimate_site_effects(values, design, GROUPS)
    error = np.sqrt(np.square(effects.sites - true).mean(axis=1))
    return judge_sites(effects, SITES, GROUPS, UNITS), error


def test_difference_without_scanners_is_what_chance_gives() -> None:
    for verdict in verdicts(10, 0.0)[0]:
        assert verdict.difference == pytest.approx(verdict.chance, rel=0.3)
        assert verdict.scanner < 0.2 * verdict.difference
        assert verdict.chance == pytest.approx(np.sqrt(3 / 4 / 10), rel=0.15)


def test_a_large_difference_is_the_scanners() -> None:
    for verdict in verdicts(10, 3.0)[0]:
        assert verdict.scanner == pytest.approx(verdict.difference, rel=0.05)
        assert verdict.left**2 + verdict.scanner**2 == pytest.approx(verdict.difference**2)


@pytest.mark.parametrize("people", [3, 10, 40])
@pytest.mark.parametrize("effect", [0.3, 1.0])
def test_stated_error_is_the_true_one(people: int, effect: float) -> None:
    stated, true = [], []
    for seed in range(6):
        given, error = verdicts(people, effect, seed)
        stated += [verdict.error**2 for verdict in given]
        true += np.square(error).tolist()
    assert np.sqrt(np.mean(true)) == pytest.approx(np.sqrt(np.mean(stated)), rel=0.25)


@pytest.mark.parametrize("effect", [0.3, 1.0])
def test_expected_errors_are_those_of_studies_of_that_size(effect: float) -> None:
    small = verdicts(10, effect)[0]
    for index, number in enumerate(NUMBERS):
        expected = np.mean([verdict.expected_errors[index] for verdict in small])
        seen = np.mean([verdicts(number, effect, seed)[1].mean() for seed in range(1, 5)])
        assert expected == pytest.approx(seen, rel=0.25)
    for verdict in small:
        assert list(verdict.expected_errors) == sorted(verdict.expected_errors, reverse=True)


def test_people_of_a_site_are_counted_once() -> None:
    design = Design.of(["a", "a", "b", "b", "b"], ["1", "1", "1", "2", "3"], ["a", "b"])
    assert design.people_of_sites.tolist() == [1, 3]


def test_sites_of_one_person_each_prove_nothing() -> None:
    for verdict in verdicts(1, 3.0)[0]:
        assert verdict.scanner == 0
        assert verdict.error == pytest.approx(verdict.difference)
