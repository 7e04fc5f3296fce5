from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siteless.acquisition import Array
from siteless.population import Design, SiteEffects, estimate_new_site, estimate_site_effects
from siteless.population._effects import _moderated

SITES = ("a", "b", "c", "d")
ONE = np.zeros(1, dtype=int)


def _unpaired(people: int, covariates: Array | None = None) -> Design:
    labels = [site for site in SITES for _ in range(people)]
    return Design.of(labels, [str(n) for n in range(len(labels))], SITES, covariates)


def _drawn(
    rng: np.random.Generator,
    design: Design,
    effects: Array | list[float],
    *,
    of_people: float = 1.0,
    rest: float = 0.0,
) -> Array:
    """Draw one feature: effects of sites, people who differ, and what differs between scans."""
    people = rng.normal(scale=of_people, size=design.people.max() + 1)
    noise = rng.normal(scale=rest, size=len(design.sites)) if rest else 0.0
    return (np.asarray(effects)[design.sites] + people[design.people] + noise)[:, None]


@given(st.integers(0, 10**6), st.integers(2, 30), st.floats(0, 3))
def test_estimates_lie_between_zero_and_the_difference_of_means(
    seed: int, people: int, apart: float
) -> None:
    rng, design = np.random.default_rng(seed), _unpaired(people)
    values = _drawn(rng, design, apart * rng.normal(size=4))
    estimated = estimate_site_effects(values, design, ONE)
    means = np.array([values[design.sites == site].mean() for site in range(4)])
    if np.abs(values - means[design.sites][:, None]).max() > 2 * estimated.of_people[0] ** 0.5:
        return  # far people count less
    np.testing.assert_allclose(estimated.raw[:, 0], means - means.mean(), atol=1e-9)
    shares = (estimated.sites[:, 0] / estimated.raw[:, 0]).round(9)
    assert (shares >= 0).all()
    assert (shares <= 1).all()
    assert np.ptp(shares) < 1e-6  # a balanced design shrinks all sites alike


@pytest.mark.parametrize("people", [3, 5, 10, 20])
@pytest.mark.parametrize("of_sites", [0.0, 0.3, 1.0, 3.0])
def test_on_average_harmonizing_is_never_worse_than_doing_nothing_nor_than_means(
    people: int, of_sites: float
) -> None:
    design, errors = _unpaired(people), []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        effects = of_sites * rng.normal(size=4)
        estimated = estimate_site_effects(_drawn(rng, design, effects), design, ONE)
        true = effects - effects.mean()
        errors.append(
            [np.square(e - true).sum() for e in (estimated.sites[:, 0], estimated.raw[:, 0], 0)]
        )
    shrunk, raw, nothing = np.mean(errors, axis=0)
    assert shrunk < 1.25 * raw
    assert shrunk < nothing + 0.2 * raw


@pytest.mark.parametrize("people", [10, 20])
def test_the_posterior_variance_is_that_of_the_error(people: int) -> None:
    design, errors, variances = _unpaired(people), [], []
    for seed in range(400):
        rng = np.random.default_rng(seed)
        effects = rng.normal(size=4)
        estimated = estimate_site_effects(_drawn(rng, design, effects), design, ONE)
        errors.append(np.square(estimated.sites[:, 0] - effects + effects.mean()).mean())
        variances.append(estimated.variance.mean())
    assert np.mean(errors) == pytest.approx(np.mean(variances), rel=0.3)


def test_travelling_people_are_compared_with_themselves() -> None:
    labels = [site for site in SITES for _ in range(4)]
    design = Design.of(labels, [str(n) for n in range(4)] * 4, SITES)
    rng, effects = np.random.default_rng(0), np.array([0.3, -0.1, 0.0, -0.2])
    values = _drawn(rng, design, effects, of_people=1.0, rest=0.01)
    estimated = estimate_site_effects(values, design, ONE)
    np.testing.assert_allclose(estimated.sites[:, 0], effects, atol=0.02)
    strangers = estimate_site_effects(values, _unpaired(4), ONE)
    assert np.abs(strangers.sites).max() < np.abs(effects).max() / 2


def test_two_bridging_people_count_for_what_they_are_worth() -> None:
    """Forty people at one site each, and two at all of them."""
    labels = [*(site for site in SITES for _ in range(10)), *SITES, *SITES]
    people = [*map(str, range(40)), *["x"] * 4, *["y"] * 4]
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        design, effects = Design.of(labels, people, SITES), rng.normal(size=4)
        values = _drawn(rng, design, effects, rest=0.05)
        true = effects - effects.mean()
        bridged = estimate_site_effects(values, design, ONE).sites[:, 0]
        alone = estimate_site_effects(values[:40], _unpaired(10), ONE).sites[:, 0]
        errors.append([np.square(estimated - true).mean() for estimated in (bridged, alone)])
    bridged, alone = np.mean(errors, axis=0)
    assert bridged < 0.1 * alone


