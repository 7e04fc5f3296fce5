"""`siteless fit`: a dataset to a model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import GradientTable
from siteless.bids import ScanFiles, ScanSelection, require_outside
from siteless.denoising import find_denoiser
from siteless.distributed import raise_everywhere, rank
from siteless.errors import DatasetError, OutputError
from siteless.harmonics import table_at_shells
from siteless.methods import METHODS, load_model
from siteless.methods.invariant.training import TrainingSettings
from siteless.methods.patches import TrainingScan, TrainingSet
from siteless.model import LearnedSite, Model, ModelCard, Preparation, Typical, save_model
from siteless.pipelines._choice import read_table
from siteless.pipelines._cohort import Cohort, choose_cohort, reference_scans
from siteless.pipelines._learn import FitFiles, Learned, Task, learner_of
from siteless.pipelines._run import Run
from siteless.pipelines._template import columns_by_covariate, covariate_rows
from siteless.pipelines._workspace import Workspace
from siteless.population import (
    Design,
    estimate_site_effects,
    require_identifiable,
    sites_of_one_person,
)
from siteless.storage import require_writable
from siteless.tissue import Tissue

# Voxels that tell what is typical of a site: of a scan, and at most of all its scans.
_TYPICAL_PER_SCAN, _TYPICAL_PER_SITE = 20_000, 2_000_000

# Methods that do not compare groups of people.
_WITHOUT_REFERENCE = ("paired", "unchanged")


def fit_model(
    dataset: ScanSelection | Path | str,
    out: Path | str,
    *,
    method: str = "invariant",
    denoise: bool = False,
    travelling: bool = False,
    same_space: bool | None = None,
    covariates: Sequence[str] | None = None,
    reference: Mapping[str, Collection[str]] | None = None,
    maps: Sequence[str] | None = None,
    preset: str = "siteless",
    settings: TrainingSettings | None = None,
    tissue: Tissue = "white-matter",
    minutes: float | None = None,
    device: str = "cpu",
    resume: bool = False,
    work: Path | None = None,
    run: Run = Run(),
) -> Model:
    """Learn a model from a dataset, and write it.

    Parameters
    ----------
    dataset
        Its folder, a manifest, or a selection of its scans.
    out
        The model's file. The log and a picture of it go beside it.
    method
        As `siteless.methods.METHODS` names it.
    denoise
        Whether scans are denoised first, here and whenever the model is used.
    travelling
        For ``rish``: compare people with themselves, who were scanned at several sites.
    same_space
        For ``rish``, ``rish-glm`` and ``combat``: whether scans are in a common space already. By
        default they are when their names have the entity ``space`` with a standard template.
    covariates
        For ``invariant``, ``rish-glm`` and ``combat``: columns of the tables that explain
        people, by default age, sex and group where they are there.
    reference
        Values by column of the tables, such as ``{"group": ["control"]}``: site effects are
        learned from these people alone, so that others keep what makes them differ.
    maps
        For ``combat``: of `siteless.microstructure.MAPS`, by default FA, MD, and with two shells
        MK.
    preset
        For ``invariant``: ``siteless`` or ``paper``.
    settings
        For ``invariant``: used instead of the preset's.
    tissue
        To learn from.
    minutes
        Train for about as long, instead of as long as the settings say.
    device
        As torch names it: ``cpu``, ``cuda``.
    resume
        Go on with an interrupted fit; what is finished is returned as it is.
    work
        Folder for coefficients; by default beside the model. Fits can share it.
    run
        How the work is done. Its random seed also draws who validates, where no ``split`` column
        says it.
    """
    files = FitFiles(Path(out))
    work = work or files.work
    if files.model.exists() and not resume:
        raise OutputError(
            "the model is there already", remedy="choose another name", path=files.model
        )
    selection = ScanSelection.of(dataset)
    for folder in (files.model.parent, work):
        require_outside(folder, selection.path)
    cohort = choose_cohort(selection, validate=_is_trained(method), seed=run.seed)
    referred = reference_scans(cohort, reference) if reference else None
    if referred and method in _WITHOUT_REFERENCE:
        raise DatasetError(
            f"the method {method} has no --reference", remedy="leave it out, or choose another"
        )
    if referred and not _is_trained(method):
        cohort = replace(cohort, learning=tuple(referred))
    learner = learner_of(
        method,
        cohort,
        travelling=travelling,
        same_space=same_space,
        covariates=covariates,
        maps=maps,
        preset=preset,
        settings=settings,
        minutes=minutes,
        device=device,
    )
    preparation = Preparation(
        shells=cohort.bs,
        order=cohort.order,
        fit=learner.fit,
        tissue=tissue,
        denoiser=find_denoiser() if denoise else "",
    )
    if learner.needs_survey:
        _require_identifiable(cohort, learner.covariates, referred)
    if files.model.exists():
        return _finished(files.model, method, preparation, learner.asked, run.seed, cohort)
    for folder in (files.model.parent, work):
        require_writable(folder)
    workspace = Workspace(work, preparation)
    scans = workspace.store_scans(
        cohort.scans,
        with_maps=learner.needs_maps,
        with_survey=learner.needs_survey,
        microstructure=learner.microstructure,
        run=run,
    )
    learning = len(cohort.learning)
    lesson = TrainingSet(
        scans[:learning],
        scans[learning:],
        cohort.sites,
        covariates=covariate_rows(cohort.learning, learner.covariates),
        reference=None if referred is None else {scan.name for scan in referred},
    )
    if not resume and rank() == 0:
        files.state.unlink(missing_ok=True)
    raise_everywhere(None)
    task = Task(files, workspace, cohort, lesson, reference or {}, run)
    learned = learner.learn(task)
    model = learned.make(_card(method, task, learned))
    if rank() == 0:
        save_model(model, files.model)
        files.state.unlink(missing_ok=True)
    return model


def _require_identifiable(
    cohort: Cohort, covariates: Sequence[str], referred: Sequence[ScanFiles] | None
) -> None:
    """Refuse scans that cannot show what a site does."""
    scans = cohort.learning
    reference = None if referred is None else np.array([scan in referred for scan in scans])
    design = Design.of(
        [str(scan.site) for scan in scans],
        [scan.subject for scan in scans],
        cohort.sites,
        reference=reference,
    )
    require_identifiable(design, columns_by_covariate(scans, covariates), cohort.sites)


def _is_trained(method: str) -> bool:
    if method not in METHODS:
        raise DatasetError(
            f"there is no method {method!r}", remedy=f"choose of {', '.join(METHODS)}"
        )
    return METHODS[method].trained


def _finished(
    path: Path,
    method: str,
    preparation: Preparation,
    settings: Mapping[str, Any],
    seed: int,
    cohort: Cohort,
) -> Model:
    """Return a model that is there already, if it is what was asked for."""
    model = load_model(path)
    card = model.card
    asked = {
        "method": method,
        **asdict(preparation),
        "seed": seed,
        "sites": list(cohort.sites),
        "settings": settings,
        "people": sorted({scan.subject for scan in cohort.learning}),
    }
    found = (
        asdict(card)
        | asdict(card.preparation)
        | {
            "sites": list(card.sites),
            "settings": {name: card.settings.get(name) for name in settings},
            "people": card.summary["training_people"],
        }
    )
    other = [name for name, value in asked.items() if _plain(found[name]) != _plain(value)]
    if other:
        raise OutputError(
            f"the model that is there differs from what is asked for in {', '.join(other)}",
            remedy="give the same options as then, or choose another name",
            path=path,
        )
    return model


def _plain(value: Any) -> Any:
    """Return a value as JSON keeps it."""
    return json.loads(json.dumps(value))


def _card(method: str, task: Task, learned: Learned) -> ModelCard:
    return ModelCard(
        method=method,
        sites=_sites(task),
        preparation=task.workspace.preparation,
        seed=task.run.seed,
        settings=learned.settings,
        summary={
            **_summary(task.lesson, task.cohort),
            "reference": {name: sorted(values) for name, values in task.reference.items()},
            **learned.summary,
        },
        versions={name: version(name) for name in ("siteless", "torch", "numpy", "dipy")},
    )


def _summary(lesson: TrainingSet, cohort: Cohort) -> dict[str, Any]:
    """Tell from what a model was learned."""
    return {
        "training_scans": {site: _count(lesson.scans, site) for site in lesson.sites},
        "validation_scans": {site: _count(lesson.validation, site) for site in lesson.sites},
        "training_people": sorted({scan.subject for scan in cohort.learning}),
        "validation_people": sorted({scan.subject for scan in cohort.validating}),
        "masks_computed": sum(not (scan.mask and scan.white_matter) for scan in cohort.scans),
        "single_person_sites": sites_of_one_person(lesson.design(lesson.scans), lesson.sites),
        "left_out": [scan.name for scan in cohort.left_out],
        "interpolated": [scan.name for scan in cohort.interpolated],
    }


def _sites(task: Task) -> dict[str, LearnedSite]:
    """Return what is learned of each site whatever the method."""
    scans, files = task.lesson.scans, task.cohort.learning
    levels = np.log([[scan.level] for scan in scans])
    found = estimate_site_effects(levels, task.lesson.design(scans), np.zeros(1, dtype=int))
    usual = np.exp(found.mean + found.sites)[:, 0]
    return {
        site: learned_site(
            [scan for scan in scans if scan.site == site],
            [one for one in files if str(one.site) == site],
            task.workspace.preparation,
            level=float(level),
        )
        for site, level in zip(task.lesson.sites, usual, strict=True)
    }


def learned_site(
    scans: Sequence[TrainingScan],
    files: Sequence[ScanFiles],
    preparation: Preparation,
    *,
    level: float,
) -> LearnedSite:
    """Return what is learned of a site whatever the method, from its training scans."""
    most = min(_TYPICAL_PER_SCAN, _TYPICAL_PER_SITE // len(scans))
    centres = (scan.neighbours[:, 0] for scan in scans)
    rows = [own[:: max(1, len(own) // most)] for own in centres]
    samples = [scan.values[own] for scan, own in zip(scans, rows, strict=True)]
    protocol, _ = table_at_shells(_protocol(files), preparation.shells)
    return LearnedSite(
        level=level,
        bvals=tuple(protocol.bvals.tolist()),
        bvecs=tuple(map(tuple, protocol.bvecs.round(9).tolist())),
        typical=Typical.of(samples, preparation.order),
    )


def _protocol(scans: Sequence[ScanFiles]) -> GradientTable:
    """Return the table of the first scan that has as many volumes as most."""
    tables = [read_table(files) for files in scans]
    sizes = Counter(map(len, tables))
    [(usual, _)] = sizes.most_common(1)
    return next(table for table in tables if len(table) == usual)


def _count(scans: Sequence[TrainingScan], site: str) -> int:
    return sum(scan.site == site for scan in scans)
