"""What a person must know of a model, and what siteless needs to use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siteless.model._preparation import Preparation
from siteless.model._typical import Typical


@dataclass(frozen=True)
class LearnedSite:
    """What a model knows of a site, beside how to render it.

    Attributes
    ----------
    level
        Median over its training scans of white matter's b0.
    bvals, bvecs
        Its protocol: the gradient table, in world axes, of a training scan.
    typical
        How its training voxels are distributed.
    """

    level: float
    bvals: tuple[float, ...]
    bvecs: tuple[tuple[float, ...], ...]
    typical: Typical


@dataclass(frozen=True)
class ModelCard:
    """What a model is, whatever its method.

    Attributes
    ----------
    method
        By which scans are harmonized, as `siteless methods` names it.
    sites
        By label, in the order of their numbers.
    preparation
        What was done to scans before they were learned from, and is to be done to others.
    seed, settings
        How it was learned; settings are those of the method.
    summary
        From what it was learned, and how well.
    versions
        Of the libraries that it was learned with.
    """

    method: str
    sites: Mapping[str, LearnedSite]
    preparation: Preparation
    seed: int
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, str]
