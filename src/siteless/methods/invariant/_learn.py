"""Training of the invariant method: profiles of sites, then networks on corrected scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles
from siteless.errors import TrainingError
from siteless.harmonics import Coefficients
from siteless.methods.base import Learned, Workspace
from siteless.methods.cohort import Cohort, learn_covariates
from siteless.methods.invariant._model import InvariantModel
from siteless.methods.invariant.profiles import SiteProfiles, Survey, learn_profiles, survey
from siteless.methods.invariant.training import (
    TrainingSettings,
    calibrate_sites,
    make_parts,
    train,
)
from siteless.methods.patches import TrainingScan
from siteless.methods.store import ScanStore
from siteless.methods.training import TrainingLog, TrainingSet, without_speed
from siteless.storage import cache_key

if TYPE_CHECKING:
    from siteless.methods.invariant._method import Invariant

# Kind under which the survey of a scan is stored.
SURVEYS = "surveys"


def require_device(device: str) -> None:
    """Raise an error for a device that torch cannot use."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise TrainingError(
            f"the device {device!r} cannot be used ({reason})", remedy="use --device cpu"
        ) from None


def survey_arrays(scan: Scan, coefficients: Coefficients) -> Mapping[str, Array]:
    """Return the arrays of a scan's survey."""
    return survey(scan, coefficients, "").arrays


def read_surveys(store: ScanStore, scans: Sequence[ScanFiles]) -> list[Survey]:
    """Read the stored surveys of scans."""
    return [Survey(str(scan.site), scan.subject, **store.read(SURVEYS, scan)) for scan in scans]


def learn_network(
    method: Invariant, settings: TrainingSettings, cohort: Cohort, workspace: Workspace
) -> Learned:
    """Learn the profiles of sites, train the networks on corrected scans, and write a log."""
    profiles, preparation = None, workspace.store.preparation
    if settings.profiles:
        surveys = read_surveys(workspace.store, cohort.learning)
        design = cohort.design(method.covariate_names)
        profiles = learn_profiles(surveys, cohort.sites, preparation.order, design)
    training_set = _training_set(method, settings, cohort, workspace, profiles)
    log = TrainingLog(workspace.log, workspace.stage("Training"))
    training = train(
        training_set,
        settings,
        seed=workspace.seed,
        device=method.device,
        minutes=method.minutes,
        checkpoint=workspace.checkpoint,
        progress=log,
    )
    log.write(training.log)
    network = training.network
    if profiles and preparation.tissue == "white-matter":  # surveys cover white matter
        calibrate_sites(network, training_set.whole, cohort.sites, profiles.sharpening)
    learned = learn_covariates(cohort.learning, method.covariate_names)
    kept = workspace.store.kept(cohort.learning)
    return Learned(
        lambda card: InvariantModel(card, network, profiles),
        {
            **method.settings,
            "learned_covariates": [asdict(covariate) for covariate in learned],
            "preset": method.preset,
            "precision": training.settings.precision,
            "network": asdict(network.settings),
        },
        {
            "patches": sum(len(workspace.store.patches(s).neighbours) for s in kept),
            "network_scans": len(kept),
            "best": without_speed(training.best),
            "site_effects": [asdict(verdict) for verdict in profiles.verdict] if profiles else [],
        },
        training.log,
    )


def _training_set(
    method: Invariant,
    settings: TrainingSettings,
    cohort: Cohort,
    workspace: Workspace,
    profiles: SiteProfiles | None,
) -> TrainingSet:
    """Return the training set, with scans corrected and in parts according to the settings."""
    if not method.needs_signal:
        scans = [workspace.store.patches(scan) for scan in cohort.scans]
        return cohort.training_set(scans, method.covariate_names)
    cohort = cohort.limited_to(workspace.store.kept(cohort.scans))
    derived, learning = derive_parts(workspace, cohort.scans, settings, profiles), cohort.learning
    whole = [last for *_, last in derived]
    return replace(
        cohort.training_set(whole, method.covariate_names),
        scans=tuple(part for *parts, _ in derived[: len(learning)] for part in parts),
        validation=tuple(part for *parts, _ in derived[len(learning) :] for part in parts),
        whole=tuple(whole[: len(learning)]),
    )


def derive_parts(
    workspace: Workspace,
    scans: Sequence[ScanFiles],
    settings: TrainingSettings,
    profiles: SiteProfiles | None,
) -> list[list[TrainingScan]]:
    """Return the corrected parts of each scan and, last, the whole scan."""
    arrays = sorted((profiles.arrays if profiles else {}).items())
    return workspace.derive(
        "Parting scans",
        partial(
            make_parts,
            profiles=profiles,
            preparation=workspace.store.preparation,
            parts=settings.parts,
            surroundings=settings.surroundings,
        ),
        scans,
        key=cache_key(settings.parts, settings.surroundings, *(array for _, array in arrays)),
        count=settings.parts + 1,
    )
