"""`siteless demo`: the whole workflow on a simulated cohort, from scans to a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from siteless.bids import claim_folder
from siteless.errors import DatasetError, OutputError
from siteless.evaluation import ScoreTable
from siteless.experiments._steps import Step, run_steps
from siteless.methods import Invariant, Method, Rish
from siteless.methods.invariant.training import PRESETS
from siteless.pipelines import (
    RenderingOptions,
    Run,
    Scoring,
    check_dataset,
    evaluate_dataset,
    fit_model,
    harmonize_dataset,
    simulate_cohort,
    write_report,
)
from siteless.pipelines.report import HOME, read_scores
from siteless.simulation import draw_cohort, read_scanners

# Two scanners that differ strongly, and enough participants for a RISH template.
_SITES, _TARGET = ("prisma30", "connectom60"), "prisma30"
_PEOPLE, _VOXEL_SIZE, _LESIONS = 8, 4.0, 1
_UPDATES, _FIBRES = 500, 300
_METHODS: Mapping[str, Method] = {
    "siteless": Invariant(training=replace(PRESETS["siteless"], updates=_UPDATES)),
    "RISH": Rish(),
}


@dataclass(frozen=True)
class Demo:
    """The page of a demo's report, the seconds that each step took, and the scores of scans."""

    page: Path
    seconds: dict[str, float]
    table: ScoreTable


def run_demo(out: Path | str, *, run: Run = Run()) -> Demo:
    """Simulate a cohort, check it, harmonize it by two methods, score them, and write a report.

    Finished steps are kept, so an interrupted demo can be resumed.

    Parameters
    ----------
    out
        Folder for all outputs.
    run
        Processes and progress of the work, and the random seed.
    """
    out = Path(out).absolute()
    settings = {"seed": run.seed}
    if claim_folder(out, out / "demo.json", settings) != settings:
        raise OutputError(
            "the folder holds a demo of another seed", remedy="choose another folder", path=out
        )
    steps = list(_Steps(out, run.seed).steps())
    seconds = run_steps(steps, out / "steps", run)
    return Demo(out / "report" / HOME, seconds, read_scores(out / "scores")[0])


@dataclass(frozen=True)
class _Steps:
    """Paths and steps of the demo."""

    out: Path
    seed: int

    @property
    def cohort(self) -> Path:
        return self.out / "cohort"

    def model(self, name: str) -> Path:
        return self.out / f"{name}.safetensors"

    def rendered(self, name: str) -> Path:
        return self.out / f"{name}_as_{_TARGET}"

    def steps(self) -> Iterator[Step]:
        seed = {"seed": self.seed}
        yield Step("simulate", self.simulate, (self.cohort,), seed)
        yield Step("check", self.check, (), seed, ("simulate",))
        for name, method in _METHODS.items():
            fit = partial(self.fit, name, method)
            yield Step(f"fit {name}", fit, (self.model(name),), seed, ("check",))
        fits = tuple(f"fit {name}" for name in _METHODS)
        renderings = tuple(self.rendered(name) for name in _METHODS)
        yield Step("harmonize", self.harmonize, renderings, seed, fits)
        yield Step("evaluate", self.evaluate, (self.out / "scores",), seed, ("harmonize",))
        yield Step("report", self.report, (self.out / "report" / HOME,), seed, ("evaluate",))

    def simulate(self, run: Run) -> None:
        known = read_scanners()
        cohort = draw_cohort(
            tuple(known[site] for site in _SITES),
            subjects=_PEOPLE,
            voxel_size=_VOXEL_SIZE,
            seed=self.seed,
            lesions=_LESIONS,
        )
        simulate_cohort(self.cohort, cohort, run=run)

    def check(self, run: Run) -> None:
        report = check_dataset(self.cohort, run=run)
        if report.errors:
            what = f"the cohort has {len(report.errors)} errors"
            raise DatasetError(what, remedy="run `siteless check` on it", path=self.cohort)

    def fit(self, name: str, method: Method, run: Run) -> None:
        work = self.out / "work"
        fit_model(self.cohort, self.model(name), method, resume=True, work=work, run=run)

    def harmonize(self, run: Run) -> None:
        for name in _METHODS:
            files = self.rendered(name), self.model(name)
            options = RenderingOptions("target")
            report = harmonize_dataset(self.cohort, *files, _TARGET, rendering=options, run=run)
            if report.errors:
                raise report.errors[0]

    def evaluate(self, run: Run) -> None:
        rendered = {name: [self.rendered(name)] for name in _METHODS}
        scoring = Scoring(fibres=_FIBRES)
        evaluate_dataset(self.cohort, rendered, self.out / "scores", scoring=scoring, run=run)

    def report(self, run: Run) -> None:
        write_report(
            self.cohort,
            [self.rendered("siteless")],
            self.out / "report",
            scores=self.out / "scores",
            model=self.model("siteless"),
            run=run,
        )
