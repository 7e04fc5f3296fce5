"""Fibre orientation distributions as glyphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import ConvexHull

from siteless.acquisition import Array
from siteless.harmonics import sh_basis
from siteless.report._style import HEIGHT, WIDTH, count_panels, picture, require_some, say_empty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_VERTICES = 1000
_DPI = 300  # glyphs are small
_LIGHT = np.array([-0.4, 0.5, 0.77])  # from the upper left, in front of the slice
_AXES = {"red": "x, left to right", "lime": "y, back to front", "blue": "z, through the slice"}


def draw_fods(panels: Mapping[str, Array], path: Path, *, background: Array | None = None) -> None:
    """Draw fibre orientation distributions as glyphs, all panels on one scale.

    The view is along the third world axis, with x to the right and y upward.

    Parameters
    ----------
    panels
        Coefficients in the basis of `sh_basis` by title, shape (x, y, coefficient), on square
        voxels; NaN where there are none.
    path
        Path of the PNG.
    background
        Image to draw behind every panel, shape (x, y), any unit.
    """
    require_some((fods[_there(fods)] for fods in panels.values()), path)
    rows, columns = count_panels(len(panels))
    sizes = np.array([fods.shape[:2] for fods in panels.values()]).max(axis=0)
    scale = shared_scale(panels)
    height = min(rows * (WIDTH / columns * sizes[1] / sizes[0] + 0.2) + 0.3, HEIGHT)
    with picture(path, height=height, layout="compressed", dpi=_DPI) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for panel, (name, fods) in zip(axes.flat, panels.items(), strict=False):
            _draw_panel(panel, fods, scale, background)
            panel.set_title(name)
            panel.set(xlim=(-0.6, sizes[0] - 0.4), ylim=(-0.6, sizes[1] - 0.4))
        for panel in axes.flat[len(panels) :]:
            panel.set_visible(False)
        _draw_key(figure, scale)


def sphere() -> tuple[Array, Array]:
    """Return evenly distributed points on a sphere, and the triangles between them.

    Points are unit vectors, shape (vertex, 3), the second half opposite to the first, so that
    glyphs are symmetric. Triangles are indices of their corners, shape (face, 3), counterclockwise
    as seen from outside.
    """
    half = np.arange(_VERTICES // 2)
    z = (half + 0.5) / len(half)
    azimuth = half * np.pi * (3 - np.sqrt(5))  # the golden angle
    ring = np.sqrt(1 - z**2)
    points = np.stack([ring * np.cos(azimuth), ring * np.sin(azimuth), z], axis=1)
    points = np.concatenate([points, -points])
    faces = ConvexHull(points).simplices
    inward = np.linalg.det(points[faces]) < 0
    faces[inward] = faces[inward, ::-1]
    return points, faces


def radii(fods: Array) -> Array:
    """Evaluate distributions, (voxel, coefficient), at the points of `sphere`.

    Negative amplitudes are zero in the result, shape (voxel, vertex).
    """
    order = (math.isqrt(8 * fods.shape[-1] + 1) - 3) // 2
    # The rounding of a matrix product may depend on the number of threads.
    amplitudes = np.einsum("vc,dc->vd", fods, sh_basis(sphere()[0], order))
    return np.maximum(amplitudes, 0)


def shared_scale(panels: Mapping[str, Array]) -> float:
    """Return the amplitude that reaches the border of a voxel.

    It is the 95th percentile of the largest amplitudes of all voxels in all panels.
    """
    peaks = [radii(fods[_there(fods)]).max(axis=1) for fods in panels.values()]
    return float(np.percentile(np.concatenate(peaks), 95)) or 1.0


def _there(fods: Array) -> Array:
    return np.asarray(np.isfinite(fods).all(axis=-1))


def _draw_panel(panel: Axes, fods: Array, scale: float, background: Array | None) -> None:
    from matplotlib.collections import PolyCollection

    panel.set(xticks=[], yticks=[], aspect="equal")
    panel.spines[:].set_visible(False)
    if background is not None:
        high = np.nanpercentile(background, 99) or 1.0
        panel.imshow(background.T, origin="lower", cmap="gray", vmin=-3 * high, vmax=high)
    there = _there(fods)
    if not there.any():
        say_empty(panel)
        return
    centres = np.argwhere(there)
    triangles, colours = _triangles(radii(fods[there]) / (2 * scale), centres)
    # Edges of the face's colour close the gaps that smoothing leaves between triangles.
    edges: dict[str, Any] = {"edgecolors": "face", "linewidths": 0.15}
    # An array is accepted directly, a list is processed one triangle at a time.
    glyphs = PolyCollection(triangles, facecolors=colours, **edges)  # type: ignore[arg-type]
    panel.add_collection(glyphs)


def _triangles(lengths: Array, centres: Array) -> tuple[Array, Array]:
    """Project glyphs onto the slice, from back to front.

    `lengths` are distances from the centre of a voxel to its glyph's surface, (voxel, vertex), and
    `centres` are those of glyphs, (voxel, 2); both in voxels. Returned are the corners of the
    triangles that face the viewer, (triangle, 3, 2), and their colours, (triangle, 3).
    """
    points, faces = sphere()
    corners = (lengths[..., None] * points)[:, faces]  # voxel, face, corner, axis
    normals = np.cross(corners[:, :, 1] - corners[:, :, 0], corners[:, :, 2] - corners[:, :, 0])
    front = normals[..., 2] > 0
    depth = corners[..., 2].mean(axis=-1)[front]
    order = np.argsort(depth, kind="stable")
    flat = corners[..., :2] + centres[:, None, None]
    colours = _colours(points[faces].mean(axis=1), normals)
    return flat[front][order], colours[front][order]


def _colours(directions: Array, normals: Array) -> Array:
    """Colour faces by direction, and shade them by their angle to the light.

    Directions from the centre of the glyph have shape (face, 3), normals of the surface, of any
    length, (voxel, face, 3). Colours are between 0 and 1, shape (voxel, face, 3).
    """
    hues = np.abs(directions) / np.linalg.norm(directions, axis=-1, keepdims=True)
    towards = (normals * (_LIGHT / np.linalg.norm(_LIGHT))).sum(axis=-1)
    size = np.linalg.norm(normals, axis=-1)
    light = np.divide(towards, size, out=np.zeros_like(size), where=size > 0)
    return hues * (0.5 + 0.5 * np.maximum(light, 0))[..., None]


def _draw_key(figure: Figure, scale: float) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for colour, name in _AXES.items()]
    handles.append(Patch(color="none", label=f"half a voxel: amplitude {scale:.2g}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1)
