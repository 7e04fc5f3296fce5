"""`siteless check`: read every scan, and report all problems in one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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
    """The result of a check.

    Attributes
    ----------
    dataset
        Folder or manifest that was checked.
    scans
        Properties of each scan, in the dataset's order.
    problems
        Problems, errors first. Within each severity, those of the study design come first, then
        those of the study, then those of scans.
    """

    dataset: Path
    scans: tuple[ScanFacts, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Problems that must be fixed."""
        return tuple(p for p in self.problems if p.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Problems that should be inspected."""
        return tuple(p for p in self.problems if p.severity is Severity.WARNING)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain types, for JSON."""
        return {
            "dataset": str(self.dataset),
            "scans": [asdict(scan, dict_factory=_plain) for scan in self.scans],
            "problems": [asdict(problem, dict_factory=_plain) for problem in self.problems],
        }


def check_dataset(
    dataset: ScanSelection | Path | str, *, order: int = 8, run: Run = Run()
) -> CheckReport:
    """Check every scan of a dataset, and the scans against each other.

    Parameters
    ----------
    dataset
        Folder, manifest, or selection of scans; sites are not selected.
    order
        lmax of the harmonics to fit.
    run
        Processes and progress of the work.
    """
    selection = ScanSelection.of(dataset)
    study = selection.search()
    inspected = run.map("Checking scans", _inspect_whatever_comes, study.scans)
    scans = tuple(facts for facts, _ in inspected)
    problems = [
        *(Problem.from_error(error, study.root) for error in study.errors),
        *cohort_problems(scans, study.root, order=order),
        *_overruled_option(study, selection.site_from),
        *(problem for _, issues in inspected for problem in issues),
    ]
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.severity)
    return CheckReport(study.root, scans, tuple(ordered))


def _inspect_whatever_comes(files: ScanFiles) -> tuple[ScanFacts, list[Problem]]:
    """Inspect a scan; a bug in siteless must not hide problems of other scans."""
    try:
        return inspect_scan(files)
    except Exception as error:  # noqa: BLE001
        what = f"siteless failed on this scan ({type(error).__name__}: {error})"
        remedy = "please report it, with the scan's header"
        problem = Problem.error("internal", files.dwi, what, remedy)
        site = files.site.label if files.site else None
        return ScanFacts(files.dwi, files.subject, site, dict(files.attributes)), [problem]


def inspect_scan(files: ScanFiles) -> tuple[ScanFacts, list[Problem]]:
    """Read a scan part by part, so that one broken part does not hide problems of the others."""
    parts = _Parts(files)
    parts.read(files.dwi, read_sidecar, files)
    header, affine = parts.read(files.dwi, read_header, files.dwi) or (None, np.eye(4))
    signal, _ = (parts.read(files.dwi, read_volumes, files) if header else None) or (None, None)
    gradients = parts.read_gradients(affine, signal)
    if header and not header["qform_code"] and not header["sform_code"]:
        what = "the header has neither qform nor sform, so where the image lies is a guess"
        remedy = "convert the scan again"
        parts.problems.append(Problem.warning("no-orientation", files.dwi, what, remedy))
    brain, origin = None, ""
    if signal is not None:
        brain, origin = parts.read_masks(signal, affine, gradients)
    if signal is not None and brain is not None:
        parts.inspect_signal(signal, affine, brain, gradients)
    shells = None
    if gradients:
        axes = gradients.directions
        shells = tuple((round(s.b, 3), count_axes(axes[s.volumes])) for s in gradients.shells)
    facts = ScanFacts(
        path=files.dwi,
        subject=files.subject,
        site=files.site.label if files.site else None,
        site_origin=files.site.origin if files.site else "",
        attributes=dict(files.attributes),
        brain_mask=origin,
        shells=shells,
        voxel_size=tuple(np.linalg.norm(affine[:3, :3], axis=0).tolist()) if header else None,
        orientation="".join(nib.aff2axcodes(affine)) if header else None,
        fingerprint=None if signal is None else cache_key(signal.T),
    )
    return facts, parts.problems


def _overruled_option(study: Dataset, site_from: str | None) -> list[Problem]:
    """Report sites from tables that override the entity chosen by the user."""
    named = [scan for scan in study.scans if site_from in scan.entities and scan.site]
    overruled = [s for s in named if s.site and s.site.label != s.entities[str(site_from)]]
    if not overruled or not overruled[0].site:
        return []
    what = (
        f"{overruled[0].site.origin} goes before --site-from {site_from}: "
        f"{len(overruled)} scans have another site by it"
    )
    remedy = "remove the site column, or the option"
    return [Problem.warning("site-from", overruled[0].dwi, what, remedy)]


@dataclass
class _Parts:
    """Parts of a scan, with the problems that reading and checking them finds."""

    files: ScanFiles
    problems: list[Problem] = field(default_factory=list)

    def read(self, path: Path, read: Callable[..., Any], *arguments: Any) -> Any:
        """Return what is read; on an error add a problem of the path and return None."""
        try:
            return read(*arguments)
        except SitelessError as error:
            self.problems.append(Problem.from_error(error, path))
            return None

    def read_gradients(self, affine: Array, signal: Array | None) -> GradientTable | None:
        """Read and check the gradient table, apart from its axes."""
        files = self.files
        path = files.world_table or files.bval or files.dwi
        if signal is None and path == files.dwi:
            return None  # the missing image is reported elsewhere
        volumes = None if signal is None else signal.shape[3]
        gradients: GradientTable | None = self.read(path, read_gradients, files, affine, volumes)
        if gradients is None or self.read(path, lambda: gradients.shells) is None:
            return None
        if gradients.shells:
            self.problems += direction_problems(gradients, path)
        else:
            what = "the scan has b0 volumes only, as reversed phase-encoding scans do"
            remedy = "leave it out, e.g. with --bids-filter-file"
            self.problems.append(Problem.warning("b0-only", path, what, remedy))
        return gradients

    def read_masks(
        self, signal: Array, affine: Array, gradients: GradientTable | None
    ) -> tuple[Array | None, str]:
        """Read and check masks; a missing brain mask is computed if b0 is known."""
        files, grid = self.files, (signal.shape[:3], affine)
        if files.white_matter is not None:
            self.read(files.dwi, read_mask, files.white_matter, *grid)
        if files.mask is not None:
            brain = self.read(files.dwi, read_mask, files.mask, *grid)
            if brain is not None:
                self.problems += mask_problems(brain, files.mask)
            return brain, str(files.mask)
        if gradients is None or not gradients.is_b0.any():
            return None, ""
        computed = self.read(files.dwi, read_brain_mask, files, signal, affine, gradients)
        return computed or (None, "")

    def inspect_signal(
        self, signal: Array, affine: Array, brain: Array, gradients: GradientTable | None
    ) -> None:
        """Check the signal, and the axes of the gradient table if the signal has no error."""
        files = self.files
        problems = signal_problems(signal, brain, files.dwi)
        self.problems += problems
        broken = any(problem.severity is Severity.ERROR for problem in problems)
        if gradients and gradients.shells and gradients.is_b0.any() and not broken:
            scan = Scan(signal, affine, gradients, mask=brain, white_matter=brain)
            table = files.world_table or files.bvec or files.dwi
            self.problems += self.read(files.dwi, axis_problems, scan, table) or []


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: str(part) if isinstance(part, Path) else part for key, part in items}
