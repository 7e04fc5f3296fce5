"""Training of the network for travelling subjects."""

from __future__ import annotations

from dataclasses import asdict

from siteless.errors import DatasetError
from siteless.methods.base import Learned, Workspace
from siteless.methods.cohort import Cohort
from siteless.methods.paired._model import PairedModel
from siteless.methods.paired._training import PairedSettings, train_paired
from siteless.methods.training import TrainingLog, without_speed


def learn_translator(settings: PairedSettings, cohort: Cohort, workspace: Workspace) -> Learned:
    """Train on the patches of the cohort, and write a log."""
    log = TrainingLog(workspace.log, workspace.stage("Training"))
    scans = [workspace.store.patches(scan) for scan in cohort.scans]
    training = train_paired(
        cohort.training_set(scans),
        settings,
        seed=workspace.seed,
        checkpoint=workspace.checkpoint,
        progress=log,
    )
    log.write(training.log)
    network = training.network
    return Learned(
        lambda card: PairedModel(card, network),
        {"training": asdict(settings), "network": asdict(network.settings)},
        {
            "best": without_speed(training.best),
            "pairs": travelled_pairs(cohort),
            "validated": training.validated,
        },
    )


def travelled_pairs(cohort: Cohort) -> tuple[tuple[str, str], ...]:
    """Return the pairs of sites connected by a travelling subject, in both directions."""
    visits = {(scan.subject, str(scan.site)) for scan in cohort.learning}
    pairs = {(a, b) for x, a in visits for y, b in visits if x == y and a != b}
    alone = [site for site in cohort.sites if site not in {site for site, _ in pairs}]
    if alone:
        where = "" if len(alone) == len(cohort.sites) else f" for site {alone[0]}"
        raise DatasetError(
            f"expected people who were scanned at two or more sites, found none{where}",
            remedy="give travelling subjects, name other --sites, or use another --method",
        )
    return tuple(sorted(pairs))
