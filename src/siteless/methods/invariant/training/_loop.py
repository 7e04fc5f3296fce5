"""The training loop, which alternates between the adversary and the autoencoder."""

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

# Evaluations per training, and limits of the updates between two evaluations.
_EVALUATIONS, _CLOSEST, _FARTHEST = 50, 20, 1000
_VALIDATION_PATCHES = 4096
# A unit is active if the variance of its mean over patches exceeds this.
_ACTIVE_VARIANCE = 0.01
# Updates before and during the measurement of speed.
_WARM_UP, _TRIED = 5, 20


@dataclass(frozen=True, eq=False)
class Training:
    """The result of training.

    Attributes
    ----------
    network
        Network with the best weights on the validation scans, or the last weights without any.
    settings
        Settings in use, with the resolved precision.
    best
        Row of the log for these weights.
    log
        A row for each evaluation.
    """

    network: Autoencoder
    settings: TrainingSettings
    best: Row
    log: tuple[Row, ...]


def train(
    training_set: TrainingSet,
    settings: TrainingSettings,
    *,
    seed: int = 0,
    device: str = "cpu",
    minutes: float | None = None,
    checkpoint: Path | None = None,
    progress: TrainingCallback | None = None,
) -> Training:
    """Train a network.

    Parameters
    ----------
    training_set
        Training and validation scans.
    settings
        Settings of the training.
    seed
        Random seed.
    device
        Name of a torch device.
    minutes
        Approximate duration, in place of the settings' epochs or updates.
    checkpoint
        File for the state of the training, which is resumed if the file exists.
    progress
        Called with the number of finished updates, their total, and the log.

    Raises
    ------
    TrainingError
        When the loss is not finite, or the checkpoint belongs to another training.
    """
    settings = settings.on(device)
    trainer = _Trainer(training_set, settings, seed=seed, device=device)
    trainer.plan += f" {minutes}"
    if checkpoint and checkpoint.exists():
        trainer.load(checkpoint)
    elif minutes is not None:
        trainer.total = _count_updates_within(minutes, training_set, settings, device)
    interval = min(max(trainer.total // _EVALUATIONS, _CLOSEST), _FARTHEST)
    start, first = time.monotonic(), trainer.update
    while trainer.update < trainer.total and agreed(trainer.waited) < settings.patience:
        trainer.step()
        if trainer.update % interval == 0 or trainer.update == trainer.total:
            seconds = time.monotonic() - start
            trainer.evaluate(speed=(trainer.update - first) * settings.batch / seconds)
            if checkpoint and rank() == 0:
                trainer.save(checkpoint)
        if progress:
            progress(trainer.update, trainer.total, trainer.log)
    trainer.network.load_state_dict(trainer.best_weights)
    network = trainer.network.cpu().eval()
    if settings.aligned:
        whole = training_set.whole or training_set.scans
        align_codes(network, whole, training_set.design(whole))
    return Training(network, settings, trainer.best, tuple(trainer.log))


def _count_updates_within(
    minutes: float, training_set: TrainingSet, settings: TrainingSettings, device: str
) -> int:
    """Estimate from a few updates how many fit into the time; all processes agree."""
    trial = _Trainer(
        training_set, replace(settings, updates=100, epochs=None), seed=0, device=device
    )
    for _ in range(_WARM_UP):
        trial.step()
    start = time.monotonic()
    for _ in range(_TRIED):
        trial.step()
    count = 60 * minutes * _TRIED / (time.monotonic() - start)
    return max(1, int(agreed(count)))


class _Trainer(Resumable):
    """Networks, optimisers and counters: everything that a checkpoint stores."""

    stateful = ("objective", "adversary", "optimiser", "opponent")
    counters = ("update", "total", "waited", "best", "best_weights", "log")

    def __init__(
        self, training_set: TrainingSet, settings: TrainingSettings, *, seed: int, device: str
    ) -> None:
        torch.manual_seed(seed)
        self.settings, self.seed = settings, seed
        self.plan = describe(training_set, asdict(settings), seed)
        scans, sites, units = training_set.scans, training_set.sites, settings.code
        first, shells = scans[0], int(scans[0].shell.max())
        neighbours = first.neighbours.shape[1]
        shape = settings.network(
            sites=len(sites), neighbours=neighbours, shells=shells, order=first.order
        )
        self.network = Autoencoder(shape)
        design = training_set.design(scans) if settings.site_units else None
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
        validator = Sampler(training_set.validation or scans, sites, units=units, device=device)
        self.validates = bool(training_set.validation)
        self.held_out = validator.draw_from_each(_VALIDATION_PATCHES, seed=(seed, 2))
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
        """Update the adversary, if it has a weight, and the autoencoder, on one batch."""
        self._set_rate()
        batch = self._draw()
        terms, elsewhere = self.objective_everywhere(batch)
        loss, metrics = terms.total(self.settings), vars(terms)
        if self.settings.adversary:
            doubt, accuracy = self._adversarial_loss(elsewhere, batch.site[self.settings.judged])
            loss = loss - self.settings.adversary * doubt
            metrics = metrics | {"adversary": doubt, "adversary_accuracy": accuracy}
        self._require_finite(loss, terms)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.update += 1
        self._remember(loss=loss, **metrics)

    def _adversarial_loss(self, elsewhere: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Update the adversary, and return its loss and accuracy."""
        for _ in range(self.settings.adversary_updates):
            guess = self.adversary_everywhere(elsewhere.detach())
            self.opponent.zero_grad()
            adversarial_loss(guess, origin).backward()
            self.opponent.step()
        with _frozen(self.adversary):
            guess = self.adversary(elsewhere)
        return adversarial_loss(guess, origin), (guess.argmax(dim=1) == origin).float().mean()

    def evaluate(self, speed: float) -> None:
        """Add a row to the log, and keep the best weights."""
        row: Row = {
            "update": self.update,
            "epoch": self.update * self.settings.batch / self.patches,
        }
        row |= {f"train_{name}": averaged(total / self.count) for name, total in self.sums.items()}
        row |= {f"val_{name}": value for name, value in self._validate().items()}
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
    def _validate(self) -> Row:
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
    """Average the gradients of a module over all processes."""
    return module if world() == 1 else DistributedDataParallel(module)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    module.requires_grad_(requires_grad=False)
    try:
        yield
    finally:
        module.requires_grad_(requires_grad=True)