def _confounded(rng: np.random.Generator, gap: int, people: int = 10) -> Array:
    ages = rng.normal(scale=10, size=4 * people) + np.repeat(gap * np.linspace(-1, 1, 4), people)
    return (ages - ages.mean())[:, None]


def test_what_age_explains_is_not_the_sites() -> None:
    largest = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        ages = _confounded(rng, gap=10)
        design = _unpaired(10, ages)
        values = _drawn(rng, design, np.zeros(4)) - 0.1 * ages
        adjusted = estimate_site_effects(values, design, ONE)
        naive = estimate_site_effects(values, _unpaired(10), ONE)
        largest.append([np.abs(estimated.sites).max() for estimated in (adjusted, naive)])
    adjusted, naive = np.mean(largest, axis=0)
    assert adjusted < 0.4 * naive


def test_a_site_that_age_determines_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    ages = np.repeat([-30.0, -10.0, 10.0, 30.0], 8)[:, None]
    design = _unpaired(8, ages)
    values = _drawn(rng, design, np.zeros(4), of_people=0.2) - 0.1 * ages
    assert np.abs(estimate_site_effects(values, design, ONE).sites).max() < 0.1


def test_one_person_a_site_proves_nothing_unless_they_travelled() -> None:
    rng = np.random.default_rng(0)
    effects = np.array([1.0, 2.0, -1.0, -2.0])
    alone, values = _unpaired(1), _drawn(rng, _unpaired(1), effects)
    assert np.abs(estimate_site_effects(values, alone, ONE).sites).max() < 0.05
    traveller = Design.of(SITES, ["p"] * 4, SITES)
    values = _drawn(rng, traveller, effects)
    estimated = estimate_site_effects(values, traveller, ONE)
    np.testing.assert_allclose(estimated.sites[:, 0], effects, atol=0.01)


def test_groups_of_features_have_priors_of_their_own() -> None:
    rng, design = np.random.default_rng(0), _unpaired(5)
    large = np.hstack([_drawn(rng, design, 5 * rng.normal(size=4)) for _ in range(6)])
    small = np.hstack([_drawn(rng, design, np.zeros(4)) for _ in range(6)])
    estimated = estimate_site_effects(np.hstack([large, small]), design, np.repeat([0, 1], 6))
    kept = np.sqrt(np.square(estimated.sites).sum(axis=0) / np.square(estimated.raw).sum(axis=0))
    assert kept[:6].min() > 0.95
    assert kept[6:].max() < 0.5


def test_a_new_site_is_shrunk_as_known_sites_differ() -> None:
    rng, design = np.random.default_rng(0), _unpaired(20)
    alike, apart = (
        estimate_site_effects(_drawn(rng, design, size * np.arange(4)), design, ONE)
        for size in (0, 5)
    )
    new = np.array([1.0])

    def effect(value: Array, known: SiteEffects) -> float:
        return estimate_new_site(value, known, 2, ONE)[0].item()

    assert abs(effect(new, alike)) < 0.5
    assert effect(new, apart) > 0.9
    assert effect(50 * new, alike) > 0.5 * 50


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_damaged_scans_hardly_move_their_site(share: float) -> None:
    rng, design = np.random.default_rng(0), _unpaired(20)
    effects = np.array([1.0, 0.0, 0.0, -1.0])
    values = np.hstack([_drawn(rng, design, effects) for _ in range(10)])
    damaged = values.copy()
    damaged[: int(20 * share)] += 30
    groups = np.zeros(10, dtype=int)
    kept, moved = (estimate_site_effects(v, design, groups).sites for v in (values, damaged))
    assert np.abs(moved - kept).max() < 0.3  # their mean moves by 1.5 and 3


def test_effects_are_those_of_the_reference_group() -> None:
    """Patients, who are all at two of the sites, differ in what is asked for."""
    rng, design = np.random.default_rng(0), _unpaired(20)
    patient = (design.sites > 1) & (np.arange(80) % 2 > 0)
    values = _drawn(rng, design, np.zeros(4), of_people=0.1) + 5.0 * patient[:, None]
    learned = replace(design, reference=~patient)
    assert np.abs(estimate_site_effects(values, learned, ONE).sites).max() < 0.1
    assert np.abs(estimate_site_effects(values, design, ONE).raw).max() > 1


@pytest.mark.parametrize("freedom", [3, 6, 30])
def test_variances_of_a_group_are_shrunk_to_their_posterior_mean(freedom: int) -> None:
    rng, prior, common = np.random.default_rng(1), 8.0, 2.0
    true = prior * common / rng.chisquare(prior, size=4000)
    seen = true * rng.chisquare(freedom, size=4000) / freedom
    expected = (prior * common + freedom * seen) / (prior + freedom - 2)  # with the prior known
    np.testing.assert_allclose(_moderated(seen, freedom), expected, rtol=0.15)


