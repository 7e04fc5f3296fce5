"""`siteless check`: read every scan, and say everything that is wrong in one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, count_axes
from siteless.bids import (
    Dataset,
    ScanFiles,
    ScanSelection,
    read_brain_mask,
    read_gradients,
    read_header,
    read_mask,
    read_sidecar,
    read_volumes,
    write_json,
)
from siteless.errors import SitelessError
from siteless.pipelines._run import Run
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
from siteless.storage import cache_key


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
        Errors first. Among each severity, those of the study come before those of its scans, and
        those of its design before all others.
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


def write_check(report: CheckReport, path: Path) -> None:
    """Write everything as JSON."""
    write_json(path, report.as_dict())


def check_dataset(
    dataset: ScanSelection | Path | str, *, order: int = 8, run: Run = Run()
) -> CheckReport:
    """Check every scan of a dataset, and the scans against each other.

    Parameters
    ----------
    dataset
        Its folder, a manifest, or a selection of its scans; sites are not selected.
    order
        Order of the harmonics that the scans are meant to be fitted with.
    run
        How the work is done.
    """
    selection = ScanSelection.of(dataset)
    found = selection.search()
    inspected = run.map("Checking scans", _inspect_whatever_comes, found.scans)
    scans = tuple(facts for facts, _ in inspected)
    problems = [
        *(Problem.from_error(error, found.root) for error in found.errors),
        *cohort_problems(scans, found.root, order=order),
        *_overruled_option(found, selection.site_from),
        *(problem for _, own in inspected for problem in own),
    ]
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.severity)
    return CheckReport(found.root, scans, tuple(ordered))


def _inspect_whatever_comes(files: ScanFiles) -> tuple[ScanFacts, list[Problem]]:
    """Inspect a scan; a defect of siteless itself must not hide what is wrong with the others."""
    try:
        return inspect_scan(files)
    except Exception as error:  # noqa: BLE001
        what = f"siteless failed on this scan ({type(error).__name__}: {error})"
        remedy = "please report it, with the scan's header"
        problem = Problem("internal", Severity.ERROR, files.dwi, what, remedy)
        site = files.site.label if files.site else None
        return ScanFacts(files.dwi, files.subject, site, dict(files.attributes)), [problem]


def inspect_scan(files: ScanFiles) -> tuple[ScanFacts, list[Problem]]:
    """Read one scan part by part, so that one broken part does not hide the others."""
    problems: list[Problem] = []
    attempt = partial(_attempt, problems, files.dwi)
    attempt(read_sidecar, files)
    header, affine = attempt(read_header, files.dwi) or (None, np.eye(4))
    signal, _ = (attempt(read_volumes, files) if header else None) or (None, None)
    gradients = _inspect_gradients(problems, files, affine, signal)
    if header and not header["qform_code"] and not header["sform_code"]:
        what = "the header has neither qform nor sform, so where the image lies is a guess"
        remedy = "convert the scan again"
        problems.append(Problem("no-orientation", Severity.WARNING, files.dwi, what, remedy))
    brain, origin = None, ""
    if signal is not None:
        brain, origin = _inspect_masks(problems, files, signal, affine, gradients)
    if signal is not None and brain is not None:
        problems += _signal_problems(files, signal, affine, brain, gradients)
    facts = ScanFacts(
        path=files.dwi,
        subject=files.subject,
        site=files.site.label if files.site else None,
        site_origin=files.site.origin if files.site else "",
        attributes=dict(files.attributes),
        brain_mask=origin,
        shells=_shells(gradients) if gradients else None,
        voxel_size=tuple(np.linalg.norm(affine[:3, :3], axis=0).tolist()) if header else None,
        orientation="".join(nib.aff2axcodes(affine)) if header else None,
        fingerprint=None if signal is None else _fingerprint(signal),
    )
    return facts, problems


def _overruled_option(found: Dataset, site_from: str | None) -> list[Problem]:
    """Tell when tables give another site than the entity that the user named."""
    named = [scan for scan in found.scans if site_from in scan.entities and scan.site]
    overruled = [s for s in named if s.site and s.site.label != s.entities[str(site_from)]]
    if not overruled or not overruled[0].site:
        return []
    what = (
        f"{overruled[0].site.origin} goes before --site-from {site_from}: "
        f"{len(overruled)} scans have another site by it"
    )
    remedy = "remove the site column, or the option"
    return [Problem("site-from", Severity.WARNING, overruled[0].dwi, what, remedy)]


def _inspect_gradients(
    problems: list[Problem], files: ScanFiles, affine: Array, signal: Array | None
) -> GradientTable | None:
    """Read the table and judge it; its axes are not judged here, nor known without an image."""
    path = files.world_table or files.bval or files.dwi
    if signal is None and path == files.dwi:
        return None  # the image is not there either, and that is told
    attempt = partial(_attempt, problems, path)
    volumes = None if signal is None else signal.shape[3]
    gradients: GradientTable | None = attempt(read_gradients, files, affine, volumes)
    if gradients is None or attempt(lambda: gradients.shells) is None:
        return None
    if gradients.shells:
        problems += direction_problems(gradients, path)
    else:
        what = "the scan has b0 volumes only, as reversed phase-encoding scans do"
        remedy = "leave it out, e.g. with --bids-filter-file"
        problems.append(Problem("b0-only", Severity.WARNING, path, what, remedy))
    return gradients


def _attempt(
    problems: list[Problem], path: Path, read: Callable[..., Any], *arguments: Any
) -> Any:
    """Return what reading gives, or note what is wrong and return None."""
    try:
        return read(*arguments)
    except SitelessError as error:
        problems.append(Problem.from_error(error, path))
        return None


def _inspect_masks(
    problems: list[Problem],
    files: ScanFiles,
    signal: Array,
    affine: Array,
    gradients: GradientTable | None,
) -> tuple[Array | None, str]:
    """Read the masks that are given; a brain can be computed only where b0 is known."""
    attempt = partial(_attempt, problems, files.dwi)
    if files.white_matter is not None:
        attempt(read_mask, files.white_matter, signal.shape[:3], affine)
    if files.mask is not None:
        brain = attempt(read_mask, files.mask, signal.shape[:3], affine)
        if brain is not None:
            problems += mask_problems(brain, files.mask)
        return brain, str(files.mask)
    if gradients is None or not gradients.is_b0.any():
        return None, ""
    return attempt(read_brain_mask, files, signal, affine, gradients) or (None, "")


def _signal_problems(
    files: ScanFiles, signal: Array, affine: Array, brain: Array, gradients: GradientTable | None
) -> list[Problem]:
    problems = signal_problems(signal, brain, files.dwi)
    broken = any(problem.severity is Severity.ERROR for problem in problems)
    if gradients and gradients.shells and gradients.is_b0.any() and not broken:
        scan = Scan(signal, affine, gradients, mask=brain, white_matter=brain)
        table = files.world_table or files.bvec or files.dwi
        problems += _attempt(problems, files.dwi, axis_problems, scan, table) or []
    return problems


def _shells(gradients: GradientTable) -> tuple[tuple[float, int], ...]:
    """Return each shell's b-value and number of different directions."""
    directions = gradients.directions
    return tuple((round(s.b, 3), count_axes(directions[s.volumes])) for s in gradients.shells)


def _fingerprint(signal: Array) -> str:
    return cache_key(signal.T)


def _plain(content: dict[str, Any]) -> dict[str, Any]:
    return {key: str(part) if isinstance(part, Path) else part for key, part in content.items()}
