"""What does each method make of studies in which people did not travel?

``python -m benchmarks.designs FOLDER`` simulates studies of several designs, fits every method to
each, renders the test people, who travelled, in all six tasks, and prints tables in Markdown: the
mean over tasks and people, then the mean and the standard deviation over random seeds. Errors are
against the noiseless target. ``python -m benchmarks.designs FOLDER STUDY ...`` takes these studies
alone, such as ``confounded`` or ``unpaired-3``, so that several can be made side by side; results
are kept in the folder and used again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scores import LESION, read_targets, score_lesion
from siteless.acquisition import Array, Scan
from siteless.bids import find_scans, read_signal
from siteless.evaluation import Target, maps_within, score_maps, score_signal
from siteless.methods import CombatModel, load_model, render
from siteless.model import Model
from siteless.pipelines import fit_model, simulate_cohort
from siteless.simulation import Cohort, Design, choose_design, draw_design, read_scanners

SEEDS = (1, 2, 3)
SITES = ("prisma30", "prisma60", "connectom30", "connectom60")
HUB, VOXEL_SIZE = "prisma30", 4.0
MAPS = ("fa", "md", "mk")
METHODS: dict[str, dict[str, Any]] = {
    "unchanged": {"method": "unchanged"},
    "scaled": {"method": "scaled"},
    "rish": {"method": "rish"},
    "rish-glm": {"method": "rish-glm"},
    "combat": {"method": "combat", "maps": MAPS},
    "invariant": {},
}
# Ten people at every site; ten at each of four; the same, other ages; and so on.
STUDIES = {
    "travelling": Design("bridged", people_per_site=(0,), bridging=10),
    "unpaired": choose_design("unpaired"),
    "confounded": choose_design("confounded"),
    "bridged": choose_design("bridged"),
    "patients": choose_design("patients"),
    **{f"unpaired-{n}": choose_design("unpaired", people_per_site=(n,)) for n in (3, 5, 20)},
    **{f"confounded-{n}": choose_design("confounded", people_per_site=(n,)) for n in (3, 5, 20)},
    "no-effect": choose_design("confounded"),
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
    "worse": "tasks worse than unchanged",
}


def main(folder: Path, *studies: str) -> None:
    unknown = set(studies) - set(STUDIES)
    if unknown:
        sys.exit(f"there is no study {min(unknown)}; choose of {', '.join(STUDIES)}")
    methods = os.environ.get("METHODS", " ".join(METHODS)).split()
    for study in studies or STUDIES:
        found = [judge(folder / study / str(seed), study, seed, methods) for seed in SEEDS]
        print_study(study, found, methods)


def draw(study: str, seed: int) -> Cohort:
    known = read_scanners()
    scanners = tuple(known[site] for site in SITES)
    if study == "no-effect":
        same = known[HUB]
        scanners = tuple(replace(same, site=site, scheme=known[site].scheme) for site in SITES)
    return draw_design(scanners, STUDIES[study], voxel_size=VOXEL_SIZE, seed=seed)


def judge(folder: Path, study: str, seed: int, methods: list[str]) -> dict[str, Any]:
    """Return the scores of each method by task and person; those that are known are read."""
    dataset, kept = folder / "cohort", folder / "scores.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    missing = [name for name in methods if name not in found]
    if not missing:
        return found
    simulate_cohort(dataset, draw(study, seed))
    read = read_targets(dataset, split="test")
    targets, told = {k: replace(t, maps=MAPS) for k, t in read.items()}, people_of(dataset)
    for name in missing:
        path = folder / f"{name}.safetensors"
        fit_model(dataset, path, work=folder / "work", resume=path.exists(), **METHODS[name])
        found[name] = list(scores(load_model(path), targets, told, dataset))
        kept.write_text(json.dumps(found))
        print(study, seed, name, summary(found[name]), file=sys.stderr, flush=True)
    return found


def people_of(dataset: Path) -> dict[str, Mapping[str, str]]:
    return {files.subject: files.attributes for files in find_scans(dataset).scans}


def scores(
    model: Model,
    targets: Mapping[tuple[str, str], Target],
    told: Mapping[str, Mapping[str, str]],
    dataset: Path,
) -> Iterator[dict[str, Any]]:
    """Score every test person in every task."""
    others = [site for site in SITES if site != HUB]
    for source, goal in [*((HUB, site) for site in others), *((site, HUB) for site in others)]:
        for person in sorted({who for who, _ in targets}):
            scan, target = targets[person, source].scan, targets[person, goal]
            maps, found = rendered(model, scan, goal, target, told[person])
            region = affected(dataset, person, target)
            yield {
                "task": f"{source}>{goal}",
                "age": float(told[person]["age"]),
                "group": told[person].get("group", ""),
                **found,
                **means("found", maps, target.scan.white_matter),
                **means("true", target.reference_maps, target.scan.white_matter),
                "found_region": float(np.nanmean(maps["fa"][region])),
                "true_region": float(np.nanmean(target.reference_maps["fa"][region])),
            }


def rendered(
    model: Model, scan: Scan, site: str, target: Target, told: Mapping[str, str]
) -> tuple[Mapping[str, Array], dict[str, float]]:
    """Return the maps of a scan as a site, and their scores."""
    white, found = target.scan.white_matter, {}
    if isinstance(model, CombatModel):
        maps: Mapping[str, Array] = model.harmonize_maps(scan, site, told)
    else:
        made = render(model, scan, site, gradients=target.scan.gradients).scan
        found = score_signal(made, target, white)
        maps = maps_within(made, MAPS, target.masks.values())
    found |= score_maps(maps, target, white)
    if LESION in target.regions:
        found["lesion"] = score_lesion(maps["md"], target)
    return maps, {name: found[name] for name in COLUMNS if name in found}


def affected(dataset: Path, person: str, target: Target) -> Array:
    """Return where patients differ; all white matter where there are none."""
    folder = dataset / "derivatives" / "truth" / f"sub-{person}" / "dwi"
    path = folder / f"sub-{person}_label-affected_mask.nii.gz"
    region = read_signal(path)[0] > 0 if path.exists() else target.scan.white_matter
    return region & target.scan.white_matter


def means(kind: str, maps: Mapping[str, Array], where: Array) -> dict[str, float]:
    return {f"{kind}_{name}": float(np.nanmean(maps[name][where])) for name in ("fa", "md")}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Average scores over tasks and people, with slopes and effects over those of the truth."""
    found = {}
    for name in COLUMNS:
        known = [row[name] for row in rows if name in row]
        if known:
            found[name] = float(np.mean(known))
    for name in ("fa", "md"):
        bias = [row[f"found_{name}"] / row[f"true_{name}"] - 1 for row in rows]
        found[f"{name}_bias"] = 100 * float(np.mean(bias))
        slopes = [by_task(rows, f"{kind}_{name}", slope) for kind in ("found", "true")]
        found[f"{name}_age_slope"] = float(np.sum(slopes[0]) / np.sum(slopes[1]))
    if len({row["group"] for row in rows}) > 1:
        gaps = [by_task(rows, f"{kind}_region", group_gap) for kind in ("found", "true")]
        found["group_effect"] = float(np.sum(gaps[0]) / np.sum(gaps[1]))
    return found


