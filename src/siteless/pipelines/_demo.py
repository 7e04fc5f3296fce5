"""`siteless demo`: everything once, on a simulated cohort, from scans to a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from siteless.bids import read_json, require_new, write_json
from siteless.errors import DatasetError, OutputError
from siteless.evaluation import ScoreTable
from siteless.methods.invariant.training import PRESETS
from siteless.methods.patches import Watch
from siteless.pipelines._check import check_dataset
from siteless.pipelines._coefficients import Stages
from siteless.pipelines._evaluate import evaluate_dataset
from siteless.pipelines._fit import fit_model
from siteless.pipelines._harmonize import harmonize_dataset
from siteless.pipelines._report import HOME, read_scores, write_report
from siteless.pipelines._simulate import simulate_cohort
from siteless.pipelines._steps import Step, run_steps
from siteless.simulation import draw_cohort, read_scanners

# Two scanners that differ much, and enough people to learn a RISH template from.
_SITES, _TARGET = ("prisma30", "connectom60"), "prisma30"
_PEOPLE, _VOXEL_SIZE, _LESIONS = 8, 4.0, 1
_UPDATES, _FIBRES = 500, 300
_METHODS = {"siteless": "invariant", "RISH": "rish"}


@dataclass(frozen=True)
class Demo:
    """What a demo has made.

    Attributes
    ----------
    page
        The report.
    seconds
        That each step took, by name.
    table
        Scores.
    """

    page: Path
    seconds: dict[str, float]
    table: ScoreTable


def run_demo(
    out: Path | str,
    *,
    seed: int = 0,
    nprocs: int | None = None,
    progress: Stages | None = None,
    watch: Watch | None = None,
) -> Demo:
    """Simulate a cohort, check it, harmonize it in two ways, score them, and write a report.

    What is done is kept: a demo that was interrupted goes on.

    Parameters
    ----------
    out
        Folder for all of it.
    seed
        Of all that is random.
    nprocs
        Processes; by default one for each core that may be used.
    progress, watch
        As for `fit_model`.
    """
    out = Path(out).absolute()
    _claim(out, seed)
    run = _Run(out, seed, nprocs, watch)
    seconds = run_steps(list(run.steps()), out / "steps", progress)
    return Demo(out / "report" / HOME, seconds, read_scores(out / "scores")[0])


def _claim(out: Path, seed: int) -> None:
    """Refuse to mix two demos, or a demo and something else."""
    record = out / "demo.json"
    if not record.exists():
        require_new(out)
        write_json(record, {"seed": seed})
    elif read_json(record).get("seed") != seed:
        raise OutputError(
            "the folder holds a demo of another seed", remedy="choose another folder", path=out
        )


@dataclass(frozen=True)
class _Run:
    out: Path
    seed: int
    nprocs: int | None
    watch: Watch | None

    @property
    def cohort(self) -> Path:
        return self.out / "cohort"

    def model(self, name: str) -> Path:
        return self.out / f"{name}.safetensors"

    def rendered(self, name: str) -> Path:
        return self.out / f"{name}_as_{_TARGET}"

    def steps(self) -> Iterator[Step]:
        """Yield what is done, in this order."""
        seed = {"seed": self.seed}
        yield Step("simulate", self.simulate, (self.cohort,), seed)
        yield Step("check", self.check, (), seed, ("simulate",))
        for name, method in _METHODS.items():
            yield Step(
                f"fit {name}",
                partial(self.fit, name, method),
                (self.model(name),),
                seed,
                ("check",),
            )
        fits = tuple(f"fit {name}" for name in _METHODS)
        made = tuple(self.rendered(name) for name in _METHODS)
        yield Step("harmonize", self.harmonize, made, seed, fits)
        yield Step("evaluate", self.evaluate, (self.out / "scores",), seed, ("harmonize",))
        yield Step("report", self.report, (self.out / "report" / HOME,), seed, ("evaluate",))

    def simulate(self, progress: Stages | None) -> None:
        known = read_scanners()
        cohort = draw_cohort(
            tuple(known[site] for site in _SITES),
            subjects=_PEOPLE,
            voxel_size=_VOXEL_SIZE,
            seed=self.seed,
            lesions=_LESIONS,
        )
        show = progress and progress("Simulating people")
        simulate_cohort(self.cohort, cohort, nprocs=self.nprocs, progress=show)

    def check(self, progress: Stages | None) -> None:
        show = progress and progress("Reading scans")
        found = check_dataset(self.cohort, nprocs=self.nprocs, progress=show)
        if found.errors:
            raise DatasetError(
                f"the cohort has {len(found.errors)} errors",
                remedy="run `siteless check` on it",
                path=self.cohort,
            )

    def fit(self, name: str, method: str, progress: Stages | None) -> None:
        trained = method == "invariant"
        settings = replace(PRESETS["siteless"], updates=_UPDATES) if trained else None
        fit_model(
            self.cohort,
            self.model(name),
            method=method,
            settings=settings,
            seed=self.seed,
            resume=True,
            work=self.out / "work",
            nprocs=self.nprocs,
            progress=progress,
            watch=self.watch,
        )

    def harmonize(self, progress: Stages | None) -> None:
        for name in _METHODS:
            show = progress and progress(f"Rendering scans by {name}")
            made = harmonize_dataset(
                self.cohort,
                self.rendered(name),
                self.model(name),
                _TARGET,
                gradients="target",
                nprocs=self.nprocs,
                progress=show,
            )
            if made.errors:
                raise made.errors[0]

    def evaluate(self, progress: Stages | None) -> None:
        evaluate_dataset(
            self.cohort,
            {name: [self.rendered(name)] for name in _METHODS},
            self.out / "scores",
            fibres=_FIBRES,
            seed=self.seed,
            nprocs=self.nprocs,
            progress=progress,
        )

    def report(self, progress: Stages | None) -> None:
        write_report(
            self.cohort,
            [self.rendered("siteless")],
            self.out / "report",
            scores=self.out / "scores",
            model=self.model("siteless"),
            nprocs=self.nprocs,
            progress=progress,
        )
