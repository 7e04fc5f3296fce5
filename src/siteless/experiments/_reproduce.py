"""`siteless reproduce`: the paper's experiment from its cohort to its tables and figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from siteless.bids import (
    ScanFiles,
    ScanSelection,
    claim_folder,
    fingerprint,
    require_outside,
    write_table,
    write_text,
)
from siteless.errors import DatasetError, OutputError
from siteless.evaluation import ScoreTable
from siteless.experiments._models import ABLATIONS, SCALES, ComparedModel, Scale, compared_models
from siteless.experiments._steps import Step, run_steps
from siteless.pipelines import (
    KINDS,
    Evaluation,
    RenderingOptions,
    Run,
    Scoring,
    encode_dataset,
    evaluate_dataset,
    fit_model,
    harmonize_dataset,
    simulate_cohort,
    write_report,
)
from siteless.pipelines.evaluate import Figures, Kind, folder_name
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

# The name for progress, and a function to run in a separate process.
Job = tuple[str, Callable[[], object]]
# The paper renders scans of this site as the others, and vice versa.
_HUB = "prisma30"
# Methods in the figures.
_SHOWN = ("scaled", "RISH", "single", "multi")
_FIGURES = {
    "rmse": "RMSE of voxels of white matter of all test people, by task",
    "angle": "Angle of the largest FOD maximum to the closest of the target's, by task",
    "rmse_maps": "RMSE in an axial slice of one test person, on one colour scale",
    "fods": "FODs of one test person in the first task, on one scale",
}


def reproduce_experiment(
    out: Path | str,
    *,
    dataset: Path | str | None = None,
    scale: str = "quick",
    hub: str | None = None,
    run: Run = Run(),
) -> Path:
    """Repeat the experiment of Moyer et al. (2020), and write its tables and figures.

    Finished steps are kept, so an interrupted run can be resumed.

    Parameters
    ----------
    out
        Folder for all outputs.
    dataset
        Scans of travelling subjects, with train, val and test in a ``split`` column; by
        default a cohort is simulated.
    scale
        Key of `SCALES`.
    hub
        Site that scans are rendered as and from; by default prisma30, or the first.
    run
        Processes and progress of the work, and the random seed, also of the cohort.

    Returns
    -------
    Path
        Page with tables and figures.
    """
    out, source = Path(out).absolute(), None if dataset is None else Path(dataset).absolute()
    if source:
        require_outside(out, source)
    if scale not in SCALES:
        raise DatasetError(
            f"there is no preset {scale!r}", remedy=f"choose from {', '.join(SCALES)}"
        )
    experiment = _Experiment(out, source or out / "cohort", SCALES[scale], hub, run.seed)
    if source:
        experiment.require_travellers()
    _claim(out, source, scale, hub, run.seed)
    records = out / "steps"
    simulate = Step("cohort", experiment.simulate, (out / "cohort",))
    seconds = run_steps([] if source else [simulate], records, run)
    seconds |= run_steps(list(experiment.steps()), records, run)
    rows = [{"step": name, "seconds": f"{taken:.0f}"} for name, taken in seconds.items()]
    write_table(out / "steps.tsv", rows)
    return experiment.page


def _claim(out: Path, dataset: Path | None, scale: str, hub: str | None, seed: int) -> None:
    """Raise an error if the folder contains anything but the same experiment."""
    settings = {"dataset": dataset and str(dataset), "preset": scale, "hub": hub, "seed": seed}
    earlier = claim_folder(out, out / "experiment.json", settings)
    changed = [
        f"{name} {earlier.get(name)}, not {value}"
        for name, value in settings.items()
        if earlier.get(name) != value
    ]
    if changed:
        what = f"the folder holds another experiment: {', '.join(changed)}"
        raise OutputError(what, remedy="choose another folder", path=out)


@dataclass(frozen=True)
class _Experiment:
    """Paths and steps of the experiment."""

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
        """Labels of the sites, the hub first."""
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
        """Raise an error without a test subject at every site, or for sites with equal names."""
        visits = {(f.subject, str(f.site)) for f in self.scans}
        if not any(all((who, s) in visits for s in self.sites) for who in self.people("test")):
            raise DatasetError(
                f"expected a test person who was scanned at {', '.join(self.sites)}, found none",
                remedy="mark travelling people as test in the split column",
                path=self.dataset,
            )
        if len({model.stem for model in self.models}) < len(self.models):
            what = "two sites have the same name but for punctuation"
            raise DatasetError(what, remedy="rename one", path=self.dataset)

    @property
    def tasks(self) -> list[str]:
        hub, *others = self.sites
        return [*(f"{hub}>{site}" for site in others), *(f"{site}>{hub}" for site in others)]

    def people(self, *splits: str) -> list[str]:
        """Return the participants of splits."""
        chosen = (files for files in self.scans if files.attributes.get("split") in splits)
        return list(dict.fromkeys(files.subject for files in chosen))

    @cached_property
    def models(self) -> list[ComparedModel]:
        return list(compared_models(self.sites, self.sites[0], self.scale))

    @property
    def networks(self) -> list[ComparedModel]:
        return [model for model in self.models if model.has_code]

    def steps(self) -> Iterator[Step]:
        """Yield all steps after the cohort."""
        others = [model for model in self.models if not model.has_code]
        for model in others:
            yield self._fitting(f"fit-{model.stem}", partial(self.fit, model), [model])
        yield self._fitting("fit-networks", self.train, self.networks)
        fits = (*(f"fit-{model.stem}" for model in others), "fit-networks")
        yield Step("render", self.render, (self.out / "harmonized",), needs=fits)
        yield Step("encode", self.encode, (self.out / "codes",), needs=fits)
        settings = {"fibres": self.scale.fibres}
        yield Step("score", self.score, (self.page,), settings, needs=("render", "encode"))
        yield Step("report", self.report, (self.out / "report" / HOME,), needs=("score",))

    def _fitting(
        self, name: str, run: Callable[[Run], None], models: Sequence[ComparedModel]
    ) -> Step:
        settings = {
            "seed": self.seed,
            "models": [[repr(model.learner), model.sites] for model in models],
            "scans": [[fingerprint(f), f.subject, f.attributes.get("split")] for f in self.scans],
        }
        return Step(name, run, tuple(map(self.file, models)), settings)

    def file(self, model: ComparedModel) -> Path:
        return self.out / "models" / f"{model.stem}.safetensors"

    def rendered(self, model: ComparedModel, to: str) -> Path:
        return self.out / "harmonized" / model.stem / f"to-{folder_name(to)}"

    def codes(self, model: ComparedModel) -> Path:
        return self.out / "codes" / model.stem

    def simulate(self, run: Run) -> None:
        scanners = read_scanners()
        cohort = draw_cohort(
            tuple(scanners[site] for site in SIZES["cdmri2018"].sites),
            subjects=self.scale.subjects,
            voxel_size=self.scale.voxel_size,
            seed=self.seed,
        )
        simulate_cohort(self.dataset, cohort, run=run)

    def fit(self, model: ComparedModel, run: Run) -> None:
        scans, work = ScanSelection(self.dataset, sites=model.sites), self.out / "work"
        fit_model(scans, self.file(model), model.learner, resume=True, work=work, run=run)

    def train(self, run: Run) -> None:
        """Train the networks in separate processes, which is faster than one by one."""
        alone = Run(nprocs=1, seed=self.seed)
        jobs = [(model.name, partial(self.fit, model, alone)) for model in self.networks]
        _run_jobs(jobs, "Training networks", run)

    def render(self, run: Run) -> None:
        """Render test participants in all tasks, and those for adversaries as the hub."""
        hub, *others = self.sites
        tested, everybody = self.people("test"), self.people("train", "test")
        jobs: list[Job] = []
        for model in self.models:
            shown = model.sites[1:] == tuple(others) and not model.is_ablated
            sources, people = (model.sites, everybody) if shown else (model.sites[1:], tested)
            tasks = [(hub, site, tested) for site in model.sites[1:]]
            for source, to, who in (*tasks, *((site, hub, people) for site in sources)):
                files = self.dataset, self.rendered(model, to), self.file(model)
                name = f"{model.name}, {source}>{to}"
                jobs.append((name, partial(_render, *files, to, source, who)))
        _run_jobs(jobs, "Rendering scans", run)

    def encode(self, run: Run) -> None:
        """Encode the training and test participants of adversaries."""
        filters = {"sub": self.people("train", "test")}
        alone = Run(nprocs=1)
        jobs: list[Job] = []
        for model in self.networks:
            scans = ScanSelection(self.dataset, filters=filters, sites=model.sites)
            arguments = self.file(model), scans, self.codes(model)
            jobs.append((model.name, partial(encode_dataset, *arguments, run=alone)))
        _run_jobs(jobs, "Encoding scans", run)

    def score(self, run: Run) -> None:
        """Score everything, and write tables, figures and the page."""
        ablated = [model for model in self.models if model.is_ablated]
        others = [model for model in self.models if not model.is_ablated]
        main = self._evaluate("scores", others, KINDS, run)
        signal = self._evaluate("scores_ablations", ablated, ("signal",), run)
        methods = {model.method for model in ablated}
        scores = (score for score in signal.table.scores if score.method in methods)
        everything = ScoreTable((*main.table.scores, *scores))
        tables = [table for table in self._tables(main.table, everything) if table.rows]
        for table in tables:
            table.write(self.out / "tables")
        self._draw(replace(main.figures, tasks=self.tasks))
        write_text(self.page, self._results(tables, main))

    def _draw(self, figures: Figures) -> None:
        folder = self.out / "figures"
        folder.mkdir(exist_ok=True)
        figures.draw_errors(folder, _SHOWN)
        figures.draw_slices(folder / "rmse_maps.png", _SHOWN)
        if figures.measures.engine:
            figures.draw_fibres(folder / "fods.png", _SHOWN)

    def report(self, run: Run) -> None:
        """Write a report on the scans rendered by the network of all sites."""
        [network] = [model for model in self.models if model.method == "multi"]
        rendered, scores = [self.rendered(network, self.sites[0])], self.out / "scores"
        write_report(self.dataset, rendered, self.out / "report", scores=scores, run=run)

    def _evaluate(
        self, name: str, models: Sequence[ComparedModel], kinds: Sequence[Kind], run: Run
    ) -> Evaluation:
        folders: defaultdict[str, list[Path]] = defaultdict(list)
        for model in models:
            folders[model.method] += [self.rendered(model, to) for to in model.sites]
        coded = self.networks if "leakage" in kinds else []
        return evaluate_dataset(
            self.dataset,
            folders,
            self.out / name,
            codes={model.name: self.codes(model) for model in coded},
            scoring=Scoring(kinds, fibres=self.scale.fibres),
            run=run,
        )

    def _tables(self, main: ScoreTable, everything: ScoreTable) -> Iterator[Table]:
        ablations = list(ABLATIONS)
        networks = [model.name for model in self.networks if not model.is_ablated]
        yield from error_tables(main, self.tasks)
        yield ablation_table(everything, self.tasks, ablations[1:])
        yield accuracy_table(everything, networks, ablations)
        yield leakage_table(everything)
        yield biology_table(everything, self.sites[0])

    def _results(self, tables: Sequence[Table], main: Evaluation) -> str:
        people = {split: len(self.people(split)) for split in ("train", "val", "test")}
        head = (
            f"Scans of {people['train']} people to learn from, {people['val']} to validate by and "
            f"{people['test']} to test on, at {', '.join(self.sites)}; rendered from "
            f"{self.sites[0]} as the others and from them as it. Scores are of test people, in "
            f"white matter; FODs by {main.figures.measures.engine or 'nothing that is installed'}."
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
    """Render participants' scans of one site as another, at their b-vectors there.

    An error in a scan stops the experiment.
    """
    for files in ScanSelection(dataset, filters={"sub": people}).find().scans:
        if str(files.site) == to:
            tables = (files.bval, files.bvec) if files.bval and files.bvec else None
            scans = ScanSelection(dataset, filters={"sub": [files.subject]}, sites=[source])
            options, alone = RenderingOptions(tables or "target"), Run(nprocs=1)
            report = harmonize_dataset(scans, out, model, to, rendering=options, run=alone)
            if report.errors:
                raise report.errors[0]


def _run_jobs(jobs: Sequence[Job], title: str, run: Run) -> None:
    run.map(title, _call, jobs, name=lambda job: job[0])


def _call(job: Job) -> None:
    job[1]()
