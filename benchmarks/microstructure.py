"""Maps of many voxels at once, against DIPY's, which fits one voxel after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from dipy.core.gradients import GradientTable as DipyTable
from dipy.core.gradients import gradient_table
from dipy.reconst.dki import DiffusionKurtosisModel
from dipy.reconst.mapmri import MapmriModel
from threadpoolctl import threadpool_limits

from benchmarks.measure import best_time, row
from siteless.acquisition import Array, Scan
from siteless.microstructure import compute_maps
from siteless.simulation import Person, make_anatomy, read_scanners, scan_person

SITE = "prisma60"
VOXEL_SIZE = 3.0
# Voxels that DIPY fits.
SAMPLE = 400


def main() -> None:
    scan = simulate()
    few = thinned(scan, SAMPLE)
    print(f"\nMaps of simulated white and grey matter, {scan.gradients}")
    print(f"{len(scan.voxels)} voxels; DIPY fits {len(few.voxels)} of them; one thread")
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # DIPY warns on voxels of noise
        compare("rtop", scan, few, dipy_rtop, aim=50)
        compare("mk", scan, few, dipy_mk, aim=5)


def simulate() -> Scan:
    """Scan a person's white and grey matter, with noise."""
    person = Person("01", age=45, sex="F", split="train", seed=(7, 1))
    anatomy = make_anatomy(person, voxel_size=VOXEL_SIZE)
    simulated = scan_person(person, anatomy, read_scanners()[SITE])
    solid = anatomy.on_grid(anatomy.tissue[:, :2].sum(axis=1) > 0.9)
    white = anatomy.on_grid(anatomy.white_matter) & solid
    return Scan(simulated.signal, anatomy.affine, simulated.gradients, solid, white)


def thinned(scan: Scan, count: int) -> Scan:
    """Keep some voxels of the brain, evenly spread."""
    kept = scan.voxels[:: len(scan.voxels) // count]
    mask: Array = np.zeros(scan.mask.size, dtype=bool)
    mask[kept] = True
    mask = mask.reshape(scan.mask.shape[::-1]).T
    return replace(scan, mask=mask, white_matter=scan.white_matter & mask)


def compare(
    name: str, scan: Scan, few: Scan, dipy: Callable[[DipyTable, Array], Array], *, aim: float
) -> None:
    gradients = scan.gradients
    b = np.where(gradients.is_b0, 0, gradients.b)
    table = gradient_table(b, bvecs=gradients.directions * (b > 0)[:, None])
    signal = few.volumes[:, few.voxels].T.astype(float)
    ours, theirs = best_time(
        lambda: compute_maps(scan, [name]), lambda: dipy(table, signal), repeats=3
    )
    speed, peer = len(scan.voxels) / ours, len(few.voxels) / theirs
    row(f"{name}, DIPY", f"{peer:.0f} voxels/s")
    row(f"{name}, siteless", f"{speed:.0f} voxels/s")
    row(f"{name}, times as fast as DIPY", f"{speed / peer:.1f}", f"aim: at least {aim:.0f}")
    expected, estimated = dipy(table, signal), compute_maps(few, [name])[name].T[few.mask.T]
    deviation = np.abs(estimated - expected) / np.maximum(np.abs(expected), 1e-12)
    for what, percentile, limit in (("median", 50, "1 %"), ("99th percentile", 99, "5 %")):
        value = np.percentile(deviation, percentile)
        row(f"{name}, relative deviation, {what}", f"{value:.1e}", f"aim: at most {limit}")


def dipy_rtop(table: DipyTable, signal: Array) -> Array:
    model = MapmriModel(
        table, radial_order=4, laplacian_regularization=True, laplacian_weighting=0.05
    )
    return model.fit(signal).rtop()


def dipy_mk(table: DipyTable, signal: Array) -> Array:
    fit = DiffusionKurtosisModel(table).fit(signal)
    return fit.mk(min_kurtosis=0, max_kurtosis=3)


if __name__ == "__main__":
    main()
