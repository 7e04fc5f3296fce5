"""`siteless reproduce`: the paper's experiment from its cohort to its tables and figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from siteless.bids import (
    ScanFiles,
    ScanSelection,
    read_json,
    require_new,
    require_outside,
    write_json,
    write_table,
    write_text,
)
from siteless.errors import DatasetError, OutputError
from siteless.evaluation import ScoreTable
from siteless.experiments._steps import Step, run_steps
from siteless.methods.invariant.training import PRESETS
from siteless.pipelines import (
    KINDS,
    Evaluation,
    Run,
    encode_dataset,
    evaluate_dataset,
    fingerprint,
    fit_model,
    harmonize_dataset,
    simulate_cohort,
    write_report,
)
from siteless.pipelines.evaluate import Kind, folder_name
from siteless.pipelines.report import HOME
from siteless.report import (
    Table,
    ablation_table,
    accuracy_table,
    biology_table,
    error_tables,
    leakage_table,
)
from siteless.simulation import PRESETS as SIZES
from siteless.simulation import draw_cohort, read_scanners

# What is done in a process of its own, and what progress calls it.
Job = tuple[str, Callable[[], None]]
# The paper renders scans of one site as the others, and theirs as it.
_HUB = "prisma30"
# Terms of the paper's loss that the default is without. What they keep out of codes is measured,
# so that nothing else takes the site out of them.
_PAPERS = {"marginal": 5e-4, "adversary": 0.5, "aligned": False}
# The paper's ablations: without the divergence from the marginal (lambda), and without that from
# the prior (alpha) too.
_ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "": _PAPERS,
    ", lambda = 0": _PAPERS | {"marginal": 0.0},
    ", lambda = alpha = 0": _PAPERS | {"marginal": 0.0, "prior": 0.0},
}
_PRINTED = "multi, as printed"
# Methods of the figures.
_SHOWN = ("scaled", "RISH", "single", "multi")
_FIGURES = {
    "rmse": "RMSE of voxels of white matter of all test people, by task",
    "angle": "Angle of the largest FOD maximum to the closest of the target's, by task",
    "rmse_maps": "RMSE in an axial slice of one test person, on one colour scale",
    "fods": "FODs of one test person in the first task, on one scale",
}


@dataclass(frozen=True)
class Scale:
    """How large the experiment is.

    Attributes
    ----------
    subjects, voxel_size
        Of the simulated cohort, mm.
    updates
        Of the networks, in training.
    printed_updates
        Of the network with the paper's own settings, whose batches are 16 times smaller.
    fibres
        Voxels of a scan whose fibre orientations are compared.
    """

    subjects: int
    voxel_size: float
    updates: int
    printed_updates: int
    fibres: int


SCALES = {
    "quick": Scale(subjects=9, voxel_size=4.0, updates=500, printed_updates=2000, fibres=300),
    "full": Scale(subjects=15, voxel_size=2.4, updates=2500, printed_updates=10_000, fibres=1000),
}


@dataclass(frozen=True)
class Contestant:
    """A model that takes part.

    Attributes
    ----------
    method
        What tables call it; the networks of pairs of sites are one method.
    name
        That tells it from the others.
    sites
        That it learns.
    options
        Of `fit_model`.
    """

    method: str
    name: str
    sites: tuple[str, ...]
    options: Mapping[str, Any]

    @property
    def stem(self) -> str:
        """Of its files."""
        return re.sub(r"[^\w.]+", "-", self.name)

    @property
    def has_code(self) -> bool:
        """Whether it is a network of the paper."""
        return "settings" in self.options

    @property
    def is_ablated(self) -> bool:
        """Whether it lacks a term of the loss."""
        return any(end and self.method.endswith(end) for end in _ABLATIONS)


def contestants(sites: Sequence[str], hub: str, scale: Scale) -> Iterator[Contestant]:
    """Yield the models of the experiment."""
    every = tuple(sites)
    yield Contestant("scaled", "scaled", every, {"method": "scaled"})
    yield Contestant("RISH", "RISH", every, {"method": "rish"})
    for ablation, weights in _ABLATIONS.items():
        settings = replace(PRESETS["siteless"], updates=scale.updates, **weights)
        options = {"settings": settings}
        for other in every:
            if other != hub:
                name = f"single, {other}{ablation}"
                yield Contestant(f"single{ablation}", name, (hub, other), options)
        yield Contestant(f"multi{ablation}", f"multi{ablation}", every, options)
    printed = replace(PRESETS["paper"], epochs=None, updates=scale.printed_updates)
    yield Contestant(_PRINTED, _PRINTED, every, {"settings": printed})


def reproduce_experiment(
    out: Path | str,
    *,
    dataset: Path | str | None = None,
    scale: str = "quick",
    hub: str | None = None,
    run: Run = Run(),
) -> Path:
    """Repeat the experiment of Moyer et al. (2020), and write its tables and figures.

    What is done is kept: a run that was interrupted goes on, and one that is finished is only
    read.

    Parameters
    ----------
    out
        Folder for all of it.
    dataset
        Scans of travelling people, with a ``split`` column that has train, val and test; by
        default a cohort is simulated.
    scale
        Of `SCALES`.
    hub
        The site that scans are rendered as and from; by default prisma30, or the first.
    run
        How the work is done. Its random seed is the cohort's too.

    Returns
    -------
    Path
        The page with tables and figures.
    """
    out, given = Path(out).absolute(), None if dataset is None else Path(dataset).absolute()
    if given:
        require_outside(out, given)
    if scale not in SCALES:
        raise DatasetError(
            f"there is no preset {scale!r}", remedy=f"choose of {', '.join(SCALES)}"
        )
    experiment = _Experiment(out, given or out / "cohort", SCALES[scale], hub, run.seed)
    if given is not None:
        experiment.require_travellers()
    _claim(out, given, scale, hub, run.seed)
    records, seconds = out / "steps", {}
    if given is None:
        simulate = Step("cohort", experiment.simulate, (out / "cohort",))
        seconds = run_steps([simulate], records, run)
    seconds |= run_steps(list(experiment.steps()), records, run)
    rows = [{"step": name, "seconds": f"{taken:.0f}"} for name, taken in seconds.items()]
    write_table(out / "steps.tsv", rows)
    return experiment.page


def _claim(out: Path, dataset: Path | None, scale: str, hub: str | None, seed: int) -> None:
    """Refuse to mix two experiments."""
    settings = {"dataset": dataset and str(dataset), "preset": scale, "hub": hub, "seed": seed}
    record = out / "experiment.json"
    if record.exists():
        told = read_json(record)
        other = [f"{k} {told.get(k)}, not {v}" for k, v in settings.items() if told.get(k) != v]
        if other:
            raise OutputError(
                f"the folder holds another experiment: {', '.join(other)}",
                remedy="choose another folder",
                path=out,
            )
    else:
        require_new(out)
        write_json(record, settings)


@dataclass(frozen=True)
class _Experiment:
    """Where everything is, and what each step does."""

    out: Path
    dataset: Path
    scale: Scale
    asked_hub: str | None
    seed: int

    @property
    def page(self) -> Path:
        return self.out / "results.md"

    @cached_property
    def scans(self) -> list[ScanFiles]:
        scans = list(ScanSelection.of(self.dataset).find().scans)
        lacking = {"train", "val", "test"} - {files.attributes.get("split") for files in scans}
        if lacking:
            raise DatasetError(
                f"expected people for train, val and test in a split column, found none for "
                f"{', '.join(sorted(lacking))}",
                remedy="add the column to participants.tsv or to the manifest",
                path=self.dataset,
            )
        return scans

    @cached_property
    def sites(self) -> list[str]:
        """The hub first."""
        known = list(dict.fromkeys(str(files.site) for files in self.scans))
        hub = self.asked_hub or (_HUB if _HUB in known else known[0])
        if hub not in known or len(known) < 2:
            raise DatasetError(
                f"expected scans of the site {hub} and of others, found {', '.join(known)}",
                remedy="choose another with --hub",
                path=self.dataset,
            )
        return [hub, *(site for site in known if site != hub)]

    def require_travellers(self) -> None:
        """Refuse scans of which no test person gives every task; and sites of one name."""
        visits = {(f.subject, str(f.site)) for f in self.scans}
        if not any(all((who, s) in visits for s in self.sites) for who in self.people("test")):
            raise DatasetError(
                f"expected a test person who was scanned at {', '.join(self.sites)}, found none",
                remedy="mark travelling people as test in the split column",
                path=self.dataset,
            )
        stems = {one.stem for one in self.contestants}
        if len(stems) < len(self.contestants):
            raise DatasetError(
                "two sites have the same name but for punctuation",
                remedy="rename one",
                path=self.dataset,
            )

    @property
    def tasks(self) -> list[str]:
        hub, *others = self.sites
        return [*(f"{hub}>{site}" for site in others), *(f"{site}>{hub}" for site in others)]

    def people(self, *splits: str) -> list[str]:
        """Return the people of splits."""
        chosen = (files for files in self.scans if files.attributes.get("split") in splits)
        return list(dict.fromkeys(files.subject for files in chosen))

    @cached_property
    def contestants(self) -> list[Contestant]:
        return list(contestants(self.sites, self.sites[0], self.scale))

    def steps(self) -> Iterator[Step]:
        """Yield all steps after the cohort."""
        networks = [one for one in self.contestants if one.has_code]
        others = [one for one in self.contestants if not one.has_code]
        for one in others:
            yield self._fitting(f"fit-{one.stem}", partial(self.fit, one), [one])
        yield self._fitting("fit-networks", self.train, networks)
        fits = (*(f"fit-{one.stem}" for one in others), "fit-networks")
        yield Step("render", self.render, (self.out / "harmonized",), needs=fits)
        yield Step("encode", self.encode, (self.out / "codes",), needs=fits)
        settings = {"fibres": self.scale.fibres}
        yield Step("score", self.score, (self.page,), settings, needs=("render", "encode"))
        yield Step("report", self.report, (self.out / "report" / HOME,), needs=("score",))

    def _fitting(self, name: str, run: Callable[[Run], None], made: Sequence[Contestant]) -> Step:
        scans = [[fingerprint(f), f.subject, f.attributes.get("split")] for f in self.scans]
        models = [[repr(one.options), one.sites] for one in made]
        settings = {"seed": self.seed, "models": models, "scans": scans}
        return Step(name, run, tuple(map(self.model, made)), settings)

    def model(self, one: Contestant) -> Path:
        return self.out / "models" / f"{one.stem}.safetensors"

    def rendered(self, one: Contestant, to: str) -> Path:
        return self.out / "harmonized" / one.stem / f"to-{folder_name(to)}"

    def codes(self, one: Contestant) -> Path:
        return self.out / "codes" / one.stem

    def simulate(self, run: Run) -> None:
        scanners = read_scanners()
        cohort = draw_cohort(
            tuple(scanners[site] for site in SIZES["cdmri2018"].sites),
            subjects=self.scale.subjects,
            voxel_size=self.scale.voxel_size,
            seed=self.seed,
        )
        simulate_cohort(self.dataset, cohort, run=run)

    def fit(self, one: Contestant, run: Run) -> None:
        """Fit a model."""
        fit_model(
            ScanSelection(self.dataset, sites=one.sites),
            self.model(one),
            resume=True,
            work=self.out / "work",
            run=run,
            **one.options,
        )

    def train(self, run: Run) -> None:
        """Train the networks, each in a process of its own: that is faster than one by one."""
        networks = [one for one in self.contestants if one.has_code]
        jobs = [
            (one.name, partial(self.fit, one, Run(nprocs=1, seed=self.seed))) for one in networks
        ]
        _run_jobs(jobs, "Training networks", run)

    def render(self, run: Run) -> None:
        """Render test people in all tasks, and as the hub all whom adversaries are shown."""
        hub, *others = self.sites
        tested, everybody = self.people("test"), self.people("train", "test")
        jobs = []
        for one in self.contestants:
            jobs += [self._rendering(one, hub, site, tested) for site in one.sites[1:]]
            shown = one.sites[1:] == tuple(others) and not one.is_ablated
            sources, people = (one.sites, everybody) if shown else (one.sites[1:], tested)
            jobs += [self._rendering(one, site, hub, people) for site in sources]
        _run_jobs(jobs, "Rendering scans", run)

    def _rendering(self, one: Contestant, source: str, to: str, people: list[str]) -> Job:
        out, model = self.rendered(one, to), self.model(one)
        return f"{one.name}, {source}>{to}", partial(
            _render, self.dataset, out, model, to, source, people
        )

    def encode(self, run: Run) -> None:
        """Encode the people that adversaries learn from, and those that they are tested on."""
        coded = [one for one in self.contestants if one.has_code]
        jobs = [(one.name, self._encoding(one)) for one in coded]
        _run_jobs(jobs, "Encoding scans", run)

    def _encoding(self, one: Contestant) -> Callable[[], None]:
        people = self.people("train", "test")
        return partial(_encode, self.dataset, self.codes(one), self.model(one), one.sites, people)

    def score(self, run: Run) -> None:
        """Score everything, and write tables, figures and the page."""
        main = self._evaluate(
            "scores", [o for o in self.contestants if not o.is_ablated], KINDS, run
        )
        ablated = [one for one in self.contestants if one.is_ablated]
        less = self._evaluate("scores_ablations", ablated, ("signal",), run)
        own = {one.method for one in ablated}
        table = ScoreTable(
            (*main.table.scores, *(s for s in less.table.scores if s.method in own))
        )
        tables = [one for one in self._tables(main.table, table) if one.rows]
        for one in tables:
            one.write(self.out / "tables")
        figures = self.out / "figures"
        figures.mkdir(exist_ok=True)
        gallery = replace(main.gallery, tasks=self.tasks)
        gallery.draw_errors(figures, _SHOWN)
        gallery.draw_slices(figures / "rmse_maps.png", _SHOWN)
        if gallery.measures.engine:
            gallery.draw_fibres(figures / "fods.png", _SHOWN)
        write_text(self.page, self._told(tables, main))

    def report(self, run: Run) -> None:
        """Show what the network of all sites has made of the scans."""
        [network] = [one for one in self.contestants if one.method == "multi"]
        write_report(
            self.dataset,
            [self.rendered(network, self.sites[0])],
            self.out / "report",
            scores=self.out / "scores",
            run=run,
        )

    def _evaluate(
        self,
        name: str,
        entered: Sequence[Contestant],
        kinds: Sequence[Kind],
        run: Run,
    ) -> Evaluation:
        folders: dict[str, list[Path]] = {}
        for one in entered:
            folders.setdefault(one.method, []).extend(self.rendered(one, to) for to in one.sites)
        coded = [one for one in self.contestants if one.has_code] if "leakage" in kinds else []
        return evaluate_dataset(
            self.dataset,
            folders,
            self.out / name,
            codes={one.name: self.codes(one) for one in coded},
            kinds=kinds,
            fibres=self.scale.fibres,
            run=run,
        )

    def _tables(self, main: ScoreTable, table: ScoreTable) -> Iterator[Table]:
        ablations = list(_ABLATIONS)
        networks = [one.name for one in self.contestants if one.has_code and not one.is_ablated]
        yield from error_tables(main, self.tasks)
        yield ablation_table(table, self.tasks, ablations[1:])
        yield accuracy_table(table, networks, ablations)
        yield leakage_table(table)
        yield biology_table(table, self.sites[0])

    def _told(self, tables: Sequence[Table], main: Evaluation) -> str:
        """Return the page."""
        people = {split: len(self.people(split)) for split in ("train", "val", "test")}
        head = (
            f"Scans of {people['train']} people to learn from, {people['val']} to validate by and "
            f"{people['test']} to test on, at {', '.join(self.sites)}; rendered from "
            f"{self.sites[0]} as the others and from them as it. Scores are of test people, in "
            f"white matter; FODs by {main.gallery.measures.engine or 'nothing that is installed'}."
        )
        notes = [f"Not scored: {note}." for note in main.notes]
        figures = [
            f"![{text}](figures/{name}.png)\n\n{text}."
            for name, text in _FIGURES.items()
            if (self.out / "figures" / f"{name}.png").exists()
        ]
        link = f"[What the network of all sites has made of the scans.](report/{HOME})"
        parts = ["# The experiment of Moyer et al. (2020)", head, link, *notes]
        return "\n\n".join([*parts, *(t.markdown() for t in tables), *figures]) + "\n"


def _render(
    dataset: Path, out: Path, model: Path, to: str, source: str, people: Sequence[str]
) -> None:
    """Render people's scans of one site as another, at the b-vectors that they have there.

    One that fails fails the experiment.
    """
    for files in ScanSelection(dataset, filters={"sub": people}).find().scans:
        if str(files.site) == to:
            tables = (files.bval, files.bvec) if files.bval and files.bvec else None
            own = ScanSelection(dataset, filters={"sub": [files.subject]}, sites=[source])
            report = harmonize_dataset(
                own,
                out,
                model,
                to,
                gradients=tables or "target",
                run=Run(nprocs=1),
            )
            if report.errors:
                raise report.errors[0]


def _encode(
    dataset: Path, out: Path, model: Path, sites: Sequence[str], people: Sequence[str]
) -> None:
    selection = ScanSelection(dataset, filters={"sub": people}, sites=sites)
    encode_dataset(model, selection, out, run=Run(nprocs=1))


def _run_jobs(jobs: Sequence[Job], title: str, run: Run) -> None:
    run.map(title, _call, jobs, name=lambda job: job[0])


def _call(job: Job) -> None:
    job[1]()
