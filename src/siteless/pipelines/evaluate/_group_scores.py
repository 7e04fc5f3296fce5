"""Scores of many scans together: what tells their site, and what must survive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles, derivative_path, read_signal
from siteless.errors import DatasetError, MissingFileError, SitelessError
from siteless.evaluation import (
    ALL,
    BEFORE,
    WHITE_MATTER,
    Sample,
    Score,
    change_per_year,
    evenly_spaced,
    intraclass_correlation,
    linear_effect,
    measure_leakage,
    site_distances,
)
from siteless.pipelines._choice import read_number, read_table
from siteless.pipelines._run import Run
from siteless.pipelines.evaluate._comparison import Contest, Judged
from siteless.pipelines.evaluate._scan_scores import Measures, read_mean, read_shown

# What a code is called among tasks: it is rendered as no site.
CODES = "codes"
# Voxels of a code that are shown to adversaries.
_CODES = 2000
# Of a site, for a standard deviation of their means to mean something.
_LEAST_SCANS = 3
# Scans, each with the mean of a map.
Means = Sequence[tuple[ScanFiles, float]]
_LEAKAGE = ("accuracy", "accuracy_low", "accuracy_high", "chance", "nats", "nats_low", "nats_high")


def score_leakage(
    measures: Measures,
    contest: Contest,
    codes: Mapping[str, Path],
    run: Run,
) -> tuple[list[Score], list[str]]:
    """Let adversaries name the site of codes, and the source of scans rendered as one site.

    Returns
    -------
    list of Score, list of str
        And notes on what could not be measured.
    """
    notes: list[str] = []
    groups: dict[tuple[str, str], Callable[[], list[Sample]]] = {
        (CODES, name): partial(_samples_of_codes, folder, contest)
        for name, folder in codes.items()
    }
    for (to, method), own in _rendered_alike(contest).items():
        groups[f"all>{to}", method] = partial(_samples_of_scans, measures, own)
        notes += _beware(f"all>{to}", method, own)
    show = run.stage("Training adversaries")
    scores: list[Score] = []
    for done, ((task, method), make) in enumerate(groups.items(), start=1):
        samples = make()
        try:
            _require_learners(samples, contest)
            found = measure_leakage(samples, training=contest.training, seed=run.seed)
        except SitelessError as error:
            notes.append(f"leakage of {method} ({task}): {error}")
        else:
            told = {name: getattr(found, name) for name in _LEAKAGE}
            scores += _rows(task, method, told, prefix="leakage_")
        show(done, len(groups), method)
    return scores, notes


def _beware(task: str, method: str, judged: Sequence[Judged]) -> list[str]:
    """Say when scans tell their site by how many directions they have."""
    sizes = {len(read_table(one.image)) for one in judged if one.image}
    if len(sizes) < 2 or method == BEFORE:
        return []
    return [
        f"leakage of {method} ({task}) is also of how many directions scans have ({min(sizes)} to "
        f"{max(sizes)} volumes); render with --gradients target to leave that out"
    ]


def _require_learners(samples: Sequence[Sample], contest: Contest) -> None:
    """Refuse scans of test people alone, of which no adversary may learn."""
    people = {one.subject for one in samples}
    if contest.training is not None and not people & contest.training:
        raise DatasetError("no training person is there for an adversary to learn from")


def _rendered_alike(contest: Contest) -> dict[tuple[str, str], list[Judged]]:
    """Return scans of several sources that a method has rendered as one site."""
    groups: dict[tuple[str, str], list[Judged]] = {}
    for one in contest.judged:
        if one.image and _has_part(one.source, contest):
            groups.setdefault((one.to, one.method), []).append(one)
    several = {key: own for key, own in groups.items() if len({o.task for o in own}) > 1}
    rendered = {to for to, method in several if method != BEFORE}
    return {key: own for key, own in several.items() if key[0] in rendered}


def _has_part(files: ScanFiles, contest: Contest) -> bool:
    """Whether a person is learned from or tested; those who validate are neither."""
    return contest.is_scored(files) or contest.is_learned_from(files)


def _samples_of_scans(measures: Measures, judged: Sequence[Judged]) -> list[Sample]:
    return [
        Sample(one.source.subject, str(one.source.site), read_shown(measures, one)["values"])
        for one in judged
    ]


def _samples_of_codes(folder: Path, contest: Contest) -> list[Sample]:
    samples = []
    for files in contest.originals:
        image = derivative_path(folder, "code", files.entities)
        if image.exists() and _has_part(files, contest):
            values = read_signal(image)[0]
            shown = evenly_spaced(values[values.any(axis=3)], _CODES)
            samples.append(Sample(files.subject, str(files.site), shown))
    return samples


def require_codes(codes: Mapping[str, Path], contest: Contest) -> None:
    """Refuse folders without a code of any scan, before hours are spent."""
    for folder in codes.values():
        images = (derivative_path(folder, "code", files.entities) for files in contest.originals)
        if not any(image.exists() for image in images):
            raise MissingFileError(
                "no code in the folder is of a scan of the dataset",
                remedy="give a folder that `siteless encode` wrote",
                path=folder,
            )


def score_groups(
    measures: Measures, contest: Contest, *, seed: int
) -> tuple[list[Score], list[str]]:
    """Score what must survive, and how far apart sites are, of scans rendered as one site.

    Returns
    -------
    list of Score, list of str
        And notes on what could not be measured.
    """
    statistics: dict[str, Callable[[Means], dict[str, float]]] = {
        "effect of age": partial(_age_effect, seed),
        "change over time": partial(_change, seed),
        "agreement of sites on people": _agreement,
    }
    found: list[Score] = []
    notes: dict[str, None] = {}
    for name in measures.maps:
        for (to, method), means in _means(measures, contest, name).items():
            for kind, score in statistics.items():
                try:
                    values = score(means)
                except DatasetError as error:
                    notes[f"{kind}: {error}"] = None
                else:
                    found += _rows(f"all>{to}", method, values, prefix=f"{name}_")
    return found + _distances(measures, contest), list(notes)


def _rows(task: str, method: str, values: Mapping[str, float], *, prefix: str) -> list[Score]:
    return [
        Score(ALL, task, method, WHITE_MATTER, f"{prefix}{name}", value)
        for name, value in values.items()
        if np.isfinite(value)
    ]


def _means(measures: Measures, contest: Contest, name: str) -> dict[tuple[str, str], Means]:
    """Return means of scans by target and method; the target's own scans may be as they were."""
    found: dict[tuple[str, str], dict[Path, tuple[ScanFiles, float]]] = {}
    for one in contest.scored:
        if (mean := read_mean(measures, one, name)) is not None:
            found.setdefault((one.to, one.method), {})[one.source.dwi] = one.source, mean
    at_home = {
        to: {path: mean for path, mean in own.items() if str(mean[0].site) == to}
        for (to, method), own in found.items()
        if method == BEFORE
    }
    return {
        (to, method): list((at_home.get(to, {}) | own).values())
        for (to, method), own in found.items()
    }


