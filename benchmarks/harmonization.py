"""Which method brings scans closest to the target site, and what does it cost?

``python -m benchmarks.harmonization`` simulates the small cohort and one with lesions, fits every
method, and prints a row of scores for each: means over the test people and over the tasks, which
lead from one site to each other and back. ``python -m benchmarks.harmonization DATASET LESIONS
MODELS`` takes cohorts that are there already, and models of a folder; missing ones are fitted into
it. ``benchmarks.scores`` lists what is scored.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import peak_memory
from benchmarks.scores import SCORES, read_targets, score_given
from siteless.acquisition import Array, Scan
from siteless.bids import ScanSelection, find_scans
from siteless.denoising import denoise
from siteless.evaluation import Target
from siteless.methods import (
    Combat,
    Invariant,
    Method,
    Paired,
    Rish,
    RishGlm,
    Scaled,
    Unchanged,
    load_model,
    render,
)
from siteless.methods.invariant import InvariantModel
from siteless.model import MapModel, Model
from siteless.pipelines import Run, fit_model, harmonize_dataset, simulate_cohort
from siteless.simulation import PRESETS, draw_cohort, read_scanners

_PLAIN: dict[str, Method] = {
    "unchanged": Unchanged(),
    "scaled": Scaled(),
    "rish": Rish(),
    "rish-glm": RishGlm(),
    "rish --travelling": Rish(travelling=True),
    "invariant": Invariant(),
    "paired": Paired(),
    "combat": Combat(maps=("fa", "md"), covariates=()),
}
# Where everybody was at every site, as here, they are the same as RISH to three digits.
_ALIKE = ("rish-glm", "rish --travelling")
# Methods by the name of the row.
FITS = _PLAIN | {
    f"{name} denoised": replace(method, denoise=True)
    for name, method in _PLAIN.items()
    if name not in _ALIKE
}
LEARNED = "invariant"
# The tasks lead from here to each other site, and back.
HUB = "prisma30"
# Decimals and meaning, as of scores.
COSTS = {
    "fit-s": (0, "seconds to fit the method, after scans are read and denoised"),
    "scan-s": (2, "seconds to render a scan, in memory, after it is denoised"),
    "memory": (0, "peak memory, MB, of a process that harmonizes a scan from disk to disk"),
}
# Makes a scan of the second site, or its maps, from a scan of the first.
Render = Callable[[Target, Target], Scan | Mapping[str, Array]]
# By person and site.
Targets = Mapping[tuple[str, str], Target]
# By source and target site: scores by their names.
Tasks = dict[str, dict[str, float]]
# What a method has: a row of mean scores, and the tasks.
Found = dict[str, Any]


def truth_of(target: Target) -> Scan:
    assert target.truth is not None
    return target.truth


# What no method can be better than.
LIMITS: dict[str, Render] = {
    "noise floor": lambda _source, goal: truth_of(goal),
    "the target scan itself": lambda _source, goal: goal.scan,
}


def main(*folders: Path) -> None:
    if folders:
        compare(*folders)
        return
    with tempfile.TemporaryDirectory() as folder:
        dataset, lesions, models = (Path(folder) / n for n in ("cohort", "lesions", "models"))
        simulate(dataset, "small")
        simulate(lesions, "small", subjects=2, lesions=2, seed=1)
        compare(dataset, lesions, models)


def simulate(out: Path, name: str, **options: int) -> None:
    preset, known = PRESETS[name], read_scanners()
    scanners = tuple(known[site] for site in preset.sites)
    numbers: dict[str, Any] = {"subjects": preset.subjects, **options}
    simulate_cohort(out, draw_cohort(scanners, voxel_size=preset.voxel_size, **numbers))


def compare(dataset: Path, lesions: Path, models: Path) -> None:
    models.mkdir(parents=True, exist_ok=True)
    cohorts = [Sources(read_targets(dataset, split="test")), Sources(read_targets(lesions))]
    order = sorted(FITS, key=lambda name: not name.startswith("rish"))  # it stores most of a scan
    results = {name: fit_and_score(name, dataset, models, *cohorts) for name in order}
    learned = load_model(models / f"{LEARNED}.safetensors")
    at_home_scaled: Render = partial(at_home, learned)
    others = {f"{LEARNED} at home, scaled": at_home_scaled, **LIMITS}
    rows = {name: results[name]["row"] for name in FITS} | {
        name: score(method, *cohorts)["row"] for name, method in others.items()
    }
    print_scores(rows)
    print_tasks({name: results[name]["tasks"] for name in FITS})
    measure_trust(dataset, lesions, learned)


class Sources:
    """Scans of a cohort, which are denoised once for all methods."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.denoised: dict[str, Targets] = {"": targets}

    def by(self, denoiser: str) -> Targets:
        if denoiser not in self.denoised:
            print(f"denoising {len(self.targets)} scans", file=sys.stderr)
            self.denoised[denoiser] = {
                key: replace(target, scan=denoise(target.scan, denoiser))
                for key, target in self.targets.items()
            }
        return self.denoised[denoiser]


