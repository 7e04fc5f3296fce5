"""The models in the paper's experiment, and their training lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siteless.methods import Invariant, Method, Rish, Scaled
from siteless.methods.invariant.training import PRESETS
from siteless.model import LatentModel

# Terms of the paper's loss that are not in the default. Codes are not aligned otherwise, so that
# the effect of these terms is measured.
_PAPERS = {"marginal": 5e-4, "adversary": 0.5, "aligned": False}
# The paper's ablations: without the divergence from the marginal (lambda), and also without that
# from the prior (alpha).
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "": _PAPERS,
    ", lambda = 0": _PAPERS | {"marginal": 0.0},
    ", lambda = alpha = 0": _PAPERS | {"marginal": 0.0, "prior": 0.0},
}
_PRINTED = "multi, as printed"


@dataclass(frozen=True)
class Scale:
    """The size of the experiment.

    Networks train for a number of updates. The one with the paper's settings has its own, as its
    batches are 16 times smaller.
    """

    subjects: int
    voxel_size: float  # mm
    updates: int
    printed_updates: int
    fibres: int  # voxels of a scan whose fibre orientations are compared


SCALES = {
    "quick": Scale(subjects=9, voxel_size=4.0, updates=500, printed_updates=2000, fibres=300),
    "full": Scale(subjects=15, voxel_size=2.4, updates=2500, printed_updates=10_000, fibres=1000),
}


@dataclass(frozen=True)
class ComparedModel:
    """A model of the experiment: who learns it, from which sites.

    The name is its own. The method is its name in tables, which the networks of all pairs of sites
    have in common.
    """

    method: str
    name: str
    sites: tuple[str, ...]
    learner: Method

    @property
    def stem(self) -> str:
        """Name of its files, without suffix."""
        return re.sub(r"[^\w.]+", "-", self.name)

    @property
    def has_code(self) -> bool:
        """Whether it is a network of the paper."""
        return issubclass(self.learner.model_type(), LatentModel)

    @property
    def is_ablated(self) -> bool:
        """Whether it lacks a term of the loss."""
        return any(end and self.method.endswith(end) for end in ABLATIONS)


def compared_models(sites: Sequence[str], hub: str, scale: Scale) -> Iterator[ComparedModel]:
    """Yield the models of the experiment, which are of magnitudes as they are, as in the paper."""
    every = tuple(sites)
    yield ComparedModel("scaled", "scaled", every, Scaled())
    yield ComparedModel("RISH", "RISH", every, Rish())
    for ablation, weights in ABLATIONS.items():
        training = replace(PRESETS["siteless"], updates=scale.updates, **weights)
        network = Invariant(training=training, noise_floor="keep")
        for other in every:
            if other != hub:
                name = f"single, {other}{ablation}"
                yield ComparedModel(f"single{ablation}", name, (hub, other), network)
        yield ComparedModel(f"multi{ablation}", f"multi{ablation}", every, network)
    printed = replace(PRESETS["paper"], epochs=None, updates=scale.printed_updates)
    yield ComparedModel(_PRINTED, _PRINTED, every, Invariant(training=printed, noise_floor="keep"))
