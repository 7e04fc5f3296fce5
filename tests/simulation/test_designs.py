from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from siteless.errors import DatasetError
from siteless.simulation import (
    DESIGNS,
    PATIENT_EFFECT,
    Anatomy,
    Biology,
    Cohort,
    Person,
    Scanner,
    choose_design,
    draw_design,
    make_anatomy,
    read_scanners,
    scan_person,
)

SITES = ("prisma30", "prisma60", "connectom30", "connectom60")


def _draw(name: str, *, sites: tuple[str, ...] = SITES, seed: int = 0, **options: Any) -> Cohort:
    scanners = tuple(read_scanners()[site] for site in sites)
    return draw_design(scanners, choose_design(name, **options), voxel_size=6.0, seed=seed)


def _at(cohort: Cohort, site: str) -> list[Person]:
    """Return the training people who are scanned at one site only, and that is this one."""
    return [
        person
        for person in cohort.people
        if person.split == "train" and {visit.site for visit in person.visits} == {site}
    ]


@pytest.mark.parametrize("name", DESIGNS)
def test_test_people_travel_and_nobody_validates(name: str) -> None:
    cohort = _draw(name, test_people=3)
    assert {person.split for person in cohort.people} == {"train", "test"}
    travellers = [person for person in cohort.people if person.split == "test"]
    assert sorted(person.age for person in travellers) == [25, 50, 75]
    for person in travellers:
        assert {visit.site for visit in cohort.visits(person)} == set(SITES)


@pytest.mark.parametrize("name", DESIGNS)
def test_one_seed_draws_the_same_people_and_another_does_not(name: str) -> None:
    assert _draw(name) == _draw(name)
    assert _draw(name).people != _draw(name, seed=1).people


@pytest.mark.parametrize("name", DESIGNS)
def test_labels_and_random_seeds_are_different(name: str) -> None:
    people = _draw(name).people
    assert len({person.label for person in people}) == len(people)
    assert len({person.seed for person in people}) == len(people)


@pytest.mark.parametrize("name", ["unpaired", "confounded", "patients"])
def test_no_training_person_is_at_two_sites(name: str) -> None:
    cohort = _draw(name, people_per_site=(3, 4, 5, 6))
    people = [person for person in cohort.people if person.split == "train"]
    assert all(len(cohort.visits(person)) == 1 for person in people)
    assert Counter(person.visits[0].site for person in people) == dict(
        zip(SITES, (3, 4, 5, 6), strict=True)
    )


def test_ages_and_sexes_of_unpaired_sites_are_alike() -> None:
    cohort = _draw("unpaired", people_per_site=(7,))
    for site in SITES:
        people = _at(cohort, site)
        assert sorted(person.age for person in people) == [20, 30, 40, 50, 60, 70, 80]
        assert sorted(Counter(person.sex for person in people).values()) == [3, 4]


@pytest.mark.parametrize("gap", [20.0, -30.0])
def test_mean_ages_of_confounded_sites_are_evenly_apart(gap: float) -> None:
    cohort = _draw("confounded", age_gap=gap, people_per_site=(20,))
    ages = [np.array([person.age for person in _at(cohort, site)]) for site in SITES]
    means = [of_site.mean() for of_site in ages]
    np.testing.assert_allclose(means, 50 + gap * np.linspace(-0.5, 0.5, 4), atol=0.6)
    assert all(9.5 < of_site.std() < 12 for of_site in ages)
    assert 18 <= np.min(ages) <= np.max(ages) <= 90


def test_bridging_people_are_at_every_site_and_train() -> None:
    cohort = _draw("bridged", bridging=3, people_per_site=(4,))
    bridging = [
        person
        for person in cohort.people
        if person.split == "train" and len(cohort.visits(person)) == len(SITES)
    ]
    assert len(bridging) == 3
    assert sum(len(_at(cohort, site)) for site in SITES) == 16


def test_the_share_of_patients_rises_from_site_to_site() -> None:
    cohort = _draw("patients", people_per_site=(10,))
    shares = [sum(p.group == "patient" for p in _at(cohort, site)) / 10 for site in SITES]
    assert shares == [0.2, 0.4, 0.6, 0.8]
    assert {person.group for person in cohort.people} == {"control", "patient"}
    tested = Counter(person.group for person in cohort.people if person.split == "test")
    assert sorted(tested.values()) == [2, 3]


def test_every_site_of_three_has_a_patient_and_a_control() -> None:
    cohort = _draw("patients", people_per_site=(3,))
    for site in SITES:
        assert {person.group for person in _at(cohort, site)} == {"control", "patient"}


