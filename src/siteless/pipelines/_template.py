"""What methods share that compare people on a template: registration, its log, covariates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from siteless.acquisition import Array
from siteless.bids import ScanFiles, write_table
from siteless.errors import DatasetError, SignalError
from siteless.methods.template import BrainMaps, Likeness, lay, mean_maps, typical_likeness
from siteless.pipelines._cohort import Cohort
from siteless.pipelines._learn import Task
from siteless.pipelines._run import Run
from siteless.pipelines._workspace import Workspace
from siteless.population import Covariate, covariate_columns
from siteless.registration import Alignment, place, resample_grid
from siteless.storage import cache_key, is_whole, load_arrays, save_arrays

# People of a site whose mean is more than that of themselves.
_LEAST_PEOPLE = 3
# Scans that are tried as the start of a template, and that its first mean is of at most.
_REFERENCES, _FIRST = 3, 60
# mm. Finer than sites are compared at, and what registration works at.
_VOXEL_SIZE = 2.5
# Names of spaces that people share begin so, in the entity ``space``.
_TEMPLATES = ("MNI", "ICBM", "IXI549", "OASIS", "NIHPD", "UNCInfant", "Talairach")

# Columns of the tables that explain people by default.
_USUAL_COVARIATES = ("age", "sex", "group")


@dataclass(frozen=True)
class TemplateWork(ABC):
    """What is done to each scan; the same in this process and in others."""

    workspace: Workspace
    same_space: bool

    @property
    @abstractmethod
    def told(self) -> str:
        """Say what `bring` depends on, beside the scan and the template."""

    @abstractmethod
    def bring(self, scan: ScanFiles, alignment: Alignment) -> Mapping[str, Array]:
        """Return what sites are compared by, on the template."""

    def maps(self, scan: ScanFiles) -> BrainMaps:
        """Read what registration sees of a scan."""
        return BrainMaps.from_arrays(self.workspace.read("maps", scan))

    def aligned(self, scan: ScanFiles, template: BrainMaps) -> Path:
        """Return the file of a scan's maps on a template."""
        return self._file("aligned", scan, template, self.told)

    def _file(self, kind: str, scan: ScanFiles, template: BrainMaps, told: str = "") -> Path:
        return self.workspace.file(kind, scan, cache_key(*template.arrays.values(), told))

    def place(self, reference: BrainMaps, scan: ScanFiles) -> tuple[BrainMaps, Likeness]:
        """Bring a scan to another, without deformation."""
        maps = self.maps(scan)
        alignment, found = lay(maps, reference, same_space=self.same_space, deform=False)
        return maps.on_static(alignment), found

    def align(self, template: BrainMaps, scan: ScanFiles) -> Likeness:
        """Register a scan to a template, and keep what it has there, unless that is done."""
        path = self.aligned(scan, template)
        if is_whole(path):
            return Likeness(*load_arrays(path)["likeness"].tolist())
        maps = self.maps(scan)
        alignment, found = self._lay(maps, template, scan)
        kept = {**maps.on_static(alignment).arrays, **self.bring(scan, alignment)}
        save_arrays(path, {**kept, "likeness": np.array(astuple(found))})
        return found

    def _lay(
        self, maps: BrainMaps, template: BrainMaps, scan: ScanFiles
    ) -> tuple[Alignment, Likeness]:
        """Register a scan to a template, unless another method has."""
        path = self._file("registrations", scan, template)
        if is_whole(path) and not self.same_space:
            stored = load_arrays(path)
            alignment = Alignment.from_arrays(maps.grid, template.grid, stored)
            return alignment, Likeness(*stored["likeness"].tolist())
        alignment, found = lay(maps, template, same_space=self.same_space)
        if not self.same_space:
            save_arrays(path, {**alignment.arrays, "likeness": np.array(astuple(found))})
        return alignment, found


@dataclass(frozen=True, eq=False)
class OnTemplate:
    """Scans that were brought to a template.

    Attributes
    ----------
    template
        That they were brought to.
    accepted
        Those that lie on it as scans typically do.
    summary
        How well they lie, and which do not, for the card.
    """

    template: BrainMaps
    accepted: tuple[ScanFiles, ...]
    summary: Mapping[str, Any]


def bring_to_template(task: Task, work: TemplateWork, scans: Sequence[ScanFiles]) -> OnTemplate:
    """Build a template of scans, bring them to it, and write the log.

    Raises
    ------
    SignalError
        When most scans cannot be registered to each other.
    """
    some = _some_of_each_site(scans)
    template = _first_template(work, some, task.run)
    found = task.run.map("Registering scans", partial(work.align, template), scans)
    typical = typical_likeness(found)
    poor = [scan for scan, one in zip(scans, found, strict=True) if one.is_poor(typical)]
    _write_log(task.files.log, scans, found, poor)
    accepted = tuple(scan for scan in scans if scan not in poor)
    sites = Counter(str(scan.site) for scan in accepted)
    summary = {
        "likeness": asdict(typical),
        "not_registered": [scan.name for scan in poor],
        "training_scans": {site: sites[site] for site in task.lesson.sites},
    }
    return OnTemplate(template, accepted, summary)


