"""Which method brings scans closest to the target site, and what does it cost?

``python -m benchmarks.harmonization`` simulates the small cohort and one with lesions, fits every
method, and prints a row of scores for each: means over the test people and over the tasks, which
lead from one site to each other and back. ``python -m benchmarks.harmonization DATASET LESIONS
MODELS`` takes cohorts that are there already, and models of a folder; missing ones are fitted into
it. ``benchmarks.scores`` tells what is scored.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import peak_memory
from benchmarks.scores import SCORES, Target, read_levels, read_targets, score_scan
from siteless.acquisition import Scan
from siteless.bids import find_scans
from siteless.methods import load_model, render
from siteless.pipelines import fit_model, harmonize_dataset, simulate_cohort
from siteless.simulation import PRESETS, draw_cohort, read_scanners

_PLAIN: dict[str, dict[str, Any]] = {
    "unchanged": {"method": "unchanged"},
    "scaled": {"method": "scaled"},
    "rish": {"method": "rish"},
    "rish-glm": {"method": "rish-glm"},
    "rish --travelling": {"method": "rish", "travelling": True},
    "invariant": {"method": "invariant"},
    "paired": {"method": "paired"},
}
# What `fit_model` is told, by the name of the row.
FITS = _PLAIN | {f"{name} denoised": fit | {"denoise": True} for name, fit in _PLAIN.items()}
LEARNED = "invariant"
# The tasks lead from here to each other site, and back.
HUB = "prisma30"
# Decimals and meaning, as of scores.
COSTS = {
    "fit-s": (0, "seconds to fit the method"),
    "scan-s": (2, "seconds to render a scan, in memory"),
    "memory": (0, "peak memory, MB, of a process that harmonizes a scan from disk to disk"),
}
# Makes a scan of the second site from one of the first.
Method = Callable[[Target, Target], Scan]
# By source and target site: scores by their names.
Tasks = dict[tuple[str, str], dict[str, float]]


def main(*folders: Path) -> None:
    if folders:
        compare(*folders)
        return
    with tempfile.TemporaryDirectory() as folder:
        dataset, lesions, models = (Path(folder) / n for n in ("cohort", "lesions", "models"))
        simulate(dataset, subjects=PRESETS["small"].subjects)
        simulate(lesions, subjects=2, lesions=2, seed=1)
        compare(dataset, lesions, models)


def simulate(out: Path, **options: int) -> None:
    preset, known = PRESETS["small"], read_scanners()
    scanners = tuple(known[site] for site in preset.sites)
    simulate_cohort(out, draw_cohort(scanners, voxel_size=preset.voxel_size, **options))


def compare(dataset: Path, lesions: Path, models: Path) -> None:
    models.mkdir(parents=True, exist_ok=True)
    files = {name: models / f"{file_stem(name)}.safetensors" for name in FITS}
    costs = {name: costs_of(dataset, files[name], fit) for name, fit in FITS.items()}
    methods: dict[str, Method] = {
        name: partial(rendered, load_model(path)) for name, path in files.items()
    }
    methods["noise floor"] = lambda _source, goal: goal.truth
    methods["the target scan itself"] = lambda _source, goal: goal.scan
    levels = read_levels(dataset)
    tasks = score_methods(methods, read_targets(dataset, levels, split="test"))
    ill = score_methods(methods, read_targets(lesions, levels))
    rows = {name: mean_scores(found.values()) for name, found in tasks.items()}
    for name, found in ill.items():
        rows[name]["lesion"] = mean_scores(found.values())["lesion"]
    print_scores({name: row | costs.get(name, {"scan-s": np.nan}) for name, row in rows.items()})
    print_tasks(tasks)
    judge_trust(dataset, lesions, files[LEARNED])


def judge_trust(dataset: Path, lesions: Path, path: Path) -> None:
    from benchmarks import trust  # here, as what it imports is no memory of harmonizing

    learned = load_model(path)
    trust.judge(dataset, learned)
    trust.judge_lesions(lesions, learned)


def costs_of(dataset: Path, path: Path, fit: Mapping[str, Any]) -> dict[str, float]:
    """Fit a method if that is to be done yet, and measure what is not measured in passing."""
    seconds = fit_if_missing(dataset, path, **fit)
    memory = peak_memory("benchmarks.harmonization", "--one", str(dataset), str(path))
    return {"fit-s": seconds, "memory": memory / 1e6}


def file_stem(name: str) -> str:
    return name.replace(" --", "_").replace(" ", "_")


def fit_if_missing(dataset: Path, path: Path, **fit: Any) -> float:
    """Return the seconds that the fit took, now or earlier; NaN where nothing tells."""
    taken = path.with_name(f"{path.stem}_seconds.txt")
    if not path.exists():
        start = time.monotonic()
        fit_model(dataset, path, **fit)
        taken.write_text(f"{time.monotonic() - start:.2f}\n")
    return float(taken.read_text()) if taken.exists() else np.nan


def rendered(model: Any, source: Target, goal: Target) -> Scan:
    table = goal.scan.gradients
    return render(model, source.scan, str(goal.scan.site), gradients=table).scan


def score_methods(
    methods: Mapping[str, Method], targets: Mapping[tuple[str, str], Target]
) -> dict[str, Tasks]:
    """Score every method in every task, as means over people; targets are by person and site."""
    people, sites = (list(dict.fromkeys(part)) for part in zip(*targets, strict=True))
    others = [site for site in sites if site != HUB]
    pairs = [*((HUB, site) for site in others), *((site, HUB) for site in others)]
    return {
        name: {
            (source, goal): mean_scores(
                score_method(method, targets[person, source], targets[person, goal])
                for person in people
            )
            for source, goal in pairs
        }
        for name, method in methods.items()
    }


def score_method(method: Method, source: Target, goal: Target) -> dict[str, float]:
    start = time.perf_counter()
    made = method(source, goal)
    seconds = time.perf_counter() - start
    return score_scan(made, goal) | {"scan-s": seconds}


def mean_scores(scores: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts = list(scores)
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}


def print_scores(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print a row for each method; what it does not have is a dash."""
    columns = SCORES | COSTS
    for title, (_, meaning) in columns.items():
        print(f"{title:<12}{meaning}")
    widths = {title: max(len(title), 6) + 2 for title in columns}
    print("\n" + " " * 28 + "".join(f"{title:>{width}}" for title, width in widths.items()))
    for name, scores in rows.items():
        cells = (
            f"{scores[title]:.{decimals}f}" if np.isfinite(scores.get(title, np.nan)) else "-"
            for title, (decimals, _) in columns.items()
        )
        shown = zip(cells, widths.values(), strict=True)
        print(f"{name:<28}" + "".join(f"{cell:>{width}}" for cell, width in shown))


def print_tasks(tasks: Mapping[str, Tasks]) -> None:
    print("\nRMSE to the target scan (to the noiseless target) of each task")
    titles = [f"{s[0]}{s[-2:]}>{t[0]}{t[-2:]}" for s, t in next(iter(tasks.values()))]
    print(" " * 28 + "".join(f"{title:<15}" for title in titles))
    for name, found in tasks.items():
        cells = (f"{one['scan']:5.2f} ({one['truth']:5.2f})  " for one in found.values())
        print(f"{name:<28}" + "".join(cells))


def harmonize_one(dataset: Path, model: Path) -> None:
    """Harmonize one test person's scan of the last other site: what a process needs for that."""
    test = [files for files in find_scans(dataset).scans if files.attributes["split"] == "test"]
    last = max((f for f in test if str(f.site) != HUB), key=lambda f: (str(f.site), f.subject))
    filters = {"sub": {last.subject}}
    with tempfile.TemporaryDirectory() as out:
        report = harmonize_dataset(
            dataset, out, model, HUB, sites=[str(last.site)], filters=filters, nprocs=1
        )
    if report.errors:
        raise report.errors[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        harmonize_one(*map(Path, sys.argv[2:]))
    else:
        main(*map(Path, sys.argv[1:]))