def by_task(rows: list[dict[str, Any]], name: str, measure: Any) -> list[float]:
    tasks = dict.fromkeys(row["task"] for row in rows)
    return [measure([row for row in rows if row["task"] == task], name) for task in tasks]


def slope(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.polyfit([row["age"] for row in rows], [row[name] for row in rows], 1)[0])


def group_gap(rows: list[dict[str, Any]], name: str) -> float:
    patients = [row[name] for row in rows if row["group"] == "patient"]
    controls = [row[name] for row in rows if row["group"] == "control"]
    return float(np.mean(patients) - np.mean(controls))


def worse(rows: list[dict[str, Any]], plain: list[dict[str, Any]]) -> float:
    """Count the tasks whose FA or MD is farther from the truth than unchanged scans'."""

    def errors(of: list[dict[str, Any]], name: str) -> Array:
        return np.array(by_task(of, name, lambda own, n: float(np.mean([r[n] for r in own]))))

    names = ("fa_block_percent", "md_block_percent")
    return float(np.any([errors(rows, n) > errors(plain, n) for n in names], axis=0).sum())


def print_study(study: str, found: list[dict[str, Any]], methods: list[str]) -> None:
    print(f"\n{study}\n\n| | {' | '.join(COLUMNS.values())} |")
    print(f"|---|{'---:|' * len(COLUMNS)}")
    for name in methods:
        rows = [
            summary(one[name]) | {"worse": worse(one[name], one["unchanged"])} for one in found
        ]
        cells = (cell([row[c] for row in rows if c in row]) for c in COLUMNS)
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def cell(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" if values else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
