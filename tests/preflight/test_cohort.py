from pathlib import Path

import pytest

from siteless.preflight import ScanFacts, Severity, cohort_problems

DATASET = Path("study")


def _scans(count, site, start=0, **fields):
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


def _codes(scans):
    return [problem.code for problem in cohort_problems(scans, DATASET)]


def test_comparable_sites_have_no_problem():
    assert _codes(_scans(4, "a") + _scans(4, "b", start=4)) == []


@pytest.mark.parametrize("size", [2.0 + 1e-7, 2.001, 1.99])
def test_rounding_of_voxel_sizes_is_no_difference(size):
    assert _codes(_scans(4, "a") + _scans(4, "b", 4, voxel_size=(size, 2.0, 2.0))) == []


def test_shells_within_their_scatter_are_the_same():
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
def test_the_odd_site_is_named_by_its_file_and_equal_halves_by_the_dataset(fields, code):
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
def test_shells_that_can_be_brought_together_are_no_error(bs, severity):
    shells = tuple((b, 45) for b in bs)
    [odd] = cohort_problems(_scans(5, "a") + _scans(3, "b", 5, shells=shells), DATASET)
    assert (odd.code, odd.severity) == ("differing-shells", severity)
    assert ("interpolated" in odd.remedy) == (severity is Severity.WARNING)


def test_scans_that_could_not_be_read_are_not_compared():
    unread = _scans(3, "b", 5, shells=None, voxel_size=None, orientation=None)
    assert _codes(_scans(5, "a") + unread) == []


def test_equal_signal_is_reported_once_with_both_names():
    first, second = _scans(4, "a"), _scans(4, "b", 4)
    twin = ScanFacts(**(vars(second[0]) | {"fingerprint": "2"}))
    [problem] = cohort_problems([*first, twin, *second[1:]], DATASET)
    assert problem.code == "duplicate"
    assert problem.path.name == "sub-4_dwi.nii.gz"
    assert "sub-2_dwi.nii.gz" in problem.what


def test_few_scans_and_one_site_are_told():
    assert _codes(_scans(3, "a")) == ["one-site"]
    assert _codes(_scans(3, "a") + _scans(2, "b", 3)) == ["few-scans"]


def test_one_person_scanned_often_is_still_one_person():
    again = [ScanFacts(**(vars(scan) | {"subject": "1"})) for scan in _scans(3, "b", 3)]
    assert _codes(_scans(3, "a") + again) == ["few-scans"]


def test_too_few_directions_are_told_once_for_scans_alike():
    few = {"shells": ((1000.0, 12), (2000.0, 45))}
    [problem] = cohort_problems(_scans(4, "a", **few) + _scans(4, "b", 4, **few), DATASET)
    assert problem.code == "low-order"
    assert "order 8: b=1000 x 12 (8 of a, b)" in problem.what
    assert problem.remedy == "order 4 is used for such scans"
    assert cohort_problems(_scans(4, "a", **few) + _scans(4, "b", 4), DATASET, order=4) == []


def test_sites_spelled_or_told_differently_are_doubted():
    assert _codes(_scans(3, "Leeds") + _scans(3, "leeds", 3)) == ["similar-sites"]
    told = _scans(3, "a", site_origin="participants.tsv")
    assert _codes(told + _scans(3, "b", 3, site_origin="JSON sidecar")) == ["mixed-sites"]


def _aged(ages, site, start, sexes=None):
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
def test_age_is_compared_between_sites(first, second, confounded):
    codes = _codes(_aged(first, "a", 0) + _aged(second, "b", 50))
    assert ("confound" in codes) == confounded


def test_travelling_subjects_are_not_confounded():
    ages = [20, 40, 60]
    assert _codes(_aged(ages, "a", 0) + _aged(ages, "b", 50) + _aged(ages, "c", 90)) == []


def test_sex_is_compared_between_sites():
    ages = [30, 31, 32, 33]
    mixed = _aged(ages, "a", 0, ["F", "M", "F", "M"]) + _aged(ages, "b", 9, ["M", "F", "M", "F"])
    pairs = _aged(ages[:2], "a", 0, ["F"] * 2) + _aged(ages[:2], "b", 9, ["M"] * 2)
    assert "confound" not in _codes(pairs)
    apart = _aged(ages, "a", 0, ["F"] * 4) + _aged(ages, "b", 9, ["male"] * 4)
    assert _codes(mixed) == []
    [problem] = cohort_problems(apart, DATASET)
    assert problem.what == "sex is confounded with site: 100% F at a, 0% F at b"


def test_ages_that_are_not_numbers_are_passed_over():
    assert _codes(_aged(["young"] * 3, "a", 0) + _aged(["old"] * 3, "b", 9)) == []
