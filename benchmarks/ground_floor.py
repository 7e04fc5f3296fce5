"""Disk to coefficients: speed and memory of what every later step stands on."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.measure import best_time, matrix_product, peak_memory, row
from siteless.acquisition import GradientTable
from siteless.bids import find_scans, read_scan, read_volumes
from siteless.harmonics import fit_coefficients, fitting_matrix

SHAPE = (96, 96, 60)
DIRECTIONS = 60
SHELLS = (1200.0, 3000.0)
B0 = 4


def main() -> None:
    print(f"Scan of {' x '.join(map(str, SHAPE))} voxels, {len(SHELLS)} x {DIRECTIONS} directions")
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_scan_like(Path(folder))
        measure_fit(manifest)
        measure_reading(manifest)
        measure_memory(manifest)
    with tempfile.TemporaryDirectory() as folder:
        measure_indexing(Path(folder))


def measure_fit(manifest: Path) -> None:
    [files] = find_scans(manifest).scans
    brain = read_scan(files)
    whole = replace(brain, mask=np.ones_like(brain.mask))
    size = 2048
    product, on_grid, in_brain = best_time(
        matrix_product(size),
        lambda: fit_coefficients(whole, order=8),
        lambda: fit_coefficients(brain, order=8),
        repeats=20,
    )
    limit = 2 * size**3 / product
    a_voxel = 2 * sum(
        fitting_matrix(brain.gradients.directions[shell.volumes], order=8, penalty=1e-3).size
        for shell in brain.gradients.shells
    )
    row("float32 matrix product of this machine", f"{limit / 1e9:.0f} GFLOP/s")
    for what, scan, seconds in (
        ("SH fit of the whole grid, part of that speed", whole, on_grid),
        ("SH fit of the brain alone, part of that speed", brain, in_brain),
    ):
        speed = a_voxel * len(scan.voxels) / seconds
        row(what, f"{speed / limit:.2f}", f"aim: above 0.3 ({seconds * 1e3:.0f} ms a scan)")


def measure_reading(manifest: Path) -> None:
    [files] = find_scans(manifest).scans
    ours, nibabels = best_time(
        lambda: read_volumes(files),
        lambda: nib.Nifti1Image.from_filename(files.dwi).get_fdata(
            dtype=np.float32, caching="unchanged"
        ),
        repeats=5,
    )
    row("reading, time as a multiple of nibabel's", f"{ours / nibabels:.2f}", "aim: at most 1.2")


def measure_memory(manifest: Path) -> None:
    module = "benchmarks.read_and_fit"
    used = peak_memory(module, str(manifest)) - peak_memory(module, str(manifest), "nothing")
    signal = np.prod(SHAPE) * (B0 + len(SHELLS) * DIRECTIONS) * 4
    row("read, mask and fit: peak memory / signal", f"{used / signal:.2f}", "aim: at most 1.5")


def measure_indexing(root: Path, people: int = 1000) -> None:
    write_empty_tree(root, people)
    [seconds] = best_time(lambda: find_scans(root), repeats=3)
    row(f"indexing {people} people, 2 sessions each", f"{seconds:.2f} s", "aim: seconds")


def write_scan_like(folder: Path) -> Path:
    """Write a noisy ball, stored as scanners do, with a mask found by siteless."""
    rng = np.random.default_rng(0)
    bvals = np.repeat([0.0, *SHELLS], [B0, DIRECTIONS, DIRECTIONS])
    bvecs = rng.normal(size=(len(bvals), 3))
    bvecs /= np.linalg.norm(bvecs, axis=1, keepdims=True)
    order = rng.permutation(len(bvals))
    gradients = GradientTable(bvals[order], bvecs[order])
    affine = np.diag([-2.4, 2.4, 2.4, 1])
    position = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in SHAPE), indexing="ij"))
    brain = np.sum((position / np.reshape([0.75, 0.9, 0.85], (3, 1, 1, 1))) ** 2, axis=0) < 1
    signal = np.empty((*SHAPE, len(bvals)), dtype=np.int16, order="F")
    for volume, (b, direction) in enumerate(zip(gradients.b, gradients.directions, strict=True)):
        decay = 0.4e-3 + 1.2e-3 * np.square(np.tensordot(direction, position, 1))
        clean = 1000 * brain * np.exp(-b * decay)
        signal[..., volume] = np.hypot(
            clean + rng.normal(scale=25, size=SHAPE), rng.normal(scale=25, size=SHAPE)
        )
    nib.Nifti1Image(signal, affine).to_filename(folder / "scan.nii.gz")
    values, vectors = gradients.to_fsl(affine)
    np.savetxt(folder / "scan.bval", values[None], fmt="%g")
    np.savetxt(folder / "scan.bvec", vectors.T, fmt="%.6f")
    manifest = folder / "scans.tsv"
    manifest.write_text("subject\tsite\tdwi\n1\ta\tscan.nii.gz\n")
    return manifest


def write_empty_tree(root: Path, people: int) -> None:
    """Write a BIDS dataset of empty files."""
    (root / "dataset_description.json").write_text('{"Name": "x", "BIDSVersion": "1.10.0"}')
    lines = ["participant_id\tage\tsite"]
    for person in range(people):
        subject = f"sub-{person:04d}"
        lines.append(f"{subject}\t{20 + person % 60}\t{'ab'[person % 2]}")
        for session in ("ses-1", "ses-2"):
            for kind, suffix, ends in (
                ("dwi", "dwi", (".nii.gz", ".bval", ".bvec", ".json")),
                ("anat", "T1w", (".nii.gz", ".json")),
            ):
                folder = root / subject / session / kind
                folder.mkdir(parents=True)
                for end in ends:
                    (folder / f"{subject}_{session}_{suffix}{end}").touch()
    (root / "participants.tsv").write_text("\n".join(lines) + "\n")
