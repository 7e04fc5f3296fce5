"""Training of RISH: registration to a template, and site energies on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles
from siteless.harmonics import Coefficients
from siteless.methods.base import Learned, Workspace
from siteless.methods.cohort import Cohort, columns_of, require_people, site_numbers
from siteless.methods.rish._model import (
    SMOOTHING,
    Energies,
    RishModel,
    energies_of,
    site_energies,
    site_weights,
    smooth_on_template,
)
from siteless.methods.template import BrainMaps, TemplateWork, bring_to_template, mean_maps
from siteless.registration import Alignment
from siteless.storage import load_arrays
from siteless.tissue import white_matter_level

# Kind under which the energies of a scan are stored.
ENERGIES = "energies"


def energy_maps(scan: Scan, coefficients: Coefficients) -> Mapping[str, Array]:
    """Return the energies of a scan as maps."""
    energies = energies_of(scan, coefficients, white_matter_level(scan))
    return {name: coefficients.on_grid(values) for name, values in vars(energies).items()}


def require_comparable(settings: Mapping[str, Any], cohort: Cohort) -> None:
    """Raise an error for a cohort whose sites cannot be separated from its participants."""
    scans = _compared(settings, cohort)
    require_people(scans, cohort.sites, travelling=settings["travelling"])
    _weights(settings, cohort, scans)


def learn_energies(settings: Mapping[str, Any], cohort: Cohort, workspace: Workspace) -> Learned:
    """Build the template, and estimate the energies of each site on it."""
    work = _EnergyWork(workspace.store, settings["same_space"])
    scans = _compared(settings, cohort)
    template, accepted, summary = bring_to_template(workspace, work, scans, cohort.sites)
    require_people(accepted, cohort.sites, travelling=settings["travelling"])
    weights = _weights(settings, cohort, accepted)
    mean, energies, noise = work.combine(accepted, weights, template)
    return Learned(lambda card: RishModel(card, mean, energies, noise), settings, summary)


def _compared(settings: Mapping[str, Any], cohort: Cohort) -> tuple[ScanFiles, ...]:
    """Return the scans to compare: all training scans, or those of travelling subjects."""
    scans = cohort.learning
    if not settings["travelling"]:
        return scans
    sites = Counter(person for person, _ in {(scan.subject, str(scan.site)) for scan in scans})
    return tuple(scan for scan in scans if sites[scan.subject] > 1)


def _weights(settings: Mapping[str, Any], cohort: Cohort, scans: Sequence[ScanFiles]) -> Array:
    return site_weights(
        site_numbers(scans, cohort.sites),
        [scan.subject for scan in scans],
        columns_of(scans, settings["covariates"]),
        travelling=settings["travelling"],
    )


@dataclass(frozen=True)
class _EnergyWork(TemplateWork):
    @property
    def key(self) -> str:
        """Distance over which energies are averaged."""
        return str(SMOOTHING)

    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return energies on the template, averaged over nearby voxels."""
        energies = Energies(**self.store.read(ENERGIES, scan))
        return vars(smooth_on_template(energies, alignment))

    def combine(
        self, scans: Sequence[ScanFiles], weights: Array, template: BrainMaps
    ) -> tuple[BrainMaps, Array, Array]:
        """Return the mean of scans on the template, and the energies of sites and of noise."""
        files = [self.aligned(scan, template) for scan in scans]
        mean = mean_maps(BrainMaps.from_arrays(load_arrays(file)) for file in files)
        inside = mean.image > 0

        def read(number: int) -> Energies:
            stored = load_arrays(files[number])
            return Energies(*(stored[field.name][inside] for field in fields(Energies)))

        return mean, *site_energies(read, weights)
