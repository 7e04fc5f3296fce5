from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siteless.errors import DatasetError
from siteless.population import Covariate, Design, covariate_columns, require_identifiable
from siteless.preflight import ScanFacts, Severity, cohort_problems
from siteless.simulation import Visit, choose_design, draw_design, read_scanners

DATASET = Path("study")


def _scans(count: int, site: str, start: int = 0, **fields: Any) -> list[ScanFacts]:
    defaults = {
        "attributes": {},
        "shells": ((1000.0, 45), (2000.0, 45)),
        "voxel_size": (2.0, 2.0, 2.0),
        "orientation": "LAS",
    }
    return [
        ScanFacts(
            path=Path(f"sub-{n}_dwi.nii.gz"),
            subject=str(n),
            site=site,
            fingerprint=str(n),
            **(defaults | fields),
        )
        for n in range(start, start + count)
    ]


def _codes(scans: Sequence[ScanFacts]) -> list[str]:
    return [problem.code for problem in cohort_problems(scans, DATASET)]


def test_comparable_sites_have_no_problem() -> None:
    assert _codes(_scans(4, "a") + _scans(4, "b", start=4)) == []


@pytest.mark.parametrize("size", [2.0 + 1e-7, 2.001, 1.99])
def test_rounding_of_voxel_sizes_is_no_difference(size: float) -> None:
    assert _codes(_scans(4, "a") + _scans(4, "b", 4, voxel_size=(size, 2.0, 2.0))) == []


def test_shells_within_their_scatter_are_the_same() -> None:
    assert _codes(_scans(4, "a") + _scans(4, "b", 4, shells=((995.0, 60), (2010.0, 45)))) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"shells": ((1000.0, 45), (3000.0, 45))}, "differing-shells"),
        ({"shells": ((1000.0, 45),)}, "differing-shells"),
        ({"voxel_size": (2.0, 2.0, 2.5)}, "differing-voxels"),
        ({"orientation": "RAS"}, "differing-orientations"),
    ],
)
def test_the_odd_site_is_named_by_its_file_and_equal_halves_by_the_dataset(
    fields: dict[str, Any], code: str
) -> None:
    [odd] = cohort_problems(_scans(5, "a") + _scans(3, "b", 5, **fields), DATASET)
    assert (odd.code, odd.path.name) == (code, "sub-5_dwi.nii.gz")
    assert "3 of b" in odd.what
    [even] = cohort_problems(_scans(3, "a") + _scans(3, "b", 5, **fields), DATASET)
    assert (even.code, even.path) == (code, DATASET)
    assert "3 of a" in even.what
    assert "3 of b" in even.what


@pytest.mark.parametrize(
    ("bs", "severity"),
    [
        ((1200.0, 3000.0), Severity.WARNING),
        ((500.0, 1500.0), Severity.WARNING),
        ((3000.0,), Severity.ERROR),
    ],
)
def test_shells_that_can_be_brought_together_are_no_error(
    bs: tuple[float, ...], severity: Severity
) -> None:
    shells = tuple((b, 45) for b in bs)
    [odd] = cohort_problems(_scans(5, "a") + _scans(3, "b", 5, shells=shells), DATASET)
    assert (odd.code, odd.severity) == ("differing-shells", severity)
    assert ("interpolated" in odd.remedy) == (severity is Severity.WARNING)


def test_scans_that_could_not_be_read_are_not_compared() -> None:
    unread = _scans(3, "b", 5, shells=None, voxel_size=None, orientation=None)
    assert _codes(_scans(5, "a") + unread) == []


def test_equal_signal_is_reported_once_with_both_names() -> None:
    first, second = _scans(4, "a"), _scans(4, "b", 4)
    twin = ScanFacts(**(vars(second[0]) | {"fingerprint": "2"}))
    [problem] = cohort_problems([*first, twin, *second[1:]], DATASET)
    assert problem.code == "duplicate"
    assert problem.path.name == "sub-4_dwi.nii.gz"
    assert "sub-2_dwi.nii.gz" in problem.what