def _aged(means: Means) -> tuple[Array, Array, list[str]]:
    """Return means, ages and people of the scans whose age is known."""
    ages = [read_number(files.attributes.get("age")) for files, _ in means]
    known = [(m, a, f.subject) for (f, m), a in zip(means, ages, strict=True) if a is not None]
    return (
        np.array([mean for mean, _, _ in known]),
        np.array([age for _, age, _ in known]),
        [person for _, _, person in known],
    )


def _age_effect(seed: int, means: Means) -> dict[str, float]:
    values, ages, people = _aged(means)
    if not people:
        raise DatasetError("no table of the dataset has an age column")
    effect = linear_effect(values, ages, people, seed=seed)
    return {
        "age_slope": effect.slope,
        "age_slope_low": effect.slope_low,
        "age_slope_high": effect.slope_high,
    }


def _change(seed: int, means: Means) -> dict[str, float]:
    """Return the change within people; nothing where nobody was followed up."""
    values, ages, people = _aged(means)
    if len(set(zip(people, ages, strict=True))) == len(set(people)):
        return {}
    change = change_per_year(values, ages, people, seed=seed)
    return {
        "change_per_year": change.per_year,
        "change_per_year_low": change.low,
        "change_per_year_high": change.high,
    }


def _agreement(means: Means) -> dict[str, float]:
    """Compare the first scans of people at each site."""
    first = {(files.subject, str(files.site)): mean for files, mean in reversed(means)}
    people, sites = (list(dict.fromkeys(part)) for part in zip(*first, strict=True))
    everywhere = [p for p in people if all((p, site) in first for site in sites)]
    values = np.array([[first[p, site] for site in sites] for p in everywhere])
    found = intraclass_correlation(values.reshape(len(everywhere), len(sites)))
    return {
        "icc_agreement": found.absolute,
        "icc_consistency": found.consistency,
        "sd_people": found.people_sd,
        "sd_sites": found.site_sd,
    }


def _distances(measures: Measures, contest: Contest) -> list[Score]:
    """Return how far apart the sources' distributions of each map are at most."""
    groups: dict[tuple[str, str], dict[str, list[Mapping[str, Array]]]] = {}
    for one in contest.scored:
        own = groups.setdefault((one.to, one.method), {})
        own.setdefault(str(one.source.site), []).append(read_shown(measures, one))
    found: list[Score] = []
    for (to, method), rendered in groups.items():
        at_home = groups.get((to, BEFORE), {}).get(to)
        sites = rendered if at_home is None else {to: at_home, **rendered}
        for name in measures.maps if len(sites) > 1 else ():
            shown = {
                site: [one[name] for one in own if name in one and one[name].size]
                for site, own in sites.items()
            }
            if all(shown.values()):
                pairs = site_distances(shown)
                few = min(map(len, shown.values())) < _LEAST_SCANS
                d = max((abs(p.d) for p in pairs if np.isfinite(p.d)), default=np.nan)
                furthest = {
                    "site_d": np.nan if few else d,
                    "site_ks": max(p.ks for p in pairs),
                }
                found += _rows(f"all>{to}", method, furthest, prefix=f"{name}_")
    return found
