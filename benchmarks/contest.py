"""Which method is best, in everything that is scored, with and without denoising?

``python -m benchmarks.contest FOLDER`` simulates the cohort of the paper's experiment, denoises a
copy of it, fits every method to both, renders the test people in all six tasks (and everybody as
the hub, for adversaries), evaluates all of it as `siteless evaluate` does, and prints tables in
Markdown: means of the tasks, and each task. It takes hours; what an interrupted run has made is
used again. ``python -m benchmarks.contest FOLDER ROW ...`` fits and renders these rows alone, so
that several can be made side by side; derivatives of other tools that are in FOLDER/others are
scored too.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from benchmarks.harmonization import fit_if_missing
from benchmarks.scores import noiseless_path
from siteless.bids import (
    ScanFiles,
    find_scans,
    make_header,
    read_scan,
    read_sidecar,
    read_signal,
    write_dwi,
)
from siteless.denoising import denoise, find_denoiser
from siteless.evaluation import ScoreTable, Target, score_signal
from siteless.pipelines import (
    encode_dataset,
    evaluate_dataset,
    harmonize_dataset,
    simulate_cohort,
)
from siteless.pipelines._contest import Judged, set_contest
from siteless.pipelines._judge import read_judged
from siteless.simulation import PRESETS, draw_cohort, read_scanners
from siteless.training import PRESETS as SETTINGS

# The tasks lead from here to each other site, and back.
HUB = "prisma30"
# Voxels around white matter that are denoised too, as neighbours of patches are among them.
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
# Of which adversaries are told the source.
TOLD = ("rish", "paired", *CODED)
# Of a column: its title, the metric, what it is multiplied by, and its decimals.
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
# Compared without slopes of the gain over the head.
SLOPED = (f"rish-{DENOISED}", "invariant")
# Shown of each task.
BY_TASK = ("rmse_truth_matched_percent", "block_matched_percent", "fa_block_percent")


def main(folder: Path, *rows: str) -> None:
    cohort = simulate(folder / "cohort")
    for row in rows or ROWS:
        of = denoised_copy(cohort, folder / DENOISED) if row.endswith(DENOISED) else cohort
        fit(row, of, folder)
        render(row, of, folder)
    if not rows:
        print_tables(score(cohort, folder), folder)
        print_slopes(cohort, folder)


def simulate(out: Path) -> Path:
    preset, known = PRESETS["cdmri2018"], read_scanners()
    scanners = tuple(known[site] for site in preset.sites)
    cohort = draw_cohort(scanners, subjects=preset.subjects, voxel_size=preset.voxel_size)
    simulate_cohort(out, cohort)
    return out


def denoised_copy(cohort: Path, out: Path) -> Path:
    """Denoise white matter and what is near of every scan, into a copy of the dataset."""
    denoiser = find_denoiser()
    shutil.copytree(
        cohort, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*_dwi.*", "truth")
    )
    for files in find_scans(cohort).scans:
        image = out / files.dwi.relative_to(cohort)
        if not image.exists():
            print(f"denoising {files.name}", file=sys.stderr, flush=True)
            _denoise(files, image, denoiser)
    return out


def _denoise(files: ScanFiles, image: Path, denoiser: str) -> None:
    scan = read_scan(files)
    near = ndimage.binary_dilation(scan.white_matter, iterations=MARGIN) & scan.mask
    made = denoise(replace(scan, mask=near), denoiser)
    header, sidecar = make_header(scan.affine), read_sidecar(files)
    write_dwi(image, made.signal, scan.gradients, header, scan.affine, sidecar)


def fit(row: str, dataset: Path, folder: Path) -> None:
    path = folder / "models" / f"{row}.safetensors"
    path.parent.mkdir(exist_ok=True)
    options = FITS[row.removesuffix(f"-{DENOISED}")]
    fit_if_missing(dataset, path, work=folder / f"work-{dataset.name}", **options)


def render(row: str, dataset: Path, folder: Path) -> None:
    """Render test people in all tasks, and as the hub whom adversaries learn from."""
    model, scans = folder / "models" / f"{row}.safetensors", find_scans(dataset).scans
    people = {
        split: {one.subject for one in scans if one.attributes["split"] == split}
        for split in ("train", "test")
    }
    harmonize = partial(harmonize_dataset, dataset, model=model)
    gradients = "own" if row.startswith("combat") else "target"
    told = people["test"] | (people["train"] if row in TOLD else set())
    for site in dict.fromkeys(str(one.site) for one in scans):
        chosen, sources = (told, None) if site == HUB else (people["test"], [HUB])
        harmonize(
            folder / "rendered" / row / site,
            to=site,
            sites=sources,
            filters={"sub": chosen},
            gradients=gradients,
        )
    if row in CODED:
        encode_dataset(model, dataset, folder / "codes" / row, filters={"sub": told})


def score(cohort: Path, folder: Path) -> ScoreTable:
    """Score all that is in the folder; fibres of some people alone."""
    others = sorted((folder / "others").glob("*/*/"))
    places = {row: sorted((folder / "rendered" / row).glob("*/")) for row in ROWS}
    places |= {place.parent.name: [] for place in others}
    for place in others:
        places[place.parent.name].append(place)
    scans = {row: own for row, own in places.items() if not row.startswith("combat")}
    told = {row: places[row] for row in TOLD}
    codes = {row: folder / "codes" / row for row in CODED}
    judge, few = partial(evaluate_dataset, cohort, maps=MAPS), {"sub": set(FIBRES)}
    parts = (
        judge(places, folder / "scores", kinds=["signal", "maps"]),
        judge(told, folder / "leakage", kinds=["leakage"], codes=codes),
        judge(scans, folder / "fibres", kinds=["orientation"], filters=few),
    )
    return ScoreTable(tuple(score for part in parts for score in part.table.scores))


def print_tables(table: ScoreTable, folder: Path) -> None:
    methods = dict.fromkeys(one.method for one in table.scores)
    heads = [title for title, *_ in COLUMNS]
    print_row("", *heads, "source told", "of codes", "fit, minutes")
    print_row("---", *["---:"] * (len(heads) + 3))
    for method in methods:
        cells = (show(table.mean(metric, method=method) * by, n) for _, metric, by, n in COLUMNS)
        told = show(table.mean("leakage_accuracy", method=method, task=f"all>{HUB}"), 3)
        codes = show(table.mean("leakage_accuracy", method=method, task="codes"), 3)
        taken = folder / "models" / f"{method}_seconds.txt"
        minutes = float(taken.read_text()) / 60 if taken.exists() else np.nan
        print_row(f"`{method}`", *cells, told, codes, show(minutes, 1))
    tasks = sorted({one.task for one in table.select(COLUMNS[0][1])})
    print()
    print_row("", *tasks)
    print_row("---", *["---:"] * len(tasks))
    for method in methods:
        cells = (
            ", ".join(show(table.mean(metric, method=method, task=task), 2) for metric in BY_TASK)
            for task in tasks
        )
        print_row(f"`{method}`", *cells)


def print_slopes(cohort: Path, folder: Path) -> None:
    """Print errors by task once more, where a slope of the gain over the head counts as no error.

    Where a head lies in a receive field gives each scan a slope of its own, which no scan of
    another site can tell.
    """
    scans = find_scans(cohort).scans
    for row in SLOPED:
        places = sorted((folder / "rendered" / row).glob("*/"))
        found: dict[str, list[list[float]]] = {}
        for one in set_contest(scans, {row: places}).scored:
            if one.method == row and one.target:
                found.setdefault(one.task, []).append(_score_without_slope(one, cohort))
        cells = [[show(v, 2) for v in np.mean(found[task], axis=0)] for task in sorted(found)]
        print_row(f"`{row}`", *map(", ".join, cells))


def _score_without_slope(one: Judged, cohort: Path) -> list[float]:
    scan, given = read_scan(one.target), read_judged(one)
    truth = scan.with_signal(read_signal(noiseless_path(cohort, one.target))[0])
    white = scan.white_matter.T[scan.mask.T]
    places = np.column_stack([np.ones(white.sum()), scan.positions[white]])
    b0, true = (
        of.signal[..., of.gradients.is_b0].mean(axis=3).T[scan.white_matter.T]
        for of in (given, truth)
    )
    slope = np.linalg.lstsq(places, np.log(true / b0), rcond=None)[0]
    signal = given.signal.copy()
    signal.T[:, scan.white_matter.T] *= np.exp(places @ slope)
    found = score_signal(given.with_signal(signal), Target(scan, (), truth), scan.white_matter)
    return [found[metric] for metric in BY_TASK[:2]]


def show(value: float, decimals: int) -> str:
    return "" if np.isnan(value) else f"{value:.{decimals}f}"


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
