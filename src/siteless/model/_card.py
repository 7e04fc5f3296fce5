"""The description of a model, for users and for siteless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siteless.model._preparation import Preparation
from siteless.model._typical import Typical


@dataclass(frozen=True)
class LearnedSite:
    """Properties of a training site, whatever the method.

    Attributes
    ----------
    level
        Typical reference b0 intensity of its training scans.
    bvals, bvecs
        Protocol of the site: the gradient table of a training scan, in world axes.
    typical
        Distribution of its training voxels.
    """

    level: float
    bvals: tuple[float, ...]
    bvecs: tuple[tuple[float, ...], ...]
    typical: Typical


@dataclass(frozen=True)
class ModelCard:
    """A description of a model, whatever its method.

    Attributes
    ----------
    method
        Name of the method, as in `siteless methods`.
    sites
        Sites by label, in the order of their indices.
    preparation
        Processing of scans before training and harmonization.
    seed, settings
        Random seed and settings of the method.
    summary
        Training data and quality of the training.
    versions
        Versions of the libraries used in training.
    """

    method: str
    sites: Mapping[str, LearnedSite]
    preparation: Preparation
    seed: int
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, str]
