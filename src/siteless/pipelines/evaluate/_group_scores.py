"""Scores of groups of scans: leakage of the site, and biological variation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles, derivative_path, read_gradient_table, read_signal
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
from siteless.pipelines._choice import read_number
from siteless.pipelines._run import Run
from siteless.pipelines.evaluate._comparison import Comparison, RenderedScan
from siteless.pipelines.evaluate._measures import Measures
from siteless.pipelines.evaluate._scan_scores import read_mean
from siteless.storage import load_arrays

# Voxels per scan of codes for adversaries.
_CODES = 2000
# Least number of scans per site for a standard deviation.
_LEAST_SCANS = 3
# Scans, each with the mean of a map.
Means = Sequence[tuple[ScanFiles, float]]
_LEAKAGE = ("accuracy", "accuracy_low", "accuracy_high", "chance", "nats", "nats_low", "nats_high")


def score_leakage(
    measures: Measures, comparison: Comparison, codes: Mapping[str, Path], run: Run
) -> tuple[list[Score], list[str]]:
    """Score how well adversaries name the source site of codes and scans; return notes too."""
    notes: list[str] = []
    groups: dict[tuple[str, str], Callable[[], list[Sample]]] = {
        ("codes", name): partial(_samples_of_codes, folder, comparison)
        for name, folder in codes.items()
    }
    for (to, method), renderings in _rendered_alike(comparison).items():
        groups[f"all>{to}", method] = partial(_samples_of_scans, measures, renderings)
        notes += _warn_of_directions(f"all>{to}", method, renderings)
    show = run.stage("Training adversaries")
    scores: list[Score] = []
    training = comparison.training
    for done, ((task, method), make) in enumerate(groups.items(), start=1):
        samples = make()
        try:
            if training is not None and training.isdisjoint(s.subject for s in samples):
                raise DatasetError("no training person is there for an adversary to learn from")
            leakage = measure_leakage(samples, training=training, seed=run.seed)
        except SitelessError as error:
            notes.append(f"leakage of {method} ({task}): {error}")
        else:
            values = {name: getattr(leakage, name) for name in _LEAKAGE}
            scores += _rows(task, method, values, prefix="leakage_")
        show(done, len(groups), method)
    return scores, notes


def _warn_of_directions(task: str, method: str, renderings: Sequence[RenderedScan]) -> list[str]:
    """Warn if the number of directions of scans reveals their site."""
    sizes = {len(read_gradient_table(rendered.image)) for rendered in renderings if rendered.image}
    if len(sizes) < 2 or method == BEFORE:
        return []
    return [
        f"leakage of {method} ({task}) is also of how many directions scans have ({min(sizes)} to "
        f"{max(sizes)} volumes); render with --gradients target to leave that out"
    ]


def _rendered_alike(comparison: Comparison) -> dict[tuple[str, str], list[RenderedScan]]:
    """Return scans from several sources that a method rendered as one site."""
    groups: dict[tuple[str, str], list[RenderedScan]] = defaultdict(list)
    for rendered in comparison.renderings:
        if rendered.image and comparison.is_used(rendered.source):
            groups[rendered.to, rendered.method].append(rendered)
    several = {key: group for key, group in groups.items() if len({r.task for r in group}) > 1}
    targets = {to for to, method in several if method != BEFORE}
    return {key: group for key, group in several.items() if key[0] in targets}


def _samples_of_scans(measures: Measures, renderings: Sequence[RenderedScan]) -> list[Sample]:
    return [
        Sample(r.source.subject, str(r.source.site), load_arrays(measures.sample(r))["values"])
        for r in renderings
    ]


def _samples_of_codes(folder: Path, comparison: Comparison) -> list[Sample]:
    samples = []
    for files in comparison.originals:
        image = derivative_path(folder, "code", files.entities)
        if image.exists() and comparison.is_used(files):
            values = read_signal(image)[0]
            voxels = evenly_spaced(values[values.any(axis=3)], _CODES)
            samples.append(Sample(files.subject, str(files.site), voxels))
    return samples


def require_codes(codes: Mapping[str, Path], comparison: Comparison) -> None:
    """Raise an error for folders without codes of the scans, before long computations."""
    for folder in codes.values():
        scans = comparison.originals
        if not any(derivative_path(folder, "code", scan.entities).exists() for scan in scans):
            raise MissingFileError(
                "no code in the folder belongs to a scan of the dataset",
                remedy="give a folder that `siteless encode` wrote",
                path=folder,
            )


def score_groups(
    measures: Measures, comparison: Comparison, *, seed: int
) -> tuple[list[Score], list[str]]:
    """Score biological variation and differences between sources; return notes too."""
    statistics: dict[str, Callable[[Means], dict[str, float]]] = {
        "effect of age": partial(_age_effect, seed),
        "change over time": partial(_change_within_people, seed),
        "agreement of sites on people": _agreement,
    }
    scores: list[Score] = []
    notes: dict[str, None] = {}
    for name in measures.scoring.maps:
        for (to, method), means in _means(measures, comparison, name).items():
            for title, statistic in statistics.items():
                try:
                    values = statistic(means)
                except DatasetError as error:
                    notes[f"{title}: {error}"] = None
                else:
                    scores += _rows(f"all>{to}", method, values, prefix=f"{name}_")
    return scores + _distances(measures, comparison), list(notes)


def _rows(task: str, method: str, values: Mapping[str, float], *, prefix: str) -> list[Score]:
    return [
        Score(ALL, task, method, WHITE_MATTER, f"{prefix}{name}", value)
        for name, value in values.items()
        if np.isfinite(value)
    ]


def _means(measures: Measures, comparison: Comparison, name: str) -> dict[tuple[str, str], Means]:
    """Return means of scans by target and method; scans of the target may be original."""
    groups: dict[tuple[str, str], dict[Path, tuple[ScanFiles, float]]] = defaultdict(dict)
    for rendered in comparison.scored:
        if (mean := read_mean(measures, rendered, name)) is not None:
            groups[rendered.to, rendered.method][rendered.source.dwi] = rendered.source, mean
    complete: dict[tuple[str, str], Means] = {}
    for (to, method), known in groups.items():
        before = groups.get((to, BEFORE), {})
        at_home = {path: mean for path, mean in before.items() if str(mean[0].site) == to}
        complete[to, method] = list((at_home | known).values())
    return complete


def _aged(means: Means) -> tuple[Array, Array, list[str]]:
    """Return means, ages and participants of the scans with known age."""
    ages = [read_number(files.attributes.get("age")) for files, _ in means]
    known = [scan for scan, age in zip(means, ages, strict=True) if age is not None]
    values = np.array([mean for _, mean in known])
    return values, np.array([a for a in ages if a is not None]), [f.subject for f, _ in known]


def _age_effect(seed: int, means: Means) -> dict[str, float]:
    values, ages, people = _aged(means)
    if not people:
        raise DatasetError("no table of the dataset has an age column")
    effect = linear_effect(values, ages, people, seed=seed)
    return {f"age_{name}": getattr(effect, name) for name in ("slope", "slope_low", "slope_high")}


def _change_within_people(seed: int, means: Means) -> dict[str, float]:
    """Return the change within participants; empty without follow-up."""
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
    """Compare the first scans of participants at each site."""
    first = {(files.subject, str(files.site)): mean for files, mean in reversed(means)}
    people, sites = (list(dict.fromkeys(part)) for part in zip(*first, strict=True))
    everywhere = [p for p in people if all((p, site) in first for site in sites)]
    values = np.array([[first[p, site] for site in sites] for p in everywhere])
    correlation = intraclass_correlation(values.reshape(len(everywhere), len(sites)))
    return {
        "icc_agreement": correlation.absolute,
        "icc_consistency": correlation.consistency,
        "sd_people": correlation.people_sd,
        "sd_sites": correlation.site_sd,
    }


def _distances(measures: Measures, comparison: Comparison) -> list[Score]:
    """Return the largest distance between the sources' distributions of each map."""
    groups: dict[tuple[str, str], dict[str, list[Mapping[str, Array]]]] = {}
    for rendered in comparison.scored:
        by_site = groups.setdefault((rendered.to, rendered.method), {})
        sample = load_arrays(measures.sample(rendered))
        by_site.setdefault(str(rendered.source.site), []).append(sample)
    scores: list[Score] = []
    for (to, method), samples in groups.items():
        at_home = groups.get((to, BEFORE), {}).get(to)
        by_site = samples if at_home is None else {to: at_home, **samples}
        for name in measures.scoring.maps if len(by_site) > 1 else ():
            voxels = {
                site: [sample[name] for sample in scans if name in sample and sample[name].size]
                for site, scans in by_site.items()
            }
            if all(voxels.values()):
                scores += _rows(f"all>{to}", method, _largest(voxels), prefix=f"{name}_")
    return scores


def _largest(voxels: Mapping[str, Sequence[Array]]) -> dict[str, float]:
    """Return the largest distances between two sites, each with voxels of some scans."""
    pairs = site_distances(voxels)
    few = min(map(len, voxels.values())) < _LEAST_SCANS
    d = max((abs(pair.d) for pair in pairs if np.isfinite(pair.d)), default=np.nan)
    return {"site_d": np.nan if few else d, "site_ks": max(pair.ks for pair in pairs)}
