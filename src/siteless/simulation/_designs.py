"""Study designs: who is scanned where, and when."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.simulation._biology import USUAL_BIOLOGY, Biology
from siteless.simulation._cohort import Cohort, require_each_once
from siteless.simulation._person import Person, Visit
from siteless.simulation._scanner import Scanner

# Years. Age ranges at sites with equal distributions, of test people, and of bridging people.
_AGES, _TEST_AGES, _BRIDGING_AGES = (20, 80), (25, 75), (35, 65)
# Years. Age distribution of a site if means differ between sites.
_MEAN_AGE, _AGE_DEVIATION, _AGE_LIMITS, _WIDEST_GAP = 50.0, 11.0, (18, 90), 60.0
_MOST_YEARS = 20.0
FOLLOW_UP = "followup"


@dataclass(frozen=True)
class StudyDesign:
    """A study design with different participants at each site.

    Attributes
    ----------
    name
        A key of `DESIGNS`.
    people_per_site
        Number of training participants: one for all sites, or one for each.
    test_people
        Number of test participants, who are scanned at every site.
    age_gap
        Years between the mean ages of the first and the last site; None for equal distributions.
    bridging
        Number of training participants who are scanned at every site.
    patients
        Fraction of patients at the first and at the last site, linear in between; None for no
        groups.
    years
        Years between the two visits of each person; None for one visit. With two visits, sites are
        pairs of a scanner before and after an upgrade, and only the first of each pair enrols
        people.
    """

    name: str
    people_per_site: tuple[int, ...] = (10,)
    test_people: int = 5
    age_gap: float | None = None
    bridging: int = 0
    patients: tuple[float, float] | None = None
    years: float | None = None


DESIGNS = {
    "unpaired": StudyDesign("unpaired"),
    "confounded": StudyDesign("confounded", age_gap=20.0),
    "patients": StudyDesign("patients", patients=(0.2, 0.8)),
    "bridged": StudyDesign("bridged", age_gap=20.0, bridging=2),
    "longitudinal": StudyDesign("longitudinal", years=3.0),
}
# Options of each design.
_COMMON = ("people_per_site", "test_people")
_FITTING = {
    "travelling": ("subjects", "lesions"),
    "unpaired": _COMMON,
    "confounded": (*_COMMON, "age_gap"),
    "patients": _COMMON,
    "bridged": (*_COMMON, "age_gap", "bridging"),
    "longitudinal": (*_COMMON, "years"),
}


def require_fitting(name: str, options: Collection[str]) -> None:
    """Raise an error for options that do not fit a design, including ``travelling``."""
    if name not in _FITTING:
        raise DatasetError(
            f"there is no design {name!r}", remedy=f"choose among {', '.join(_FITTING)}"
        )
    for option in options:
        if option not in _FITTING[name]:
            fitting = [design for design, known in _FITTING.items() if option in known]
            raise DatasetError(
                f"--{option.replace('_', '-')} does not fit the design {name}",
                remedy=f"leave it out, or use --design {' or '.join(fitting)}",
            )


def choose_design(name: str, **options: Any) -> StudyDesign:
    """Return a design of `DESIGNS` with some of its attributes changed.

    Raises
    ------
    DatasetError
        When an option does not fit the design, such as an age gap in an unpaired one.

    Examples
    --------
    >>> choose_design("confounded", age_gap=30).age_gap
    30
    """
    require_fitting(name, options)
    if name not in DESIGNS:
        raise DatasetError(f"{name} subjects have no other options", remedy="use `draw_cohort`")
    return replace(DESIGNS[name], **options)


def draw_design(
    scanners: tuple[Scanner, ...],
    design: StudyDesign,
    *,
    voxel_size: float,
    seed: int = 0,
    rescans: bool = False,
    biology: Biology = USUAL_BIOLOGY,
) -> Cohort:
    """Draw the participants of a design: those of each site, then travelling subjects.

    Parameters
    ----------
    scanners
        At least two scanners; the first site has the lowest mean age if ages differ.
    design
        Design from `choose_design`.
    voxel_size
        Voxel size, mm.
    seed
        Random seed.
    rescans
        Whether test people are scanned twice in each session.
    biology
        Tissue of all people.
    """
    _require_sites(scanners, design)
    draw = _Draw(np.random.default_rng((seed, 0)), scanners, design)
    _require_numbers(design, len(draw.enrolling))
    people = draw.people()
    digits = max(2, len(str(len(people))))
    named = tuple(
        replace(person, label=f"{number:0{digits}d}", seed=(seed, number))
        for number, person in enumerate(people, start=1)
    )
    return Cohort(named, scanners, voxel_size, seed, rescans, design, biology)


def _require_sites(scanners: tuple[Scanner, ...], design: StudyDesign) -> None:
    """Raise an error for sites that do not fit a design."""
    require_each_once(scanners)
    sites = [scanner.site for scanner in scanners]
    if len(sites) < 2:
        raise DatasetError(
            f"the design {design.name} needs at least two sites, got {len(sites)}",
            remedy="choose more sites",
        )
    clash = [site for site in sites if site + FOLLOW_UP in sites]
    if design.years and clash:
        raise DatasetError(
            f"follow-up sessions of {clash[0]} would have the name of another site",
            remedy=f"rename {clash[0]}{FOLLOW_UP}",
        )


def _require_numbers(design: StudyDesign, enrolling: int) -> None:
    """Raise an error for numbers that do not fit a design."""
    numbers = len(design.people_per_site)
    if numbers not in (1, enrolling):
        raise DatasetError(
            f"{numbers} numbers of people do not fit {enrolling} sites that enrol people",
            remedy=f"give one number, or {enrolling}",
        )
    if design.age_gap is not None and not abs(design.age_gap) <= _WIDEST_GAP:
        raise DatasetError(
            f"an age gap of {design.age_gap:g} years is too wide",
            remedy=f"choose at most {_WIDEST_GAP:g}",
        )
    if design.years is not None and not 0 < design.years <= _MOST_YEARS:
        raise DatasetError(
            f"visits cannot be {design.years:g} years apart",
            remedy=f"choose more than 0 and at most {_MOST_YEARS:g}",
        )


@dataclass(frozen=True)
class _Draw:
    """Draws the people of a design, without labels and seeds."""

    rng: np.random.Generator
    scanners: tuple[Scanner, ...]
    design: StudyDesign

    @property
    def enrolling(self) -> range:
        """Indices of the sites that enrol training participants."""
        return range(0, len(self.scanners), 2 if self.design.years else 1)

    def people(self) -> list[Person]:
        people: list[Person] = []
        numbers = np.resize(self.design.people_per_site, len(self.enrolling))
        for site, count in zip(self.enrolling, numbers, strict=True):
            people += self._enrolled(site, int(count))
        if self.design.bridging:
            ages = _evenly_spaced_ages(_BRIDGING_AGES, self.design.bridging)
            people += self._group(ages, "train")
        return _with_lesions(people) + _with_lesions(self._test_people())

    def _test_people(self) -> list[Person]:
        people = self._group(_evenly_spaced_ages(_TEST_AGES, self.design.test_people), "test")
        if self.design.patients:
            return self._grouped(people, 0.5)
        if self.design.years:
            visits = [v for s in self.scanners for v in self._visits(s.site, s.site)]
            return [replace(person, visits=tuple(visits)) for person in people]
        return people

    def _enrolled(self, site: int, count: int) -> list[Person]:
        """Draw the training participants of a site."""
        people = self._group(self._ages(site, count), "train")
        if self.design.patients:
            people = self._grouped(people, self._between(*self.design.patients, site=site))
        sites = [scanner.site for scanner in self.scanners[site:]]
        first, upgraded = sites[0], sites[:2][-1]
        # Every third person is followed up before the upgrade.
        return [
            replace(person, visits=self._visits(first, first if n % 3 == 2 else upgraded))
            for n, person in enumerate(people)
        ]

    def _visits(self, first: str, second: str) -> tuple[Visit, ...]:
        """Return the visits of a person: one, or two with a follow-up."""
        if not self.design.years:
            return (Visit(first, first),)
        return Visit(first, first), Visit(second, second + FOLLOW_UP, self.design.years)

    def _between(self, first: float, last: float, site: int) -> float:
        """Interpolate between values of the first and the last site."""
        return first + (last - first) * site / (len(self.scanners) - 1)

    def _grouped(self, people: list[Person], share: float) -> list[Person]:
        """Assign a random fraction of people to patients."""
        count = round(share * len(people))
        if len(people) >= 3:
            count = min(max(count, 1), len(people) - 1)
        names = np.repeat(["patient", "control"], [count, len(people) - count])
        groups = self.rng.permutation(names).tolist()
        return [replace(person, group=g) for person, g in zip(people, groups, strict=True)]

    def _ages(self, site: int, count: int) -> Array:
        """Return the ages of people at a site, whose mean may depend on the site."""
        gap = self.design.age_gap
        if gap is None:
            return _evenly_spaced_ages(_AGES, count)
        mean = self._between(_MEAN_AGE - gap / 2, _MEAN_AGE + gap / 2, site)
        quantiles = norm.ppf((np.arange(count) + 0.5) / count)
        return np.clip(mean + _AGE_DEVIATION * quantiles, *_AGE_LIMITS)

    def _group(self, ages: Array, split: str) -> list[Person]:
        """Make people of given ages in random order, with equal numbers of both sexes."""
        ages = self.rng.permutation(ages.round().astype(int))
        sexes = self.rng.permutation(np.resize(["F", "M"], len(ages)))
        drawn = zip(ages.tolist(), sexes.tolist(), strict=True)
        return [Person("", age, sex, split, seed=()) for age, sex in drawn]


def _with_lesions(people: list[Person]) -> list[Person]:
    """Give a lesion to every third patient."""
    patients = [number for number, person in enumerate(people) if person.group == "patient"]
    return [replace(person, lesion=n in patients[::3]) for n, person in enumerate(people)]


def _evenly_spaced_ages(ages: tuple[int, int], count: int) -> Array:
    """Return ages evenly spaced over a range, or its middle for one person."""
    return np.linspace(*ages, count) if count > 1 else np.full(count, np.mean(ages))
