"""The training loop, which evaluates at intervals, keeps the best weights and can be resumed."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from siteless.distributed import GROUPS, agreed, rank
from siteless.errors import TrainingError
from siteless.methods.training._resume import Resumable, describe
from siteless.methods.training._training_set import Row, TrainingCallback, TrainingSet

# Evaluations per training, and the smallest number of updates between two of them.
_EVALUATIONS, _CLOSEST = 50, 20
Item = TypeVar("Item")


class Trainer(Resumable, ABC):
    """A network in training: everything that a checkpoint stores.

    Attributes
    ----------
    network, optimiser
        Network, and the optimiser of its weights.
    total, patches
        Numbers of updates and of training patches.
    validates
        Whether there are validation scans. Without any, the last weights are the best.
    farthest
        Largest number of updates between two evaluations.
    """

    farthest: ClassVar[float] = math.inf
    network: nn.Module
    optimiser: torch.optim.Optimizer
    total: int
    patches: int
    validates: bool

    def __init__(self, training_set: TrainingSet, settings: Mapping[str, Any], seed: int) -> None:
        torch.manual_seed(seed)
        self.seed = seed
        self.plan = describe(training_set, settings, seed)
        self.batch, self.patience = settings["batch"], settings["patience"]
        self.update = self.waited = self.count = 0
        self.best: Row = {}
        self.best_weights: dict[str, Tensor] = {}
        self.log: list[Row] = []

    @abstractmethod
    def step(self) -> None:
        """Update the network on one batch."""

    @abstractmethod
    def measure(self) -> Row:
        """Return the mean terms of the updates since the last evaluation, and validation terms."""

    def run(self, checkpoint: Path | None, progress: TrainingCallback | None) -> None:
        """Train until the end or until the loss stops improving, and load the best weights."""
        interval = min(max(self.total // _EVALUATIONS, _CLOSEST), self.farthest)
        start, first = time.monotonic(), self.update
        while self.update < self.total and agreed(self.waited) < self.patience:
            self.step()
            if self.update % interval == 0 or self.update == self.total:
                seconds = time.monotonic() - start
                self.evaluate(speed=(self.update - first) * self.batch / seconds)
                if checkpoint and rank() == 0:
                    self.save(checkpoint)
            if progress:
                progress(self.update, self.total, self.log)
        self.network.load_state_dict(self.best_weights)

    def evaluate(self, speed: float) -> None:
        """Add a row to the log, and keep the best weights."""
        row: Row = {
            "update": self.update,
            "epoch": self.update * self.batch / self.patches,
            **self.measure(),
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "patches_per_second": speed,
        }
        if not math.isfinite(row["val_loss"]):
            raise TrainingError(
                f"the loss of the validation scans is no longer finite at update {self.update}",
                remedy="look for scans with extreme signal",
            )
        self.log.append(row)
        self.waited += 1
        if not self.validates or not self.best or row["val_loss"] < self.best["val_loss"]:
            self.best, self.waited = row, 0
            weights = self.network.state_dict()
            self.best_weights = {k: weight.detach().clone() for k, weight in weights.items()}


def draw_evenly(lists: Sequence[list[Item]], rng: np.random.Generator) -> list[Item]:
    """Draw an item for each group of a batch, with equal shares of several lists."""
    order = rng.permutation(len(lists)).tolist()
    chosen = [lists[order[group % len(order)]] for group in range(GROUPS)]
    return [candidates[rng.integers(len(candidates))] for candidates in chosen]
