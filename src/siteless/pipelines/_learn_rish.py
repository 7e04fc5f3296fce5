"""How RISH learns: scans to a template, and energies of sites on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles, write_table
from siteless.errors import DatasetError
from siteless.harmonics import FitName
from siteless.methods import (
    CLIP,
    SMOOTHING,
    BrainMaps,
    Energies,
    Likeness,
    RishModel,
    align,
    mean_maps,
    site_weights,
    smooth_on_template,
)
from siteless.model import ModelCard
from siteless.pipelines._coefficients import Recipe, load_arrays, run_stage, save_arrays
from siteless.pipelines._cohort import Cohort
from siteless.pipelines._learn import Learned, Task
from siteless.registration import place, register_affine, resample_grid

# People of a site whose mean energy is more than that of themselves.
_LEAST_PEOPLE = 3
# mm. Finer than energies are compared at, and what registration works at.
_VOXEL_SIZE = 2.5
# Names of spaces that people share begin so, in the entity ``space``.
_TEMPLATES = ("MNI", "ICBM", "IXI549", "OASIS", "NIHPD", "UNCInfant", "Talairach")


@dataclass(frozen=True)
class Rish:
    """Compares the energies of sites on a template."""

    cohort: Cohort
    travelling: bool
    same_space: bool | None
    covariates: tuple[str, ...]
    fit: FitName = "laplace-beltrami"
    needs_maps = True

    def __post_init__(self) -> None:
        _require_people(self.learning, self.cohort.sites, travelling=self.travelling)
        self._weights(self.learning)

    @property
    def learning(self) -> tuple[ScanFiles, ...]:
        """Scans that are compared: all to learn from, or those of travelling people."""
        return _travellers(self.cohort.learning) if self.travelling else self.cohort.learning

    @property
    def is_same_space(self) -> bool:
        """Whether scans are in one space already, as the user or their names say."""
        if self.same_space is not None:
            return self.same_space
        spaces = {scan.entities.get("space", "") for scan in self.cohort.learning}
        return len(spaces) == 1 and spaces.pop().startswith(_TEMPLATES)

    @property
    def asked(self) -> Mapping[str, Any]:
        """Settings that a model is known by."""
        return {
            "travelling": self.travelling,
            "same_space": self.is_same_space,
            "covariates": list(self.covariates),
            "smoothing": SMOOTHING,
            "clip": list(CLIP),
        }

    def learn(self, task: Task) -> Learned:
        """Build the template, then the energies of each site on it."""
        steps = _Steps(task, self.learning, same_space=self.is_same_space)
        template = steps.first_template()
        rows = steps.align_all(template)
        failed = [s.name for s, row in zip(self.learning, rows, strict=True) if row.failed]
        _write_rows(task.files.log, self.learning, rows)
        accepted = [scan for scan in self.learning if scan.name not in failed]
        _require_people(accepted, self.cohort.sites, travelling=self.travelling)
        weights = self._weights(accepted)
        mean, signal, noise = steps.combine(accepted, weights)
        summary = {"not_registered": failed, **_means(rows)}
        make = partial(_make, template=mean, energies=signal, noise=noise)
        return Learned(make, self.asked, summary)

    def _weights(self, scans: Sequence[ScanFiles]) -> Array:
        numbers = [self.cohort.sites.index(str(scan.site)) for scan in scans]
        people = [scan.subject for scan in scans] if self.travelling else None
        columns = [column for name in self.covariates for column in _columns(scans, name)]
        covariates = np.array(columns).reshape(len(columns), len(scans)).T
        return site_weights(numbers, covariates, people)


def _make(card: ModelCard, *, template: BrainMaps, energies: Array, noise: Array) -> RishModel:
    return RishModel(card, template, energies, noise)


@dataclass(frozen=True, eq=False)
class _Steps:
    """The work on each scan; the same in this process and in others."""

    task: Task
    scans: tuple[ScanFiles, ...]
    same_space: bool

    def first_template(self) -> BrainMaps:
        """Return the mean of scans that are aligned to one of them, but not yet deformed."""
        reference = self._reference()
        found = self._run(partial(_place_affinely, self._job, reference), "Aligning scans")
        return mean_maps(found)

    def align_all(self, template: BrainMaps) -> list[Likeness]:
        """Register every scan to a template, and keep its energies there."""
        return self._run(partial(_align, self._job, template), "Registering scans")

    def combine(
        self, scans: Sequence[ScanFiles], weights: Array
    ) -> tuple[BrainMaps, Array, Array]:
        """Return the mean of scans on the template, the sites' energies, and the noise's."""
        maps = []
        signal, noise = np.zeros(1), np.zeros(1)
        for scan, own in zip(scans, weights.T, strict=True):
            stored = load_arrays(self._job.aligned(scan))
            maps.append(BrainMaps.from_arrays(stored))
            signal = signal + own[:, None, None, None, None] * stored["signal"]
            noise = noise + stored["noise"] / len(scans)
        return mean_maps(maps), signal.astype(np.float32), noise.astype(np.float32)

    @property
    def _job(self) -> _Job:
        return _Job(self.task.recipe, self.task.work, self.same_space)

    def _reference(self) -> BrainMaps:
        """Return the scan whose brain is of median size, on a grid along the world's axes."""
        sizes = []
        for scan in self.scans:
            maps = self._job.maps(scan)
            sizes.append((maps.image > 0).sum() * np.prod(maps.grid.voxel_size))
        middle = self.scans[int(np.argsort(sizes, kind="stable")[len(sizes) // 2])]
        maps = self._job.maps(middle)
        return maps.on_static(place(maps.grid, resample_grid(maps.grid, _VOXEL_SIZE)))

    def _run(self, function: Any, title: str) -> list[Any]:
        stage = self.task.progress and self.task.progress(title)
        return run_stage(function, self.scans, nprocs=self.task.nprocs, progress=stage)


@dataclass(frozen=True)
class _Job:
    """Where the maps of scans are, and whether they share a space."""

    recipe: Recipe
    work: Path
    same_space: bool

    def maps(self, scan: ScanFiles) -> BrainMaps:
        """Read what registration sees of a scan."""
        return BrainMaps.from_arrays(load_arrays(self.recipe.maps(self.work, scan)))

    def aligned(self, scan: ScanFiles) -> Path:
        """Return the file of a scan's maps on the template."""
        return self.work / "aligned" / f"{self.recipe.key(scan)}.npz"


def _place_affinely(job: _Job, reference: BrainMaps, scan: ScanFiles) -> BrainMaps:
    maps = job.maps(scan)
    if job.same_space:
        return maps.on_static(place(maps.grid, reference.grid))
    return maps.on_static(register_affine(maps.image, maps.grid, reference.image, reference.grid))


def _align(job: _Job, template: BrainMaps, scan: ScanFiles) -> Likeness:
    stored = load_arrays(job.recipe.maps(job.work, scan))
    maps = BrainMaps.from_arrays(stored)
    alignment, likeness = align(maps, template, same_space=job.same_space)
    own = Energies(stored["signal"], stored["noise"])
    energies = smooth_on_template(own, stored["bright"], alignment)
    save_arrays(job.aligned(scan), {**maps.on_static(alignment).arrays, **vars(energies)})
    return likeness


def _travellers(scans: Sequence[ScanFiles]) -> tuple[ScanFiles, ...]:
    """Return the scans of people who were scanned at more than one site."""
    seen = {(scan.subject, str(scan.site)) for scan in scans}
    often = {person for person, _ in seen if sum(p == person for p, _ in seen) > 1}
    return tuple(scan for scan in scans if scan.subject in often)


def _require_people(scans: Sequence[ScanFiles], sites: Sequence[str], *, travelling: bool) -> None:
    """Refuse sites of which there are too few people to tell the site from them."""
    if travelling and not scans:
        raise DatasetError(
            "expected people who were scanned at two or more sites, found none",
            remedy="leave out --travelling",
        )
    least = 1 if travelling else _LEAST_PEOPLE
    for site in sites:
        people = {scan.subject for scan in scans if str(scan.site) == site}
        if len(people) < least:
            raise DatasetError(
                f"expected at least {least} training people of site {site} that can be "
                f"{'compared' if travelling else 'registered'}, found {len(people)}",
                remedy="give more, name other --sites, or use another --method",
            )


def choose_covariates(cohort: Cohort, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to regress on: those asked for, or age and sex where they are known."""
    if asked is None:
        known = [n for n in ("age", "sex") if all(n in s.attributes for s in cohort.learning)]
        return tuple(name for name in known if _columns(cohort.learning, name))
    for name in asked:
        lacking = [scan for scan in cohort.learning if scan.attributes.get(name) in (None, "n/a")]
        if lacking:
            raise DatasetError(
                f"nothing tells the {name} of {lacking[0].name}",
                remedy="add it to participants.tsv, or name other --covariates",
                path=lacking[0].dwi,
            )
    return tuple(asked)


def _columns(scans: Sequence[ScanFiles], name: str) -> list[list[float]]:
    """Return a covariate as numbers: itself, or a column for all but one of its words."""
    words = [scan.attributes[name] for scan in scans]
    try:
        columns = [[float(word) for word in words]]
    except ValueError:
        columns = [[float(w == word) for w in words] for word in sorted(set(words))[1:]]
    return [column for column in columns if len(set(column)) > 1]


def _write_rows(path: Path, scans: Sequence[ScanFiles], rows: Sequence[Likeness]) -> None:
    """Write how well each scan lies on the template."""
    table = [
        {
            "scan": scan.name,
            "site": str(scan.site),
            **{name: f"{value:.4f}" for name, value in row.row.items()},
            "registered": "no" if row.failed else "yes",
        }
        for scan, row in zip(scans, rows, strict=True)
    ]
    write_table(path, table)


def _means(rows: Sequence[Likeness]) -> dict[str, float]:
    """Return the mean figures of registration, for the card."""
    names = ("overlap_before", "overlap", "correlation_before", "correlation")
    return {name: float(np.mean([getattr(row, name) for row in rows])) for name in names}
