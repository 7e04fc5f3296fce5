"""`siteless check`: read every scan, and say everything that is wrong in one run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from siteless.acquisition import Array, GradientTable, Scan
from siteless.bids import (
    ScanFiles,
    find_scans,
    read_brain_mask,
    read_gradients,
    read_header,
    read_mask,
    read_sidecar,
    read_volumes,
    require_one_gradient_a_volume,
)
from siteless.errors import SitelessError
from siteless.pipelines._parallel import run_all
from siteless.preflight import (
    Problem,
    ScanFacts,
    Severity,
    axis_problems,
    cohort_problems,
    direction_problems,
    mask_problems,
    signal_problems,
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class CheckReport:
    """What the check found.

    Attributes
    ----------
    dataset
        The folder or manifest that was checked.
    scans
        What was read of each scan, in the dataset's order.
    problems
        Errors first, each kind in the order of the scans.
    """

    dataset: Path
    scans: tuple[ScanFacts, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """What must be mended."""
        return tuple(p for p in self.problems if p.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """What should be understood."""
        return tuple(p for p in self.problems if p.severity is Severity.WARNING)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain types, for JSON."""
        return {
            "dataset": str(self.dataset),
            "scans": [_plain(asdict(scan)) for scan in self.scans],
            "problems": [_plain(asdict(problem)) for problem in self.problems],
        }


def check_dataset(
    dataset: Path | str,
    *,
    site_from: str | None = None,
    filters: Mapping[str, Collection[str]] | None = None,
    order: int = 8,
    nprocs: int | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check every scan of a dataset, and the scans against each other.

    Parameters
    ----------
    dataset, site_from, filters
        As for `siteless.bids.find_scans`.
    order
        Order of the harmonics that the scans are meant to be fitted with.
    nprocs
        Processes to read scans with; by default one for each core that may be used.
    progress
        Called with the number of scans done, their total, and the name of the last one.
    """
    found = find_scans(dataset, site_from=site_from, filters=filters)
    problems = [Problem.from_error(error, found.root) for error in found.errors]
    facts: list[ScanFacts | None] = [None] * len(found.scans)
    by_scan: list[list[Problem]] = [[] for _ in found.scans]
    inspect = partial(inspect_scan, order=order)
    for done, (position, (fact, own)) in enumerate(
        run_all(inspect, found.scans, nprocs=nprocs), start=1
    ):
        facts[position], by_scan[position] = fact, own
        if progress:
            progress(done, len(found.scans), found.scans[position].name)
    scans = tuple(fact for fact in facts if fact is not None)
    problems += [problem for own in by_scan for problem in own]
    problems += cohort_problems(scans, found.root)
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.severity)
    return CheckReport(found.root, scans, tuple(ordered))


def inspect_scan(files: ScanFiles, *, order: int) -> tuple[ScanFacts, list[Problem]]:
    """Read one scan part by part, so that one broken part does not hide the others."""
    problems: list[Problem] = []
    attempt = partial(_attempt, problems, files)
    attempt(read_sidecar, files)
    image = attempt(read_header, files.dwi)
    # The shape of a table can be judged without an image; its axes cannot, and are not.
    signal, affine = (attempt(read_volumes, files) if image else None) or (None, np.eye(4))
    gradients = attempt(read_gradients, files, affine)
    shells = attempt(lambda: gradients.shells) if gradients else None
    if shells is not None:
        problems += _table_problems(files, gradients, order)
    if gradients and signal is not None:
        fits = attempt(_require_fitting, files, gradients, signal)
        if fits and shells and gradients.is_b0.any():
            problems += _signal_problems(files, signal, affine, gradients)
    facts = ScanFacts(
        path=files.dwi,
        subject=files.subject,
        site=files.site.label if files.site else None,
        attributes=dict(files.attributes),
        shells=tuple(round(shell.b, 3) for shell in shells) if shells else None,
        voxel_size=_voxel_size(image[1]) if image else None,
        orientation="".join(nib.aff2axcodes(image[1])) if image else None,
        fingerprint=None if signal is None else _fingerprint(signal),
    )
    return facts, problems


def _attempt(
    problems: list[Problem], files: ScanFiles, read: Callable[..., Any], *arguments: Any
) -> Any:
    """Return what reading gives, or note what is wrong and return None."""
    try:
        return read(*arguments)
    except SitelessError as error:
        problems.append(Problem.from_error(error, files.dwi))
        return None


def _require_fitting(files: ScanFiles, gradients: GradientTable, signal: Array) -> bool:
    require_one_gradient_a_volume(files, gradients, signal)
    return True


def _table_problems(files: ScanFiles, gradients: GradientTable, order: int) -> list[Problem]:
    path = files.world_table or files.bval or files.dwi
    if not gradients.shells:
        what = "the scan has b0 volumes only; it is left out"
        remedy = "expected of reversed phase-encoding scans; filter them out to silence this"
        return [Problem("b0-only", Severity.WARNING, path, what, remedy)]
    return direction_problems(gradients, order, path)


def _signal_problems(
    files: ScanFiles, signal: Array, affine: Array, gradients: GradientTable
) -> list[Problem]:
    problems: list[Problem] = []
    attempt = partial(_attempt, problems, files)
    if files.white_matter is not None:
        attempt(read_mask, files.white_matter, signal.shape[:3], affine)
    brain, _ = attempt(read_brain_mask, files, signal, affine, gradients) or (None, None)
    if brain is None:
        return problems
    if files.mask is not None:
        problems += mask_problems(brain, files.mask)
    broken = signal_problems(signal, brain, files.dwi)
    if not any(problem.severity is Severity.ERROR for problem in broken):
        scan = Scan(signal, affine, gradients, mask=brain, white_matter=brain)
        table = files.world_table or files.bvec or files.dwi
        broken += attempt(axis_problems, scan, table) or []
    return problems + broken


def _voxel_size(affine: Array) -> tuple[float, ...]:
    return tuple(np.linalg.norm(affine[:3, :3], axis=0).tolist())


def _fingerprint(signal: Array) -> str:
    return hashlib.blake2b(np.ascontiguousarray(signal.T).data, digest_size=16).hexdigest()


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {key: str(part) if isinstance(part, Path) else part for key, part in content.items()}
