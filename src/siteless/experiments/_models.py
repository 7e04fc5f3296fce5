"""The models that the paper's experiment compares, and how long they learn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siteless.methods import Invariant, Method, Rish, Scaled
from siteless.methods.invariant.training import PRESETS
from siteless.model import LatentModel

# Terms of the paper's loss that the default does without. What they keep out of codes is measured,
# so that nothing else takes the site out of them.
_PAPERS = {"marginal": 5e-4, "adversary": 0.5, "aligned": False}
# The paper's ablations: without the divergence from the marginal (lambda), and without that from
# the prior (alpha) too.
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "": _PAPERS,
    ", lambda = 0": _PAPERS | {"marginal": 0.0},
    ", lambda = alpha = 0": _PAPERS | {"marginal": 0.0, "prior": 0.0},
}
_PRINTED = "multi, as printed"


@dataclass(frozen=True)
class Scale:
    """How large the experiment is.

    Attributes
    ----------
    subjects, voxel_size
        Size of the simulated cohort; voxels in mm.
    updates
        Updates of each network in training.
    printed_updates
        Updates of the network with the paper's own settings, whose batches are 16 times smaller.
    fibres
        Voxels of a scan whose fibre orientations are compared.
    """

    subjects: int
    voxel_size: float
    updates: int
    printed_updates: int
    fibres: int


SCALES = {
    "quick": Scale(subjects=9, voxel_size=4.0, updates=500, printed_updates=2000, fibres=300),
    "full": Scale(subjects=15, voxel_size=2.4, updates=2500, printed_updates=10_000, fibres=1000),
}


@dataclass(frozen=True)
class ComparedModel:
    """A model of the experiment.

    Attributes
    ----------
    method
        Name in the tables, which the networks of all pairs of sites share.
    name
        Name that no other model has.
    sites
        Sites that it learns.
    learner
        The method with its settings.
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
    """Yield the models of the experiment."""
    every = tuple(sites)
    yield ComparedModel("scaled", "scaled", every, Scaled())
    yield ComparedModel("RISH", "RISH", every, Rish())
    for ablation, weights in ABLATIONS.items():
        network = Invariant(
            training=replace(PRESETS["siteless"], updates=scale.updates, **weights)
        )
        for other in every:
            if other != hub:
                name = f"single, {other}{ablation}"
                yield ComparedModel(f"single{ablation}", name, (hub, other), network)
        yield ComparedModel(f"multi{ablation}", f"multi{ablation}", every, network)
    printed = replace(PRESETS["paper"], epochs=None, updates=scale.printed_updates)
    yield ComparedModel(_PRINTED, _PRINTED, every, Invariant(training=printed))
