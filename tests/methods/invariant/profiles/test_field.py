from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from siteless.acquisition import Array
from siteless.methods.invariant.profiles import BLURS, Field, Survey, extend_fields, fit_fields
from siteless.methods.invariant.profiles._field import cosines

SITES = ("a", "b", "c")


def _survey(
    site: str,
    person: str,
    *,
    field: Callable[[Array], Array],
    seed: int,
    shift: tuple[int, int, int] = (0, 0, 0),
    noise: float = 0.01,
) -> Survey:
    """Make a survey of a person whose anatomy goes with the head and whose field does not."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(*[np.arange(-60, 61, 15)] * 3, indexing="ij"), -1).reshape(-1, 3)
    head = cells + rng.uniform(-4, 4, size=cells.shape)
    position = head + np.asarray(shift, dtype=float)
    of_person = np.random.default_rng([99, *person.encode()])
    anatomy = 0.2 * np.sin(head[:, 0] / 30) + 0.1 * np.cos(head[:, 1] / 25)
    anatomy = anatomy + 0.05 * of_person.normal() + 0.03 * of_person.normal() * head[:, 2] / 60
    share = rng.uniform(0.2, 1, len(head))
    energy = anatomy + 0.3 * share + field(position) + rng.normal(scale=noise, size=len(head))
    energies = np.repeat(np.stack([energy, energy], axis=1)[None], len(BLURS), axis=0)
    return Survey(
        site=site,
        person=person,
        position=position,
        count=np.full(len(head), 50.0),
        share=share,
        energies=energies,
        structure=np.ones((len(BLURS), 3, 4)),
        voxel_size=np.full(3, 2.0),
    )


def _receive(strength: float) -> Callable[[Array], Array]:
    return lambda world: strength * np.square(world / 100).sum(axis=1)


STRENGTHS = {"a": 0.0, "b": 0.3, "c": -0.2}


def _recovered(
    surveys: Sequence[Survey], sites: Sequence[str] = SITES
) -> tuple[Field, Array, Array]:
    fitted = fit_fields(surveys, sites, [0.0] * len(sites))
    world = np.random.default_rng(5).uniform(-55, 55, size=(500, 3))
    expected = np.stack([_receive(STRENGTHS[site])(world) for site in sites])
    estimated = np.stack([fitted.logarithms(world, n)[:, 0] for n in range(len(sites))])
    expected = expected - expected.mean(axis=0)
    return fitted, estimated, expected


def _surveys(people: int, name: Callable[[str, int], str]) -> list[Survey]:
    """Survey as many people at each site, whom `name` names."""
    return [
        _survey(site, name(site, n), field=_receive(STRENGTHS[site]), seed=10 * n + k)
        for n in range(people)
        for k, site in enumerate(SITES)
    ]


def test_fields_of_travellers_are_found() -> None:
    _, estimated, expected = _recovered(_surveys(4, lambda _site, n: f"p{n}"))
    assert np.abs(estimated - expected).max() < 0.02
    assert np.ptp(expected, axis=1).max() > 0.2


def test_fields_of_strangers_are_found_when_there_are_many() -> None:
    _, estimated, expected = _recovered(_surveys(12, lambda site, n: f"{site}{n}"))
    error = estimated - expected
    error -= error.mean(axis=1, keepdims=True)  # people of a site may be brighter by chance
    assert np.sqrt(np.square(error).mean()) < 0.015


def test_anatomy_is_not_mistaken_for_a_field() -> None:
    """Heads lie elsewhere in each scanner, and nothing else differs."""
    nothing = _receive(0.0)
    surveys = [
        _survey(site, f"p{n}", field=nothing, seed=10 * n + k, shift=(0, 12 * k, -8 * k))
        for n in range(4)
        for k, site in enumerate(SITES)
    ]
    fitted = fit_fields(surveys, SITES, [0.0] * 3)
    world = np.random.default_rng(5).uniform(-50, 50, size=(500, 3))
    estimated = np.stack([fitted.logarithms(world, n)[:, 0] for n in range(3)])
    assert np.sqrt(np.square(estimated).mean()) < 0.03  # the anatomy varies by 0.15


def test_noise_alone_is_shrunk_to_a_constant() -> None:
    surveys = [
        _survey(site, f"{site}{n}", field=_receive(0.0), seed=10 * n + k, noise=0.3)
        for n in range(3)
        for k, site in enumerate(SITES)
    ]
    fitted = fit_fields(surveys, SITES, [0.0] * 3)
    world = np.random.default_rng(5).uniform(-50, 50, size=(500, 3))
    estimated = np.stack([fitted.logarithms(world, n)[:, 0] for n in range(3)])
    assert estimated.std(axis=1).max() < 0.05


def test_the_energies_are_those_after_the_sites_blur() -> None:
    surveys = [
        _survey(site, f"p{n}", field=_receive(0.0), seed=10 * n + k)
        for n in range(3)
        for k, site in enumerate(SITES)
    ]
    # After a blur of 1 mm2 site b has twice the energy; after none it has not.
    double = np.array(BLURS)[:, None, None] == 1.0
    surveys = [
        replace(survey, energies=survey.energies + np.log(2) * double)
        if survey.site == "b"
        else survey
        for survey in surveys
    ]
    world = np.zeros((1, 3))
    flat, deblurred = (fit_fields(surveys, SITES, [0.0, blur, 0.0]) for blur in (0.0, 1.0))
    assert abs(flat.logarithms(world, 1)[0, 0]) < 0.05
    raised = deblurred.logarithms(world, 1) - deblurred.logarithms(world, 0)
    assert raised[0, 0] == pytest.approx(np.log(2), abs=0.05)


def test_without_a_block_of_white_matter_fields_are_flat() -> None:
    survey = _survey("a", "p", field=_receive(0.0), seed=0)
    empty = replace(
        survey,
        position=survey.position[:0],
        count=survey.count[:0],
        share=survey.share[:0],
        energies=survey.energies[:, :0],
    )
    fitted = fit_fields([empty, replace(empty, site="b")], ("a", "b"), [0.0, 0.0])
    assert not fitted.logarithms(np.ones((3, 3)), 1).any()


@pytest.mark.parametrize("scans", [1, 3])
def test_the_field_of_a_new_site_is_found_and_others_stay(scans: int) -> None:
    surveys = [
        _survey(site, f"p{n}", field=_receive(STRENGTHS[site]), seed=10 * n + k)
        for n in range(4)
        for k, site in enumerate("ab")
    ]
    known = fit_fields(surveys, ("a", "b"), [0.0, 0.0])
    fresh = [
        _survey("c", f"q{n}", field=_receive(STRENGTHS["c"]), seed=100 + n) for n in range(scans)
    ]
    extended = extend_fields(known, fresh, 0.0)
    np.testing.assert_array_equal(extended.weights[:2], known.weights)
    world = np.random.default_rng(5).uniform(-55, 55, size=(500, 3))
    estimated = extended.logarithms(world, 2)[:, 0] - extended.logarithms(world, 0)[:, 0]
    expected = _receive(STRENGTHS["c"])(world)
    error = (estimated - expected) - (estimated - expected).mean()  # new people may be brighter
    assert error.std() < 0.5 * expected.std()


@pytest.mark.parametrize(
    ("raised", "sites", "expected"),
    [(0.06, 0.0, 0.0), (0.06, 0.3, 0.06), (0.5, 0.0, 0.5)],
    ids=["as people differ", "as sites differ", "more than either"],
)
def test_what_few_people_have_in_common_is_the_sites_if_people_alone_do_not_explain_it(
    raised: float, sites: float, expected: float
) -> None:
    """People differ by 0.05; the mean of the new site's field must stand out from that."""
    means = {"a": -sites, "b": 0.0, "c": sites, "new": raised}

    def survey(site: str, person: str, seed: int) -> Survey:
        return _survey(site, person, field=lambda w: np.full(len(w), means[site]), seed=seed)

    surveys = [survey(s, f"p{n}", 10 * n + k) for n in range(8) for k, s in enumerate(SITES)]
    known = fit_fields(surveys, SITES, [0.0] * 3)
    fresh = [survey("new", f"p{n}", 500 + n) for n in range(8)]
    alone = [extend_fields(known, [person], 0.0) for person in fresh]
    estimated = np.median([extended.logarithms(np.zeros((1, 3)), 3)[0, 0] for extended in alone])
    assert estimated == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("travelling", [True, False])