def _some_of_each_site(scans: Sequence[ScanFiles]) -> list[ScanFiles]:
    """Return few enough scans for a first mean, of all sites alike."""
    sites = sorted({str(scan.site) for scan in scans})
    own = [[scan for scan in scans if str(scan.site) == site] for site in sites]
    most = max(1, _FIRST // len(sites))
    return [scan for group in own for scan in group[:: -(-len(group) // most)]]


def is_common_space(scans: Sequence[ScanFiles], *, asked: bool | None) -> bool:
    """Whether scans are in one space already, as the user or their names say."""
    if asked is not None:
        return asked
    spaces = {scan.entities.get("space", "") for scan in scans}
    return len(spaces) == 1 and spaces.pop().startswith(_TEMPLATES)


def site_numbers(scans: Sequence[ScanFiles], sites: Sequence[str]) -> list[int]:
    """Return the number of each scan's site."""
    return [list(sites).index(str(scan.site)) for scan in scans]


def require_people(
    scans: Sequence[ScanFiles], sites: Sequence[str], *, travelling: bool = False
) -> None:
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
                f"expected at least {least} training people of site {site}"
                f"{' who travelled' if travelling else ''}, found {len(people)}",
                remedy="give more (where tables have a split column, those of train count), name "
                "other --sites, or use another --method",
            )


def choose_covariates(cohort: Cohort, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to regress on: those asked for, or the usual ones where they are known.

    Raises
    ------
    DatasetError
        When a column is known of some scans only, or is asked for and the same for all.
    """
    scans = cohort.learning
    names = _USUAL_COVARIATES if asked is None else asked
    lacking = {n: [s for s in scans if s.attributes.get(n) in (None, "n/a")] for n in names}
    for name, some in lacking.items():
        if asked is not None and len(some) == len(scans):
            known = {column for scan in scans for column in scan.attributes}
            columns = sorted(known - {"subject", "site", "split", "session"})
            raise DatasetError(
                f"no table has the column {name!r}",
                remedy=f"choose --covariates of {', '.join(columns) or 'none'}",
            )
        if some and (asked is not None or len(some) < len(scans)):
            raise DatasetError(
                f"the {name} of {_people(some)} is unknown",
                remedy="add it to participants.tsv, or name other --covariates",
                path=some[0].dwi,
            )
    found = learn_covariates(scans, [name for name in names if not lacking[name]])
    constant = [covariate.name for covariate in found if not covariate.means]
    if constant and asked is not None:
        raise DatasetError(
            f"the {constant[0]} is the same for everybody", remedy="name other --covariates"
        )
    return tuple(covariate.name for covariate in found if covariate.means)


def _people(scans: Sequence[ScanFiles]) -> str:
    people = sorted({f"sub-{scan.subject}" for scan in scans})
    return ", ".join(people[:5]) + (", ..." if len(people) > 5 else "")


def learn_covariates(scans: Sequence[ScanFiles], names: Sequence[str]) -> list[Covariate]:
    """Learn what columns of the tables hold."""
    return [Covariate.of(name, [scan.attributes[name] for scan in scans]) for name in names]


def covariate_rows(scans: Sequence[ScanFiles], names: Sequence[str]) -> dict[str, Array]:
    """Return the covariates of each scan by its name, shape (column,); empty without any."""
    columns = np.hstack([np.zeros((len(scans), 0)), *columns_by_covariate(scans, names).values()])
    return {s.name: row for s, row in zip(scans, columns, strict=True)} if names else {}


def columns_by_covariate(scans: Sequence[ScanFiles], names: Sequence[str]) -> dict[str, Array]:
    """Return the columns of each covariate by its name, shape (scan, column)."""
    told = [scan.attributes for scan in scans]
    return {one.name: covariate_columns([one], told) for one in learn_covariates(scans, names)}


def _first_template(work: TemplateWork, scans: Sequence[ScanFiles], run: Run) -> BrainMaps:
    """Return the mean of scans that lie on one of them, not yet deformed.

    The one is of median size; another is tried when most scans do not lie on it.

    Raises
    ------
    SignalError
        When there is none that most scans lie on.
    """
    for reference in _references(work, scans):
        placed = run.map("Aligning scans", partial(work.place, reference), scans)
        typical = typical_likeness([found for _, found in placed])
        good = [maps for maps, found in placed if not found.is_poor(typical)]
        if 2 * len(good) > len(scans):
            return mean_maps(good)
    raise SignalError(
        "expected scans that can be registered to each other, but most do not lie on any of "
        f"{_REFERENCES} that were tried ({typical})",
        remedy="check orientations and masks by `siteless check`",
    )


def _references(work: TemplateWork, scans: Sequence[ScanFiles]) -> Iterator[BrainMaps]:
    """Give some scans, those of median size first, on grids along the world's axes."""
    sizes = []
    for scan in scans:
        maps = work.maps(scan)
        sizes.append(float((maps.image > 0).sum() * np.prod(maps.grid.voxel_size)))
    off = np.abs(np.array(sizes) - np.median(sizes))
    for number in np.argsort(off, kind="stable")[:_REFERENCES]:
        maps = work.maps(scans[number])
        yield maps.on_static(place(maps.grid, resample_grid(maps.grid, _VOXEL_SIZE)))


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
