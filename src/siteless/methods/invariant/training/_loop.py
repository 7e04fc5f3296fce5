"""The training loop: the adversary and the encoder and decoder in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from siteless.distributed import agreed, averaged, rank, world
from siteless.errors import TrainingError
from siteless.methods.invariant.network import Adversary, Autoencoder, adversarial_loss
from siteless.methods.invariant.training._align import align_codes
from siteless.methods.invariant.training._batch import Batch, Sampler
from siteless.methods.invariant.training._objective import Objective, Terms
from siteless.methods.invariant.training._settings import TrainingSettings
from siteless.methods.invariant.training._units import channel_units
from siteless.methods.patches import Row, TrainingCallback, TrainingSet
from siteless.methods.patches._resume import Resumable, copied, describe, one_cycle

# Evaluations in a training, and how many updates may lie between two.
_EVALUATIONS, _CLOSEST, _FARTHEST = 50, 20, 1000
_VALIDATION_PATCHES = 4096
# A unit counts as used when its mean varies by more than this from patch to patch.
_ACTIVE_VARIANCE = 0.01
# Updates before and while speed is measured.
_WARM_UP, _TRIED = 5, 20


@dataclass(frozen=True, eq=False)
class Training:
    """What training gives.

    Attributes
    ----------
    network
        With the best weights on the validation scans, or the last without any.
    settings
        As used, with the precision that was chosen.
    best
        The row of the log that they are of.
    log
        A row for each evaluation.
    """

    network: Autoencoder
    settings: TrainingSettings
    best: Row
    log: tuple[Row, ...]


def train(
    lesson: TrainingSet,
    settings: TrainingSettings,
    *,
    seed: int = 0,
    device: str = "cpu",
    minutes: float | None = None,
    checkpoint: Path | None = None,
    watch: TrainingCallback | None = None,
) -> Training:
    """Train a network.

    Parameters
    ----------
    lesson
        What to learn from.
    settings
        How to train.
    seed
        Of all that is random.
    device
        As torch names it.
    minutes
        Train for about as long, instead of the settings' epochs or updates.
    checkpoint
        File to keep the state in; where there is one already, training goes on from it.
    watch
        Called with the updates done, their total, and the log.

    Raises
    ------
    TrainingError
        When the loss is no longer finite, or the checkpoint is of another training.
    """
    settings = settings.on(device)
    learner = _Learner(lesson, settings, seed=seed, device=device)
    learner.plan += f" {minutes}"
    if checkpoint and checkpoint.exists():
        learner.load(checkpoint)
    elif minutes is not None:
        learner.total = _count_updates_within(minutes, lesson, settings, device)
    interval = min(max(learner.total // _EVALUATIONS, _CLOSEST), _FARTHEST)
    start, first = time.monotonic(), learner.update
    while learner.update < learner.total and agreed(learner.waited) < settings.patience:
        learner.step()
        if learner.update % interval == 0 or learner.update == learner.total:
            seconds = time.monotonic() - start
            learner.evaluate(speed=(learner.update - first) * settings.batch / seconds)
            if checkpoint and rank() == 0:
                learner.save(checkpoint)
        if watch:
            watch(learner.update, learner.total, learner.log)
    learner.network.load_state_dict(learner.best_weights)
    network = learner.network.cpu().eval()
    if settings.aligned:
        whole = lesson.whole or lesson.scans
        align_codes(network, whole, lesson.design(whole))
    return Training(network, settings, learner.best, tuple(learner.log))


def _count_updates_within(
    minutes: float, lesson: TrainingSet, settings: TrainingSettings, device: str
) -> int:
    """Try a few updates, and tell how many fit into the time; all processes agree."""
    trial = _Learner(lesson, replace(settings, updates=100, epochs=None), seed=0, device=device)
    for _ in range(_WARM_UP):
        trial.step()
    start = time.monotonic()
    for _ in range(_TRIED):
        trial.step()
    count = 60 * minutes * _TRIED / (time.monotonic() - start)
    return max(1, int(agreed(count)))


class _Learner(Resumable):
    """Networks, optimisers and how far they are: everything that a checkpoint keeps."""

    stateful = ("objective", "adversary", "optimiser", "opponent")
    counters = ("update", "total", "waited", "best", "best_weights", "log")

    def __init__(
        self, lesson: TrainingSet, settings: TrainingSettings, *, seed: int, device: str
    ) -> None:
        torch.manual_seed(seed)
        self.settings, self.seed = settings, seed
        self.plan = describe(lesson, asdict(settings), seed)
        scans, sites, units = lesson.scans, lesson.sites, settings.code
        first, shells = scans[0], int(scans[0].shell.max())
        neighbours = first.neighbours.shape[1]
        shape = settings.network(
            sites=len(sites), neighbours=neighbours, shells=shells, order=first.order
        )
        self.network = Autoencoder(shape)
        design = lesson.design(scans) if settings.site_units else None
        self.network.set_units(*channel_units(scans, design, self.network))
        self.objective = Objective(self.network, settings, shells).to(device)
        self.adversary = Adversary(shape).to(device)
        self.objective_everywhere = _everywhere(self.objective)
        self.adversary_everywhere = _everywhere(self.adversary)
        trained = [p for p in self.objective.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(trained, lr=settings.learning_rate, fused=True)
        self.opponent = torch.optim.Adam(
            self.adversary.parameters(), lr=settings.learning_rate, fused=True
        )
        self.sampler = Sampler(scans, sites, units=units, device=device)
        judge = Sampler(lesson.validation or scans, sites, units=units, device=device)
        self.validates = bool(lesson.validation)
        self.held_out = judge.draw_from_each(_VALIDATION_PATCHES, seed=(seed, 2))
        self.patches = sum(len(scan.neighbours) for scan in scans)
        self.total = settings.updates or math.ceil(
            (settings.epochs or 1) * self.patches / settings.batch
        )
        self.update = self.waited = self.count = 0
        self.best: Row = {}
        self.best_weights = copied(self.network.state_dict())
        self.log: list[Row] = []
        self.sums: dict[str, Tensor] = {}

    def step(self) -> None:
        """Update the adversary, if it has a weight, then the encoder and decoder, on one batch."""
        self._set_rate()
        batch = self._draw()
        terms, elsewhere = self.objective_everywhere(batch)
        loss, told = terms.total(self.settings), vars(terms)
        if self.settings.adversary:
            doubt, found = self._judge_origin(elsewhere, batch.site[self.settings.judged])
            loss = loss - self.settings.adversary * doubt
            told = told | {"adversary": doubt, "adversary_accuracy": found}
        self._require_finite(loss, terms)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.update += 1
        self._remember(loss=loss, **told)

    def _judge_origin(self, elsewhere: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Teach the adversary, then return its loss and how often it is right."""
        for _ in range(self.settings.adversary_updates):
            guess = self.adversary_everywhere(elsewhere.detach())
            self.opponent.zero_grad()
            adversarial_loss(guess, origin).backward()
            self.opponent.step()
        with _frozen(self.adversary):
            guess = self.adversary(elsewhere)
        return adversarial_loss(guess, origin), (guess.argmax(dim=1) == origin).float().mean()

    def evaluate(self, speed: float) -> None:
        """Add a row to the log, and keep the weights if they are the best so far."""
        row: Row = {
            "update": self.update,
            "epoch": self.update * self.settings.batch / self.patches,
        }
        row |= {f"train_{name}": averaged(total / self.count) for name, total in self.sums.items()}
        row |= {f"val_{name}": value for name, value in self._judge().items()}
        row |= self.objective.noise_levels()
        row |= {"learning_rate": self.optimiser.param_groups[0]["lr"], "patches_per_second": speed}
        if not math.isfinite(row["val_loss"]):
            raise TrainingError(
                f"the loss of the validation scans is no longer finite at update {self.update}",
                remedy="look for scans with extreme signal",
            )
        self.log.append(row)
        self.sums, self.count = {}, 0
        if not self.validates or not self.best or row["val_loss"] < self.best["val_loss"]:
            self.best, self.waited = row, 0
            self.best_weights = copied(self.network.state_dict())
        else:
            self.waited += 1

    @torch.no_grad()
    def _judge(self) -> Row:
        self.objective.eval()
        terms, _ = self.objective(self.held_out)
        frames = self.network.frames(self.held_out.patch)
        posterior = self.network.encode(self.held_out.patch, self.held_out.site, frames)
        centres = self.network.decode(posterior.mean, self.held_out.site, frames)
        groups, size, _ = self.held_out.signal.shape
        projected = centres.view(groups, size, -1) @ self.held_out.mixing
        squares = (projected - self.held_out.signal).square().sum(dim=2).mean(dim=1)
        volumes = (self.held_out.shell >= 0).sum(dim=1)
        active = (posterior.mean.var(dim=0) > _ACTIVE_VARIANCE).sum()
        self.objective.train()
        return {
            "loss": float(terms.total(self.settings)),
            **{name: float(term) for name, term in vars(terms).items()},
            "rmse_percent": 100 * float((squares / volumes).mean().sqrt()),
            "active_units": int(active),
        }

    def _draw(self) -> Batch:
        part = slice(rank(), None, world())
        return self.sampler.draw(self.settings.batch, seed=(self.seed, 1, self.update), part=part)

    def _set_rate(self) -> None:
        rate = self.settings.learning_rate
        if self.settings.one_cycle:
            rate *= one_cycle(self.update, self.total)
        for group in (*self.optimiser.param_groups, *self.opponent.param_groups):
            group["lr"] = rate

    def _remember(self, **terms: Tensor) -> None:
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach()
        self.count += 1

    def _require_finite(self, loss: Tensor, terms: Terms) -> None:
        if not torch.isfinite(loss):
            shown = ", ".join(f"{name} {term.item():g}" for name, term in vars(terms).items())
            raise TrainingError(
                f"the loss is no longer finite at update {self.update} ({shown})",
                remedy="lower the learning rate, or look for scans with extreme signal",
            )


def _everywhere(module: nn.Module) -> nn.Module:
    """Let a module average its gradients over all processes."""
    return module if world() == 1 else DistributedDataParallel(module)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    module.requires_grad_(requires_grad=False)
    try:
        yield
    finally:
        module.requires_grad_(requires_grad=True)
