import numpy as np
import pytest
from scipy import stats

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.evaluation._biology import (
    change_per_year,
    intraclass_correlation,
    lesion_contrast,
    linear_effect,
    site_distances,
)

# Shrout & Fleiss (1979), table 2: six targets and four judges.
JUDGED = np.array(
    [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
)


def test_line_is_scipys() -> None:
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 40)
    values = 0.5 - 0.002 * age + 0.02 * rng.standard_normal(40)
    effect = linear_effect(values, age, list(map(str, range(40))))
    expected = stats.linregress(age, values)
    assert effect.slope == pytest.approx(expected.slope)
    assert effect.correlation == pytest.approx(expected.rvalue)
    width = 2 * 1.96 * expected.stderr
    assert effect.slope_high - effect.slope_low == pytest.approx(width, rel=0.25)
    assert effect.slope_low < effect.slope < effect.slope_high
    assert effect.people == 40


def test_scanning_people_again_does_not_narrow_the_interval() -> None:
    rng = np.random.default_rng(1)
    age, people = rng.uniform(20, 80, 20), list(map(str, range(20)))
    values = 0.001 * age + 0.02 * rng.standard_normal(20)
    once = linear_effect(values, age, people)
    again = linear_effect(np.tile(values, 4), np.tile(age, 4), people * 4)
    assert again.slope_low == pytest.approx(once.slope_low)
    assert again.slope_high == pytest.approx(once.slope_high)


def test_interval_of_a_slope_holds_the_truth() -> None:
    rng = np.random.default_rng(2)
    held = 0
    for study in range(200):
        age, people = np.repeat(rng.uniform(20, 80, 25), 2), np.repeat(np.arange(25), 2)
        of_person = np.repeat(rng.standard_normal(25), 2)
        values = 0.03 * age + of_person + 0.2 * rng.standard_normal(50)
        effect = linear_effect(values, age, list(map(str, people)), seed=study)
        held += effect.slope_low < 0.03 < effect.slope_high
    assert 0.86 < held / 200 < 0.99


def test_effects_repeat() -> None:
    age = np.array([20.0, 35.0, 50.0, 70.0])
    values = np.array([0.5, 0.45, 0.47, 0.4])
    assert linear_effect(values, age, list("abcd")) == linear_effect(values, age, list("abcd"))


def test_equal_values_have_no_correlation() -> None:
    effect = linear_effect(np.ones(4), np.arange(4.0), list("abcd"))
    assert effect.slope == pytest.approx(0, abs=1e-12)
    assert np.isnan(effect.correlation)


