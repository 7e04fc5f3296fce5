"""How ComBat learns: maps of scans to a template, and sites' shifts and scales on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, read_gradient_table
from siteless.errors import DatasetError, SignalError, errors_at
from siteless.harmonics import Coefficients
from siteless.methods.base import Learned, Workspace
from siteless.methods.cohort import (
    Cohort,
    columns_of,
    learn_covariates,
    require_people,
    site_numbers,
)
from siteless.methods.combat._model import CombatModel, estimate, require_neurocombat
from siteless.methods.rish import site_weights
from siteless.methods.template import (
    BrainMaps,
    OnTemplate,
    TemplateWork,
    bring_to_template,
    mean_maps,
)
from siteless.microstructure import compute_maps, default_maps, require_maps
from siteless.registration import Alignment
from siteless.storage import load_arrays

if TYPE_CHECKING:
    from siteless.methods.base import Feature

# Of a template's voxel, the part that a scan's brain must cover to be known there.
_COVERED = 0.5


def choose_maps(cohort: Cohort, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the maps that were asked for, or those that the shells support."""
    require_neurocombat()
    first = cohort.learning[0]
    with errors_at(first.dwi):
        gradients = read_gradient_table(first)
        maps = default_maps(gradients) if asked is None else tuple(asked)
        require_maps(maps, gradients)
    return maps


def microstructure(maps: Sequence[str]) -> Mapping[str, Feature]:
    """Return what computes maps of a scan, by the kind under which they are stored."""
    return {_kind(maps): partial(_compute, tuple(maps))}


def _kind(maps: Sequence[str]) -> str:
    return "-".join(["microstructure", *maps])


def _compute(maps: tuple[str, ...], scan: Scan, _: Coefficients) -> Mapping[str, Array]:
    return compute_maps(scan, maps)


def require_enough(scans: Sequence[ScanFiles], cohort: Cohort, covariates: Sequence[str]) -> None:
    """Refuse scans that are too few, or whose sites cannot be separated from covariates."""
    require_people(scans, cohort.sites)
    columns = columns_of(scans, covariates)
    people = [scan.subject for scan in scans]
    site_weights(site_numbers(scans, cohort.sites), people, columns, travelling=False)
    if len(scans) <= len(cohort.sites) + columns.shape[1]:
        raise DatasetError(
            f"expected more training scans than sites and covariates, found {len(scans)}",
            remedy="give more, or name fewer --covariates",
        )


def learn_estimates(settings: Mapping[str, Any], cohort: Cohort, workspace: Workspace) -> Learned:
    """Build the template, then run ComBat on each map."""
    work = _MapWork(workspace.store, settings["same_space"], names=tuple(settings["maps"]))
    on_template = bring_to_template(workspace, work, cohort.learning, cohort.sites)
    accepted, covariates = on_template.accepted, settings["covariates"]
    require_enough(accepted, cohort, covariates)
    sites, columns = site_numbers(accepted, cohort.sites), columns_of(accepted, covariates)
    template, known, values = work.combine(on_template, sites)
    estimates = {name: estimate(maps, sites, columns) for name, maps in values.items()}
    learned = [asdict(one) for one in learn_covariates(accepted, covariates)]
    return Learned(
        lambda card: CombatModel(card, template, known, estimates),
        {**settings, "learned_covariates": learned},
        {**on_template.summary, "neuroCombat": version("neuroCombat")},
    )


@dataclass(frozen=True)
class _MapWork(TemplateWork):
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """The maps that are brought."""
        return ",".join(self.names)

    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return the maps of microstructure, and which part of a voxel is in the brain."""
        maps = self.store.read(_kind(self.names), scan)
        brain = np.any([values != 0 for values in maps.values()], axis=0)
        covered = alignment.to_static(brain.astype(np.float32))
        # Over the brain's part, as a voxel at its edge is no darker for what is beyond.
        part = np.maximum(covered, _COVERED)
        brought = {f"own_{n}": alignment.to_static(maps[n]) / part for n in self.names}
        return {**brought, "covered": covered}

    def combine(
        self, found: OnTemplate, sites: Sequence[int]
    ) -> tuple[BrainMaps, Array, dict[str, Array]]:
        """Return the mean of scans, the voxels known for all, and maps there, (scan, voxel).

        Voxels are of the whole brain: with white matter alone there would be a step at its edge.

        Raises
        ------
        SignalError
            When there is no such voxel.
        """
        known = np.array(True)  # noqa: FBT003
        for scan in found.accepted:
            known = known & (self._read(scan, found)["covered"] >= _COVERED)
        mean = mean_maps(BrainMaps.from_arrays(self._read(s, found)) for s in found.accepted)
        values = {
            name: np.stack([self._read(s, found)[f"own_{name}"][known] for s in found.accepted])
            for name in self.names
        }
        varies = np.all([_varies(one, np.array(sites)) for one in values.values()], axis=0)
        if not varies.any():
            raise SignalError(
                "no voxel of the template is covered by all scans",
                remedy="check masks and fields of view, and leave out those that miss the brain",
            )
        known[known] = varies
        return mean, known, {name: one[:, varies] for name, one in values.items()}

    def _read(self, scan: ScanFiles, found: OnTemplate) -> Mapping[str, Array]:
        return load_arrays(self.aligned(scan, found.template))


def _varies(values: Array, sites: Array) -> Array:
    """Whether values, shape (scan, voxel), differ within every site, by which ComBat divides."""
    spreads = [np.ptp(values[sites == site], axis=0) for site in np.unique(sites)]
    return np.all(np.array(spreads) > 0, axis=0)