def fit_and_score(name: str, dataset: Path, models: Path, *cohorts: Sources) -> Found:
    """Fit and score a method, or take what an interrupted run has scored."""
    path = models / f"{file_stem(name)}.safetensors"
    record = path.with_name(f"{path.stem}_scores.json")
    if not record.exists():
        seconds = fit_if_missing(dataset, path, FITS[name], work=models / "work")
        model = load_model(path)
        denoiser = model.preparation.denoiser
        plain = replace(model.preparation, denoiser="")
        model = replace(model, card=replace(model.card, preparation=plain))
        result = score(partial(rendered, model), *cohorts, denoiser=denoiser)
        result["row"] |= {"fit-s": seconds}
        if not denoiser:  # denoising needs more than any method
            memory = peak_memory("benchmarks.harmonization", "--one", str(dataset), str(path))
            result["row"] |= {"memory": memory / 1e6}
        record.write_text(json.dumps(result))
    print(f"{name} is done", file=sys.stderr)
    return json.loads(record.read_text())


def score(method: Render, cohort: Sources, ill: Sources, *, denoiser: str = "") -> Found:
    """Score a method: means over tasks, and each task; of lesions in the second cohort."""
    tasks = score_tasks(method, cohort.by(denoiser), cohort.targets)
    lesions = score_tasks(method, ill.by(denoiser), ill.targets)
    row = mean_scores(tasks.values())
    row["lesion"] = mean_scores(lesions.values())["lesion"]
    return {"row": row, "tasks": tasks}


def measure_trust(dataset: Path, lesions: Path, learned: Model) -> None:
    from benchmarks import trust  # here, as what it imports is no memory of harmonizing

    assert isinstance(learned, InvariantModel)
    trust.measure_renderings(dataset, learned)
    trust.measure_lesions(lesions, learned)


def file_stem(name: str) -> str:
    return name.replace(" --", "_").replace(" ", "_")


def fit_if_missing(dataset: Path, path: Path, method: Method, *, work: Path) -> float:
    """Return the seconds that the fit took, after scans were read; NaN if that is unknown."""
    taken = path.with_name(f"{path.stem}_seconds.txt")
    if not path.exists():
        read = time.monotonic()

        def stage(title: str) -> Callable[[int, int, str], None]:
            def done(*_: object) -> None:
                nonlocal read
                read = time.monotonic() if title == "Reading scans" else read

            return done

        fit_model(dataset, path, method, work=work, run=Run(progress=stage))
        taken.write_text(f"{time.monotonic() - read:.2f}\n")
    return float(taken.read_text()) if taken.exists() else np.nan


def rendered(model: Model, source: Target, goal: Target) -> Scan | Mapping[str, Array]:
    site, table = str(goal.scan.site), goal.scan.gradients
    if isinstance(model, MapModel):
        return model.render_maps(source.scan, site).maps
    return render(model, source.scan, site, gradients=table).scan


def at_home(model: Model, source: Target, goal: Target) -> Scan:
    """Render a scan as its own site, then scale it: what a method gains that only denoises."""
    site = str(source.scan.site)
    rendering = render(model, source.scan, site, gradients=goal.scan.gradients)
    ratio = np.float32(model.level(str(goal.scan.site)) / rendering.levels[1])
    return rendering.scan.with_signal(ratio * rendering.scan.signal)


def score_tasks(method: Render, sources: Targets, targets: Targets) -> Tasks:
    """Score a method in every task, as means over people."""
    people, sites = (list(dict.fromkeys(labels)) for labels in zip(*targets, strict=True))
    others = [site for site in sites if site != HUB]
    pairs = [*((HUB, site) for site in others), *((site, HUB) for site in others)]
    return {
        f"{source[0]}{source[-2:]}>{goal[0]}{goal[-2:]}": mean_scores(
            score_method(method, sources[person, source], targets[person, goal])
            for person in people
        )
        for source, goal in pairs
    }


def score_method(method: Render, source: Target, goal: Target) -> dict[str, float]:
    start = time.perf_counter()
    harmonized = method(source, goal)
    seconds = time.perf_counter() - start
    return score_given(harmonized, goal) | {"scan-s": seconds}


def mean_scores(scores: Iterable[Mapping[str, float]]) -> dict[str, float]:
    rows = list(scores)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


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
        padded = zip(cells, widths.values(), strict=True)
        print(f"{name:<28}" + "".join(f"{cell:>{width}}" for cell, width in padded))


def print_tasks(tasks: Mapping[str, Tasks]) -> None:
    print("\nRMSE to the target scan (to the noiseless target) of each task")
    titles = next(iter(tasks.values()))
    print(" " * 28 + "".join(f"{title:<15}" for title in titles))
    for name, scores in tasks.items():
        if "scan" not in next(iter(scores.values())):
            continue  # maps have none
        cells = (
            f"{of_task['scan']:5.2f} ({of_task['truth']:5.2f})  " for of_task in scores.values()
        )
        print(f"{name:<28}" + "".join(cells))


def harmonize_one(dataset: Path, model: Path) -> None:
    """Harmonize one test person's scan of the last other site: what a process needs for that."""
    test = [files for files in find_scans(dataset).scans if files.attributes["split"] == "test"]
    last = max((f for f in test if str(f.site) != HUB), key=lambda f: (str(f.site), f.subject))
    filters = {"sub": {last.subject}}
    with tempfile.TemporaryDirectory() as out:
        report = harmonize_dataset(
            ScanSelection(dataset, sites=[str(last.site)], filters=filters),
            out,
            model,
            HUB,
            run=Run(nprocs=1),
        )
    if report.errors:
        raise report.errors[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        harmonize_one(*map(Path, sys.argv[2:]))
    else:
        main(*map(Path, sys.argv[1:]))
