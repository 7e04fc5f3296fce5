"""How RISH learns: scans to a template, and energies of sites on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from siteless.acquisition import Array
from siteless.bids import ScanFiles
from siteless.harmonics import FitName
from siteless.methods.rish import (
    CLIP,
    SMOOTHING,
    Energies,
    RishModel,
    site_energies,
    site_weights,
    smooth_on_template,
)
from siteless.methods.template import BrainMaps, mean_maps
from siteless.model import ModelCard
from siteless.pipelines._cohort import Cohort
from siteless.pipelines._learn import Learned, Task
from siteless.pipelines._template import (
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

_ENERGIES = ("signal", "noise", "weight")


@dataclass(frozen=True)
class Rish:
    """Compares the energies of sites on a template."""

    cohort: Cohort
    travelling: bool
    same_space: bool | None
    covariates: tuple[str, ...]
    fit: FitName = "laplace-beltrami"
    needs_maps = True
    needs_survey = False
    microstructure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_people(self.learning, self.cohort.sites, travelling=self.travelling)
        self._weights(self.learning)

    @property
    def learning(self) -> tuple[ScanFiles, ...]:
        """Scans that are compared: all to learn from, or those of travelling people."""
        return _travellers(self.cohort.learning) if self.travelling else self.cohort.learning

    @property
    def asked(self) -> Mapping[str, Any]:
        """Settings that a model is known by."""
        return {
            "travelling": self.travelling,
            "same_space": is_common_space(self.cohort.learning, asked=self.same_space),
            "covariates": list(self.covariates),
            "smoothing": SMOOTHING,
            "clip": list(CLIP),
        }

    def learn(self, task: Task) -> Learned:
        """Build the template, then the energies of each site on it."""
        work = _Work(task.workspace, self.asked["same_space"])
        found = bring_to_template(task, work, self.learning)
        require_people(found.accepted, self.cohort.sites, travelling=self.travelling)
        weights = self._weights(found.accepted)
        make = partial(_make, work.combine(found.accepted, weights, found.template))
        return Learned(make, self.asked, found.summary)

    def _weights(self, scans: Sequence[ScanFiles]) -> Array:
        people = [scan.subject for scan in scans]
        learned = learn_covariates(scans, self.covariates)
        columns = covariate_columns(learned, [scan.attributes for scan in scans])
        sites = site_numbers(scans, self.cohort.sites)
        return site_weights(sites, people, columns, travelling=self.travelling)


@dataclass(frozen=True)
class _Work(TemplateWork):
    @property
    def told(self) -> str:
        """Over what energies are averaged."""
        return str(SMOOTHING)

    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return energies, averaged over near voxels."""
        stored = self.workspace.read("maps", scan)
        own = Energies(*(stored[name] for name in _ENERGIES))
        return vars(smooth_on_template(own, alignment))

    def combine(
        self, scans: Sequence[ScanFiles], weights: Array, template: BrainMaps
    ) -> tuple[BrainMaps, Array, Array]:
        """Return the mean of scans on the template, the sites' energies, and the noise's."""
        files = [self.aligned(scan, template) for scan in scans]
        mean = mean_maps(BrainMaps.from_arrays(load_arrays(file)) for file in files)
        inside = mean.image > 0

        def read(number: int) -> Energies:
            stored = load_arrays(files[number])
            return Energies(*(stored[name][inside] for name in _ENERGIES))

        return mean, *site_energies(read, weights)


def _make(learned: tuple[BrainMaps, Array, Array], card: ModelCard) -> RishModel:
    template, energies, noise = learned
    return RishModel(card, template, energies, noise)


def _travellers(scans: Sequence[ScanFiles]) -> tuple[ScanFiles, ...]:
    """Return the scans of people who were scanned at more than one site."""
    sites = Counter(person for person, _ in {(scan.subject, str(scan.site)) for scan in scans})
    return tuple(scan for scan in scans if sites[scan.subject] > 1)