def test_few_scans_and_one_site_are_reported() -> None:
    assert _codes(_scans(3, "a")) == ["one-site"]
    assert _codes(_scans(3, "a") + _scans(2, "b", 3)) == ["few-scans"]


def test_one_person_scanned_often_is_still_one_person() -> None:
    again = [ScanFacts(**(vars(scan) | {"subject": "1"})) for scan in _scans(3, "b", 3)]
    assert _codes(_scans(3, "a") + again) == ["few-scans"]


def test_too_few_directions_are_reported_once_for_scans_alike() -> None:
    few: dict[str, Any] = {"shells": ((1000.0, 12), (2000.0, 45))}
    [problem] = cohort_problems(_scans(4, "a", **few) + _scans(4, "b", 4, **few), DATASET)
    assert problem.code == "low-order"
    assert "order 8: b=1000 x 12 (8 of a, b)" in problem.what
    assert problem.remedy == "order 4 is used for such scans"
    assert cohort_problems(_scans(4, "a", **few) + _scans(4, "b", 4), DATASET, order=4) == []


def test_sites_of_different_spelling_or_origin_are_reported() -> None:
    assert _codes(_scans(3, "Leeds") + _scans(3, "leeds", 3)) == ["similar-sites"]
    listed = _scans(3, "a", site_origin="participants.tsv")
    assert _codes(listed + _scans(3, "b", 3, site_origin="JSON sidecar")) == ["mixed-sites"]


def _aged(
    ages: Sequence[float | str], site: str, start: int, sexes: Sequence[str] | None = None
) -> list[ScanFacts]:
    people = zip(ages, sexes or ["F"] * len(ages), strict=True)
    return [
        _scans(1, site, start + n, attributes={"age": str(age), "sex": sex})[0]
        for n, (age, sex) in enumerate(people)
    ]


@pytest.mark.parametrize(
    ("first", "second", "confounded"),
    [
        ([20, 25, 30, 35, 40], [22, 27, 31, 34, 41], False),
        ([20, 25, 30, 35, 40], [52, 57, 61, 64, 71], True),
        ([20, 20, 20], [20, 20, 20], False),
        ([20, 20, 20], [60, 60, 60], True),
        ([20, 25, "30", 35, "n", 40], [52, 57, "61", 64, "89+", 71], True),
        ([21, 22], [23, 24, 25], False),
        ([20, 25, 30, 35, 40, 22, 28, 33], [30, 45, 50, 55, 60, 38, 48, 53], True),
    ],
)
def test_age_is_compared_between_sites(
    first: list[int | str], second: list[int | str], confounded: bool
) -> None:
    codes = _codes(_aged(first, "a", 0) + _aged(second, "b", 50))
    assert ("confound" in codes) == confounded


def test_travelling_subjects_are_not_confounded() -> None:
    ages = [20, 40, 60]
    assert _codes(_aged(ages, "a", 0) + _aged(ages, "b", 50) + _aged(ages, "c", 90)) == []


def test_sex_is_compared_between_sites() -> None:
    ages = [30, 31, 32, 33]
    mixed = _aged(ages, "a", 0, ["F", "M", "F", "M"]) + _aged(ages, "b", 9, ["M", "F", "M", "F"])
    assert _codes(mixed) == []
    apart = _aged(ages, "a", 0, ["F"] * 4) + _aged(ages, "b", 9, ["male"] * 4)
    [problem] = cohort_problems(apart, DATASET)
    assert problem.what == "sex is confounded with site: 4 F at a, 4 M at b"


def _grouped(site: str, start: int, **groups: int) -> list[ScanFacts]:
    words = [word for word, count in groups.items() for _ in range(count)]
    return [
        _scans(1, site, start + n, attributes={"group": word})[0] for n, word in enumerate(words)
    ]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ({"control": 5, "patient": 5}, {"control": 6, "patient": 4}, None),
        (
            {"control": 14, "patient": 1},
            {"control": 3, "patient": 12},
            "14 control and 1 patient at a, 3 control and 12 patient at b",
        ),
        ({"control": 4}, {"patient": 5}, "4 control at a, 5 patient at b"),
    ],
)
def test_groups_are_compared_between_sites(
    first: dict[str, int], second: dict[str, int], counts: str | None
) -> None:
    problems = cohort_problems(_grouped("a", 0, **first) + _grouped("b", 50, **second), DATASET)
    expected = [f"group is confounded with site: {counts}"] if counts else []
    assert [problem.what for problem in problems] == expected