def test_three_people_do_not_make_a_site_where_sites_are_alike(travelling: bool) -> None:
    def survey(site: str, person: str, seed: int) -> Survey:
        return _survey(site, person, field=_receive(0.0), seed=seed)

    surveys = [
        survey(site, f"p{n}" if travelling else f"{site}{n}", 10 * n + k)
        for n in range(9)
        for k, site in enumerate(SITES)
    ]
    fresh = [[survey("new", f"{m}{n}", 900 + 3 * m + n) for n in range(3)] for m in range(7)]
    known, centre = fit_fields(surveys, SITES, [0.0] * 3), np.zeros((1, 3))
    taken = [extend_fields(known, people, 0.0).logarithms(centre, 3)[0, 0] for people in fresh]
    # People differ by 0.05, so that the mean of three differs by 0.03.
    assert np.median(np.abs(taken)) < 0.01


def test_scans_of_one_person_are_one_person() -> None:
    known = fit_fields(_surveys(9, lambda site, n: f"{site}{n}"), SITES, [0.0] * 3)
    survey = _survey("new", "p0", field=_receive(0.1), seed=900)
    alone, twice, two = (
        extend_fields(known, scans, 0.0).logarithms(survey.position, 3)[:, 0].std()
        for scans in ([survey], [survey, survey], [survey, replace(survey, person="p1")])
    )
    assert twice == pytest.approx(alone, rel=1e-3)
    assert two > alone


def test_cosines_are_flat_outside_their_box() -> None:
    box = np.array([[-50.0] * 3, [50.0] * 3])
    inside, outside = (cosines(np.array([[x, 0, 0]]), box) for x in (50.0, 500.0))
    np.testing.assert_array_equal(inside, outside)
