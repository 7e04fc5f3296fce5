"""How RISH learns: scans to a template, and energies of sites on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles, write_table
from siteless.errors import DatasetError, SignalError
from siteless.harmonics import FitName
from siteless.methods import (
    CLIP,
    SMOOTHING,
    BrainMaps,
    Energies,
    Likeness,
    RishModel,
    align,
    likeness,
    mean_maps,
    site_weights,
    smooth_on_template,
    typical_likeness,
)
from siteless.model import ModelCard
from siteless.pipelines._coefficients import Recipe, load_arrays, run_stage, save_arrays
from siteless.pipelines._cohort import Cohort
from siteless.pipelines._learn import Learned, Task
from siteless.registration import Alignment, place, resample_grid

# People of a site whose mean energy is more than that of themselves.
_LEAST_PEOPLE = 3
# Scans that are tried as the start of a template.
_REFERENCES = 3
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
        work = _Work(task.recipe, task.work, same_space=self.is_same_space)
        run = partial(_run, task, self.learning)
        template = _first_template(work, self.learning, run)
        found = run(partial(work.align, template), "Registering scans")
        typical = typical_likeness(found)
        poor = [
            scan for scan, one in zip(self.learning, found, strict=True) if one.is_poor(typical)
        ]
        _write_log(task.files.log, self.learning, found, poor)
        accepted = [scan for scan in self.learning if scan not in poor]
        _require_people(accepted, self.cohort.sites, travelling=self.travelling)
        make = partial(_make, work.combine(accepted, self._weights(accepted), template))
        summary = {"likeness": asdict(typical), "not_registered": [scan.name for scan in poor]}
        return Learned(make, self.asked, summary)

    def _weights(self, scans: Sequence[ScanFiles]) -> Array:
        numbers = [self.cohort.sites.index(str(scan.site)) for scan in scans]
        people = [scan.subject for scan in scans] if self.travelling else None
        columns = [column for name in self.covariates for column in _columns(scans, name)]
        covariates = np.array(columns).reshape(len(columns), len(scans)).T
        return site_weights(numbers, covariates, people)


@dataclass(frozen=True)
class _Work:
    """What is done to each scan; the same in this process and in others."""

    recipe: Recipe
    folder: Path
    same_space: bool

    def maps(self, scan: ScanFiles) -> BrainMaps:
        """Read what registration sees of a scan."""
        return BrainMaps.from_arrays(load_arrays(self.recipe.maps(self.folder, scan)))

    def aligned(self, scan: ScanFiles, template: BrainMaps) -> Path:
        """Return the file of a scan's maps on a template."""
        told = [array.tobytes() for array in template.arrays.values()]
        digest = hashlib.blake2b(b"".join([*told, str(SMOOTHING).encode()]), digest_size=8)
        return self.folder / "aligned" / f"{self.recipe.key(scan)}-{digest.hexdigest()}.npz"

    def place(self, reference: BrainMaps, scan: ScanFiles) -> tuple[BrainMaps, Likeness]:
        """Bring a scan to another, without deformation."""
        maps = self.maps(scan)
        alignment, found = self._align(maps, reference, deform=False)
        return maps.on_static(alignment), found

    def align(self, template: BrainMaps, scan: ScanFiles) -> Likeness:
        """Register a scan to a template, and keep its energies there, unless that is done."""
        path = self.aligned(scan, template)
        if path.exists():
            return Likeness(*load_arrays(path)["likeness"].tolist())
        stored = load_arrays(self.recipe.maps(self.folder, scan))
        maps = BrainMaps.from_arrays(stored)
        alignment, found = self._align(maps, template, deform=True)
        own = Energies(stored["signal"], stored["noise"])
        energies = smooth_on_template(own, stored["bright"], alignment)
        kept = {**maps.on_static(alignment).arrays, **vars(energies)}
        save_arrays(path, {**kept, "likeness": np.array(astuple(found))})
        return found

    def _align(
        self, maps: BrainMaps, template: BrainMaps, *, deform: bool
    ) -> tuple[Alignment, Likeness]:
        if self.same_space:
            placed = place(maps.grid, template.grid)
            return placed, likeness(maps, template, placed)
        return align(maps, template, deform=deform)

    def combine(
        self, scans: Sequence[ScanFiles], weights: Array, template: BrainMaps
    ) -> tuple[BrainMaps, Array, Array]:
        """Return the mean of scans on the template, the sites' energies, and the noise's."""
        maps = []
        signal, noise = np.zeros(1), np.zeros(1)
        for scan, own in zip(scans, weights.T, strict=True):
            stored = load_arrays(self.aligned(scan, template))
            maps.append(BrainMaps.from_arrays(stored))
            signal = signal + own[:, None, None, None, None] * stored["signal"]
            noise = noise + stored["noise"] / len(scans)
        return mean_maps(maps), signal.astype(np.float32), noise.astype(np.float32)


def _make(learned: tuple[BrainMaps, Array, Array], card: ModelCard) -> RishModel:
    template, energies, noise = learned
    return RishModel(card, template, energies, noise)


def _run(
    task: Task, scans: Sequence[ScanFiles], function: Callable[[ScanFiles], Any], title: str
) -> list[Any]:
    stage = task.progress and task.progress(title)
    return run_stage(function, scans, nprocs=task.nprocs, progress=stage)


def _first_template(
    work: _Work, scans: Sequence[ScanFiles], run: Callable[..., list[Any]]
) -> BrainMaps:
    """Return the mean of scans that lie on one of them, not yet deformed.

    The one is of median size; another is tried when most scans do not lie on it.

    Raises
    ------
    SignalError
        When there is none that most scans lie on.
    """
    for reference in _references(work, scans):
        placed = run(partial(work.place, reference), "Aligning scans")
        typical = typical_likeness([found for _, found in placed])
        good = [maps for maps, found in placed if not found.is_poor(typical)]
        if 2 * len(good) > len(scans):
            return mean_maps(good)
    raise SignalError(
        "expected scans that can be registered to each other, but most do not lie on any of "
        f"{_REFERENCES} that were tried ({typical})",
        remedy="check orientations and masks by `siteless check`",
    )


def _references(work: _Work, scans: Sequence[ScanFiles]) -> Iterator[BrainMaps]:
    """Give some scans, those of median size first, on grids along the world's axes."""
    sizes = []
    for scan in scans:
        maps = work.maps(scan)
        sizes.append(float((maps.image > 0).sum() * np.prod(maps.grid.voxel_size)))
    off = np.abs(np.array(sizes) - np.median(sizes))
    for number in np.argsort(off, kind="stable")[:_REFERENCES]:
        maps = work.maps(scans[number])
        yield maps.on_static(place(maps.grid, resample_grid(maps.grid, _VOXEL_SIZE)))


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


def _write_log(
    path: Path,
    scans: Sequence[ScanFiles],
    found: Sequence[Likeness],
    poor: Sequence[ScanFiles],
) -> None:
    """Write how well each scan lies on the template."""
    rows = [
        {
            "scan": scan.name,
            "site": str(scan.site),
            **{name: f"{value:.4f}" for name, value in asdict(one).items()},
            "registered": "no" if scan in poor else "yes",
        }
        for scan, one in zip(scans, found, strict=True)
    ]
    write_table(path, rows)
