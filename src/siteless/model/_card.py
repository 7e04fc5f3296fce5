"""What a person must know of a model, and what siteless needs to use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from siteless.harmonics import FitName
from siteless.model._typical import Typical
from siteless.tissue import Tissue


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
    bs
        b-values of the shells, s/mm2.
    order, basis
        Of the spherical harmonics.
    fit
        How coefficients were fitted, and are to be.
    tissue
        What was learned from.
    denoiser
        That scans went through before, and are to; empty for none.
    seed, settings
        How it was learned; settings are those of the method.
    summary
        From what it was learned, and how well.
    versions
        Of the libraries that it was learned with.
    """

    method: str
    sites: Mapping[str, LearnedSite]
    bs: tuple[float, ...]
    order: int
    fit: FitName
    tissue: Tissue
    denoiser: str
    seed: int
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, str]
    basis: str = "MRtrix3 (tournier07), scanner axes"
