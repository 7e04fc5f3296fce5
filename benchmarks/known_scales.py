"""Does RISH find scales that are known, and does any method harm scans that need nothing?

``python -m benchmarks.known_scales [FOLDER]`` simulates two sites that differ in nothing but
smooth scales of b0 and of each degree of the harmonics, and two that do not differ at all.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.scores import noiseless_path, read_targets
from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, find_scans, read_scan, read_signal
from siteless.evaluation import score_signal
from siteless.harmonics import coefficient_orders, fit_coefficients, project
from siteless.methods import METHODS, render
from siteless.methods.rish import RishModel
from siteless.model import Model, SignalModel
from siteless.pipelines import fit_model, simulate_cohort
from siteless.simulation import draw_cohort, read_scanners

SUBJECTS, VOXEL_SIZE, SNR = 8, 3.0, 28.0
# More than usual: with 60 directions, noise that the fit leaves keeps even the known scales at 1.2
# times the noise floor.
DIRECTIONS, B0 = 90, 8
# mm.
PERIOD = 320.0
# Mean and amplitude of the scale of b0, and of the degrees over b0.
OF_B0 = (1.1, 0.10)
OF_ORDER = {0: (1.04, 0.05), 2: (0.90, 0.12), 4: (1.10, 0.15), 6: (1.0, 0.15), 8: (1.0, 0.15)}
EFFECTS = ("gain", "echo-time", "receive", "nonlinearity", "blur", "position")


def main(folder: Path | None = None) -> None:
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
        return
    different, same = folder / "different", folder / "same"
    for out in (different, same):
        if not out.exists():
            simulate(out, with_scales=out is different)
    for method in ("rish", "rish-glm"):
        _measure_scales(different, _fitted(different, method), _fitted(different, "unchanged"))
    print("\nwithout any difference between the sites: RMSE to the target over that of unchanged")
    before = _rmse(same, _fitted(same, "unchanged"))
    for method in (
        name for name, kind in METHODS.items() if issubclass(kind.model_type(), SignalModel)
    ):
        print(f"{method:12}{_rmse(same, _fitted(same, method)) / before:6.3f}")


def simulate(out: Path, *, with_scales: bool) -> None:
    """Simulate people at two sites of one protocol, the second with scales or without."""
    scanner = read_scanners()["prisma60"].without(*EFFECTS)
    scanner = replace(scanner, snr=SNR, directions=DIRECTIONS, b0=B0)
    sites = tuple(replace(scanner, site=site) for site in ("a", "b"))
    simulate_cohort(out, draw_cohort(sites, subjects=SUBJECTS, voxel_size=VOXEL_SIZE, seed=3))
    for files in find_scans(out).scans:
        if with_scales and str(files.site) == "b":
            _rescale(out, files)


def known_scales(scan: Scan, order: int) -> Array:
    """Return the scales of b0, and of degrees over it, of brain voxels, (voxel, 1 + order)."""
    voxels = np.stack(np.unravel_index(scan.voxels, scan.mask.shape, order="F"))
    x, y, z = scan.affine[:3, :3] @ voxels + scan.affine[:3, 3:]
    phases = 2 * np.pi * np.stack([x + y, y - z, x + z, z, x - y, y + z])[: 2 + order // 2]
    means, sizes = np.array([OF_B0, *list(OF_ORDER.values())[: 1 + order // 2]]).T
    return (means[:, None] * (1 + sizes[:, None] * np.cos(phases / PERIOD))).T


def _rescale(dataset: Path, files: ScanFiles) -> None:
    """Multiply the harmonics of a noiseless scan, add noise anew, and write both."""
    truth = noiseless_path(dataset, files)
    scan = read_scan(files)
    clean = scan.with_signal(read_signal(truth)[0])
    coefficients = fit_coefficients(clean, fit="pseudo-inverse", order=8)
    scales = known_scales(scan, 8)
    by_order = scales[:, 1 + coefficient_orders(8) // 2] * scales[:, :1]
    values = coefficients.values * np.hstack([scales[:, :1], *[by_order] * len(coefficients.bs)])
    signal = np.zeros_like(clean.signal)
    signal.T[:, scan.mask.T] = project(replace(coefficients, values=values), scan.gradients).T
    noise = np.random.default_rng(int(files.subject)).normal(
        scale=1000 / SNR, size=(2, *signal.shape)
    )
    noisy = np.hypot(signal + noise[0], noise[1]) * scan.mask[..., None]
    for path, volumes in ((truth, signal), (files.dwi, noisy)):
        image = nib.Nifti1Image(volumes.astype(np.float32), scan.affine)
        image.to_filename(path)


def _fitted(dataset: Path, method: str) -> Model:
    out = dataset.with_name(f"{dataset.name}_{method}.safetensors")
    work = dataset.with_name(f"{dataset.name}_work")
    return fit_model(dataset, out, METHODS[method](), work=work, resume=True)


def _test_scans(dataset: Path) -> Mapping[tuple[str, str], ScanFiles]:
    scans = [files for files in find_scans(dataset).scans if files.attributes["split"] == "test"]
    return {(files.subject, str(files.site)): files for files in scans}


def _measure_scales(dataset: Path, model: Model, unchanged: Model) -> None:
    assert isinstance(model, RishModel)
    errors = []
    for (_, site), files in _test_scans(dataset).items():
        if site == "a":
            scan = read_scan(files)
            white = scan.white_matter.T[scan.mask.T]
            estimated = model.gains(scan, model.preparation.coefficients(scan), "b")[white]
            before, after = model.levels(scan, "b")
            estimated[:, 0] *= after / before
            known = known_scales(scan, model.preparation.order)[white]
            known = np.hstack([known[:, :1], *[known[:, 1:]] * len(model.preparation.shells)])
            errors.append(np.median(np.abs(estimated / known - 1), axis=0))
    b0, *orders = 100 * np.mean(errors, axis=0)
    print(f"\n{model.card.method}: median error of the scales in white matter, per cent")
    print(f"b0            {b0:5.2f}")
    for b, row in zip(
        model.preparation.shells,
        np.reshape(orders, (len(model.preparation.shells), -1)),
        strict=True,
    ):
        print(f"b={b:<8.0f}    " + "  ".join(f"l={2 * i}: {e:5.2f}" for i, e in enumerate(row)))
    floor = _noise_floor(dataset)
    print(f"RMSE to the target over the noise floor: {_rmse(dataset, model) / floor:.3f}")
    print(f"(of scans that are unchanged: {_rmse(dataset, unchanged) / floor:.3f})")


def _rmse(dataset: Path, model: Model) -> float:
    """Return the RMSE of test scans of the first site, rendered as the second, in per cent."""
    targets = read_targets(dataset, split="test")
    errors = []
    for (person, site), files in _test_scans(dataset).items():
        if site == "a":
            goal = targets[person, "b"]
            rendering = render(model, read_scan(files), "b", gradients=goal.scan.gradients)
            scores = score_signal(rendering.scan, goal, goal.scan.white_matter)
            errors.append(scores["rmse_percent"])
    return float(np.mean(errors))


def _noise_floor(dataset: Path) -> float:
    targets = read_targets(dataset, split="test")
    goals = [goal for (_, site), goal in targets.items() if site == "b"]
    return float(np.mean([goal.noise(goal.scan.white_matter)["rmse_percent"] for goal in goals]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
