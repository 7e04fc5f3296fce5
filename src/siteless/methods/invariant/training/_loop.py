"""The training loop, which alternates between the adversary and the autoencoder."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from siteless.distributed import agreed, averaged, rank, world
from siteless.errors import TrainingError
from siteless.methods.invariant.network import Adversary, Autoencoder, adversarial_loss
from siteless.methods.invariant.training._align import align_codes
from siteless.methods.invariant.training._batch import Sampler
from siteless.methods.invariant.training._objective import Objective
from siteless.methods.invariant.training._settings import TrainingSettings
from siteless.methods.invariant.training._units import channel_units
from siteless.methods.training import Row, Trainer, TrainingCallback, TrainingSet, one_cycle

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
    best, log
        Rows of the log: that for these weights, and one for each evaluation.
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

    Minutes, an approximate duration, replace the epochs or updates of the settings. If the file of
    the checkpoint exists, its training is resumed.
    """
    settings = settings.on(device)
    trainer = _Trainer(training_set, settings, seed=seed, device=device)
    trainer.plan += f" {minutes}"
    if checkpoint and checkpoint.exists():
        trainer.load(checkpoint)
    elif minutes is not None:
        trainer.total = _count_updates_within(minutes, training_set, settings, device)
    trainer.run(checkpoint, progress)
    network = trainer.network.cpu().eval()
    if settings.aligned:
        whole = training_set.whole or training_set.scans
        align_codes(network, whole, training_set.design(whole))
    return Training(network, settings, trainer.best, tuple(trainer.log))


def _count_updates_within(
    minutes: float, training_set: TrainingSet, settings: TrainingSettings, device: str
) -> int:
    """Estimate from a few updates how many fit into the time; all processes agree."""
    settings = replace(settings, updates=100, epochs=None)
    trial = _Trainer(training_set, settings, seed=0, device=device)
    for _ in range(_WARM_UP):
        trial.step()
    start = time.monotonic()
    for _ in range(_TRIED):
        trial.step()
    count = 60 * minutes * _TRIED / (time.monotonic() - start)
    return max(1, int(agreed(count)))


class _Trainer(Trainer):
    """Networks, optimisers and counters: everything that a checkpoint stores."""

    stateful = ("objective", "adversary", "optimiser", "opponent")
    counters = ("update", "total", "waited", "best", "best_weights", "log")
    farthest = 1000
    network: Autoencoder

    def __init__(
        self, training_set: TrainingSet, settings: TrainingSettings, *, seed: int, device: str
    ) -> None:
        super().__init__(training_set, asdict(settings), seed)
        self.settings = settings
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
        rate = settings.learning_rate
        self.optimiser = torch.optim.Adam(trained, lr=rate, fused=True)
        self.opponent = torch.optim.Adam(self.adversary.parameters(), lr=rate, fused=True)
        self.sampler = Sampler(scans, sites, units=units, device=device)
        validator = Sampler(training_set.validation or scans, sites, units=units, device=device)
        self.validates = bool(training_set.validation)
        self.held_out = validator.draw_from_each(_VALIDATION_PATCHES, seed=(seed, 2))
        self.patches = sum(len(scan.neighbours) for scan in scans)
        epochs = settings.epochs or 1
        self.total = settings.updates or math.ceil(epochs * self.patches / settings.batch)
        self.sums: dict[str, Tensor] = {}

    def step(self) -> None:
        """Update the adversary, if it has a weight, and the autoencoder, on one batch."""
        rate = self.settings.learning_rate
        if self.settings.one_cycle:
            rate *= one_cycle(self.update, self.total)
        for group in (*self.optimiser.param_groups, *self.opponent.param_groups):
            group["lr"] = rate
        part = slice(rank(), None, world())
        batch = self.sampler.draw(self.batch, seed=(self.seed, 1, self.update), part=part)
        terms, elsewhere = self.objective_everywhere(batch)
        loss, metrics = terms.total(self.settings), vars(terms)
        if self.settings.adversary:
            doubt, accuracy = self._adversarial_loss(elsewhere, batch.site[self.settings.judged])
            loss = loss - self.settings.adversary * doubt
            metrics = metrics | {"adversary": doubt, "adversary_accuracy": accuracy}
        if not torch.isfinite(loss):
            shown = ", ".join(f"{name} {term.item():g}" for name, term in vars(terms).items())
            raise TrainingError(
                f"the loss is no longer finite at update {self.update} ({shown})",
                remedy="lower the learning rate, or look for scans with extreme signal",
            )
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.update += 1
        for name, term in {"loss": loss, **metrics}.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach()
        self.count += 1

    def _adversarial_loss(self, elsewhere: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
        """Update the adversary, and return its loss and accuracy."""
        for _ in range(self.settings.adversary_updates):
            guess = self.adversary_everywhere(elsewhere.detach())
            self.opponent.zero_grad()
            adversarial_loss(guess, origin).backward()
            self.opponent.step()
        self.adversary.requires_grad_(requires_grad=False)
        guess = self.adversary(elsewhere)
        self.adversary.requires_grad_(requires_grad=True)
        return adversarial_loss(guess, origin), (guess.argmax(dim=1) == origin).float().mean()

    @torch.no_grad()
    def measure(self) -> Row:
        """Return the mean terms since the last evaluation, validation terms and noise levels."""
        means = {f"train_{k}": averaged(total / self.count) for k, total in self.sums.items()}
        self.sums, self.count = {}, 0
        batch = self.held_out
        self.objective.eval()
        terms, _ = self.objective(batch)
        self.objective.train()
        frames = self.network.frames(batch.patch)
        posterior = self.network.encode(batch.patch, batch.site, frames)
        centres = self.network.decode(posterior.mean, batch.site, frames)
        projected = centres.view(*batch.signal.shape[:2], -1) @ batch.mixing
        squares = (projected - batch.signal).square().sum(dim=2).mean(dim=1)
        volumes = (batch.shell >= 0).sum(dim=1)
        active = (posterior.mean.var(dim=0) > _ACTIVE_VARIANCE).sum()
        return {
            **means,
            "val_loss": float(terms.total(self.settings)),
            **{f"val_{name}": float(term) for name, term in vars(terms).items()},
            "val_rmse_percent": 100 * float((squares / volumes).mean().sqrt()),
            "val_active_units": int(active),
            **self.objective.noise_levels(),
        }


def _everywhere(module: nn.Module) -> nn.Module:
    """Average the gradients of a module over all processes."""
    return module if world() == 1 else DistributedDataParallel(module)
