"""`siteless fit`: fit a model to a dataset."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from siteless.bids import ScanSelection
from siteless.denoising import find_denoiser
from siteless.distributed import rank, world
from siteless.errors import DatasetError, OutputError
from siteless.methods import Invariant, Method, load_model
from siteless.methods.base import ComparesGroups, Learned
from siteless.methods.budget import Budget
from siteless.methods.cohort import Cohort
from siteless.methods.sites import learned_site
from siteless.methods.store import ScanStore
from siteless.model import LearnedSite, Model, ModelCard, Preparation
from siteless.pipelines._run import Run
from siteless.pipelines.fit._cohort import choose_cohort
from siteless.pipelines.fit._workspace import FitFiles, FitWorkspace
from siteless.population import estimate_site_effects, sites_of_one_person


def fit_model(
    dataset: ScanSelection | Path | str,
    out: Path | str,
    method: Method = Invariant(),
    *,
    resume: bool = False,
    work: Path | None = None,
    work_gb: float = 100,
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
        Approximate limit of its size, gigabytes; a sample of larger studies is stored.
    run
        Processes and progress of the work. Its random seed also draws validation participants,
        without a ``split`` column.
    """
    files = FitFiles(Path(out).absolute(), work and work.absolute())
    if not resume:
        files.require_new()
    selection = ScanSelection.of(dataset).absolute()
    files.require_outside(selection.path)
    if world() > 1 and not method.distributed:
        raise DatasetError(
            f"the method {method.name} cannot be trained by several processes",
            remedy="start it without torchrun",
        )
    cohort = choose_cohort(selection, method, run.seed)
    method = method.resolve(cohort)
    preparation = _preparation(method, cohort)
    if files.model.exists():
        return _finished(files.model, method, preparation, run.seed, cohort)
    files.require_writable()
    with_signal = method.needs_signal
    budget = Budget.within(1e9 * work_gb, cohort, preparation, with_signal=with_signal)
    store = ScanStore(files.work, preparation, budget)
    workspace = FitWorkspace(store, files, run)
    workspace.read_scans(cohort.scans, method.features, with_signal=with_signal)
    learned = method.learn(cohort, workspace)
    model = learned.make(_card(method, cohort, workspace, learned))
    if rank() == 0:
        files.save(model, learned)
        files.state.unlink(missing_ok=True)
    return model


def _preparation(method: Method, cohort: Cohort) -> Preparation:
    return Preparation(
        shells=cohort.shells,
        order=cohort.order,
        fit=method.fit,
        tissue=method.tissue,
        denoiser=find_denoiser() if method.denoise else "",
        noise_floor=method.noise_floor,
        coils=method.coils,
    )


def _finished(
    path: Path, method: Method, preparation: Preparation, seed: int, cohort: Cohort
) -> Model:
    """Return an existing model, if it matches the request."""
    model = load_model(path)
    card = model.card
    requested = {
        "method": method.name,
        **asdict(preparation),
        "seed": seed,
        "sites": cohort.sites,
        "settings": method.settings,
        "people": sorted({scan.subject for scan in cohort.learning}),
        "reference": _reference(method),
    }
    existing = {
        "method": card.method,
        **asdict(card.preparation),
        "seed": card.seed,
        "sites": list(card.sites),
        "settings": {name: card.settings.get(name) for name in method.settings},
        "people": card.summary["training_people"],
        "reference": card.summary["reference"],
    }
    # JSON has no tuples.
    requested, existing = (json.loads(json.dumps(part)) for part in (requested, existing))
    other = [name for name, value in requested.items() if existing[name] != value]
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


def _card(method: Method, cohort: Cohort, workspace: FitWorkspace, learned: Learned) -> ModelCard:
    return ModelCard(
        method=method.name,
        sites=_sites(method, cohort, workspace.store),
        preparation=workspace.store.preparation,
        seed=workspace.seed,
        settings=learned.settings or method.settings,
        summary={**_summary(method, cohort), **learned.summary},
        versions={name: version(name) for name in ("siteless", "torch", "numpy", "dipy")},
    )


def _summary(method: Method, cohort: Cohort) -> dict[str, Any]:
    """Summarize the training data of a model."""
    learning = Counter(str(scan.site) for scan in cohort.learning)
    validating = Counter(str(scan.site) for scan in cohort.validating)
    design = cohort.design(method.covariate_names)
    return {
        "training_scans": {site: learning[site] for site in cohort.sites},
        "validation_scans": {site: validating[site] for site in cohort.sites},
        "training_people": sorted({scan.subject for scan in cohort.learning}),
        "validation_people": sorted({scan.subject for scan in cohort.validating}),
        "masks_computed": sum(not (scan.mask and scan.white_matter) for scan in cohort.scans),
        "single_person_sites": sites_of_one_person(design, cohort.sites),
        "left_out": [scan.name for scan in cohort.left_out],
        "interpolated": [scan.name for scan in cohort.interpolated],
        "reference": _reference(method),
    }


def _sites(method: Method, cohort: Cohort, store: ScanStore) -> dict[str, LearnedSite]:
    """Return the properties of each site."""
    scans = [store.patches(scan) for scan in cohort.learning]
    levels = np.log([[scan.level] for scan in scans])
    design = cohort.design(method.covariate_names)
    effects = estimate_site_effects(levels, design, np.zeros(1, dtype=int))
    usual = np.exp(effects.mean + effects.sites)[:, 0]
    return {
        site: learned_site(
            [scan for scan in scans if scan.site == site],
            [scan for scan in cohort.learning if str(scan.site) == site],
            store.preparation,
            level=float(level),
        )
        for site, level in zip(cohort.sites, usual, strict=True)
    }
