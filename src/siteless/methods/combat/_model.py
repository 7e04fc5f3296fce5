"""ComBat (Johnson et al. 2007, Fortin et al. 2017) on maps: a line for each voxel of a template.

neuroCombat estimates, at each voxel of a template, a mean with the effects of covariates, a
standard deviation, and each site's shift and scale of what is left. From these a map y of one
site becomes a y + b as another would show it. Only a and b are brought from the template to a
scan's own space, so that the map itself is never resampled and what is special to a person stays.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Self

import numpy as np
from threadpoolctl import threadpool_limits

from siteless.acquisition import Array, Scan
from siteless.errors import SitelessError
from siteless.methods.template import BrainMaps, Likeness, describe_template, lay_well
from siteless.microstructure import MAPS, compute_maps
from siteless.model import AVERAGE, HarmonizedMaps, MapModel, ModelCard
from siteless.population import Covariate, covariate_columns
from siteless.registration import Alignment


@dataclass(frozen=True, eq=False)
class Estimates:
    """What ComBat has learned of a map, at voxels of a template.

    Attributes
    ----------
    mean
        For people of mean covariates, shape (voxel,).
    effects
        Of each column of the covariates, shape (column, voxel).
    spread
        Standard deviation of what is left, shape (voxel,).
    shift, scale
        Of each site: the mean of what is left, in units of the spread (gamma), and its standard
        deviation (the root of delta), shape (site, voxel).
    """

    mean: Array
    effects: Array
    spread: Array
    shift: Array
    scale: Array

    def line(self, source: int, target: int | None, columns: Array) -> tuple[Array, Array]:
        """Return a and b of a y + b, each of shape (voxel,).

        Parameters
        ----------
        source
            Number of the map's site.
        target
            Number of the site to bring it to; None for that of no site, ComBat's own.
        columns
            Of the person's covariates, shape (column,).
        """
        shift, scale = (0.0, 1.0) if target is None else (self.shift[target], self.scale[target])
        gain = scale / self.scale[source]
        expected = self.mean + columns @ self.effects
        return gain, (shift - gain * self.shift[source]) * self.spread + (1 - gain) * expected


def require_neurocombat() -> None:
    """Refuse to go on without the package that ComBat is of."""
    for package in ("neuroCombat", "pandas"):
        if find_spec(package) is None:
            raise SitelessError(
                f"the method combat needs the package {package}",
                remedy="pip install 'siteless[combat]'",
            )


def estimate(values: Array, sites: Sequence[int], columns: Array) -> Estimates:
    """Run neuroCombat, and keep what it has estimated.

    Parameters
    ----------
    values
        A map of each scan at the same voxels, shape (scan, voxel); scans of a site differ.
    sites
        Number of each scan's site, from 0 on.
    columns
        Covariates less their means, shape (scan, column).
    """
    from neuroCombat import neuroCombat
    from pandas import DataFrame

    names = [f"column {number}" for number in range(columns.shape[1])]
    table = DataFrame(columns, columns=names).assign(site=list(sites))
    silent = contextlib.redirect_stdout(io.StringIO())
    with threadpool_limits(1, user_api="blas"), silent, np.errstate(all="ignore"):
        found = neuroCombat(values.T.astype(float), table, "site", continuous_cols=names)
        told = found["estimates"]
        # The effects of covariates are known by what they add to each scan.
        effects = np.linalg.pinv(columns) @ told["mod.mean"].T
    return Estimates(
        mean=told["stand.mean"][:, 0].astype(np.float32),
        effects=effects.astype(np.float32),
        spread=np.sqrt(told["var.pooled"][:, 0]).astype(np.float32),
        shift=told["gamma.star"].astype(np.float32),
        scale=np.sqrt(told["delta.star"]).astype(np.float32),
    )


@dataclass(frozen=True, eq=False)
class CombatModel(MapModel):
    """ComBat's estimates on a template.

    Attributes
    ----------
    template
        Mean of the training scans.
    known
        Voxels of the template where every training scan has data, shape (x, y, z), bool.
    estimates
        Of each map by name, at these voxels.
    """

    template: BrainMaps
    known: Array
    estimates: Mapping[str, Estimates]

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model of what its file holds."""
        fields = Estimates.__dataclass_fields__
        estimates = {
            name: Estimates(**{field: arrays[f"{name}_{field}"] for field in fields})
            for name in card.settings["maps"]
        }
        return cls(card, BrainMaps.from_arrays(arrays), arrays["known"], estimates)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The template, and the estimates."""
        estimates = {
            f"{name}_{field}": values
            for name, one in self.estimates.items()
            for field, values in vars(one).items()
        }
        return {**self.template.arrays, "known": self.known, **estimates}

    @property
    def maps(self) -> tuple[str, ...]:
        """Names of the maps."""
        return tuple(self.estimates)

    def describe(self) -> Sequence[tuple[str, str]]:
        """Say which maps there are, and how well scans lie on the template."""
        package = self.card.summary["neuroCombat"]
        maps = f"{', '.join(self.card.settings['maps'])}, by neuroCombat {package}; no scans"
        return [("maps", maps), *describe_template(self.card)]

    @cached_property
    def covariates(self) -> tuple[Covariate, ...]:
        """What must be known of people."""
        return tuple(Covariate(**told) for told in self.card.settings["learned_covariates"])

    def harmonize_maps(
        self, scan: Scan, site: str, attributes: Mapping[str, str] | None = None
    ) -> dict[str, Array]:
        """Return a scan's maps as a site would show them: those of `render_maps`."""
        return dict(self.render_maps(scan, site, attributes).maps)

    def render_maps(
        self, scan: Scan, site: str, attributes: Mapping[str, str] | None = None
    ) -> HarmonizedMaps:
        """Compute the maps of a scan, and bring them to a site.

        Parameters
        ----------
        scan
            Of a site of the model.
        site
            Of the model, or ``average``: of no site, as ComBat has it.
        attributes
            The covariates that the model was learned with, as the dataset's tables tell them.

        Raises
        ------
        SitelessError
            When the scan's shells or site are not the model's, a covariate is not told, or the
            scan cannot be registered.
        """
        source = self.require_known(scan.gradients, scan.site)
        target = None if site == AVERAGE else self.numbers(site)[0]
        columns = covariate_columns(self.covariates, [attributes or {}])[0]
        scan = self.prepare(scan)
        own = compute_maps(scan, list(self.estimates))
        if target == source:
            return HarmonizedMaps(own, own, scan.mask)
        alignment = self._alignment(scan)
        has_data = np.any([values != 0 for values in own.values()], axis=0)
        known = has_data & (alignment.to_moving(self.known.astype(np.float32)) > 0)
        maps = {}
        for name, values in own.items():
            gain, offset = self._line(name, source, target, columns, alignment)
            changed = (gain * values + offset).clip(MAPS[name].lowest, MAPS[name].highest)
            maps[name] = np.where(known, changed, values).astype(np.float32)
        return HarmonizedMaps(maps, own, known)

    def _line(
        self, name: str, source: int, target: int | None, columns: Array, alignment: Alignment
    ) -> tuple[Array, Array]:
        """Return a map's gain and offset on a scan's grid; 1 and 0 where nothing is known."""
        gain, offset = self.estimates[name].line(source, target, columns)
        change = np.zeros((*self.known.shape, 2), dtype=np.float32)
        change[self.known] = np.stack([gain - 1, offset], axis=-1)
        change = alignment.to_moving(change)
        return 1 + change[..., 0], change[..., 1]

    def _alignment(self, scan: Scan) -> Alignment:
        return lay_well(
            BrainMaps.of(scan, self.preparation.coefficients(scan)),
            self.template,
            same_space=self.card.settings["same_space"],
            typical=Likeness(**self.card.summary["likeness"]),
        )