def test_people_count_once_at_a_site() -> None:
    once = _grouped("a", 0, control=4, patient=3) + _grouped("b", 50, control=3, patient=4)
    often = once + [scan for scan in once if scan.attributes["group"] == "control"] * 9
    often = [replace(scan, fingerprint=str(n)) for n, scan in enumerate(often)]
    assert _codes(often) == []


def test_the_design_comes_first() -> None:
    apart = _aged([20, 25, 30], "a", 0) + _aged([60, 65, 71], "b", 9)
    odd = [replace(apart[0], site=None), replace(apart[0], shells=((1000.0, 12),)), *apart[1:]]
    codes = _codes(odd)
    assert codes[0] == "confound"
    assert len(set(codes)) > 3


def _fit_refuses(scans: Sequence[ScanFacts], name: str) -> bool:
    """What a fit does with the scans, by its own functions."""
    attributes = [scan.attributes for scan in scans]
    columns = covariate_columns(
        [Covariate.of(name, [of_scan[name] for of_scan in attributes])], attributes
    )
    labels = [str(scan.site) for scan in scans]
    sites = sorted(set(labels))
    people = [scan.subject for scan in scans]
    try:
        design = Design.of(labels, people, sites)
        require_identifiable(design, {name: columns}, sites)
    except DatasetError:
        return True
    return False


YOUNG, OLD = [20, 22, 24, 26], [60, 63, 66, 70]


@pytest.mark.parametrize(
    ("scans", "name", "refused"),
    [
        (_aged(YOUNG, "a", 0) + _aged(OLD, "b", 9), "age", True),
        (_aged([20, 25, 30, 35, 40], "a", 0) + _aged([52, 57, 61, 64, 71], "b", 9), "age", False),
        (_grouped("a", 0, control=2) + _grouped("b", 9, patient=2), "group", True),
        (_grouped("a", 0, control=9) + _grouped("b", 9, patient=9, control=1), "group", False),
        (_aged(YOUNG * 2, "a", 0) + _aged(OLD * 2, "b", 9) + _aged([20], "b", 0), "age", False),
    ],
)
def test_what_a_fit_refuses_is_announced(scans: list[ScanFacts], name: str, refused: bool) -> None:
    assert _fit_refuses(scans, name) == refused
    [problem] = [noted for noted in cohort_problems(scans, DATASET) if noted.code == "confound"]
    assert ("siteless fit will refuse" in problem.remedy) == refused


def test_test_people_do_not_hide_a_confound_of_the_others() -> None:
    learned = _grouped("a", 0, control=3) + _grouped("b", 9, patient=3)
    tested = _grouped("a", 50, control=9, patient=9)
    both = tested + [replace(scan, site="b", fingerprint=scan.subject + "b") for scan in tested]
    scans = [
        replace(scan, attributes={**scan.attributes, "split": split})
        for split, members in (("train", learned), ("test", both))
        for scan in members
    ]
    [problem] = cohort_problems(scans, DATASET)
    assert problem.what.endswith("12 control and 9 patient at a, 9 control and 12 patient at b")
    assert "siteless fit will refuse group" in problem.remedy


def test_ages_that_are_not_numbers_are_passed_over() -> None:
    assert _codes(_aged(["young"] * 3, "a", 0) + _aged(["old"] * 3, "b", 9)) == []


def _followed(
    *visits: tuple[str, float], people: int = 4, start: int = 0, column: str = "age"
) -> list[ScanFacts]:
    """Scans of people with the same visits, each at a site after some years."""
    dates = "{}-06-15T12:00:00"
    return [
        replace(
            _scans(1, site, start + n)[0],
            attributes={
                column: dates.format(2000 + years) if column == "acq_time" else str(years)
            },
            fingerprint=f"{start + n} {at}",
        )
        for n in range(people)
        for at, (site, years) in enumerate(visits)
    ]


