"""Add a site to a trained model from a few scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles
from siteless.methods.base import Workspace
from siteless.methods.invariant._learn import SURVEYS, derive_parts, read_surveys, survey_arrays
from siteless.methods.invariant._model import InvariantModel
from siteless.methods.invariant.profiles import extend_profiles
from siteless.methods.invariant.training import TrainingSettings, adapt, calibrate_last
from siteless.methods.sites import learned_site
from siteless.methods.training import TrainingSet
from siteless.population import Covariate, covariate_columns


def extend_model(
    known: InvariantModel, site: str, scans: Sequence[ScanFiles], workspace: Workspace
) -> InvariantModel:
    """Return a model with one more site; its other sites are unchanged."""
    card, preparation = known.card, known.preparation
    settings = TrainingSettings(**card.settings["training"], precision="float32")
    profiles = known.profiles
    features = {SURVEYS: survey_arrays} if profiles else {}
    workspace.read_scans(scans, features, with_signal=True)
    if profiles:
        surveys = read_surveys(workspace.store, scans)
        profiles = extend_profiles(profiles, surveys, site, _covariates(known, scans))
    derived = derive_parts(workspace, scans, settings, profiles)
    training_set = TrainingSet(
        scans=[part for *parts, _ in derived for part in parts],
        validation=(),
        sites=(site,),
        whole=[last for *_, last in derived],
    )
    show = workspace.stage("Adapting")
    network = adapt(
        known.network,
        training_set,
        settings,
        seed=workspace.seed,
        progress=lambda done, total: show(done, total, ""),
    )
    if profiles and preparation.tissue == "white-matter":  # surveys cover white matter
        calibrate_last(network, training_set.whole, profiles.sharpening)
    patches = [workspace.store.patches(scan) for scan in scans]
    level = float(np.exp(np.mean(np.log([scan.level for scan in patches]))))
    summary, new_people = card.summary, {scan.subject for scan in scans}
    changed: dict[str, Any] = {
        "sites": {**card.sites, site: learned_site(patches, scans, preparation, level=level)},
        "settings": {**card.settings, "network": asdict(network.settings)},
        "summary": {
            **summary,
            "training_scans": {**summary["training_scans"], site: len(scans)},
            "validation_scans": {**summary["validation_scans"], site: 0},
            "training_people": sorted({*summary["training_people"], *new_people}),
            "adapted_sites": {**summary.get("adapted_sites", {}), site: {"seed": workspace.seed}},
            "site_effects": [asdict(verdict) for verdict in profiles.verdict] if profiles else [],
        },
    }
    return InvariantModel(replace(card, **changed), network, profiles)


def _covariates(known: InvariantModel, scans: Sequence[ScanFiles]) -> Array | None:
    """Return the covariates of the new participants; None if some are unknown."""
    learned = [Covariate(**covariate) for covariate in known.card.settings["learned_covariates"]]
    participants = [scan.attributes for scan in scans]
    values = [person.get(covariate.name) for person in participants for covariate in learned]
    if None in values or "n/a" in values:
        return None
    return covariate_columns(learned, participants)
