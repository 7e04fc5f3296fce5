"""Small made-up scans for tests: straight bundles of fibres in a ball of grey matter."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from siteless.acquisition import Array, GradientTable, Scan, Site

# mm. Thin, so that directions turned out of a bundle soon leave it.
BUNDLE_RADIUS = 4.0
BUNDLES = 14
TWO_SHELLS = {1200: 30, 3000: 30}
# The command without its pages, which take longer than the work on so small scans.
RENDER = ("harmonize", "--no-report")
ONE_SHELL = {1000: 12}


def spread_directions(count: int, seed: int = 0) -> Array:
    """Spread unit vectors over the half sphere, shape (direction, 3), turned at random."""
    height = (np.arange(count) + 0.5) / count
    azimuth = np.pi * (1 + np.sqrt(5)) * np.arange(count)
    ring = np.sqrt(1 - height**2)
    points = np.stack([ring * np.cos(azimuth), ring * np.sin(azimuth), height], axis=1)
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return points @ turn.T


def make_gradients(
    shells: Mapping[int, int] | Mapping[float, int] = TWO_SHELLS, b0: int = 2, seed: int = 0
) -> GradientTable:
    """Make a table with b0 first and directions that differ between shells, in world axes."""
    bvals, bvecs = [np.zeros(b0)], [np.zeros((b0, 3))]
    for offset, (b, count) in enumerate(shells.items()):
        bvals.append(np.full(count, float(b)))
        bvecs.append(spread_directions(count, seed + offset))
    return GradientTable(np.concatenate(bvals), np.concatenate(bvecs))


def make_scan(
    gradients: GradientTable | None = None,
    *,
    affine: Array | None = None,
    shape: tuple[int, int, int] = (20, 22, 18),
    snr: float = 30.0,
    seed: int = 0,
    **fields: Any,
) -> Scan:
    """Make a scan of the phantom; what it shows depends on world position alone.

    The brain is a ball of 22 mm about the world's origin.
    """
    gradients = make_gradients() if gradients is None else gradients
    affine = centred_affine(shape) if affine is None else affine
    grid = np.moveaxis(np.indices(shape), 0, -1)
    position = grid @ affine[:3, :3].T + affine[:3, 3]
    brain = np.linalg.norm(position, axis=-1) < 22
    along, white = fibres_at(position)
    white &= brain
    cosines = along @ gradients.directions.T
    attenuation = np.where(
        white[..., None],
        np.exp(-gradients.b * (0.3e-3 + 1.4e-3 * cosines**2)),
        np.exp(-gradients.b * 0.8e-3),
    )
    clean = 1000.0 * brain[..., None] * (1 + 0.2 * white[..., None]) * attenuation
    noise = np.random.default_rng(seed).normal(scale=1000 / snr, size=(2, *clean.shape))
    signal = np.hypot(clean + noise[0], noise[1]) if np.isfinite(snr) else clean
    defaults = {"mask": brain, "white_matter": white, "site": Site("a")}
    return Scan(signal.astype(np.float32), affine, gradients, **(defaults | fields))


def fibres_at(position: Array) -> tuple[Array, Array]:
    """Return the direction of the nearest bundle, (..., 3), and whether it is near, (...)."""
    rng = np.random.default_rng(1)
    centres, axes = rng.uniform(-14, 14, size=(BUNDLES, 3)), rng.normal(size=(BUNDLES, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    offset = position[..., None, :] - centres
    distance = np.linalg.norm(np.cross(offset, axes), axis=-1)
    return axes[distance.argmin(axis=-1)], distance.min(axis=-1) < BUNDLE_RADIUS


def centred_affine(
    shape: tuple[int, int, int] = (20, 22, 18), voxel: float = 2.5, rotation: Array | None = None
) -> Array:
    """Make an affine whose grid is centred on the world's origin."""
    affine = np.eye(4)
    affine[:3, :3] = (np.eye(3) if rotation is None else rotation) * voxel
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine


def write_raw(
    scan: Scan,
    folder: Path,
    stem: str,
    *,
    sidecar: Mapping[str, Any] | None = None,
    dtype: type = np.int16,
    signal: Array | None = None,
) -> Path:
    """Write a scan, or another signal of it, as conversion would, by nibabel and numpy alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.nii.gz"
    values = scan.signal if signal is None else signal
    values = values if np.issubdtype(dtype, np.floating) else values.round()
    image = nib.Nifti1Image(values.astype(dtype), scan.affine)
    image.header.set_xyzt_units("mm", "sec")
    image.header["pixdim"][4] = 3.3
    path.write_bytes(gzip.compress(image.to_bytes(), compresslevel=1, mtime=0))
    bvals, bvecs = scan.gradients.to_fsl(scan.affine)
    np.savetxt(folder / f"{stem}.bval", bvals[None], fmt="%g")
    np.savetxt(folder / f"{stem}.bvec", bvecs.T, fmt="%.6f")
    (folder / f"{stem}.json").write_text(json.dumps(dict(sidecar or {})))
    return path


def load_image(path: Path | str) -> nib.Nifti1Image:
    """Read an image by nibabel alone."""
    image = nib.load(path)
    assert isinstance(image, nib.Nifti1Image)
    return image


def write_mask(mask: Array, affine: Array, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.Nifti1Image(mask.astype(np.uint8), affine).to_filename(path)
    return path


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(rows[0]), *("\t".join(str(cell) for cell in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path
