"""Training on travelling subjects, from patches of one site to voxels of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from siteless.acquisition import Array
from siteless.distributed import GROUPS
from siteless.errors import DatasetError, TrainingError
from siteless.methods.invariant.training import channel_units
from siteless.methods.paired._network import Translator, TranslatorSettings
from siteless.methods.patches import TrainingScan
from siteless.methods.training import (
    Row,
    Trainer,
    TrainingCallback,
    TrainingSet,
    draw_evenly,
    one_cycle,
)

_VALIDATION_PATCHES = 16_384
# mm, or mm per voxel. Largest difference between affines of one grid.
_SAME_GRID = 1e-3


@dataclass(frozen=True, eq=False)
class Pair:
    """The same locations of one travelling subject at two sites.

    Rows are patches of both scans with the same centre, shape (patch, 2), int32.
    """

    source: TrainingScan
    target: TrainingScan
    rows: Array

    @property
    def sites(self) -> tuple[str, str]:
        """Sites of the scans."""
        return self.source.site, self.target.site

    @property
    def weights(self) -> Array:
        """Weights of squared channel errors in the error of the signal, shape (channel,).

        As the basis is orthonormal, the mean over directions is the sum divided by 4 pi. Shells
        are weighted by their number of volumes in the target; b0 counts as one volume, the mean.
        """
        volumes = np.bincount(self.target.shell)
        b0, *shells = volumes / volumes.sum()
        channels = (self.target.values.shape[1] - 1) // len(shells)
        return np.concatenate([[b0], np.repeat(shells, channels) / (4 * np.pi)])


def find_pairs(scans: Sequence[TrainingScan]) -> list[Pair]:
    """Match the scans of each travelling subject at different sites, in both directions."""
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
    """Settings for training a translator.

    Attributes
    ----------
    fit
        How coefficients are fitted.
    hidden, activation
        Widths of the hidden layers, and the activation between them.
    batch, updates
        Patches per update, and number of updates.
    learning_rate, weight_decay
        Those of AdamW. The rate rises over the first tenth to this, and falls to zero at the end.
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
    """The result of training.

    Attributes
    ----------
    network
        Network with the best weights on the validation pairs, or the last weights without any.
    log, best
        A row for each evaluation, and that of these weights. Losses are mean squared errors of the
        signal in units of the target's level; ``val_rmse_percent`` is the square root, in percent.
    validated
        Whether there were validation pairs; otherwise training pairs were evaluated.
    """

    network: Translator
    log: tuple[Row, ...]
    best: Row
    validated: bool


@dataclass(frozen=True, eq=False)
class _Batch:
    """Patches with their source and target sites, wanted coefficients and channel weights."""

    patch: Tensor
    source: Tensor
    target: Tensor
    wanted: Tensor
    weights: Tensor


def train_paired(
    training_set: TrainingSet,
    settings: PairedSettings,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: TrainingCallback | None = None,
) -> PairedTraining:
    """Train a translator on travelling subjects, in one process.

    Scans of the same subject are matched. If the checkpoint exists, its training is resumed.
    """
    trainer = _Trainer(training_set, settings, seed)
    if checkpoint and checkpoint.exists():
        trainer.load(checkpoint)
    trainer.run(checkpoint, progress)
    return PairedTraining(
        trainer.network.eval(), tuple(trainer.log), trainer.best, trainer.validates
    )


class _Sampler:
    """Draws batches in which all ordered pairs of sites have the same share."""

    def __init__(self, pairs: Sequence[Pair], sites: Sequence[str]) -> None:
        self.pairs, self.sites = pairs, tuple(sites)
        between = list(dict.fromkeys(pair.sites for pair in pairs))
        self.between = [[pair for pair in pairs if pair.sites == sites] for sites in between]

    def draw(self, patches: int, *, seed: Sequence[int]) -> _Batch:
        """Draw a batch of about `patches`."""
        rng = np.random.default_rng(seed)
        return self._gather(draw_evenly(self.between, rng), max(1, patches // GROUPS), rng)

    def draw_from_each(self, patches: int, *, seed: Sequence[int]) -> _Batch:
        """Draw a batch with one group for every pair."""
        size = max(1, patches // len(self.pairs))
        return self._gather(self.pairs, size, np.random.default_rng(seed))

    def _gather(self, pairs: Sequence[Pair], size: int, rng: np.random.Generator) -> _Batch:
        patches, wanted = [], []
        for pair in pairs:
            source_rows, target_rows = pair.rows[rng.integers(len(pair.rows), size=size)].T
            neighbours = pair.source.neighbours[source_rows]
            patches.append(pair.source.values[neighbours].reshape(size, -1))
            wanted.append(pair.target.values[pair.target.neighbours[target_rows, 0]])
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


class _Trainer(Trainer):
    """Network, optimiser and counters: everything that a checkpoint stores."""

    stateful = ("network", "optimiser")
    counters = ("update", "waited", "best", "best_weights", "log")
    network: Translator

    def __init__(self, training_set: TrainingSet, settings: PairedSettings, seed: int) -> None:
        super().__init__(training_set, asdict(settings), seed)
        self.settings, self.total = settings, settings.updates
        pairs, validating = _require_pairs(training_set.scans), find_pairs(training_set.validation)
        self.network = _make_network(pairs, training_set.sites, settings)
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.sampler = _Sampler(pairs, training_set.sites)
        validator = _Sampler(validating or pairs, training_set.sites)
        self.validates = bool(validating)
        self.held_out = validator.draw_from_each(_VALIDATION_PATCHES, seed=(seed, 2))
        self.patches = sum(len(pair.rows) for pair in pairs)
        self.sum = 0.0

    def step(self) -> None:
        """Update the network on one batch."""
        batch = self.sampler.draw(self.batch, seed=(self.seed, 1, self.update))
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate * one_cycle(self.update, self.total)
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

    def measure(self) -> Row:
        """Return the losses of training and validation."""
        with torch.no_grad():
            loss = float(_loss(self.network, self.held_out))
        mean, self.sum, self.count = self.sum / self.count, 0.0, 0
        return {"train_loss": mean, "val_loss": loss, "val_rmse_percent": 100 * math.sqrt(loss)}


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
    """Make a network with units from the paired scans, shared by all sites."""
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
    """Return the mean squared error of the signal, in units of the target's level."""
    translated = network(batch.patch, batch.source, batch.target)
    return ((translated - batch.wanted).square() * batch.weights).sum(dim=1).mean()