@pytest.mark.parametrize("column", ["age", "years", "acq_time"])
def test_change_that_is_tied_to_the_scanner_is_reported(column: str) -> None:
    moved = _followed(("a", 30), ("b", 33), column=column)
    problems = [
        noted for noted in cohort_problems(moved, DATASET) if noted.code == "confounded-change"
    ]
    [problem] = problems
    assert "all 4 people seen at a and b were at a first" in problem.what
    assert "nobody was followed up" in problem.what


@pytest.mark.parametrize(
    "others",
    [
        _followed(("a", 30), ("a", 33), people=1, start=50),
        _followed(("b", 30), ("b", 33), people=1, start=50),
        _followed(("b", 30), ("a", 33), people=1, start=50),
        _followed(("a", 30), ("b", 33), ("b", 36), people=1, start=50),
        _followed(("a", 30), ("b", 30.1), people=1, start=50),
    ],
    ids=["before the upgrade", "after it", "other order", "moved and followed up", "one visit"],
)
def test_one_person_separates_change_and_scanner(others: list[ScanFacts]) -> None:
    moved = _followed(("a", 30), ("b", 33))
    assert "confounded-change" in _codes(moved)
    assert "confounded-change" not in _codes(moved + others)


def test_follow_up_elsewhere_separates_nothing() -> None:
    moved = _followed(("a", 30), ("b", 33))
    elsewhere = _followed(("c", 30), ("c", 33), start=50) + _followed(("c", 40), start=60)
    assert "confounded-change" in _codes(moved + elsewhere)


@pytest.mark.parametrize(
    "scans",
    [
        _followed(("a", 30), ("b", 30)),
        _followed(("a", 30), ("b", 33), people=2),
        _followed(("a", 30)) + _followed(("b", 33), start=50),
        _followed(("a", 30), ("b", 33), column="visit"),
        _followed(("a", 30), ("a", 33)) + _followed(("b", 30), ("b", 33), start=50),
    ],
    ids=["travelling", "two people", "one scan each", "no times", "same scanner"],
)
def test_studies_without_such_change_are_not_warned(scans: list[ScanFacts]) -> None:
    assert "confounded-change" not in _codes(scans)


def test_many_scanners_in_a_row_are_one_problem() -> None:
    row = _followed(("a", 30), ("b", 32), ("c", 34), ("d", 36))
    [problem] = [
        noted for noted in cohort_problems(row, DATASET) if noted.code == "confounded-change"
    ]
    assert "3 more pairs of sites" in problem.what


def test_the_longitudinal_design_of_the_simulator_separates_change_and_scanner() -> None:
    sites = [read_scanners()[site] for site in ("prisma30", "prisma60")]
    cohort = draw_design(tuple(sites), choose_design("longitudinal"), voxel_size=6.0)
    scans = [
        replace(
            _scans(1, visit.site)[0],
            subject=person.label,
            attributes={"age": str(person.age + visit.years)},
            fingerprint=f"{person.label} {visit.session}",
        )
        for person in cohort.people
        for visit in cohort.visits(person)
    ]
    assert "confounded-change" not in _codes(scans)
    followed = {person.label for person in cohort.people if _returns(cohort.visits(person))}
    assert "confounded-change" in _codes([scan for scan in scans if scan.subject not in followed])


def _returns(visits: tuple[Visit, ...]) -> bool:
    return len({visit.site for visit in visits}) < len(visits)


def test_a_covariate_that_is_unknown_for_some_is_reported_as_fit_will_refuse_it() -> None:
    ages = ("30", "40", "n/a", "50", "60", "70")
    scans = [
        scan
        for number, age in enumerate(ages)
        for scan in _scans(1, "ab"[number % 2], number, attributes={"age": age})
    ]
    [problem] = [p for p in cohort_problems(scans, DATASET) if p.code == "unknown-covariate"]
    assert problem.what == "age is known for some people only, and not for sub-2"
    known = [scan for scan in scans if scan.attributes["age"] != "n/a"]
    assert "unknown-covariate" not in _codes(known)
