"""How many people a site are needed to know what its scanner does?

``python -m benchmarks.people`` simulates studies in which nobody travelled, estimates the smooth
fields of the sites from 3 to 40 people at each, and compares them with fields that are estimated
from forty people who were at every site. It prints the root-mean-square error over white matter,
b0 and shells, as a percentage of amplitudes: of fields that are not shrunk, of those that siteless
learns, the error that siteless states, and the smallest that a linear estimate could have if it
knew the variances of sites and people. Sites that are taken to be alike have the error ``none``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.designs import SEEDS, SITES, VOXEL_SIZE
from siteless.acquisition import Array
from siteless.bids import ScanFiles, find_scans, read_scan
from siteless.harmonics import fit_coefficients
from siteless.methods.invariant.profiles import Field, SiteProfiles, Survey, learn_profiles, survey
from siteless.pipelines import simulate_cohort
from siteless.population import NUMBERS, Covariate, Design, covariate_columns
from siteless.simulation import StudyDesign, draw_design, read_scanners

ORDER = 8
COVARIATES = ("age", "sex")
# Places at which fields are compared.
PLACES = 20_000
Person = tuple[ScanFiles, Survey]


def main() -> None:
    print("| people a site | not shrunk | siteless | stated | limit | none |")
    print("|---:|---:|---:|---:|---:|---:|")
    errors = np.array([list(errors_of(seed)) for seed in SEEDS])
    for number, means, deviations in zip(
        NUMBERS, errors.mean(axis=0), errors.std(axis=0, ddof=1), strict=True
    ):
        cells = (f"{m:.2f} ± {s:.2f}" for m, s in zip(means, deviations, strict=True))
        print(f"| {number} | {' | '.join(cells)} |")


def errors_of(seed: int) -> Iterator[tuple[float, float, float, float, float]]:
    """Return the errors for each number of people, in per cent."""
    travelling = StudyDesign("bridged", people_per_site=(0,), bridging=40, test_people=0)
    unpaired = StudyDesign("unpaired", people_per_site=(max(NUMBERS),), test_people=0)
    truth = profiles_of(surveys_of(travelling, seed))
    people = surveys_of(unpaired, seed + 100)
    largest = profiles_of(people)
    places = np.concatenate([person_survey.position for _, person_survey in people])
    places = places[:: max(1, len(places) // PLACES)]
    expected = fields(truth, places)
    for number in NUMBERS:
        chosen = [person for site in SITES for person in of_site(people, site)[:number]]
        learned = profiles_of(chosen)
        raw = replace(learned, field=unshrunk(learned.field))
        yield (
            rms(fields(raw, places) - expected),
            rms(fields(learned, places) - expected),
            100 * float(np.sqrt(np.mean([verdict.error**2 for verdict in learned.verdict]))),
            limit(truth.field, largest.field, number),
            rms(expected),
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
    attributes = [files.attributes for files, _ in people]
    covariates = [Covariate.of(name, [row[name] for row in attributes]) for name in COVARIATES]
    design = Design.of(
        [str(files.site) for files, _ in people],
        [files.subject for files, _ in people],
        SITES,
        covariate_columns(covariates, attributes),
    )
    return learn_profiles([person_survey for _, person_survey in people], SITES, ORDER, design)


def unshrunk(field: Field) -> Field:
    components, features = field.components.shape[1], field.weights.shape[2]
    raw = field.effects.raw.reshape(len(field.weights), components, features)
    return replace(field, weights=np.einsum("ck,skf->scf", field.components, raw))


def fields(profiles: SiteProfiles, places: Array) -> Array:
    """Return the logarithms of amplitudes about the mean of sites, (site, place, feature)."""
    logs = np.stack([profiles.logarithms(places, site) for site in SITES])
    logs[..., 1:] /= 2
    return logs - logs.mean(axis=0)


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
