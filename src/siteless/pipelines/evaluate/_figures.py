"""Figures of scores: box plots of voxels, slices of errors, and fibres of a few voxels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from siteless.acquisition import Array, Scan
from siteless.bids import read_scan, read_signal
from siteless.evaluation import (
    BEFORE,
    NOISE,
    Fods,
    ScoreTable,
    estimate_responses,
    find_fods,
    match_volumes,
)
from siteless.pipelines.evaluate._comparison import RenderedScan
from siteless.pipelines.evaluate._measures import Measures
from siteless.pipelines.evaluate._scan_scores import find_fibres, read_rendered_scan
from siteless.report import draw_boxes, draw_fods, draw_maps

# Side of the window of fibres, voxels; and least relative amplitude of a second fibre.
_WINDOW, _SECOND = 12, 0.3
_RMSE = "RMSE (% of white-matter b0 of the target)"
_ANGLE = "angle of the largest FOD maximum to the target's closest (degrees)"


@dataclass(frozen=True, eq=False)
class Figures:
    """Figures of the errors of methods."""

    measures: Measures
    compared: Sequence[RenderedScan]  # with a target
    table: ScoreTable
    tasks: Sequence[str]  # to show, in this order

    def draw_errors(self, folder: Path, methods: Sequence[str]) -> None:
        """Draw the distribution of errors over voxels for methods and tasks.

        RMSE of original scans is left out, as it depends on the sites' arbitrary units.
        """
        if self.measures.include("signal"):
            errors, tasks = self._voxels("rmse", methods), self.table.tasks("rmse_percent")
            floors = {t: self.table.mean("rmse_percent", task=t, method=NOISE) for t in tasks}
            draw_boxes(errors, folder / "rmse.png", label=_RMSE, floors=floors)
        if self.measures.include("orientation"):
            angles = self._voxels("angle", [BEFORE, *methods])
            draw_boxes(angles, folder / "angle.png", label=_ANGLE, marked=90)

    def draw_slices(self, path: Path, methods: Sequence[str]) -> None:
        """Draw maps of errors: an axial slice of one participant in all tasks."""
        panels: dict[str, dict[str, Array]] = {}
        anatomy: dict[str, Array] = {}
        for rendered in self._of_one_person(methods):
            values, affine = read_signal(self.measures.error_map(rendered, "rmse"))
            upright = _upright(100 * values / self._level(rendered), affine)
            height = int(np.isfinite(upright).sum(axis=(0, 1)).argmax())
            panels.setdefault(rendered.task, {})[rendered.method] = upright[..., height]
            if rendered.task not in anatomy:
                target = _read_target(rendered)
                anatomy[rendered.task] = _upright(_b0(target), target.affine)[..., height]
        order = np.argsort(nib.io_orientation(target.affine)[:, 0])
        width, depth, _ = target.voxel_size[order].tolist()
        panels = {task: panels[task] for task in self.tasks if task in panels}
        draw_maps(panels, path, label=_RMSE, voxel_size=(width, depth), anatomy=anatomy)

    def draw_fibres(self, path: Path, methods: Sequence[str]) -> None:
        """Draw fibre orientations of some voxels with crossings, for one participant and task."""
        renderings = [r for r in self._of_one_person(methods) if r.task == self.tasks[0]]
        target = _read_target(renderings[0])
        responses = estimate_responses(target, self.measures.engine)
        where, height = _fullest_slice(target)
        expected = find_fods(target, responses, where)
        window = _crossings(target, expected, where, height)
        panels = {"target": _on_grid(target, expected, where)[*window, height]}
        for rendered in renderings:
            scan = match_volumes(read_rendered_scan(rendered), target.gradients)
            fods = find_fibres(scan, responses, where)
            panels[rendered.method] = _on_grid(target, fods, where)[*window, height]
        draw_fods(panels, path, background=_upright(_b0(target), target.affine)[*window, height])

    def _of(self, methods: Sequence[str]) -> list[RenderedScan]:
        return [r for r in self.compared if r.method in methods and r.image]

    def _of_one_person(self, methods: Sequence[str]) -> list[RenderedScan]:
        """Return the scans of the participant with most comparisons."""
        counts = Counter(rendered.source.subject for rendered in self.compared)
        person = min(counts, key=lambda subject: (-counts[subject], subject))
        return [r for r in self._of(methods) if r.source.subject == person]

    def _voxels(self, output: str, methods: Sequence[str]) -> dict[str, dict[str, Array]]:
        """Return the errors of all voxels by task and method."""
        errors: dict[tuple[str, str], list[Array]] = {}
        for rendered in self._of(methods):
            values = read_signal(self.measures.error_map(rendered, output))[0]
            if output == "rmse":
                values = 100 * values / self._level(rendered)
            known = errors.setdefault((rendered.task, rendered.method), [])
            known.append(values[np.isfinite(values)])
        voxels: dict[str, dict[str, Array]] = {}
        for task, method in product(self.tasks, methods):
            if (task, method) in errors:
                voxels.setdefault(task, {})[method] = np.concatenate(errors[task, method])
        return voxels

    def _level(self, rendered: RenderedScan) -> float:
        """Return the reference b0 intensity of a target."""
        task, method, subject = rendered.task, rendered.method, rendered.source.subject
        return self.table.mean("level", task=task, method=method, subject=subject)


def _read_target(rendered: RenderedScan) -> Scan:
    assert rendered.target is not None
    return read_scan(rendered.target)


def _upright(values: Array, affine: Array) -> Array:
    """Reorient an image so that its axes point right, forward and up."""
    return nib.orientations.apply_orientation(values, nib.io_orientation(affine))


def _fullest_slice(scan: Scan) -> tuple[Array, int]:
    """Return the axial slice of most white matter, on the scan's grid, and its upright height."""
    height = int(_upright(scan.white_matter, scan.affine).sum(axis=(0, 1)).argmax())
    axis = int(np.flatnonzero(nib.io_orientation(scan.affine)[:, 0] == 2)[0])
    turned = nib.io_orientation(scan.affine)[axis, 1] < 0
    index = scan.mask.shape[axis] - 1 - height if turned else height
    inside = np.arange(scan.mask.shape[axis]) == index
    return scan.white_matter & np.expand_dims(inside, [n for n in range(3) if n != axis]), height


def _b0(scan: Scan) -> Array:
    return scan.signal[..., scan.gradients.is_b0].mean(axis=3)


def _on_grid(scan: Scan, fods: Fods, where: Array) -> Array:
    """Return coefficients on the upright grid, NaN elsewhere."""
    grid = np.full((*where.shape[::-1], fods.coefficients.shape[1]), np.nan)
    grid[where.T] = fods.coefficients
    return _upright(grid.swapaxes(0, 2), scan.affine)


def _crossings(scan: Scan, fods: Fods, where: Array, height: int) -> tuple[slice, slice]:
    """Return the window of an upright slice with most voxels with two fibres."""
    lengths = np.linalg.norm(fods.peaks, axis=2)
    counts = np.zeros(where.shape[::-1])
    counts[where.T] = 1 + (lengths[:, 1] > _SECOND * lengths[:, 0])
    plane = _upright(counts.T, scan.affine)[..., height]
    sums = ndimage.uniform_filter(plane, _WINDOW, mode="constant")
    half = _WINDOW // 2
    inside = sums[tuple(slice(half, size - half) for size in plane.shape)]
    x, y = np.unravel_index(inside.argmax(), inside.shape)
    return slice(x, x + _WINDOW), slice(y, y + _WINDOW)
