"""Training on travelling subjects: what one site showed, another site should show."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.errors import DatasetError, TrainingError
from siteless.methods.invariant.training._units import channel_units
from siteless.methods.paired._network import Translator, TranslatorSettings
from siteless.methods.patches import Row, TrainingScan, TrainingSet, Watch
from siteless.methods.patches._resume import Resumable, copied, describe, one_cycle

# Of a batch, each from one pair of scans.
_GROUPS = 16
_VALIDATION_PATCHES = 16_384
_EVALUATIONS, _CLOSEST = 50, 20
# mm, or mm a voxel: by how much two grids may differ and be one.
_SAME_GRID = 1e-3


@dataclass(frozen=True, eq=False)
class Pair:
    """The same places of one person, seen by two sites.

    Attributes
    ----------
    source, target
        Scans of the person.
    rows
        The patches of either that have the same centre, shape (patch, 2), int32.
    """

    source: TrainingScan
    target: TrainingScan
    rows: Array

    @property
    def sites(self) -> tuple[str, str]:
        """Where the scans are from."""
        return self.source.site, self.target.site

    @property
    def weights(self) -> Array:
        """What the square of a channel's error adds to the signal's, shape (channel,).

        The basis is orthonormal: the mean over directions is the sum over the sphere's 4 pi. B0
        and the shells count as the target's volumes do, where b0 is one, being their mean.
        """
        volumes = np.bincount(self.target.shell)
        b0, *shells = volumes / volumes.sum()
        channels = (self.target.values.shape[1] - 1) // len(shells)
        return np.concatenate([[b0], np.repeat(shells, channels) / (4 * np.pi)])


def find_pairs(scans: Sequence[TrainingScan]) -> list[Pair]:
    """Match the scans of each person at different sites, in both directions.

    Raises
    ------
    DatasetError
        When two scans of a person are not on one grid, or have no place in common.
    """
    return [
        _match(source, target)
        for source, target in permutations(scans, 2)
        if source.subject and source.subject == target.subject and source.site != target.site
    ]


def _match(source: TrainingScan, target: TrainingScan) -> Pair:
    same = source.shape == target.shape
    if not same or not np.allclose(source.affine, target.affine, rtol=0, atol=_SAME_GRID):
        raise DatasetError(
            f"expected {source.name} and {target.name} on one grid, found "
            f"{_show_grid(source)} and {_show_grid(target)}",
            remedy="resample them to one grid",
        )
    _, *rows = np.intersect1d(
        source.voxels, target.voxels, assume_unique=True, return_indices=True
    )
    if not rows[0].size:
        raise DatasetError(
            f"expected {source.name} and {target.name} to show the same places, found no voxel "
            "that both have",
            remedy="register them to each other",
        )
    return Pair(source, target, np.stack(rows, axis=1).astype(np.int32))


def _show_grid(scan: TrainingScan) -> str:
    shape = " x ".join(map(str, scan.shape))
    corner = ", ".join(f"{scan.affine[position]:g}" for position in (3, 7, 11))
    return f"{shape} voxels from ({corner}) mm"


@dataclass(frozen=True)
class PairedSettings:
    """How to train a translator.

    Attributes
    ----------
    fit
        How coefficients are fitted.
    hidden, activation
        As in `siteless.methods.paired.TranslatorSettings`.
    batch
        Patches in an update.
    updates
        Length of training.
    learning_rate
        Of AdamW, at its highest: it rises over the first tenth and falls to zero at the end.
    weight_decay
        Of AdamW.
    patience
        Evaluations without improvement after which training ends.
    """

    fit: Literal["laplace-beltrami", "pseudo-inverse"] = "laplace-beltrami"
    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["tanh", "silu", "relu"] = "silu"
    batch: int = 2048
    updates: int = 2000
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    patience: int = 20

    def __post_init__(self) -> None:
        wrong = [n for n in ("batch", "updates", "patience") if not getattr(self, n) > 0]
        if wrong:
            raise ValueError(f"{wrong[0]} must be above 0, got {getattr(self, wrong[0])}")


@dataclass(frozen=True, eq=False)
class PairedTraining:
    """What training gives.

    Attributes
    ----------
    network
        With the best weights on the validation pairs, or the last without any.
    log
        A row for each evaluation. Losses are the mean square of the signal's error in units of
        the target's level; ``val_rmse_percent`` is the square root, in percent.
    best
        The row that the weights are of.
    validated
        Whether there were validation pairs; else the training pairs were judged.
    """

    network: Translator
    log: tuple[Row, ...]
    best: Row
    validated: bool


@dataclass(frozen=True, eq=False)
class _Batch:
    """Patches, where they go from and to, what is there, and how much channels count."""

    patch: Tensor
    source: Tensor
    target: Tensor
    wanted: Tensor
    weights: Tensor


def train_paired(
    lesson: TrainingSet,
    settings: PairedSettings,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    watch: Watch | None = None,
) -> PairedTraining:
    """Train a translator on people who were scanned at several sites, in one process.

    Parameters
    ----------
    lesson
        What to learn from: scans of the same person are matched.
    settings
        How to train.
    seed
        Of all that is random.
    checkpoint
        File to keep the state in; where there is one already, training goes on from it.
    watch
        Called with the updates done, their total, and the log.

    Raises
    ------
    DatasetError
        When nobody was scanned at two sites, or a person's scans do not match.
    TrainingError
        When the loss is no longer finite, or the checkpoint is of another training.
    """
    learner = _Learner(lesson, settings, seed)
    if checkpoint and checkpoint.exists():
        learner.load(checkpoint)
    interval = max(settings.updates // _EVALUATIONS, _CLOSEST)
    start, first = time.monotonic(), learner.update
    while learner.update < settings.updates and learner.waited < settings.patience:
        learner.step()
        if learner.update % interval == 0 or learner.update == settings.updates:
            seconds = time.monotonic() - start
            learner.evaluate(speed=(learner.update - first) * settings.batch / seconds)
            if checkpoint:
                learner.save(checkpoint)
        if watch:
            watch(learner.update, settings.updates, learner.log)
    learner.network.load_state_dict(learner.best_weights)
    return PairedTraining(
        learner.network.eval(), tuple(learner.log), learner.best, learner.validates
    )


class _Sampler:
    """Draws batches in which every two sites, in either order, have the same share."""

    def __init__(self, pairs: Sequence[Pair], sites: Sequence[str]) -> None:
        self.pairs, self.sites = pairs, tuple(sites)
        between = list(dict.fromkeys(pair.sites for pair in pairs))
        self.between = [[pair for pair in pairs if pair.sites == two] for two in between]

    def draw(self, patches: int, *, seed: Sequence[int]) -> _Batch:
        """Draw a batch of about `patches`."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.between))
        chosen = [self.between[order[group % len(order)]] for group in range(_GROUPS)]
        pairs = [own[rng.integers(len(own))] for own in chosen]
        return self._gather(pairs, max(1, patches // _GROUPS), rng)

    def draw_from_each(self, patches: int, *, seed: Sequence[int]) -> _Batch:
        """Draw a batch with a group of every pair."""
        size = max(1, patches // len(self.pairs))
        return self._gather(self.pairs, size, np.random.default_rng(seed))

    def _gather(self, pairs: Sequence[Pair], size: int, rng: np.random.Generator) -> _Batch:
        patches, wanted = [], []
        for pair in pairs:
            own, other = pair.rows[rng.integers(len(pair.rows), size=size)].T
            neighbours = pair.source.neighbours[own]
            patches.append(pair.source.values[neighbours].reshape(size, -1))
            wanted.append(pair.target.values[pair.target.neighbours[other, 0]])
        sites = torch.tensor([[self.sites.index(site) for site in pair.sites] for pair in pairs])
        source, target = sites.repeat_interleave(size, dim=0).T
        weights = torch.from_numpy(np.stack([pair.weights for pair in pairs])).float()
        return _Batch(
            patch=torch.from_numpy(np.concatenate(patches)),
            source=source,
            target=target,
            wanted=torch.from_numpy(np.concatenate(wanted)),
            weights=weights.repeat_interleave(size, dim=0),
        )


class _Learner(Resumable):
    """Network, optimiser and how far they are: everything that a checkpoint keeps."""

    stateful = ("network", "optimiser")
    counters = ("update", "waited", "best", "best_weights", "log")

    def __init__(self, lesson: TrainingSet, settings: PairedSettings, seed: int) -> None:
        torch.manual_seed(seed)
        self.settings, self.seed = settings, seed
        self.plan = describe(lesson, asdict(settings), seed)
        pairs, judging = _require_pairs(lesson.scans), find_pairs(lesson.validation)
        self.network = _make_network(pairs, lesson.sites, settings)
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.sampler = _Sampler(pairs, lesson.sites)
        judge = _Sampler(judging or pairs, lesson.sites)
        self.validates = bool(judging)
        self.held_out = judge.draw_from_each(_VALIDATION_PATCHES, seed=(seed, 2))
        self.patches = sum(len(pair.rows) for pair in pairs)
        self.update = self.waited = self.count = 0
        self.sum = 0.0
        self.best: Row = {}
        self.best_weights = copied(self.network.state_dict())
        self.log: list[Row] = []

    def step(self) -> None:
        """Update the network on one batch."""
        batch = self.sampler.draw(self.settings.batch, seed=(self.seed, 1, self.update))
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * one_cycle(
                self.update, self.settings.updates
            )
        loss = _loss(self.network, batch)
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss is no longer finite at update {self.update}",
                remedy="look for scans with extreme signal",
            )
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.update += 1
        self.sum, self.count = self.sum + float(loss.detach()), self.count + 1

    def evaluate(self, speed: float) -> None:
        """Add a row to the log, and keep the weights if they are the best so far."""
        with torch.no_grad():
            loss = float(_loss(self.network, self.held_out))
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss of the validation scans is no longer finite at update {self.update}",
                remedy="look for scans with extreme signal",
            )
        row: Row = {
            "update": self.update,
            "epoch": self.update * self.settings.batch / self.patches,
            "train_loss": self.sum / self.count,
            "val_loss": loss,
            "val_rmse_percent": 100 * math.sqrt(loss),
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "patches_per_second": speed,
        }
        self.log.append(row)
        self.sum, self.count = 0.0, 0
        if not self.validates or not self.best or loss < self.best["val_loss"]:
            self.best, self.waited = row, 0
            self.best_weights = copied(self.network.state_dict())
        else:
            self.waited += 1


def _require_pairs(scans: Sequence[TrainingScan]) -> list[Pair]:
    pairs = find_pairs(scans)
    if not pairs:
        raise DatasetError(
            "expected people who were scanned at two or more sites, found none",
            remedy="give travelling subjects, or another --method",
        )
    return pairs


def _make_network(
    pairs: Sequence[Pair], sites: Sequence[str], settings: PairedSettings
) -> Translator:
    """Make a network whose units are those of the paired scans, one for all sites."""
    scans = list({id(pair.source): pair.source for pair in pairs}.values())
    shape = TranslatorSettings(
        channels=scans[0].values.shape[1],
        sites=len(sites),
        neighbours=scans[0].neighbours.shape[1],
        hidden=settings.hidden,
        activation=settings.activation,
    )
    network = Translator(shape)
    offset, scale = channel_units(scans, None)
    network.set_units(offset[0], scale[0])
    return network


def _loss(network: Translator, batch: _Batch) -> Tensor:
    """Return the mean square of the error of the signal, in units of the target's level."""
    translated = network(batch.patch, batch.source, batch.target)
    return ((translated - batch.wanted).square() * batch.weights).sum(dim=1).mean()
