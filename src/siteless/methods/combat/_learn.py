"""Training of ComBat: maps on a template, and the shift and scale of each site."""

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
from siteless.methods.template import BrainMaps, TemplateWork, bring_to_template, mean_maps
from siteless.microstructure import compute_maps, default_maps, require_maps
from siteless.registration import Alignment
from siteless.storage import load_arrays

if TYPE_CHECKING:
    from siteless.methods.base import Feature

# Fraction of a template voxel that a scan's brain must cover.
_COVERED = 0.5


def choose_maps(cohort: Cohort, requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested maps, or those that the shells support."""
    require_neurocombat()
    first = cohort.learning[0]
    with errors_at(first.dwi):
        gradients = read_gradient_table(first)
        maps = default_maps(gradients) if requested is None else tuple(requested)
        require_maps(maps, gradients)
    return maps


def microstructure(maps: Sequence[str]) -> Mapping[str, Feature]:
    """Return the function that computes maps, by the kind under which they are stored."""
    return {_kind(maps): partial(_compute, tuple(maps))}


def _kind(maps: Sequence[str]) -> str:
    return "-".join(["microstructure", *maps])


def _compute(maps: tuple[str, ...], scan: Scan, _: Coefficients) -> Mapping[str, Array]:
    return compute_maps(scan, maps)


def require_enough(scans: Sequence[ScanFiles], cohort: Cohort, covariates: Sequence[str]) -> None:
    """Raise an error for too few scans, or sites that cannot be separated from covariates."""
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
    template, accepted, summary = bring_to_template(workspace, work, cohort.learning, cohort.sites)
    covariates = settings["covariates"]
    require_enough(accepted, cohort, covariates)
    sites, columns = site_numbers(accepted, cohort.sites), columns_of(accepted, covariates)
    mean, known, values = work.combine(accepted, sites, template)
    estimates = {name: estimate(maps, sites, columns) for name, maps in values.items()}
    learned = [asdict(covariate) for covariate in learn_covariates(accepted, covariates)]
    return Learned(
        lambda card: CombatModel(card, mean, known, estimates),
        {**settings, "learned_covariates": learned},
        {**summary, "neuroCombat": version("neuroCombat")},
    )


@dataclass(frozen=True)
class _MapWork(TemplateWork):
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """Names of the maps."""
        return ",".join(self.names)

    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return the maps and the brain fraction of each voxel on the template."""
        maps = self.store.read(_kind(self.names), scan)
        brain = np.any([values != 0 for values in maps.values()], axis=0)
        covered = alignment.to_static(brain.astype(np.float32))
        # Divided by the brain fraction, so that values do not fade at the edge.
        part = np.maximum(covered, _COVERED)
        brought = {f"own_{n}": alignment.to_static(maps[n]) / part for n in self.names}
        return {**brought, "covered": covered}

    def combine(
        self, scans: Sequence[ScanFiles], sites: Sequence[int], template: BrainMaps
    ) -> tuple[BrainMaps, Array, dict[str, Array]]:
        """Return the mean of scans, the voxels covered by all, and their maps, (scan, voxel).

        Voxels cover the whole brain: white matter alone would leave a step at its edge.
        """
        files = [self.aligned(scan, template) for scan in scans]
        mean = mean_maps(BrainMaps.from_arrays(load_arrays(file)) for file in files)
        known = np.ones_like(mean.image, dtype=bool)
        for file in files:
            known &= load_arrays(file)["covered"] >= _COVERED
        values = {
            name: np.stack([load_arrays(file)[f"own_{name}"][known] for file in files])
            for name in self.names
        }
        varies = np.all([_varies(stack, np.array(sites)) for stack in values.values()], axis=0)
        if not varies.any():
            raise SignalError(
                "no voxel of the template is covered by all scans",
                remedy="check masks and fields of view, and leave out those that miss the brain",
            )
        known[known] = varies
        return mean, known, {name: stack[:, varies] for name, stack in values.items()}


def _varies(values: Array, sites: Array) -> Array:
    """Whether values, (scan, voxel), vary within every site, as ComBat requires."""
    ranges = [np.ptp(values[sites == site], axis=0) for site in np.unique(sites)]
    return np.all(np.array(ranges) > 0, axis=0)
