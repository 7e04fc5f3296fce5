"""Training that can be interrupted: what it keeps, and how it goes on."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from siteless.errors import TrainingError
from siteless.methods.patches._training_set import TrainingSet
from siteless.storage import write_whole

# Of the states that are kept; other formats are not gone on with.
_FORMAT = 2


class Resumable:
    """A learner whose state can be kept in a file.

    Attributes
    ----------
    stateful
        Names of what has a state of torch.
    counters
        Names of what is plain.
    plan
        Of `describe`: what a state must be of.
    """

    stateful: ClassVar[tuple[str, ...]]
    counters: ClassVar[tuple[str, ...]]
    plan: str

    def save(self, path: Path) -> None:
        """Write all that training needs to go on, whole or not at all."""
        state = {name: getattr(self, name).state_dict() for name in self.stateful}
        plain = {name: getattr(self, name) for name in self.counters}
        content = io.BytesIO()
        torch.save({"plan": self.plan, **state, **plain}, content)
        write_whole(path, content.getbuffer())

    def load(self, path: Path) -> None:
        """Go on from where a training of the same plan was."""
        try:
            state = torch.load(path, weights_only=True, map_location="cpu")
            plan, *_ = [state[name] for name in ("plan", *self.counters, *self.stateful)]
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError):
            raise TrainingError(
                "the state of the interrupted training cannot be read",
                remedy="start anew, without --resume",
                path=path,
            ) from None
        if plan != self.plan:
            raise TrainingError(
                "the interrupted training had other settings or other scans",
                remedy="give the same options as then, or start anew, without --resume",
                path=path,
            )
        for name in self.stateful:
            getattr(self, name).load_state_dict(state[name])
        for name in self.counters:
            setattr(self, name, state[name])


def describe(lesson: TrainingSet, settings: Mapping[str, Any], seed: int) -> str:
    """Describe a training, so that another one is not mistaken for it."""
    scans = [
        [(s.name, s.site, s.content) for s in part] for part in (lesson.scans, lesson.validation)
    ]
    return json.dumps([_FORMAT, settings, seed, list(lesson.sites), scans])


def one_cycle(update: int, total: int) -> float:
    """Rise over the first tenth, then fall to zero along a cosine; of the highest rate."""
    rise = max(1, total // 10)
    if update < rise:
        return (update + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (update - rise) / max(1, total - rise)))


def copied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights that further training does not change."""
    return {name: weight.detach().clone() for name, weight in weights.items()}
