"""How many people a site are needed to know what its scanner does?

``python -m benchmarks.people`` simulates studies in which nobody travelled, estimates the smooth
fields of the sites from 3 to 40 people at each, and compares them with fields that are estimated
from forty people who were at every site. It prints the root-mean-square error over white matter,
b0 and shells, as a percentage of amplitudes: of fields that are not shrunk, of those that siteless
learns, the error that siteless states, and the smallest that a linear estimate could have if it
knew the variances of sites and people. Sites that are taken to be alike have the error ``none``.

A second table has pairs of sites, and how often their difference were better left alone:
among random choices of people, the share in which the field of mean signal (which MD shows) or of
anisotropy (FA) of the weakest shell is farther from the truth than no field at all, with siteless
and with that best linear estimate, to which true point spreads are known too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.designs import HUB, SEEDS, SITES, VOXEL_SIZE
from siteless.acquisition import Array
from siteless.bids import ScanFiles, find_scans, read_scan
from siteless.harmonics import fit_coefficients
from siteless.methods.invariant.profiles import (
    Field,
    SiteProfiles,
    Survey,
    fit_fields,
    learn_profiles,
    survey,
)
from siteless.pipelines import simulate_cohort
from siteless.population import NUMBERS, Covariate, Design, covariate_columns
from siteless.simulation import StudyDesign, draw_design, read_scanners

ORDER = 8
COVARIATES = ("age", "sex")
# Places at which fields are compared.
PLACES = 20_000
# Random choices of people of each study.
CHOICES = 20
# The features that MD and FA of a pair of sites follow.
SHOWN = {"MD": 1, "FA": 2}
Person = tuple[ScanFiles, Survey]


def main() -> None:
    studies = [Study.simulate(seed) for seed in SEEDS]
    print("| people a site | not shrunk | siteless | stated | limit | none |")
    print("|---:|---:|---:|---:|---:|---:|")
    for number in NUMBERS:
        errors = np.array([study.errors(number) for study in studies])
        print(f"| {number} | {' | '.join(map(cell, errors.T))} |", flush=True)
    print("\n| | people a site | difference | siteless | limit | siteless worse | limit worse |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for number in NUMBERS[:-1]:
        by_study = np.array([study.errors_of_pairs(number) for study in studies])
        for pair, site in enumerate(other for other in SITES if other != HUB):
            for shown, name in enumerate(SHOWN):
                print_pair(f"{name}, {HUB} and {site}", number, by_study[:, :, :, pair, shown])


@dataclass(frozen=True, eq=False)
class Study:
    """Surveys of people who did not travel, and the profiles that travellers show."""

    truth: SiteProfiles
    people: Sequence[Person]
    largest: SiteProfiles
    places: Array

    @classmethod
    def simulate(cls, seed: int) -> Self:
        travelling = StudyDesign("bridged", people_per_site=(0,), bridging=40, test_people=0)
        unpaired = StudyDesign("unpaired", people_per_site=(max(NUMBERS),), test_people=0)
        truth = profiles_of(surveys_of(travelling, seed))
        people = surveys_of(unpaired, seed + 100)
        places = np.concatenate([person_survey.position for _, person_survey in people])
        places = places[:: max(1, len(places) // PLACES)]
        return cls(truth, people, profiles_of(people), places)

    def errors(self, number: int) -> tuple[float, float, float, float, float]:
        """Return the errors with the first so many people of each site, in per cent."""
        expected = fields(self.truth, self.places)
        learned = profiles_of(
            [person for site in SITES for person in of_site(self.people, site)[:number]]
        )
        raw = replace(learned, field=unshrunk(learned.field))
        return (
            rms(fields(raw, self.places) - expected),
            rms(fields(learned, self.places) - expected),
            100 * float(np.sqrt(np.mean([verdict.error**2 for verdict in learned.verdict]))),
            limit(self.truth.field, self.largest.field, number),
            rms(expected),
        )

    def errors_of_pairs(self, number: int) -> Array:
        """Return errors of pairs of sites for random choices of people, in per cent.

        Returns
        -------
        Array
            Root mean squares of the difference itself, and of the errors of siteless and of the
            best linear estimate, shape (choice, 3, pair, map).
        """
        expected = pairs(whole_effects(self.truth, self.places))
        rng = np.random.default_rng(number)
        rows = []
        for _ in range(CHOICES):
            chosen = [
                at_site[index]
                for at_site in (of_site(self.people, site) for site in SITES)
                for index in rng.choice(len(at_site), number, replace=False)
            ]
            learned = profiles_of(chosen)
            best = replace(learned, blurs=self.truth.blurs, sharpening=self.truth.sharpening)
            best = replace(best, field=self.best_linear(chosen, number))
            estimates = [pairs(whole_effects(model, self.places)) for model in (learned, best)]
            rows.append([rms_of(expected), *(rms_of(shown - expected) for shown in estimates)])
        return np.array(rows)

    def best_linear(self, people: Sequence[Person], number: int) -> Field:
        """Return fields shrunk by the known variances of sites and of people."""
        field = fit_fields(
            [person_survey for _, person_survey in people],
            SITES,
            self.truth.blurs.tolist(),
            design_of_people(people),
        )
        # Components are those of the chosen people, so variances are of the fields in them.
        inverse = np.linalg.inv(field.components)
        sites = np.square(inverse @ self.truth.field.weights).mean(axis=0).ravel()
        chance = self.largest.field.effects.of_people * (1 - 1 / len(SITES)) / number
        shrunk = field.effects.raw * sites / (sites + chance)
        return with_effects(field, shrunk)


def cell(values: Array) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


def print_pair(name: str, number: int, errors: Array) -> None:
    """Print mean errors over studies and choices, (study, choice, 3), and how often worse."""
    difference, siteless, best = errors.mean(axis=(0, 1))
    worse = 100 * (errors[..., 1:] > errors[..., :1]).mean(axis=(0, 1))
    print(
        f"| {name} | {number} | {difference:.2f} | {siteless:.2f} | {best:.2f} "
        f"| {worse[0]:.0f} % | {worse[1]:.0f} % |",
        flush=True,
    )


def surveys_of(design: StudyDesign, seed: int) -> list[Person]:
    scanners = tuple(read_scanners()[site] for site in SITES)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "cohort"
        cohort = draw_design(scanners, design, voxel_size=VOXEL_SIZE, seed=seed)
        simulate_cohort(dataset, cohort)
        return [(files, survey_of(files)) for files in find_scans(dataset).scans]


def survey_of(files: ScanFiles) -> Survey:
    scan = read_scan(files)
    return survey(scan, fit_coefficients(scan, order=ORDER), files.subject)


def of_site(people: Sequence[Person], site: str) -> list[Person]:
    return [person for person in people if str(person[0].site) == site]


def profiles_of(people: Sequence[Person]) -> SiteProfiles:
    surveys = [person_survey for _, person_survey in people]
    return learn_profiles(surveys, SITES, ORDER, design_of_people(people))


def design_of_people(people: Sequence[Person]) -> Design:
    attributes = [files.attributes for files, _ in people]
    covariates = [Covariate.of(name, [row[name] for row in attributes]) for name in COVARIATES]
    return Design.of(
        [str(files.site) for files, _ in people],
        [files.subject for files, _ in people],
        SITES,
        covariate_columns(covariates, attributes),
    )


def unshrunk(field: Field) -> Field:
    return with_effects(field, field.effects.raw)


def with_effects(field: Field, effects: Array) -> Field:
    """Return fields of other effects on components, shape (site, component and feature)."""
    components, features = field.components.shape[1], field.weights.shape[2]
    by_component = effects.reshape(len(effects), components, features)
    return replace(field, weights=np.einsum("ck,skf->scf", field.components, by_component))


def fields(profiles: SiteProfiles, places: Array) -> Array:
    """Return the logarithms of amplitudes about the mean of sites, (site, place, feature)."""
    logs = np.stack([profiles.logarithms(places, site) for site in SITES])
    logs[..., 1:] /= 2
    return logs - logs.mean(axis=0)


def whole_effects(profiles: SiteProfiles, places: Array) -> Array:
    """Return fields and what the point spread does to amplitudes over b0, as `fields` does."""
    sharp = profiles.sharpening.copy()
    sharp[:, 1:] -= sharp[:, :1]
    logs = fields(profiles, places) + sharp[:, None]
    return logs - logs.mean(axis=0)


def pairs(logs: Array) -> Array:
    """Return differences of other sites from the hub, shape (pair, place, map)."""
    hub = SITES.index(HUB)
    others = [site for site in range(len(SITES)) if site != hub]
    return (logs[others] - logs[hub])[..., list(SHOWN.values())]


def rms_of(logs: Array) -> Array:
    """Return the root mean square over places, in per cent, shape (pair, map)."""
    return 100 * np.sqrt(np.square(logs).mean(axis=1))


def rms(logs: Array) -> float:
    return 100 * float(np.sqrt(np.square(logs).mean()))


def limit(truth: Field, people: Field, number: int) -> float:
    """Return the error of the best linear estimate, given the variances of sites and people."""
    features = truth.weights.shape[2]
    sites = np.square(truth.effects.sites).mean(axis=0).reshape(-1, features)
    chance = people.effects.of_people.reshape(-1, features) * (1 - 1 / len(SITES)) / number
    left = (sites * chance / (sites + chance)).sum(axis=0)
    left[1:] /= 4
    return 100 * float(np.sqrt(left.mean()))


if __name__ == "__main__":
    main()
