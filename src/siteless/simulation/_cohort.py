"""Cohorts: who is scanned where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from siteless.errors import DatasetError
from siteless.simulation._biology import USUAL_BIOLOGY, Biology
from siteless.simulation._person import Person, Visit
from siteless.simulation._scanner import Scanner

if TYPE_CHECKING:
    from siteless.simulation._designs import StudyDesign

_CHALLENGE_SITES = ("prisma30", "prisma60", "connectom30", "connectom60")


@dataclass(frozen=True)
class Preset:
    """A size of cohort, in which each of the subjects is scanned at every site."""

    subjects: int
    voxel_size: float  # mm
    sites: tuple[str, ...]


PRESETS = {
    "cdmri2018": Preset(subjects=15, voxel_size=2.4, sites=_CHALLENGE_SITES),
    "small": Preset(subjects=8, voxel_size=3.0, sites=_CHALLENGE_SITES),
    "tiny": Preset(subjects=3, voxel_size=6.0, sites=_CHALLENGE_SITES),
}


@dataclass(frozen=True)
class Cohort:
    """Participants and scanners; without a design everyone is scanned at every site."""

    people: tuple[Person, ...]
    scanners: tuple[Scanner, ...]
    voxel_size: float
    seed: int = 0
    rescans: bool = False
    design: StudyDesign | None = None
    biology: Biology = USUAL_BIOLOGY

    def visits(self, person: Person) -> tuple[Visit, ...]:
        """Return the sessions of a person: by default one at every site, with its name."""
        return person.visits or tuple(Visit(s.site, s.site) for s in self.scanners)

    def runs(self, person: Person) -> tuple[int, ...]:
        """Return the runs of a person in a session: two for rescanned test subjects, else one."""
        return (1, 2) if self.rescans and person.split == "test" else (1,)


def draw_cohort(
    scanners: tuple[Scanner, ...],
    *,
    subjects: int,
    voxel_size: float,
    seed: int = 0,
    rescans: bool = False,
    lesions: int = 0,
    biology: Biology = USUAL_BIOLOGY,
) -> Cohort:
    """Draw participants of 20 to 80 years; about 60 % train, one validates, and the rest test.

    Fifteen are split into 9, 1 and 5, as in the paper. The last participants have lesions.
    """
    if lesions > subjects:
        raise DatasetError(
            f"{lesions} lesions need as many subjects, got {subjects}", remedy="ask for fewer"
        )
    require_each_once(scanners)
    rng = np.random.default_rng((seed, 0))
    ages = rng.permutation(np.linspace(20, 80, subjects).round().astype(int))
    sexes = rng.permutation(np.resize(["F", "M"], subjects))
    digits = max(2, len(str(subjects)))
    people = tuple(
        Person(
            label=f"{number + 1:0{digits}d}",
            age=int(ages[number]),
            sex=str(sexes[number]),
            split=_split(number, subjects),
            seed=(seed, number + 1),
            lesion=number >= subjects - lesions,
        )
        for number in range(subjects)
    )
    return Cohort(people, scanners, voxel_size, seed, rescans, biology=biology)


def require_each_once(scanners: tuple[Scanner, ...]) -> None:
    """Raise an error for two sites with the same name."""
    sites = [scanner.site for scanner in scanners]
    if twice := [site for site in sites if sites.count(site) > 1]:
        raise DatasetError(f"site {twice[0]} is named twice", remedy="name it once")


def _split(number: int, subjects: int) -> str:
    train = max(1, min(round(0.6 * subjects), subjects - 2))
    if number < train:
        return "train"
    return "val" if number == train and subjects > 2 else "test"
