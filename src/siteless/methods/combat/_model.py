"""ComBat (Johnson et al. 2007, Fortin et al. 2017) for maps, at each voxel of a template.

neuroCombat estimates, at each voxel of a template, a mean with the effects of covariates, a
standard deviation, and each site's shift and scale of the residuals. From these a map y of one
site is harmonized to another as a y + b. Only a and b are resampled from the template to the space
of the scan, so the map itself is never resampled and individual differences are preserved.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.util import find_spec
from typing import Self

import numpy as np
from threadpoolctl import threadpool_limits

from siteless.acquisition import Array, Scan
from siteless.errors import SitelessError
from siteless.methods.template import BrainMaps, describe_template, lay_well
from siteless.microstructure import MAPS, compute_maps
from siteless.model import AVERAGE, HarmonizedMaps, MapModel, ModelCard
from siteless.population import Covariate, covariate_columns
from siteless.registration import Alignment


@dataclass(frozen=True, eq=False)
class Estimates:
    """ComBat's estimates for a map, at voxels of a template.

    Attributes
    ----------
    mean, effects
        Mean at mean covariates, (voxel,), and effects of the covariates' columns, (column, voxel).
    spread
        Residual standard deviation, shape (voxel,).
    shift, scale
        Mean of each site's residuals in units of `spread` (gamma), and their standard deviation
        (the root of delta), shape (site, voxel).
    """

    mean: Array
    effects: Array
    spread: Array
    shift: Array
    scale: Array

    def line(self, source: int, target: int | None, columns: Array) -> tuple[Array, Array]:
        """Return a and b of a y + b, each of shape (voxel,), given a participant's covariates.

        Sites are indices; a target of None is ComBat's grand mean.
        """
        shift, scale = (0.0, 1.0) if target is None else (self.shift[target], self.scale[target])
        gain = scale / self.scale[source]
        expected = self.mean + columns @ self.effects
        return gain, (shift - gain * self.shift[source]) * self.spread + (1 - gain) * expected


def require_neurocombat() -> None:
    """Raise an error unless neuroCombat and its dependencies are installed."""
    for package in ("neuroCombat", "pandas"):
        if find_spec(package) is None:
            raise SitelessError(
                f"the method combat needs the package {package}",
                remedy="pip install 'siteless[combat]'",
            )


def estimate(values: Array, sites: Sequence[int], columns: Array) -> Estimates:
    """Run neuroCombat and return its estimates.

    Values, (scan, voxel), must vary within sites, whose indices start from 0; covariates, (scan,
    column), are centred.
    """
    from neuroCombat import neuroCombat
    from pandas import DataFrame

    names = [f"column {number}" for number in range(columns.shape[1])]
    table = DataFrame(columns, columns=names).assign(site=list(sites))
    silent = contextlib.redirect_stdout(io.StringIO())
    with threadpool_limits(1, user_api="blas"), silent, np.errstate(all="ignore"):
        result = neuroCombat(values.T.astype(float), table, "site", continuous_cols=names)
        estimates = result["estimates"]
        # Effects of covariates are recovered from their contribution to each scan.
        effects = np.linalg.pinv(columns) @ estimates["mod.mean"].T
    return Estimates(
        mean=estimates["stand.mean"][:, 0].astype(np.float32),
        effects=effects.astype(np.float32),
        spread=np.sqrt(estimates["var.pooled"][:, 0]).astype(np.float32),
        shift=estimates["gamma.star"].astype(np.float32),
        scale=np.sqrt(estimates["delta.star"]).astype(np.float32),
    )


@dataclass(frozen=True, eq=False)
class CombatModel(MapModel):
    """ComBat's estimates on a template.

    Attributes
    ----------
    template
        Mean of the training scans.
    known
        Template voxels covered by every training scan, shape (x, y, z), bool.
    estimates
        Estimates of each map by name, at these voxels.
    """

    template: BrainMaps
    known: Array
    estimates: Mapping[str, Estimates]

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model from its card and arrays."""
        estimates = {
            name: Estimates(*(arrays[f"{name}_{field.name}"] for field in fields(Estimates)))
            for name in card.settings["maps"]
        }
        return cls(card, BrainMaps.from_arrays(arrays), arrays["known"], estimates)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The template, and the estimates."""
        estimates = {
            f"{name}_{field}": values
            for name, fitted in self.estimates.items()
            for field, values in vars(fitted).items()
        }
        return {**self.template.arrays, "known": self.known, **estimates}

    @property
    def maps(self) -> tuple[str, ...]:
        """Names of the maps."""
        return tuple(self.estimates)

    def describe(self) -> Sequence[tuple[str, str]]:
        """Describe the maps, and how well scans match the template."""
        package = self.card.summary["neuroCombat"]
        maps = f"{', '.join(self.card.settings['maps'])}, by neuroCombat {package}; no scans"
        return [("maps", maps), *describe_template(self.card)]

    @cached_property
    def covariates(self) -> tuple[Covariate, ...]:
        """Covariates that the model requires."""
        return tuple(Covariate(**learned) for learned in self.card.settings["learned_covariates"])

    def harmonize_maps(
        self, scan: Scan, site: str, attributes: Mapping[str, str] | None = None
    ) -> dict[str, Array]:
        """Return only the harmonized maps of `render_maps`."""
        return dict(self.render_maps(scan, site, attributes).maps)

    def render_maps(
        self, scan: Scan, site: str, attributes: Mapping[str, str] | None = None
    ) -> HarmonizedMaps:
        """Compute the maps of a scan and harmonize them to a site.

        Parameters
        ----------
        scan
            Scan from a site of the model.
        site
            Target site, or ``average`` for ComBat's grand mean.
        attributes
            Values of the model's covariates, as in the dataset's tables.

        Raises
        ------
        SitelessError
            When the model does not support the scan's shells or site, a covariate is missing, or
            the scan cannot be registered.
        """
        source = self.require_known(scan.gradients, scan.site)
        target = None if site == AVERAGE else self.numbers(site)[0]
        columns = covariate_columns(self.covariates, [attributes or {}])[0]
        scan = self.prepare(scan)
        source_maps = compute_maps(scan, list(self.estimates))
        if target == source:
            return HarmonizedMaps(source_maps, source_maps, scan.mask)
        brain = BrainMaps.of(scan, self.preparation.coefficients(scan))
        alignment = lay_well(brain, self.template, self.card)
        has_data = np.any([values != 0 for values in source_maps.values()], axis=0)
        known = has_data & (alignment.to_moving(self.known.astype(np.float32)) > 0)
        maps = {}
        for name, values in source_maps.items():
            gain, offset = self._line(name, source, target, columns, alignment)
            changed = (gain * values + offset).clip(MAPS[name].lowest, MAPS[name].highest)
            maps[name] = np.where(known, changed, values).astype(np.float32)
        return HarmonizedMaps(maps, source_maps, known)

    def _line(
        self, name: str, source: int, target: int | None, columns: Array, alignment: Alignment
    ) -> tuple[Array, Array]:
        """Return a map's gain and offset on a scan's grid; 1 and 0 outside known voxels."""
        gain, offset = self.estimates[name].line(source, target, columns)
        change = np.zeros((*self.known.shape, 2), dtype=np.float32)
        change[self.known] = np.stack([gain - 1, offset], axis=-1)
        change = alignment.to_moving(change)
        return 1 + change[..., 0], change[..., 1]
