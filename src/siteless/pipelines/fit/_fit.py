"""`siteless fit`: fit a model to a dataset."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from siteless.bids import ScanFiles, ScanSelection, require_outside
from siteless.denoising import find_denoiser
from siteless.distributed import raise_everywhere, rank, world
from siteless.errors import DatasetError, OutputError
from siteless.methods import Invariant, Method, load_model
from siteless.methods.base import ComparesGroups, Learned
from siteless.methods.budget import Budget
from siteless.methods.cohort import Cohort
from siteless.methods.patches import TrainingScan
from siteless.methods.sites import learned_site
from siteless.methods.store import ScanStore
from siteless.model import LearnedSite, Model, ModelCard, Preparation, save_model
from siteless.pipelines._run import Run
from siteless.pipelines.fit._cohort import choose_cohort, with_reference
from siteless.pipelines.fit._files import FitFiles
from siteless.pipelines.fit._workspace import FitWorkspace
from siteless.population import estimate_site_effects, sites_of_one_person
from siteless.report import draw_profiles, draw_training
from siteless.storage import require_writable

# Largest size of the work folder, gigabytes.
WORK_GB = 100.0


def fit_model(
    dataset: ScanSelection | Path | str,
    out: Path | str,
    method: Method = Invariant(),
    *,
    resume: bool = False,
    work: Path | None = None,
    work_gb: float = WORK_GB,
    run: Run = Run(),
) -> Model:
    """Fit a model to a dataset, and write it.

    Parameters
    ----------
    dataset
        Folder, manifest, or selection of scans.
    out
        Model file. The log and plots are written beside it.
    method
        Method with its settings, such as ``Rish(travelling=True)``.
    resume
        Resume an interrupted fit; a finished model is returned unchanged.
    work
        Folder for derived data of scans; by default beside the model. Fits can share it.
    work_gb
        Approximate limit of its size; a sample of larger studies is stored.
    run
        Processes and progress of the work. Its random seed also draws validation participants,
        without a ``split`` column.
    """
    files = FitFiles(Path(out).absolute())
    work = (work or files.work).absolute()
    if files.model.exists() and not resume:
        raise OutputError(
            "the model is there already", remedy="choose another name", path=files.model
        )
    selection = ScanSelection.of(dataset).absolute()
    for folder in (files.model.parent, work):
        require_outside(folder, selection.path)
    if world() > 1 and not method.distributed:
        raise DatasetError(
            f"the method {method.name} cannot be trained by several processes",
            remedy="start it without torchrun",
        )
    cohort = _cohort(selection, method, run.seed)
    method = method.resolve(cohort)
    preparation = Preparation(
        shells=cohort.shells,
        order=cohort.order,
        fit=method.fit,
        tissue=method.tissue,
        denoiser=find_denoiser() if method.denoise else "",
    )
    if files.model.exists():
        return _finished(files.model, method, preparation, run.seed, cohort)
    for folder in (files.model.parent, work):
        require_writable(folder)
    with_signal = method.needs_signal
    budget = Budget.within(1e9 * work_gb, cohort, preparation, with_signal=with_signal)
    workspace = FitWorkspace(ScanStore(work, preparation, budget), files, run)
    workspace.read_scans(cohort.scans, method.features, with_signal=with_signal)
    if not resume and rank() == 0:
        files.state.unlink(missing_ok=True)
    raise_everywhere(None)
    learned = method.learn(cohort, workspace)
    model = learned.make(_card(method, cohort, workspace, learned))
    if rank() == 0:
        _draw(model, learned, files)
        save_model(model, files.model)
        files.state.unlink(missing_ok=True)
    return model


def _cohort(selection: ScanSelection, method: Method, seed: int) -> Cohort:
    cohort = choose_cohort(selection, validate=method.validates, seed=seed)
    if not (isinstance(method, ComparesGroups) and method.reference):
        return cohort
    cohort = with_reference(cohort, method.reference)
    if method.validates:
        return cohort
    return replace(cohort, learning=cohort.reference or ())  # other scans are not used


def _draw(model: Model, learned: Learned, files: FitFiles) -> None:
    """Plot the training log and the fields of sites."""
    if learned.log:
        draw_training(learned.log, files.picture)
    if model.site_fields:
        draw_profiles(model.site_fields, model.preparation.shells, files.profiles)


def _finished(
    path: Path, method: Method, preparation: Preparation, seed: int, cohort: Cohort
) -> Model:
    """Return an existing model, if it matches the request."""
    model = load_model(path)
    card = model.card
    settings = method.settings
    requested = {
        "method": method.name,
        **asdict(preparation),
        "seed": seed,
        "sites": list(cohort.sites),
        "settings": settings,
        "people": sorted({scan.subject for scan in cohort.learning}),
        "reference": _reference(method),
    }
    existing = (
        asdict(card)
        | asdict(card.preparation)
        | {
            "sites": list(card.sites),
            "settings": {name: card.settings.get(name) for name in settings},
            "people": card.summary["training_people"],
            "reference": card.summary["reference"],
        }
    )
    other = [name for name, value in requested.items() if _plain(existing[name]) != _plain(value)]
    if other:
        raise OutputError(
            f"the model that is there differs from what is asked for in {', '.join(other)}",
            remedy="give the same options as then, or choose another name",
            path=path,
        )
    return model


def _reference(method: Method) -> dict[str, list[str]]:
    """Return the values of the reference group by column, sorted."""
    reference = method.reference if isinstance(method, ComparesGroups) else {}
    return {name: sorted(values) for name, values in sorted(reference.items())}


def _plain(value: Any) -> Any:
    """Return a value after a round trip through JSON."""
    return json.loads(json.dumps(value))


def _card(method: Method, cohort: Cohort, workspace: FitWorkspace, learned: Learned) -> ModelCard:
    scans = [workspace.store.patches(scan) for scan in cohort.learning]
    preparation = workspace.store.preparation
    return ModelCard(
        method=method.name,
        sites=_sites(scans, cohort, method.covariate_names, preparation),
        preparation=preparation,
        seed=workspace.seed,
        settings=learned.settings or method.settings,
        summary={
            **_summary(cohort, method.covariate_names),
            "reference": _reference(method),
            **learned.summary,
        },
        versions={name: version(name) for name in ("siteless", "torch", "numpy", "dipy")},
    )


def _summary(cohort: Cohort, covariates: Sequence[str]) -> dict[str, Any]:
    """Summarize the training data of a model."""
    return {
        "training_scans": _count(cohort.learning, cohort.sites),
        "validation_scans": _count(cohort.validating, cohort.sites),
        "training_people": sorted({scan.subject for scan in cohort.learning}),
        "validation_people": sorted({scan.subject for scan in cohort.validating}),
        "masks_computed": sum(not (scan.mask and scan.white_matter) for scan in cohort.scans),
        "single_person_sites": sites_of_one_person(cohort.design(covariates), cohort.sites),
        "left_out": [scan.name for scan in cohort.left_out],
        "interpolated": [scan.name for scan in cohort.interpolated],
    }


def _count(scans: Sequence[ScanFiles], sites: Sequence[str]) -> dict[str, int]:
    counts = Counter(str(scan.site) for scan in scans)
    return {site: counts[site] for site in sites}


def _sites(
    scans: Sequence[TrainingScan],
    cohort: Cohort,
    covariates: Sequence[str],
    preparation: Preparation,
) -> dict[str, LearnedSite]:
    """Return the properties of each site."""
    levels = np.log([[scan.level] for scan in scans])
    effects = estimate_site_effects(levels, cohort.design(covariates), np.zeros(1, dtype=int))
    usual = np.exp(effects.mean + effects.sites)[:, 0]
    return {
        site: learned_site(
            [scan for scan in scans if scan.site == site],
            [scan for scan in cohort.learning if str(scan.site) == site],
            preparation,
            level=float(level),
        )
        for site, level in zip(cohort.sites, usual, strict=True)
    }