def test_variances_that_are_alike_become_the_same_and_others_stay_apart() -> None:
    rng, freedom = np.random.default_rng(2), 6
    alike = rng.chisquare(freedom, size=500) / freedom
    assert np.ptp(_moderated(alike, freedom)) < 0.3 * np.ptp(alike)
    apart = np.geomspace(1e-3, 1e3, 25)
    np.testing.assert_allclose(np.log(_moderated(apart, 30)), np.log(apart), atol=1)
    assert _moderated(apart[:1], 30) == apart[:1] * 30 / 28


def test_the_fewer_degrees_of_freedom_the_larger_a_variance_may_be() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 3, 25):
        factors = []
        for freedom in (0.5, 1, 2, 3, 4, 8, 30):
            seen = rng.chisquare(freedom, size=(400, count)) / freedom
            factors.append(
                np.mean(
                    [
                        _moderated(variances, freedom).mean() / variances.mean()
                        for variances in seen
                    ]
                )
            )
        assert (np.diff(factors) <= 1e-9).all()
        assert factors[-1] == pytest.approx(1, abs=0.1)


def test_two_people_a_site_hardly_prove_anything() -> None:
    """Two degrees of freedom may have shown far too little of how people differ."""
    labels, rng = [site for site in SITES for _ in range(2)], np.random.default_rng(0)
    covariates = rng.normal(size=(8, 2))
    design = Design.of(labels, [str(n) for n in range(8)], SITES, covariates)
    errors, given = [], []
    for _ in range(300):
        estimated = estimate_site_effects(_drawn(rng, design, np.zeros(4)), design, ONE)
        errors.append(np.square(estimated.sites).mean())
        given.append(np.square(estimated.raw).mean())
    assert np.mean(errors) < 0.3 * np.mean(given)


def test_scanners_that_are_alike_before_and_after_an_upgrade_do_not_hide_how_others_differ() -> (
    None
):
    """Two pairs of sites, each with its own travelling people, are compared as two sites are."""
    shares: dict[str, list[float]] = {"pairs": [], "sites": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        people = [f"{pair}{n}" for pair in "ab" for n in range(10)]
        differences = rng.normal(size=(20, 12)) + np.repeat([[0.6], [-0.6]], 10, axis=0)
        visits = np.repeat(differences, 2, axis=0) + 0.1 * rng.normal(size=(40, 12))
        labels = [site for pair in ("ab", "cd") for _ in range(10) for site in pair]
        pairs = Design.of(labels, [person for person in people for _ in range(2)], SITES)
        sites = Design.of(["a"] * 10 + ["b"] * 10, people, ("a", "b"))
        groups = np.zeros(12, dtype=int)
        for name, values, design in (("pairs", visits, pairs), ("sites", differences, sites)):
            effects = estimate_site_effects(values, design, groups)
            first, last = ((e[0] - e[-1]).mean() for e in (effects.sites, effects.raw))
            shares[name].append(first / last)
    assert np.mean(shares["pairs"]) > 0.5
    assert np.mean(shares["pairs"]) == pytest.approx(np.mean(shares["sites"]), abs=0.1)


def test_a_small_site_that_is_connected_does_not_blur_how_large_ones_differ() -> None:
    """Site b has three people, one of whom was at a too; a and c have a hundred each."""
    labels = ["a"] * 100 + ["b"] * 3 + ["c"] * 100
    people = [*map(str, range(100)), "0", "b1", "b2", *(f"c{n}" for n in range(100))]
    design = Design.of(labels, people, ("a", "b", "c"))
    shrunk: list[float] = []
    raw: list[float] = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = _drawn(rng, design, [0, 0.1, 0.5], rest=0.3)
        effects = estimate_site_effects(values, design, ONE)
        for errors, estimates in ((shrunk, effects.sites), (raw, effects.raw)):
            errors.append(float(estimates[0, 0] - estimates[2, 0]) + 0.5)
    assert np.mean(np.square(shrunk)) < 1.25**2 * np.mean(np.square(raw))


def test_a_new_scanner_is_not_taken_for_another_upgrade() -> None:
    """Two sites that are alike, with people at both, say little of how much a third may differ."""
    kept = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        labels, people = ["a", "b"] * 20, [str(n // 2) for n in range(40)]
        design, groups = Design.of(labels, people, ("a", "b")), np.zeros(12, dtype=int)
        values = np.repeat(rng.normal(size=(20, 12)), 2, axis=0) + 0.1 * rng.normal(size=(40, 12))
        known = estimate_site_effects(values, design, groups)
        new = (0.8 + rng.normal(size=(10, 12))).mean(axis=0) - known.mean
        effect, _ = estimate_new_site(new, known, 10, groups)
        kept.append(effect.mean() / new.mean())
    assert np.mean(kept) > 0.5


def test_a_single_site_has_no_effect() -> None:
    design = Design.of(["a"] * 4, list("wxyz"), ("a",))
    effects = estimate_site_effects(np.arange(4.0)[:, None], design, ONE)
    assert not effects.sites.any()
