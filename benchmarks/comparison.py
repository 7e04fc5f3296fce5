"""Which method is best, in everything that is scored, with and without denoising?

``python -m benchmarks.comparison FOLDER`` simulates the cohort of the paper's experiment, denoises
a copy of it, fits every method to both, renders the test people in all six tasks (and everybody as
the hub, for adversaries), evaluates all of it as `siteless evaluate` does, and prints tables in
Markdown: means of the tasks, each task, and each task without slopes of the gain over the head. It
takes some five hours on one core; an interrupted run goes on from what it has made.
``python -m benchmarks.comparison FOLDER ROW ...`` fits and renders these rows alone, so that
several can be made side by side.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from benchmarks.effects import SCORES as BY_TASK
from benchmarks.harmonization import HUB, fit_if_missing, simulate
from benchmarks.scores import noiseless_path
from siteless.bids import (
    ScanFiles,
    ScanSelection,
    find_scans,
    make_header,
    read_scan,
    read_sidecar,
    read_signal,
    write_dwi,
)
from siteless.denoising import denoise, find_denoiser
from siteless.evaluation import ScoreTable, Target, score_signal
from siteless.methods.invariant.training import PRESETS as SETTINGS
from siteless.pipelines import (
    Derivatives,
    RenderingOptions,
    Scoring,
    encode_dataset,
    evaluate_dataset,
    harmonize_dataset,
)
from siteless.pipelines.evaluate import Kind, RenderedScan, pair_scans, read_rendered_scan
from siteless.pipelines.harmonize._job import Gradients

# Voxels around white matter that are denoised too, as neighbours of patches are among them. All
# of the brain would take twice as long.
MARGIN = 1
MAPS = ("fa", "md", "mk")
# People whose fibres are compared.
FIBRES = ("11", "12")
# Batches of 128: as many patches as the default sees.
PAPER = replace(SETTINGS["paper"], epochs=None, updates=40_000)
FITS: dict[str, dict[str, Any]] = {
    "scaled": {"method": "scaled"},
    "rish": {"method": "rish"},
    "combat": {"method": "combat", "maps": MAPS},
    "paired": {"method": "paired"},
    "paper": {"settings": PAPER},
    "invariant": {},
}
DENOISED = "denoised"
ROWS = (*FITS, *(f"{name}-{DENOISED}" for name in FITS if name not in ("paper", "invariant")))
CODED = ("paper", "invariant")
# Methods whose source sites adversaries are to name.
ATTACKED = ("rish", "paired", *CODED)
# Compared without slopes of the gain over the head.
SLOPED = (f"rish-{DENOISED}", "invariant")
# Title of a column, its metric, what the metric is multiplied by, and its decimals.
COLUMNS = (
    ("RMSE to the scan", "rmse_percent", 1, 2),
    ("to the truth", "rmse_truth_percent", 1, 2),
    ("at level", "rmse_truth_matched_percent", 1, 2),
    ("blocks: signal", "block_percent", 1, 2),
    ("at level", "block_matched_percent", 1, 2),
    ("FA, %", "fa_block_percent", 1, 2),
    ("MD, %", "md_block_percent", 1, 2),
    ("MK, %", "mk_block_percent", 1, 2),
    ("shell means, %", "shell_error", 1, 2),
    ("CV of FA, %", "fa_cv", 100, 1),
    ("of MD", "md_cv", 100, 1),
    ("of MK", "mk_cv", 100, 1),
    ("angle", "angle_largest_median", 1, 2),
)


def main(folder: Path, *rows: str) -> None:
    unknown = set(rows) - set(ROWS)
    if unknown:
        sys.exit(f"there is no row {min(unknown)}; choose of {', '.join(ROWS)}")
    cohort = folder / "cohort"
    simulate(cohort, "cdmri2018")
    for row in rows or ROWS:
        of = denoised_copy(cohort, folder / DENOISED) if row.endswith(DENOISED) else cohort
        fit(row, of, folder)
        render(row, of, folder)
    if not rows:
        print_tables(score(cohort, folder), folder)
        print_slopes(cohort, folder)


def denoised_copy(cohort: Path, out: Path) -> Path:
    """Denoise white matter and what is next to it, into a copy of the dataset."""
    denoiser = find_denoiser()
    if not out.exists():
        shutil.copytree(cohort, out, ignore=shutil.ignore_patterns("*_dwi.*", "truth"))
    for files in find_scans(cohort).scans:
        image = out / files.dwi.relative_to(cohort)
        if not image.exists():
            print(f"denoising {files.name}", file=sys.stderr, flush=True)
            _denoise(files, image, denoiser)
    return out


def _denoise(files: ScanFiles, image: Path, denoiser: str) -> None:
    scan = read_scan(files)
    near = ndimage.binary_dilation(scan.white_matter, iterations=MARGIN) & scan.mask
    denoised = denoise(replace(scan, mask=near), denoiser)
    header, sidecar = make_header(scan.affine), read_sidecar(files)
    write_dwi(image, denoised.signal, scan.gradients, header, scan.affine, sidecar)


def fit(row: str, dataset: Path, folder: Path) -> None:
    """Fit a method. What rows share (coefficients, registrations) is made for the first."""
    path = folder / "models" / f"{row}.safetensors"
    path.parent.mkdir(exist_ok=True)
    options = FITS[row.removesuffix(f"-{DENOISED}")]
    fit_if_missing(dataset, path, work=folder / f"work-{dataset.name}", **options)


def _gradients(row: str, target: ScanFiles) -> Gradients:
    if row.startswith("combat"):
        return "own"
    assert target.bval is not None
    assert target.bvec is not None
    return target.bval, target.bvec


def render(row: str, dataset: Path, folder: Path) -> None:
    """Render test people in all tasks, and as the hub all whom adversaries are shown."""
    model, scans = folder / "models" / f"{row}.safetensors", find_scans(dataset).scans
    harmonize = partial(_harmonize, dataset, model=model)
    others = {str(files.site) for files in scans} - {HUB}
    for target in (files for files in scans if files.attributes["split"] == "test"):
        site, people = str(target.site), {target.subject}
        sources = others if site == HUB else {HUB}
        gradients = _gradients(row, target)
        out = folder / "rendered" / row / site
        harmonize(
            out, to=site, sites=sources, people=people, rendering=RenderingOptions(gradients)
        )
    people = {files.subject for files in scans if files.attributes["split"] != "val"}
    if row in ATTACKED:
        harmonize(
            folder / "as-hub" / row, to=HUB, people=people, rendering=RenderingOptions("target")
        )
    if row in CODED:
        encode_dataset(
            model, ScanSelection(dataset, filters={"sub": people}), folder / "codes" / row
        )


def _harmonize(
    dataset: Path, out: Path, *, people: set[str], sites: Iterable[str] = (), **options: Any
) -> None:
    chosen = sorted(sites) or None
    report = harmonize_dataset(
        ScanSelection(dataset, sites=chosen, filters={"sub": people}), out, **options
    )
    if report.errors:
        raise report.errors[0]


def score(cohort: Path, folder: Path) -> ScoreTable:
    """Score all that was rendered; fibres of some people alone."""
    places = {row: sorted((folder / "rendered" / row).glob("*/")) for row in ROWS}
    scans = {row: folders for row, folders in places.items() if not row.startswith("combat")}
    attacked = {row: [folder / "as-hub" / row] for row in ATTACKED}
    codes = {row: folder / "codes" / row for row in CODED}
    kinds_of_scores: list[list[Kind]] = [["signal", "maps"], ["leakage"], ["orientation"]]
    errors, leakage, fibres = (Scoring(kinds, MAPS) for kinds in kinds_of_scores)
    few = ScanSelection(cohort, filters={"sub": set(FIBRES)})
    evaluations = (
        evaluate_dataset(cohort, places, folder / "scores", scoring=errors),
        evaluate_dataset(cohort, attacked, folder / "leakage", scoring=leakage, codes=codes),
        evaluate_dataset(few, scans, folder / "fibres", scoring=fibres),
    )
    return ScoreTable(
        tuple(score for evaluation in evaluations for score in evaluation.table.scores)
    )


def print_tables(table: ScoreTable, folder: Path) -> None:
    print_row("", *(title for title, *_ in COLUMNS), "source named", "of codes", "fit, minutes")
    print_row("---", *["---:"] * (len(COLUMNS) + 3))
    for method in table.methods(COLUMNS[-2][1]):
        cells = (show(table.mean(metric, method=method) * by, n) for _, metric, by, n in COLUMNS)
        leakage = show(table.mean("leakage_accuracy", method=method, task=f"all>{HUB}"), 3)
        codes = show(table.mean("leakage_accuracy", method=method, task="codes"), 3)
        taken = folder / "models" / f"{method}_seconds.txt"
        minutes = float(taken.read_text()) / 60 if taken.exists() else np.nan
        print_row(f"`{method}`", *cells, leakage, codes, show(minutes, 1))
    tasks = sorted(table.tasks(COLUMNS[0][1]))
    _print_tasks_head(f"{', '.join(BY_TASK)}:", tasks)
    for method in table.methods(BY_TASK[0]):
        cells = (
            ", ".join(show(table.mean(metric, method=method, task=task), 2) for metric in BY_TASK)
            for task in tasks
        )
        print_row(f"`{method}`", *cells)


def print_slopes(cohort: Path, folder: Path) -> None:
    """Print errors by task, in which a slope of the gain over the head does not count.

    The position of a head in the receive field gives each scan a slope of its own, which no scan
    of another site can show.
    """
    scans = find_scans(cohort).scans
    errors: dict[str, dict[str, list[list[float]]]] = {}
    for row in SLOPED:
        places = sorted((folder / "rendered" / row).glob("*/"))
        for rendered in pair_scans(scans, Derivatives({row: places})).scored:
            if rendered.method == row and rendered.target:
                cell = errors.setdefault(rendered.task, {}).setdefault(row, [])
                cell.append(_score_without_slope(rendered, rendered.target, cohort))
    _print_tasks_head(f"without slopes, {', '.join(BY_TASK[:2])}:", sorted(errors))
    for row in SLOPED:
        means = (np.mean(errors[task][row], axis=0) for task in sorted(errors))
        print_row(f"`{row}`", *(", ".join(show(value, 2) for value in mean) for mean in means))


def _score_without_slope(rendered: RenderedScan, target: ScanFiles, cohort: Path) -> list[float]:
    scan, rendering = read_scan(target), read_rendered_scan(rendered)
    truth = scan.with_signal(read_signal(noiseless_path(cohort, target))[0])
    white = scan.white_matter.T[scan.mask.T]
    places = np.column_stack([np.ones(white.sum()), scan.positions[white]])
    b0, true = (
        of.signal[..., of.gradients.is_b0].mean(axis=3).T[scan.white_matter.T]
        for of in (rendering, truth)
    )
    slope = np.linalg.lstsq(places, np.log(true / b0), rcond=None)[0]
    signal = rendering.signal.copy()
    signal.T[:, scan.white_matter.T] *= np.exp(places @ slope)
    scores = score_signal(
        rendering.with_signal(signal), Target(scan, (), truth), scan.white_matter
    )
    return [scores[metric] for metric in BY_TASK[:2]]


def _print_tasks_head(title: str, tasks: list[str]) -> None:
    print(f"\n{title}\n")
    print_row("", *tasks)
    print_row("---", *["---:"] * len(tasks))


def show(value: float, decimals: int) -> str:
    return "" if np.isnan(value) else f"{value:.{decimals}f}"


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
