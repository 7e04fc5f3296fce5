"""`siteless harmonize`: seconds and memory a scan, and scans a minute, side by side with nibabel.

The scan is 96 x 96 x 60 voxels with 2 x 60 directions, its masks are given, and four fifths of its
brain are rendered. Weights are drawn at random: they do not change the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import torch

from benchmarks.ground_floor import B0, DIRECTIONS, SHAPE, SHELLS, write_scan_like
from benchmarks.measure import best_time, peak_memory, row
from siteless.acquisition import Scan
from siteless.bids import find_scans, read_scan, write_map
from siteless.harmonics import fit_coefficients
from siteless.methods.invariant import InvariantModel
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.invariant.training import PRESETS
from siteless.model import LearnedSite, ModelCard, Preparation, Typical, save_model
from siteless.neighbourhood import FACES
from siteless.pipelines import Run, harmonize_dataset
from siteless.tissue import white_matter_level

ORDER = 8
SCANS = 8


def main() -> None:
    print("Rendering a scan of that size")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        scan = read_scan(find_scans(write_scan_like(root)).scans[0])
        write_map(root / "brain.nii.gz", scan.mask, scan.affine)
        write_map(root / "white.nii.gz", scan.white_matter, scan.affine)
        save_model(make_model(scan), root / "model.safetensors")
        measure_time(root)
        measure_memory(root)
        measure_many(root)


def measure_time(root: Path) -> None:
    manifest = write_manifest(root, 1)
    render = partial(
        harmonize_dataset,
        manifest,
        root / "out",
        root / "model.safetensors",
        "b",
        run=Run(nprocs=1),
    )
    plain, ours = best_time(lambda: read_and_write(root), lambda: render(force=True), repeats=4)
    row("reading and writing it by nibabel", f"{plain:.1f} s")
    row("rendering it, as a multiple", f"{ours / plain:.2f}", f"aim: at most 1.2 ({ours:.1f} s)")
    sizes = [path.stat().st_size for path in (root / "out").rglob("*") if path.is_file()]
    row("bytes written", f"{sum(sizes) / 1e6:.0f} MB")


def read_and_write(root: Path) -> None:
    image = nib.Nifti1Image.from_filename(root / "scan.nii.gz")
    signal = image.get_fdata(dtype=np.float32, caching="unchanged")
    nib.Nifti1Image(signal, image.affine).to_filename(root / "plain.nii.gz")


def measure_memory(root: Path) -> None:
    words = "benchmarks.rendering", str(root)
    used = peak_memory(*words, "1") - peak_memory(*words, "0")
    signal = np.prod(SHAPE) * (B0 + len(SHELLS) * DIRECTIONS) * 4
    row("peak memory / signal", f"{used / signal:.2f}", "aim: at most 4")


def measure_many(root: Path) -> None:
    single = scans_per_minute(root, nprocs=1, cores=1)
    row("scans a minute, one process on one core", f"{single:.1f}")
    both = scans_per_minute(root, nprocs=1, cores=2)
    row("scans a minute, one process on two cores", f"{both:.1f}", f"({both / single:.2f} times)")
    double = scans_per_minute(root, nprocs=2, cores=2)
    row(
        "scans a minute, two processes on two cores",
        f"{double:.1f}",
        f"aim: 1.8 times one core ({double / single:.2f} times)",
    )


def scans_per_minute(root: Path, *, nprocs: int, cores: int) -> float:
    command = [sys.executable, "-m", "benchmarks.rendering", str(root), str(SCANS), str(nprocs)]
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    output = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    ).stdout
    return float(output)


def render_many(root: Path, scans: int, nprocs: int) -> None:
    """Print scans a minute, after the first ones, which wait for imports."""
    manifest, times = write_manifest(root, scans), []
    harmonize_dataset(
        manifest,
        root / f"out{nprocs}",
        root / "model.safetensors",
        "b",
        force=True,
        run=Run(nprocs=nprocs, progress=lambda _: lambda *_: times.append(time.monotonic())),
    )
    if scans > nprocs:
        print(60 * (scans - nprocs) / (times[-1] - times[nprocs - 1]))


def write_manifest(root: Path, scans: int) -> Path:
    """List the same scan for several people."""
    manifest = root / f"{scans}.tsv"
    rows = [f"{n}\ta\tscan.nii.gz\tbrain.nii.gz\twhite.nii.gz" for n in range(scans)]
    manifest.write_text("\n".join(["subject\tsite\tdwi\tmask\twm_mask", *rows]) + "\n")
    return manifest


def make_model(scan: Scan) -> InvariantModel:
    """Make a model of the default sizes whose units are the scan's."""
    level = white_matter_level(scan)
    coefficients = fit_coefficients(scan, order=ORDER)
    values = coefficients.values[scan.white_matter.T[scan.mask.T]] / np.float32(level)
    preset = PRESETS["siteless"]
    settings = preset.network(
        sites=2,
        neighbours=len(FACES) + len(preset.surroundings),
        shells=len(coefficients.bs),
        order=ORDER,
    )
    torch.manual_seed(0)
    network = Autoencoder(settings)
    mean, scale = (
        torch.from_numpy(array).expand(2, -1) for array in (values.mean(0), values.std(0))
    )
    network.set_units(mean, scale)
    site = LearnedSite(
        level=level,
        bvals=tuple(scan.gradients.bvals.tolist()),
        bvecs=tuple(map(tuple, scan.gradients.bvecs.tolist())),
        typical=Typical.of([values], ORDER),
    )
    card = ModelCard(
        method="invariant",
        sites={"a": site, "b": site},
        preparation=Preparation(
            coefficients.bs, ORDER, "laplace-beltrami", "white-matter", noise_floor="remove"
        ),
        seed=0,
        settings={"network": asdict(settings), "training": asdict(preset)},
        summary={},
        versions={},
    )
    return InvariantModel(card, network.eval())


if __name__ == "__main__":
    folder, number, *processes = sys.argv[1:]
    if int(number):
        render_many(Path(folder), int(number), int(processes[0]) if processes else 1)
