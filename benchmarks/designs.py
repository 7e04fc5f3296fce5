"""What does each method make of studies in which people did not travel?

``python -m benchmarks.designs FOLDER`` simulates studies of several designs, fits every method to
each, renders the test people, who travelled, in all six tasks, and prints tables in Markdown: the
mean over tasks and people, then the mean and the standard deviation over random seeds. Errors are
against the noiseless target. It takes a day on two cores. ``--studies`` and ``--methods`` choose
some, so that several can run side by side. Scores are kept in the folder and used again; cohorts
are deleted. ``--noise-floor`` adds rows of the methods with the noise floor kept or removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.comparison import DENOISED, denoised_copy
from benchmarks.scores import LESION, read_targets, score_lesion
from siteless.acquisition import Array, Scan
from siteless.bids import find_scans, read_signal
from siteless.evaluation import (
    Sample,
    Target,
    maps_within,
    measure_leakage,
    score_maps,
    score_signal,
)
from siteless.harmonics import fit_coefficients
from siteless.methods import (
    Combat,
    Invariant,
    Method,
    Rish,
    RishGlm,
    Scaled,
    Unchanged,
    load_model,
    render,
)
from siteless.methods.template import _likeness
from siteless.model import NOISE_FLOORS, MapModel, Model
from siteless.pipelines import fit_model, simulate_cohort
from siteless.registration import Alignment, Grid, register
from siteless.simulation import (
    FOLLOW_UP,
    Cohort,
    StudyDesign,
    choose_design,
    draw_design,
    read_scanners,
)
from siteless.storage import cache_key

SEEDS = (1, 2, 3)
SITES = ("prisma30", "prisma60", "connectom30", "connectom60")
HUB, VOXEL_SIZE = "prisma30", 4.0
MAPS = ("fa", "md", "mk")
METHODS: dict[str, Method] = {
    "unchanged": Unchanged(),
    "scaled": Scaled(),
    "rish": Rish(),
    "rish-glm": RishGlm(),
    "combat": Combat(maps=MAPS),
    "invariant": Invariant(),
}
METHODS |= {f"{name}-{DENOISED}": METHODS[name] for name in ("rish-glm", "combat")}
# Ten people at every site; ten at each of four; the same, other ages; and so on.
STUDIES = {
    "travelling": StudyDesign("bridged", people_per_site=(0,), bridging=10),
    "unpaired": choose_design("unpaired"),
    "confounded": choose_design("confounded"),
    "bridged": choose_design("bridged"),
    "patients": choose_design("patients"),
    **{f"unpaired-{n}": choose_design("unpaired", people_per_site=(n,)) for n in (3, 5, 20, 40)},
    **{f"confounded-{n}": choose_design("confounded", people_per_site=(n,)) for n in (3, 5, 20)},
    "no-effect": choose_design("confounded"),
    "longitudinal": choose_design("longitudinal"),
}
COLUMNS = {
    "fa_block_percent": "FA",
    "md_block_percent": "MD",
    "mk_block_percent": "MK",
    "rmse_truth_matched_percent": "RMSE at level",
    "fa_bias": "bias of FA",
    "md_bias": "bias of MD",
    "fa_age_slope": "slope of FA on age",
    "md_age_slope": "slope of MD on age",
    "group_effect": "effect of group",
    "lesion": "lesion contrast",
    "fa_change": "change of FA",
    "md_change": "change of MD",
    "source_named": "source named",
    "worse": "tasks worse than unchanged",
}
Rows = list[dict[str, Any]]


def main(folder: Path, studies: Sequence[str], methods: Mapping[str, Method]) -> None:
    for study in studies:
        scores = []
        for seed in SEEDS:
            with registering_once():
                scores.append(judge(folder / study / str(seed), study, seed, methods))
        print_study(study, scores, methods)


def draw(study: str, seed: int) -> Cohort:
    known = read_scanners()
    scanners = tuple(known[site] for site in SITES)
    if study == "no-effect":
        same = known[HUB]
        scanners = tuple(replace(same, site=site, scheme=known[site].scheme) for site in SITES)
    return draw_design(scanners, STUDIES[study], voxel_size=VOXEL_SIZE, seed=seed)


@contextmanager
def registering_once() -> Iterator[None]:
    """Register each scan to a template once for all tasks and methods, not at each use."""
    known: dict[str, Alignment] = {}

    def register_once(moving: Array, grid: Grid, static: Array, static_grid: Grid) -> Alignment:
        key = cache_key(moving, grid.affine, static, static_grid.affine)
        if key not in known:
            known[key] = register(moving, grid, static, static_grid)
        return known[key]

    with patch.object(_likeness, "register", register_once):
        yield


def judge(folder: Path, study: str, seed: int, methods: Mapping[str, Method]) -> dict[str, Rows]:
    """Return the scores of each method by task and person; those that are known are read."""
    kept = folder / "scores.json"
    scores: dict[str, Rows] = json.loads(kept.read_text()) if kept.exists() else {}
    missing = [name for name in methods if name not in scores]
    if missing:
        simulate_cohort(folder / "cohort", draw(study, seed))
    for name in missing:
        dataset = folder / "cohort"
        if DENOISED in name:
            dataset = denoised_copy(dataset, folder / DENOISED)
        path, work = folder / f"{name}.safetensors", folder / f"work-{dataset.name}"
        fit_model(dataset, path, methods[name], work=work, resume=True)
        scores[name] = list(Judge.of(folder / "cohort", dataset, load_model(path)).scores())
        kept.write_text(json.dumps(scores))
        print(study, seed, name, summary(scores[name]), file=sys.stderr, flush=True)
    for folder_name in ("cohort", DENOISED, "work-cohort", f"work-{DENOISED}"):
        shutil.rmtree(folder / folder_name, ignore_errors=True)
    return scores


@dataclass(frozen=True, eq=False)
class Judge:
    """Scores a model on the test people of a study.

    Attributes
    ----------
    cohort
        The dataset.
    model
        To be scored.
    targets
        Scans and truth by person and session.
    sources
        The same with the scans that the model is given, which may be denoised.
    attributes
        What tables say about each person at each session.
    """

    cohort: Path
    model: Model
    targets: Mapping[tuple[str, str], Target]
    sources: Mapping[tuple[str, str], Target]
    attributes: Mapping[tuple[str, str], Mapping[str, str]]

    @classmethod
    def of(cls, cohort: Path, given: Path, model: Model) -> Judge:
        targets = test_targets(cohort, cohort)
        sources = test_targets(cohort, given)
        attributes = {
            (files.subject, files.entities["ses"]): files.attributes
            for files in find_scans(cohort).scans
        }
        return cls(cohort, model, targets, sources, attributes)

    @property
    def people(self) -> list[str]:
        return sorted({person for person, _ in self.targets})

    def scores(self) -> Iterator[dict[str, Any]]:
        """Score every test person in every task."""
        accuracy = self.leakage()
        others = [site for site in SITES if site != HUB]
        for source, goal in [*((HUB, site) for site in others), *((site, HUB) for site in others)]:
            for person in self.people:
                target, about = self.targets[person, goal], self.attributes[person, source]
                maps, rendered_scan = self.rendered(person, source, goal, target)
                region = affected(self.cohort, person, target)
                yield {
                    "task": f"{source}>{goal}",
                    "age": float(about["age"]),
                    "group": about.get("group", ""),
                    **scored(maps, rendered_scan, target),
                    **means("found", maps, target.scan.white_matter),
                    **means("true", target.reference_maps, target.scan.white_matter),
                    "found_region": float(np.nanmean(maps["fa"][region])),
                    "true_region": float(np.nanmean(target.reference_maps["fa"][region])),
                    "source_named": accuracy,
                    **self.changes(person, source, goal),
                }

    def rendered(
        self, person: str, session: str, site: str, target: Target
    ) -> tuple[Mapping[str, Array], Scan | None]:
        """Return the maps of a session as a site, and the scan unless the model has maps alone."""
        scan = self.sources[person, session].scan
        if isinstance(self.model, MapModel):
            return self.model.render_maps(scan, site, self.attributes[person, session]).maps, None
        rendered_scan = render(self.model, scan, site, gradients=target.scan.gradients).scan
        return maps_within(rendered_scan, MAPS, target.masks.values()), rendered_scan

    def changes(self, person: str, source: str, goal: str) -> dict[str, float]:
        """Return how much maps change from the first visit at a site to the second at another."""
        if (person, source + FOLLOW_UP) not in self.targets:
            return {}
        before, after = (self.targets[person, goal + suffix] for suffix in ("", FOLLOW_UP))
        white = before.scan.white_matter & after.scan.white_matter
        estimated = [
            self.rendered(person, session, goal, target)[0]
            for session, target in ((goal, before), (source + FOLLOW_UP, after))
        ]
        true = [target.reference_maps for target in (before, after)]
        return {
            f"{kind}_{name}_change": float(np.nanmean((late[name] - early[name])[white]))
            for kind, (early, late) in (("found", estimated), ("true", true))
            for name in ("fa", "md")
        }

    def leakage(self) -> float | None:
        """Return the share of voxels whose source adversaries name, of scans rendered as the hub.

        It is None for a method that renders maps alone.
        """
        if isinstance(self.model, MapModel):
            return None
        samples = []
        for person in self.people:
            gradients = self.targets[person, HUB].scan.gradients
            for site in SITES:
                given = self.sources[person, site].scan
                rendered_scan = render(self.model, given, HUB, gradients=gradients).scan
                white = rendered_scan.white_matter.T[rendered_scan.mask.T]
                samples.append(Sample(person, site, fit_coefficients(rendered_scan).values[white]))
        return measure_leakage(samples).accuracy


@lru_cache(maxsize=2)
def test_targets(cohort: Path, given: Path) -> dict[tuple[str, str], Target]:
    """Read the scans of test people, of the cohort or a copy of it, once for all methods."""
    targets = read_targets(cohort, split="test", scans=given)
    return {key: replace(target, maps=MAPS) for key, target in targets.items()}


def scored(
    maps: Mapping[str, Array], rendered_scan: Scan | None, target: Target
) -> dict[str, float]:
    white = target.scan.white_matter
    scores = score_maps(maps, target, white)
    if rendered_scan:
        scores |= score_signal(rendered_scan, target, white)
    if LESION in target.regions:
        scores["lesion"] = score_lesion(maps["md"], target)
    return {name: scores[name] for name in COLUMNS if name in scores}


def affected(dataset: Path, person: str, target: Target) -> Array:
    """Return where patients differ; all white matter where there are none."""
    folder = dataset / "derivatives" / "truth" / f"sub-{person}" / "dwi"
    path = folder / f"sub-{person}_label-affected_mask.nii.gz"
    region = read_signal(path)[0] > 0 if path.exists() else target.scan.white_matter
    return region & target.scan.white_matter


def means(kind: str, maps: Mapping[str, Array], where: Array) -> dict[str, float]:
    return {f"{kind}_{name}": float(np.nanmean(maps[name][where])) for name in ("fa", "md")}


def summary(rows: Rows) -> dict[str, float]:
    """Average scores over tasks and people, with slopes and effects over those of the truth."""
    averages = {}
    for name in COLUMNS:
        known = [row[name] for row in rows if row.get(name) is not None]
        if known:
            averages[name] = float(np.mean(known))
    for name in ("fa", "md"):
        bias = [row[f"found_{name}"] / row[f"true_{name}"] - 1 for row in rows]
        averages[f"{name}_bias"] = 100 * float(np.mean(bias))
        slopes = [by_task(rows, f"{kind}_{name}", slope) for kind in ("found", "true")]
        averages[f"{name}_age_slope"] = float(np.sum(slopes[0]) / np.sum(slopes[1]))
    if len({row["group"] for row in rows}) > 1:
        gaps = [by_task(rows, f"{kind}_region", group_gap) for kind in ("found", "true")]
        averages["group_effect"] = float(np.sum(gaps[0]) / np.sum(gaps[1]))
    for name in ("fa", "md"):
        if f"true_{name}_change" in rows[0]:
            sums = [
                sum(row[f"{kind}_{name}_change"] for row in rows) for kind in ("found", "true")
            ]
            averages[f"{name}_change"] = sums[0] / sums[1]
    return averages


def by_task(rows: Rows, name: str, measure: Any) -> list[float]:
    tasks = dict.fromkeys(row["task"] for row in rows)
    return [measure([row for row in rows if row["task"] == task], name) for task in tasks]


def slope(rows: Rows, name: str) -> float:
    return float(np.polyfit([row["age"] for row in rows], [row[name] for row in rows], 1)[0])


def group_gap(rows: Rows, name: str) -> float:
    patients = [row[name] for row in rows if row["group"] == "patient"]
    controls = [row[name] for row in rows if row["group"] == "control"]
    return float(np.mean(patients) - np.mean(controls))


def worse(rows: Rows, plain: Rows) -> float:
    """Count the tasks whose FA or MD is farther from the truth than unchanged scans'."""

    def errors(of: Rows, name: str) -> Array:
        return np.array(
            by_task(of, name, lambda task_rows, n: float(np.mean([r[n] for r in task_rows])))
        )

    names = ("fa_block_percent", "md_block_percent")
    return float(np.any([errors(rows, n) > errors(plain, n) for n in names], axis=0).sum())


def print_study(study: str, scores: list[dict[str, Rows]], methods: Iterable[str]) -> None:
    rows = {
        name: [
            summary(of_seed[name]) | {"worse": worse(of_seed[name], of_seed["unchanged"])}
            for of_seed in scores
        ]
        for name in methods
    }
    titles = [
        key
        for key in COLUMNS
        if any(key in row for summaries in rows.values() for row in summaries)
    ]
    print(f"\n{study}\n\n| | {' | '.join(COLUMNS[key] for key in titles)} |")
    print(f"|---|{'---:|' * len(titles)}")
    for name, summaries in rows.items():
        cells = (cell([row[key] for row in summaries if key in row]) for key in titles)
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def cell(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" if values else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where scores and models are written")
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--noise-floor", choices=NOISE_FLOORS, help="default: of each method")
    asked = parser.parse_args()
    chosen = {name: METHODS[name] for name in dict.fromkeys(["unchanged", *asked.methods])}
    if asked.noise_floor:
        chosen |= {
            f"{name}, floor: {asked.noise_floor}": replace(
                METHODS[name], noise_floor=asked.noise_floor
            )
            for name in asked.methods
        }
    main(asked.folder, asked.studies, chosen)
