"""How ComBat learns: maps of scans to a template, and sites' shifts and scales on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import numpy as np

from siteless.acquisition import Array, GradientTable
from siteless.bids import ScanFiles
from siteless.errors import DatasetError, SignalError, errors_at
from siteless.harmonics import FitName
from siteless.methods.combat import CombatModel, estimate, require_neurocombat
from siteless.methods.rish import site_weights
from siteless.methods.template import BrainMaps, mean_maps
from siteless.microstructure import default_maps, require_maps
from siteless.pipelines._choice import read_table
from siteless.pipelines._cohort import Cohort
from siteless.pipelines._learn import Learned, Task
from siteless.pipelines._template import (
    OnTemplate,
    TemplateWork,
    bring_to_template,
    is_common_space,
    learn_covariates,
    require_people,
    site_numbers,
)
from siteless.population import covariate_columns
from siteless.registration import Alignment
from siteless.storage import load_arrays

# Of a template's voxel, the part that a scan's brain must cover to tell of it.
_COVERED = 0.5


@dataclass(frozen=True)
class Combat:
    """Compares maps of sites on a template."""

    cohort: Cohort
    same_space: bool | None
    covariates: tuple[str, ...]
    maps: tuple[str, ...] | None
    fit: FitName = "laplace-beltrami"
    needs_maps = True
    needs_survey = False

    def __post_init__(self) -> None:
        require_neurocombat()
        with errors_at(self.cohort.learning[0].dwi):
            require_maps(self.microstructure, self._gradients)
        self._require_enough(self.cohort.learning)

    @cached_property
    def _gradients(self) -> GradientTable:
        return read_table(self.cohort.learning[0])

    @property
    def microstructure(self) -> tuple[str, ...]:
        """The maps that were asked for, or those that the shells support."""
        return default_maps(self._gradients) if self.maps is None else self.maps

    @property
    def asked(self) -> Mapping[str, Any]:
        """Settings that a model is known by."""
        return {
            "maps": list(self.microstructure),
            "same_space": is_common_space(self.cohort.learning, asked=self.same_space),
            "covariates": list(self.covariates),
        }

    def learn(self, task: Task) -> Learned:
        """Build the template, then run ComBat on each map."""
        same_space = self.asked["same_space"]
        work = _Work(task.workspace, same_space, names=self.microstructure)
        found = bring_to_template(task, work, self.cohort.learning)
        self._require_enough(found.accepted)
        template, known, values = work.combine(found, self._numbers(found.accepted))
        columns, numbers = self._columns(found.accepted), self._numbers(found.accepted)
        estimates = {name: estimate(one, numbers, columns) for name, one in values.items()}
        learned = learn_covariates(found.accepted, self.covariates)
        settings = {**self.asked, "learned_covariates": [asdict(one) for one in learned]}
        summary = {**found.summary, "neuroCombat": version("neuroCombat")}
        return Learned(
            lambda card: CombatModel(card, template, known, estimates), settings, summary
        )

    def _numbers(self, scans: Sequence[ScanFiles]) -> list[int]:
        return site_numbers(scans, self.cohort.sites)

    def _columns(self, scans: Sequence[ScanFiles]) -> Array:
        learned = learn_covariates(scans, self.covariates)
        return covariate_columns(learned, [scan.attributes for scan in scans])

    def _require_enough(self, scans: Sequence[ScanFiles]) -> None:
        """Refuse scans that are too few, or whose sites cannot be told from covariates."""
        require_people(scans, self.cohort.sites)
        columns = self._columns(scans)
        people = [scan.subject for scan in scans]
        site_weights(self._numbers(scans), people, columns, travelling=False)
        if len(scans) <= len(self.cohort.sites) + columns.shape[1]:
            raise DatasetError(
                f"expected more training scans than sites and covariates, found {len(scans)}",
                remedy="give more, or name fewer --covariates",
            )


@dataclass(frozen=True)
class _Work(TemplateWork):
    names: tuple[str, ...]

    @property
    def told(self) -> str:
        """Which maps are brought."""
        return ",".join(self.names)

    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return the maps of microstructure, and which part of a voxel is in the brain."""
        read = partial(self.workspace.read, "microstructure", scan)
        own = {name: read(name)[name] for name in self.names}
        brain = np.any([values != 0 for values in own.values()], axis=0)
        covered = alignment.to_static(brain.astype(np.float32))
        # Over the brain's part, as a voxel at its edge is no darker for what is beyond.
        part = np.maximum(covered, _COVERED)
        brought = {f"own_{n}": alignment.to_static(values) / part for n, values in own.items()}
        return {**brought, "covered": covered}

    def combine(
        self, found: OnTemplate, sites: Sequence[int]
    ) -> tuple[BrainMaps, Array, dict[str, Array]]:
        """Return the mean of scans, the voxels that all tell of, and maps there, (scan, voxel).

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