@pytest.mark.parametrize(
    ("values", "covariate", "subjects", "problem"),
    [
        ([1, 2, 3], [20, 30, 30], "aab", "at least 3 people"),
        ([1, 2, 3], [30, 30, 30], "abc", "found 3, with 1 different"),
        ([1, 2, np.nan], [20, 30, 40], "abc", "must be finite"),
        ([1, 2, 3], [20, 30, np.nan], "abc", "must be finite"),
        ([1, 2, 3], [20, 30], "abc", "got 3, 2 and 3"),
    ],
)
def test_no_line_without_people_who_differ(
    values: list[float], covariate: list[float], subjects: str, problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        linear_effect(np.array(values), np.array(covariate), list(subjects))


def followed(
    rng: np.random.Generator,
    people: int,
    *,
    change: float = -0.01,
    change_sd: float = 0.0,
    visits: int = 3,
) -> tuple[Array, Array, Array]:
    """Values of people who differ in level, more with age than each changes."""
    first = rng.uniform(20, 80, (people, 1))
    years = np.sort(rng.uniform(0.0, 6.0, (people, visits)), axis=1) + np.arange(visits)
    changes = change + change_sd * rng.standard_normal((people, 1))
    values = 0.05 * first + rng.standard_normal((people, 1)) + changes * years
    values += 0.02 * rng.standard_normal(values.shape)
    subjects = np.repeat(np.arange(people), visits)
    return values.ravel(), (first + years).ravel(), subjects


def test_change_is_the_mean_of_peoples_lines() -> None:
    values, ages, people = followed(np.random.default_rng(0), 12, change_sd=0.02)
    order = np.random.default_rng(1).permutation(len(values))
    estimate = change_per_year(values[order], ages[order], people[order].tolist())
    slopes = [stats.linregress(ages[people == p], values[people == p]).slope for p in range(12)]
    assert estimate.per_year == pytest.approx(np.mean(slopes))
    width = 2 * 1.96 * stats.sem(slopes)
    assert estimate.high - estimate.low == pytest.approx(width, rel=0.15)
    assert estimate.people == 12
    assert linear_effect(values, ages, people.tolist()).slope > 0  # people differ the other way


def test_levels_of_people_are_no_change() -> None:
    values, ages, people = followed(np.random.default_rng(2), 8)
    moved = values + 9.0 * np.random.default_rng(3).standard_normal(8)[people]
    estimate, expected = (change_per_year(v, ages, people.tolist()) for v in (moved, values))
    assert estimate.per_year == pytest.approx(expected.per_year)
    assert estimate.low == pytest.approx(expected.low)


def test_people_seen_once_or_in_one_visit_are_no_change() -> None:
    values, ages, people = followed(np.random.default_rng(4), 6)
    others = np.array([5.0, 1.0, 9.0]), np.array([40.0, 50.0, 50.1]), np.array([90, 91, 91])
    given = values, ages, people
    v, a, p = (np.concatenate(two) for two in zip(given, others, strict=True))
    assert change_per_year(v, a, p.tolist()) == change_per_year(values, ages, people.tolist())


def test_interval_of_a_change_holds_the_truth() -> None:
    rng, held = np.random.default_rng(5), 0
    for study in range(200):
        values, ages, people = followed(rng, 25, change_sd=0.02, visits=2)
        estimate = change_per_year(values, ages, people.tolist(), seed=study)
        held += estimate.low < -0.01 < estimate.high
    assert 0.86 < held / 200 < 0.99


@pytest.mark.parametrize(
    ("values", "ages", "subjects", "problem"),
    [
        ([1, 2, 3, 4, 5], [20, 22, 30, 33, 40], "aabbc", "found 2"),
        ([1, np.nan, 3], [20, 22, 30], "aab", "must be finite"),
        ([1, 2, 3], [20, 22], "aab", "got 3, 2 and 3"),
    ],
)
def test_no_change_without_people_who_came_again(
    values: list[float], ages: list[int], subjects: str, problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        change_per_year(np.array(values), np.array(ages), list(subjects))


def test_agreement_is_the_published_one() -> None:
    agreement = intraclass_correlation(JUDGED)
    assert agreement.absolute == pytest.approx(0.29, abs=0.005)
    assert agreement.consistency == pytest.approx(0.71, abs=0.005)
    # Mean squares of the paper: 11.24 between targets, 32.49 between judges, 1.02 residual.
    assert agreement.people_sd**2 == pytest.approx((11.24 - 1.02) / 4, abs=0.01)
    assert agreement.site_sd**2 == pytest.approx((32.49 - 1.02) / 6, abs=0.01)
    assert agreement.residual_sd**2 == pytest.approx(1.02, abs=0.005)


def test_offset_of_a_site_lowers_absolute_agreement_only() -> None:
    before = intraclass_correlation(JUDGED)
    after = intraclass_correlation(JUDGED + np.array([0, -9, 0, 0]))
    assert after.consistency == pytest.approx(before.consistency)
    assert after.people_sd == pytest.approx(before.people_sd)
    assert after.absolute < before.absolute - 0.1
    assert after.site_sd > before.site_sd + 1


def test_agreement_finds_the_parts_of_values() -> None:
    rng = np.random.default_rng(0)
    people, sites = rng.standard_normal((4000, 1)), np.array([-1.0, 0.0, 1.0])
    agreement = intraclass_correlation(
        2 * people + 3 * sites + 0.5 * rng.standard_normal((4000, 3))
    )
    np.testing.assert_allclose(
        [agreement.people_sd, agreement.site_sd, agreement.residual_sd], [2, 3, 0.5], rtol=0.04
    )
    assert agreement.consistency == pytest.approx(4 / 4.25, abs=0.005)
    assert agreement.absolute == pytest.approx(4 / 13.25, abs=0.02)


def test_sites_that_agree_on_everything_agree_fully() -> None:
    agreement = intraclass_correlation(np.tile([[1.0], [2.0], [4.0]], 3))
    assert agreement.absolute == pytest.approx(1)
    assert agreement.consistency == pytest.approx(1)
    assert agreement.site_sd == agreement.residual_sd == 0


def test_parts_below_zero_are_zero() -> None:
    agreement = intraclass_correlation(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
    assert agreement.people_sd == agreement.site_sd == 0
    assert agreement.consistency == pytest.approx(-1)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.ones((2, 4)), "found 2 and 4"),
        (np.ones((4, 1)), "found 4 and 1"),
        (np.where(np.eye(3, 2), np.nan, 1.0), "2 of 3 people lack"),
        (np.ones((4, 3)), "all values are equal"),
    ],
)
def test_no_agreement_without_a_full_table(values: Array, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        intraclass_correlation(values)


def lesioned() -> tuple[Array, Array, Array]:
    """A map of ones with a lesion of 2.5 in the middle, and 1.5 in what touches it."""
    places = np.indices((11, 11, 11)) - 5
    steps = np.abs(places).sum(axis=0)
    return np.where(steps == 0, 2.5, np.where(steps == 1, 1.5, 1.0)), steps == 0, steps


def test_contrast_leaves_out_what_touches_the_lesion() -> None:
    values, lesion, _ = lesioned()
    assert lesion_contrast(values, lesion, np.ones_like(lesion)) == 2.5


def test_contrast_is_to_white_matter_two_and_three_voxels_away() -> None:
    values, lesion, steps = lesioned()
    white_matter = steps % 2 == 0
    far_or_grey = np.where((steps > 3) | (steps % 2 == 1), 100.0, values)
    assert lesion_contrast(far_or_grey, lesion, white_matter) == 2.5


def test_contrast_passes_over_what_is_not_finite() -> None:
    values, lesion, steps = lesioned()
    values[steps == 3] = np.nan
    assert lesion_contrast(values, lesion, np.ones_like(lesion)) == 2.5


@pytest.mark.parametrize("lacking", ["lesion", "white matter", "values"])
def test_no_contrast_without_both_sides(lacking: str) -> None:
    values, lesion, steps = lesioned()
    none = np.zeros_like(lesion)
    white_matter = none if lacking == "white matter" else steps > 0
    values = np.where(steps == 0, 2.5, 0.0) if lacking == "values" else values
    assert np.isnan(lesion_contrast(values, none if lacking == "lesion" else lesion, white_matter))


def scans(count: int, *, seed: int, offset: float = 0.0) -> list[Array]:
    rng = np.random.default_rng(seed)
    means = offset + 0.1 * rng.standard_normal(count)
    return [mean + 0.5 * rng.standard_normal(200 + 50 * n) for n, mean in enumerate(means)]


def test_distances_are_scipys() -> None:
    values = {"a": scans(8, seed=0), "b": scans(5, seed=1, offset=0.2), "c": scans(6, seed=2)}
    pairs = site_distances(values)
    assert [(pair.first, pair.second) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    for pair in pairs:
        first, second = values[pair.first], values[pair.second]
        pooled = np.concatenate(first), np.concatenate(second)
        assert pair.ks == pytest.approx(stats.ks_2samp(*pooled).statistic)
        # Student's t is d over the root of 1/n + 1/m.
        means = [scan.mean() for scan in second], [scan.mean() for scan in first]
        t = stats.ttest_ind(*means).statistic
        assert pair.d == pytest.approx(t * np.sqrt(1 / len(first) + 1 / len(second)))


def test_offset_moves_a_site_and_a_site_is_not_far_from_itself() -> None:
    same = scans(6, seed=0)
    itself, moved, _ = site_distances({"a": same, "b": same, "c": [s + 9 for s in same]})
    assert (itself.d, itself.ks) == (0, 0)
    assert moved.d > 10
    assert moved.ks == 1


def test_one_scan_a_site_has_no_d() -> None:
    [pair] = site_distances({"a": scans(1, seed=0), "b": scans(1, seed=1, offset=9)})
    assert np.isnan(pair.d)
    assert pair.ks == 1


@pytest.mark.parametrize("bad", [[], [np.ones(0)], [np.array([1.0, np.nan])]])
def test_sites_without_values_are_refused(bad: list[Array]) -> None:
    with pytest.raises(DatasetError, match="site b needs scans"):
        site_distances({"a": scans(2, seed=0), "b": bad})
