"""What does a fit cost in a study of 40 scans, and in one of 160?

``python -m benchmarks.study_size FOLDER`` simulates studies of four sites with 10 and 40 people at
each (nobody travels, 5 mm), fits the default to them in two processes, and to the larger one again
with a work folder limited to half of what it took. It prints the seconds of each stage, the peak
memory of the largest process, and the size of the work folder. It takes half an hour.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.designs import SITES
from siteless.bids import find_scans
from siteless.pipelines import Run, fit_model, simulate_cohort
from siteless.simulation import choose_design, draw_design, read_scanners

NPROCS, VOXEL_SIZE = 2, 5.0
# GB that no study here needs.
UNLIMITED = 1000.0


def main(folder: Path) -> None:
    print("| scans | limit of the work folder, GB | seconds | peak memory, GB | work folder, GB |")
    print("|---:|---:|---|---:|---:|")
    small, large = (simulate(folder, people) for people in (10, 40))
    measure(small)
    measure(large, measure(large) / 2)


def simulate(folder: Path, people: int) -> Path:
    """Simulate a study with so many people at each site; what is there is kept."""
    scanners = tuple(read_scanners()[site] for site in SITES)
    design = choose_design("unpaired", people_per_site=(people,), test_people=0)
    cohort = draw_design(scanners, design, voxel_size=VOXEL_SIZE, seed=0)
    return simulate_cohort(folder / f"people-{people}", cohort)


def measure(dataset: Path, limit: float = UNLIMITED) -> float:
    """Fit in a process of its own, print a row, and return the size of the work folder in GB."""
    work = dataset.with_name(f"{dataset.name}-work")
    shutil.rmtree(work, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.study_size", "fit"]
    command += [str(dataset), str(work), str(limit)]
    spent = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    size = sum(path.stat().st_size for path in work.rglob("*") if path.is_file()) / 1e9
    limit_gb = "none" if limit == UNLIMITED else f"{limit:.2f}"
    scans = len(find_scans(dataset).scans)
    print(f"| {scans} | {limit_gb} | {spent} | {size:.2f} |", flush=True)
    return size


def fit(dataset: Path, work: Path, limit: float) -> None:
    """Fit the default, and print the seconds of its stages and its peak memory."""
    stages: list[tuple[str, float]] = []

    def begin(title: str) -> Callable[[int, int, str], None]:
        stages.append((title, time.perf_counter()))
        return lambda *_: None

    run = Run(nprocs=NPROCS, progress=begin)
    fit_model(dataset, work / "model.safetensors", work=work, work_gb=limit, run=run)
    stages.append(("", time.perf_counter()))
    spent = [f"{title} {end - start:.0f}" for (title, start), (_, end) in pairwise(stages)]
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    peak = max(resource.getrusage(process).ru_maxrss for process in who) / 1e6
    print(f"{', '.join(spent)} | {peak:.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "fit":
        fit(Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
    else:
        main(Path(sys.argv[1]))
