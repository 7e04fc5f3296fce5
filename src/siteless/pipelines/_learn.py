"""How each method learns from the scans of a cohort."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from siteless.bids import write_table
from siteless.distributed import rank, world
from siteless.errors import DatasetError
from siteless.harmonics import FitName
from siteless.methods.invariant import InvariantModel
from siteless.methods.invariant.profiles import SiteProfiles, learn_profiles
from siteless.methods.invariant.training import PRESETS, TrainingSettings, calibrate_sites, train
from siteless.methods.paired import PairedModel, PairedSettings, train_paired
from siteless.methods.patches import Row, TrainingScan, TrainingSet, describe_row
from siteless.methods.scaled import ScaledModel, mean_attenuation
from siteless.methods.unchanged import UnchangedModel
from siteless.model import Model, ModelCard
from siteless.pipelines._cohort import Cohort
from siteless.pipelines._run import Progress, Run
from siteless.pipelines._workspace import Workspace
from siteless.report import draw_profiles, draw_training


@dataclass(frozen=True)
class FitFiles:
    """Where a fit writes: the model, and beside it what tells how it came to be."""

    model: Path

    @property
    def log(self) -> Path:
        """A row for each evaluation, tab-separated."""
        return self.model.with_name(f"{self.model.stem}_log.tsv")

    @property
    def picture(self) -> Path:
        """The terms of the loss as curves."""
        return self.model.with_name(f"{self.model.stem}_losses.png")

    @property
    def profiles(self) -> Path:
        """Fields of the sites."""
        return self.model.with_name(f"{self.model.stem}_profiles.png")

    @property
    def work(self) -> Path:
        """Coefficients of the scans."""
        return self.model.with_name(f"{self.model.stem}_work")

    @property
    def state(self) -> Path:
        """What an interrupted fit goes on from."""
        return self.model.with_name(f"{self.model.stem}_state")


@dataclass(frozen=True, eq=False)
class Task:
    """What a method learns from, and where it keeps what."""

    files: FitFiles
    workspace: Workspace
    cohort: Cohort
    lesson: TrainingSet
    reference: Mapping[str, Collection[str]]
    run: Run


@dataclass(frozen=True, eq=False)
class Learned:
    """What a method has learned.

    Attributes
    ----------
    make
        Makes the model, given its card.
    settings
        How it was learned.
    summary
        How well.
    """

    make: Callable[[ModelCard], Model]
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


class Learner(Protocol):
    """A method with the settings that it was asked for."""

    needs_maps: bool

    @property
    def needs_survey(self) -> bool:
        """Whether it learns from surveys of scans."""

    @property
    def microstructure(self) -> Sequence[str]:
        """Maps of microstructure that are learned from."""

    @property
    def fit(self) -> FitName:
        """How coefficients are fitted."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """Settings that a model is known by."""

    @property
    def covariates(self) -> Sequence[str]:
        """Columns of the tables that explain people."""

    def learn(self, task: Task) -> Learned:
        """Learn from scans."""


@dataclass(frozen=True)
class Invariant:
    """Trains the networks of the paper."""

    preset: str
    settings: TrainingSettings
    minutes: float | None
    device: str
    covariates: tuple[str, ...] = ()
    needs_maps = False
    microstructure = ()

    @property
    def needs_survey(self) -> bool:
        """When profiles are learned."""
        return self.settings.profiles

    @property
    def fit(self) -> FitName:
        """As the preset says."""
        return self.settings.fit

    @property
    def asked(self) -> Mapping[str, Any]:
        """All that training is told, but how fast arithmetic is done."""
        training = {k: v for k, v in asdict(self.settings).items() if k != "precision"}
        return {"training": training, "covariates": list(self.covariates)}

    def learn(self, task: Task) -> Learned:
        """Train, and keep a log and its picture."""
        from siteless.pipelines._template import learn_covariates

        profiles, preparation = None, task.workspace.preparation
        if self.settings.profiles:
            surveys = task.workspace.read_surveys(task.cohort.learning)
            design = task.lesson.design(task.lesson.scans)
            profiles = learn_profiles(surveys, task.lesson.sites, preparation.order, design)
        lesson = self._lesson(task, profiles)
        found = train(
            lesson,
            self.settings,
            seed=task.run.seed,
            device=self.device,
            minutes=self.minutes,
            checkpoint=task.files.state,
            watch=_Watch.of(task),
        )
        if profiles and preparation.tissue == "white-matter":  # what profiles are of
            expected = profiles.sharpening
            calibrate_sites(found.network, lesson.whole, lesson.sites, expected)
        if rank() == 0:
            _write_log(task.files.log, found.log)
            draw_training(found.log, task.files.picture)
            if profiles:
                draw_profiles(profiles, preparation.shells, task.files.profiles)
        learned = learn_covariates(task.cohort.learning, self.covariates)
        settings = {
            **self.asked,
            "learned_covariates": [asdict(one) for one in learned],
            "preset": self.preset,
            "precision": found.settings.precision,
            "network": asdict(found.network.settings),
        }
        summary = {
            "patches": sum(len(scan.neighbours) for scan in task.lesson.scans),
            "best": {k: v for k, v in found.best.items() if k != "patches_per_second"},
            "site_effects": [asdict(one) for one in profiles.verdict] if profiles else [],
        }
        return Learned(
            lambda card: InvariantModel(card, found.network, profiles), settings, summary
        )

    def _lesson(self, task: Task, profiles: SiteProfiles | None) -> TrainingSet:
        """Return the scans without profiles and in parts, as far as the settings ask for it."""
        if profiles is None and self.settings.parts == 1 and not self.settings.surroundings:
            return task.lesson
        scans = task.workspace.store_parts(
            task.cohort.scans,
            profiles=profiles,
            parts=self.settings.parts,
            surroundings=self.settings.surroundings,
            run=task.run,
        )
        learning = len(task.cohort.learning)
        training, validation = (
            tuple(part for *parts, _ in of_scans for part in parts)
            for of_scans in (scans[:learning], scans[learning:])
        )
        whole = tuple(last for *_, last in scans[:learning])
        return replace(task.lesson, scans=training, validation=validation, whole=whole)


@dataclass(frozen=True)
class Paired:
    """Trains a translator on people who were scanned at several sites."""

    pairs: tuple[tuple[str, str], ...]
    settings: PairedSettings = field(default_factory=PairedSettings)
    covariates = ()
    needs_maps = False
    needs_survey = False
    microstructure = ()

    @property
    def fit(self) -> FitName:
        """As the settings say."""
        return self.settings.fit

    @property
    def asked(self) -> Mapping[str, Any]:
        """All that training is told."""
        return {"training": asdict(self.settings)}

    def learn(self, task: Task) -> Learned:
        """Train, and keep a log."""
        found = train_paired(
            task.lesson,
            self.settings,
            seed=task.run.seed,
            checkpoint=task.files.state,
            watch=_Watch.of(task),
        )
        _write_log(task.files.log, found.log)
        settings = {**self.asked, "network": asdict(found.network.settings)}
        best = {k: v for k, v in found.best.items() if k != "patches_per_second"}
        summary = {"best": best, "pairs": self.pairs, "validated": found.validated}
        return Learned(lambda card: PairedModel(card, found.network), settings, summary)


@dataclass(frozen=True)
class Scaled:
    """Takes the mean attenuation of each shell at each site."""

    fit: FitName = "laplace-beltrami"
    covariates = ()
    needs_maps = False
    needs_survey = False
    microstructure = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    def learn(self, task: Task) -> Learned:
        """Average over the training scans of a site."""
        means = [
            np.mean([_attenuation(s) for s in task.lesson.scans if s.site == site], axis=0)
            for site in task.lesson.sites
        ]
        return Learned(lambda card: ScaledModel(card, np.stack(means).astype(np.float32)))


@dataclass(frozen=True)
class Unchanged:
    """Learns nothing but the sites."""

    fit: FitName = "laplace-beltrami"
    covariates = ()
    needs_maps = False
    needs_survey = False
    microstructure = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    def learn(self, task: Task) -> Learned:  # noqa: ARG002
        """Learn nothing."""
        return Learned(UnchangedModel)


def learner_of(
    method: str,
    cohort: Cohort,
    *,
    travelling: bool,
    same_space: bool | None,
    covariates: Sequence[str] | None,
    maps: Sequence[str] | None,
    preset: str,
    settings: TrainingSettings | None,
    minutes: float | None,
    device: str,
) -> Learner:
    """Return a method with its settings; refuse those that it does not have.

    Raises
    ------
    SitelessError
        When an option is not the method's, or the cohort lacks what it needs.
    """
    from siteless.pipelines._learn_combat import Combat
    from siteless.pipelines._learn_rish import Rish
    from siteless.pipelines._template import choose_covariates

    given = {
        "--travelling": (travelling, ("rish",)),
        "--same-space": (same_space, ("rish", "rish-glm", "combat")),
        "--covariates": (covariates, ("invariant", "rish-glm", "combat")),
        "--maps": (maps, ("combat",)),
        "--minutes": (minutes, ("invariant",)),
        "--preset": (preset != "siteless", ("invariant",)),
        "--epochs": (settings, ("invariant",)),
        "--device": (device != "cpu", ("invariant",)),
        "torchrun": (world() > 1, ("invariant",)),
    }
    for option, (value, owners) in given.items():
        if value and method not in owners:
            raise DatasetError(
                f"the method {method} has no {option}", remedy=f"it is of {' and '.join(owners)}"
            )
    match method:
        case "invariant":
            chosen = settings or PRESETS[preset]
            names = choose_covariates(cohort, covariates) if chosen.profiles else ()
            return Invariant(preset, chosen, minutes, device, names)
        case "paired":
            return Paired(_travelled_pairs(cohort))
        case "scaled":
            return Scaled()
        case "unchanged":
            return Unchanged()
    names = () if method == "rish" else choose_covariates(cohort, covariates)
    if method == "combat":
        return Combat(cohort, same_space, names, None if maps is None else tuple(maps))
    return Rish(cohort, travelling=travelling, same_space=same_space, covariates=names)


def _travelled_pairs(cohort: Cohort) -> tuple[tuple[str, str], ...]:
    """Return the pairs of sites that somebody was scanned at, in both directions.

    Raises
    ------
    DatasetError
        When there is a site that nobody travelled to.
    """
    seen = {(scan.subject, str(scan.site)) for scan in cohort.learning}
    pairs = {(a, b) for x, a in seen for y, b in seen if x == y and a != b}
    alone = [site for site in cohort.sites if site not in {site for site, _ in pairs}]
    if alone:
        where = "" if len(alone) == len(cohort.sites) else f" for site {alone[0]}"
        raise DatasetError(
            f"expected people who were scanned at two or more sites, found none{where}",
            remedy="give travelling subjects, name other --sites, or use another --method",
        )
    return tuple(sorted(pairs))


def _attenuation(scan: TrainingScan) -> Any:
    return mean_attenuation(scan.values[scan.neighbours[:, 0]], scan.order)


@dataclass(frozen=True)
class _Watch:
    """Keeps the log of a training on disk as it grows, and shows its last figures."""

    log: Path
    show: Progress

    @classmethod
    def of(cls, task: Task) -> Self:
        return cls(task.files.log, task.run.stage("Training"))

    def __call__(self, update: int, total: int, log: Sequence[Row]) -> None:
        if rank() != 0:
            return
        if log and log[-1]["update"] == update:
            _write_log(self.log, log)
        self.show(update, total, describe_row(log[-1]) if log else "the first figures come soon")


def _write_log(path: Path, log: Sequence[Row]) -> None:
    write_table(path, [{k: f"{v:.6g}" for k, v in row.items()} for row in log])
