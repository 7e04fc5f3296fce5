"""`siteless adapt`: a model and a few scans of a new site to a model that knows it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.bids import Dataset, ScanFiles, ScanSelection, require_outside
from siteless.errors import DatasetError, ModelError, OutputError, errors_at
from siteless.harmonics import table_at_shells
from siteless.methods import load_model
from siteless.methods.invariant import InvariantModel
from siteless.methods.invariant.profiles import extend_profiles
from siteless.methods.invariant.training import TrainingSettings, adapt, calibrate_last
from siteless.methods.patches import TrainingSet
from siteless.model import AVERAGE, save_model
from siteless.pipelines._choice import read_table
from siteless.pipelines._encode import require_invariant
from siteless.pipelines._fit import learned_site
from siteless.pipelines._learn import FitFiles
from siteless.pipelines._run import Progress, Run
from siteless.pipelines._workspace import Workspace
from siteless.population import Covariate, covariate_columns
from siteless.report import draw_profiles
from siteless.storage import require_writable


def adapt_model(
    model: Path | str,
    dataset: ScanSelection | Path | str,
    out: Path | str,
    *,
    site: str,
    work: Path | None = None,
    run: Run = Run(),
) -> InvariantModel:
    """Teach a model a site that it has not learned, and write the model that knows it.

    The sites that it knows, and what it renders as them, stay as they are.

    Parameters
    ----------
    model
        Of `siteless fit`, of the method ``invariant``.
    dataset
        Its folder, a manifest, or a selection of its scans.
    out
        File of the new model.
    site
        Label of the new site; other scans of the dataset are left alone, and so are scans that
        a ``split`` column keeps for validation or test.
    work
        Folder for coefficients; by default beside the new model.
    run
        How the work is done.
    """
    files = FitFiles(Path(out))
    work = work or files.work
    if files.model.exists():
        raise OutputError(
            "the model is there already", remedy="choose another name", path=files.model
        )
    known = require_invariant(load_model(Path(model)), Path(model))
    selection = ScanSelection.of(dataset)
    for folder in (files.model.parent, work):
        require_outside(folder, selection.path)
    scans = _choose(known, replace(selection, sites=[site]).find(), site)
    for folder in (files.model.parent, work):
        require_writable(folder)
    card = known.card
    workspace = Workspace(work, card.preparation)
    settings = TrainingSettings(**card.settings["training"], precision="float32")
    whole = workspace.store_scans(
        scans,
        with_survey=settings.profiles,
        run=run,
    )
    profiles = known.profiles
    if profiles:
        surveys = workspace.read_surveys(scans)
        profiles = extend_profiles(profiles, surveys, site, _covariates(known, scans))
    parts = workspace.store_parts(
        scans,
        profiles=profiles,
        parts=settings.parts,
        surroundings=settings.surroundings,
        run=run,
    )
    lesson = TrainingSet(
        scans=[part for *own, _ in parts for part in own],
        validation=(),
        sites=(site,),
        whole=[last for *_, last in parts],
    )
    watch = partial(_show, run.stage("Adapting"))
    network = adapt(known.network, lesson, settings, seed=run.seed, watch=watch)
    if profiles and card.preparation.tissue == "white-matter":  # what profiles are of
        calibrate_last(network, lesson.whole, profiles.sharpening)
    level = float(np.exp(np.mean(np.log([scan.level for scan in whole]))))
    sites = {**card.sites, site: learned_site(whole, scans, card.preparation, level=level)}
    changed: dict[str, Any] = {
        "settings": {**card.settings, "network": asdict(network.settings)},
        "summary": {
            **card.summary,
            **_added(card.summary, site, scans, run.seed),
            "site_effects": [asdict(one) for one in profiles.verdict] if profiles else [],
        },
    }
    adapted = InvariantModel(replace(card, sites=sites, **changed), network, profiles)
    if profiles:
        draw_profiles(profiles, card.preparation.shells, files.profiles)
    save_model(adapted, files.model)
    return adapted


def _covariates(known: InvariantModel, scans: Sequence[ScanFiles]) -> Array | None:
    """Return the covariates of the new people; None, so their means, where some are unknown."""
    learned = [Covariate(**one) for one in known.card.settings["learned_covariates"]]
    told = [scan.attributes for scan in scans]
    if any(one.get(covariate.name) in (None, "n/a") for one in told for covariate in learned):
        return None
    return covariate_columns(learned, told)


def _show(show: Progress, done: int, total: int) -> None:
    show(done, total, "")


def _choose(known: InvariantModel, found: Dataset, site: str) -> list[ScanFiles]:
    """Return the scans of the new site to learn from; refuse what the model cannot take."""
    if site in known.card.sites or site == AVERAGE:
        raise ModelError(
            f"the model knows the site {site} already",
            remedy="give the label of a site that it does not know, or fit a model anew",
        )
    scans = []
    for files in found.scans:
        table = read_table(files)
        if not table.shells or files.attributes.get("split") in ("val", "test"):
            continue
        with errors_at(files.dwi):
            table_at_shells(table, known.preparation.shells)
        scans.append(files)
    if not scans:
        raise DatasetError(
            f"no scan of site {site} is there to learn from",
            remedy="give diffusion scans, and do not keep all of them for test",
            path=found.root,
        )
    return scans


def _added(
    summary: Mapping[str, Any], site: str, scans: Sequence[ScanFiles], seed: int
) -> dict[str, Any]:
    """Tell that a site was learned later, from whom, and by which seed."""
    people = sorted({*summary["training_people"], *(scan.subject for scan in scans)})
    return {
        "training_scans": {**summary["training_scans"], site: len(scans)},
        "validation_scans": {**summary["validation_scans"], site: 0},
        "training_people": people,
        "adapted_sites": {**summary.get("adapted_sites", {}), site: {"seed": seed}},
    }
