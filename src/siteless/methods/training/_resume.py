"""Save and resume interrupted training."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from siteless.errors import TrainingError
from siteless.methods.training._training_set import TrainingSet
from siteless.storage import write_whole

# Format of saved states; other formats cannot be resumed.
_FORMAT = 2


class Resumable:
    """A trainer whose state can be saved: attributes with a torch state, and plain ones.

    A saved state is only resumed by a training with the same `plan`, from `describe`.
    """

    stateful: ClassVar[tuple[str, ...]]
    counters: ClassVar[tuple[str, ...]]
    plan: str

    def save(self, path: Path) -> None:
        """Write the state of the training, completely or not at all."""
        state = {name: getattr(self, name).state_dict() for name in self.stateful}
        plain = {name: getattr(self, name) for name in self.counters}
        content = io.BytesIO()
        torch.save({"plan": self.plan, **state, **plain}, content)
        write_whole(path, content.getbuffer())

    def load(self, path: Path) -> None:
        """Resume a training with the same plan."""
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            plan, *_ = [state[name] for name in ("plan", *self.counters, *self.stateful)]
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError):
            raise TrainingError(
                "the state of the interrupted training cannot be read",
                remedy="delete it, and start anew",
                path=path,
            ) from None
        if plan != self.plan:
            raise TrainingError(
                "the interrupted training had other settings or other scans",
                remedy="give the same options as then, or delete its state and start anew",
                path=path,
            )
        for name in self.stateful:
            getattr(self, name).load_state_dict(state[name])
        for name in self.counters:
            setattr(self, name, state[name])


def describe(training_set: TrainingSet, settings: Mapping[str, Any], seed: int) -> str:
    """Describe a training, to distinguish it from others."""
    scans = [
        [(s.name, s.site, s.content) for s in part]
        for part in (training_set.scans, training_set.validation)
    ]
    return json.dumps([_FORMAT, settings, seed, list(training_set.sites), scans])


def one_cycle(update: int, total: int) -> float:
    """Return the fraction of the highest rate: a linear rise, then a cosine decay to zero."""
    rise = max(1, total // 10)
    if update < rise:
        return (update + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (update - rise) / max(1, total - rise)))