@pytest.mark.parametrize("count", [3, 30])
def test_every_third_patient_and_no_control_has_a_lesion(count: int) -> None:
    cohort = _draw("patients", people_per_site=(count,))
    for split in ("train", "test"):
        patients = [p for p in cohort.people if p.group == "patient" and p.split == split]
        assert sum(person.lesion for person in patients) == int(np.ceil(len(patients) / 3))
    assert not any(person.lesion for person in cohort.people if person.group == "control")


def test_patients_differ_in_the_affected_white_matter_and_nowhere_else(person: Person) -> None:
    healthy = make_anatomy(replace(person, group="control"), voxel_size=6.0)
    ill = make_anatomy(replace(person, group="patient"), voxel_size=6.0)
    change = ill.intra_axonal - healthy.intra_axonal
    assert healthy.affected.sum() > 50
    assert (healthy.affected <= healthy.white_matter).all()
    np.testing.assert_allclose(change[ill.affected], PATIENT_EFFECT.intra_axonal, atol=1e-12)
    assert (change[~ill.affected] == 0).all()
    for name in ("tissue", "directions", "populations", "dispersion", "affected", "lesion"):
        np.testing.assert_array_equal(getattr(ill, name), getattr(healthy, name))


def test_most_people_are_followed_up_on_the_upgraded_scanner() -> None:
    cohort = _draw("longitudinal", people_per_site=(6, 3), years=2.5)
    sites = Counter(
        tuple(visit.site for visit in person.visits)
        for person in cohort.people
        if person.split == "train"
    )
    assert sites == {
        ("prisma30", "prisma60"): 4,
        ("prisma30", "prisma30"): 2,
        ("connectom30", "connectom60"): 2,
        ("connectom30", "connectom30"): 1,
    }
    for person in cohort.people:
        assert {visit.years for visit in person.visits} == {0, 2.5}
        assert len({visit.session for visit in person.visits}) == len(person.visits)


def test_the_last_of_three_sites_has_no_upgrade() -> None:
    cohort = _draw("longitudinal", sites=SITES[:3], people_per_site=(4,))
    assert len(_at(cohort, "connectom30")) == 4


def test_travelling_test_people_have_both_visits_at_every_site() -> None:
    cohort = _draw("longitudinal", test_people=2)
    for person in cohort.people[-2:]:
        visits = Counter((visit.site, visit.years) for visit in cohort.visits(person))
        assert visits == {(site, years): 1 for site in SITES for years in (0, 3)}


def test_white_matter_changes_with_the_years_by_the_known_slope(person: Person) -> None:
    before = make_anatomy(person, voxel_size=6.0)
    after = make_anatomy(person.after(4), voxel_size=6.0)
    change = after.intra_axonal - before.intra_axonal
    np.testing.assert_allclose(change, 4 * Biology().intra_axonal_per_year, atol=1e-12)
    for name in ("affine", "mask", "tissue", "directions", "populations", "dispersion"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


def test_another_session_is_another_draw(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    scanner = replace(scanners["prisma30"], directions=6)
    usual, again, named = (
        scan_person(person, anatomy, scanner, session=session).signal
        for session in ("", "prisma30followup", "prisma30")
    )
    assert (usual != again).any()
    np.testing.assert_array_equal(usual, named)


def test_a_single_person_has_the_middle_age() -> None:
    cohort = _draw("unpaired", people_per_site=(1,), test_people=1)
    assert {person.age for person in cohort.people} == {50}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("unpaired", {"age_gap": 5}, "--age-gap does not fit the design unpaired; leave it out"),
        ("confounded", {"bridging": 5}, "--bridging does not fit .*or use --design bridged"),
        ("unpaired", {"people_per_site": (1, 2)}, "2 numbers of people do not fit 4 sites"),
        ("confounded", {"age_gap": 70}, "an age gap of 70 years is too wide; choose at most 60"),
        ("confounded", {"age_gap": float("nan")}, "an age gap of nan years is too wide"),
        ("longitudinal", {"years": 0}, "visits cannot be 0 years apart; choose more than 0"),
        ("longitudinal", {"people_per_site": (1, 2, 3)}, "3 numbers of people do not fit 2 sites"),
        ("unpaired", {"sites": ("prisma30",)}, "needs at least two sites, got 1"),
        ("unpaired", {"sites": ("prisma30",) * 2}, "site prisma30 is named twice"),
        ("nothing", {}, "there is no design 'nothing'; choose among travelling, unpaired"),
    ],
)
def test_designs_that_cannot_be_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        _draw(name, **options)
