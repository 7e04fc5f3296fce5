"""Does the model bring scans closer to the target site than simple methods do?

``python -m benchmarks.harmonization`` simulates the small cohort, fits the default preset to it,
and prints the RMSE of the test people's scans, rendered as another site, in per cent of that
site's white-matter b0: to the scan acquired there, and to the same without noise.
``python -m benchmarks.harmonization DATASET MODEL`` judges a model that is there already.

Every method starts from the same regularised fits. A scan rendered at home and then scaled tells
how much of the gain is that a code holds less noise than a scan.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import trust
from siteless.acquisition import Scan
from siteless.bids import ScanFiles, find_scans, read_scan, read_signal
from siteless.harmonics import Coefficients, fit_coefficients, project, rish
from siteless.model import Model, load_model
from siteless.pipelines import fit_model, simulate_cohort
from siteless.simulation import PRESETS, draw_cohort, read_scanners
from siteless.tissue import white_matter_level

HUB = "prisma30"
# mm, and voxels of white matter in a block.
BLOCK, LEAST_VOXELS = 10.0, 8
# A scan and its coefficients, the source and the target site, to coefficients.
Method = Callable[[Scan, Coefficients, str, str], Coefficients]


def main(dataset: Path | None = None, model: Path | None = None) -> None:
    if dataset is not None and model is not None:
        judge(dataset, load_model(model))
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cohort"
        preset, known = PRESETS["small"], read_scanners()
        people = draw_cohort(
            tuple(known[site] for site in preset.sites),
            subjects=preset.subjects,
            voxel_size=preset.voxel_size,
        )
        simulate_cohort(out, people)
        start = time.monotonic()
        fitted = fit_model(out, Path(folder) / "model.safetensors")
        print(f"fitted in {time.monotonic() - start:.0f} s")
        judge(out, fitted)
        trust.judge(out, fitted)
        ill = draw_cohort(
            tuple(known[site] for site in preset.sites),
            subjects=2,
            voxel_size=preset.voxel_size,
            lesions=2,
            seed=1,
        )
        simulate_cohort(Path(folder) / "lesions", ill)
        trust.judge_lesions(Path(folder) / "lesions", fitted)


def judge(dataset: Path, model: Model) -> None:
    scans = find_scans(dataset).scans
    training = [files for files in scans if files.attributes["split"] == "train"]
    test = [files for files in scans if files.attributes["split"] == "test"]
    energies = {site: _energies(training, site, model) for site in model.card.sites}
    methods: dict[str, Method] = {
        "unchanged": lambda _scan, own, _source, _target: own,
        "scaled to the site's b0 level": partial(_scaled, model),
        "one RISH scale an order and shell": partial(_rish_scaled, model, energies),
        "siteless at home, then scaled": partial(_smoothed, model),
        "siteless": partial(_rendered, model),
    }
    others = [site for site in model.card.sites if site != HUB]
    tasks = [*((HUB, site) for site in others), *((site, HUB) for site in others)]
    people = sorted({files.subject for files in test})
    by_place = {(files.subject, str(files.site)): files for files in test}
    scores: dict[str, list[np.ndarray]] = {name: [] for name in (*methods, "noise floor")}
    for source, target in tasks:
        rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in scores}
        for person in people:
            scan = read_scan(by_place[person, source])
            goal = read_scan(by_place[person, target])
            clean = _noiseless(dataset, by_place[person, target], goal)
            unit = 100 / model.level(target)
            own = fit_coefficients(scan, order=model.card.order, fit=model.card.fit)
            for name, method in methods.items():
                given = _signal(method(scan, own, source, target), goal)
                rmse = unit * _rmse(given, _measured(goal)), unit * _rmse(given, clean)
                rows[name].append((*rmse, _anisotropy(given, goal) / _anisotropy(clean, goal)))
            floor = _anisotropy(_measured(goal), goal) / _anisotropy(clean, goal)
            rows["noise floor"].append((unit * _rmse(clean, _measured(goal)), 0.0, floor))
        for name, values in rows.items():
            scores[name].append(np.mean(values, axis=0))
    print("RMSE, per cent of white matter's b0: to the target scan (to its noiseless truth);")
    print("and by how much the anisotropy of 10 mm blocks is off, per cent (mean of tasks)")
    titles = [f"{s[:1]}{s[-2:]}>{t[:1]}{t[-2:]}" for s, t in tasks] + ["mean", "anisotropy"]
    print(f"{'':34}" + "".join(f"{title:<15}" for title in titles))
    for name, values in scores.items():
        shown = "".join(f"{a:5.2f} ({b:5.2f})  " for a, b, _ in [*values, np.mean(values, axis=0)])
        off = 100 * np.abs(np.array(values)[:, 2] - 1).mean()
        print(f"{name:34}{shown}{off:6.1f}")


def _signal(coefficients: Coefficients, goal: Scan) -> np.ndarray:
    """Project to the target's gradients, in its white matter; shape (voxel, volume)."""
    return project(coefficients, goal.gradients)[goal.white_matter.T[coefficients.mask.T]]


def _measured(scan: Scan) -> np.ndarray:
    return scan.volumes[:, np.flatnonzero(scan.white_matter.T)].T


def _noiseless(dataset: Path, files: ScanFiles, goal: Scan) -> np.ndarray:
    folder = dataset / "derivatives" / "truth" / files.dwi.parent.relative_to(dataset)
    name = files.name.replace("_dwi", "_desc-noiseless_dwi.nii.gz")
    signal, _ = read_signal(folder / name)
    return signal.T.reshape(signal.shape[3], -1)[:, np.flatnonzero(goal.white_matter.T)].T


def _rmse(given: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square over volumes, then the mean over voxels."""
    return float(np.sqrt(np.square(given - expected).mean(axis=1)).mean())


def _anisotropy(signal: np.ndarray, goal: Scan) -> float:
    """Return how much the strongest shell of block means differs between directions, over b0.

    Blocks of 10 mm hold enough voxels for noise to average out of the signal first: the spread
    of a noisy voxel's directions would be that of its noise too.
    """
    voxels = np.argwhere(goal.white_matter.T)[:, ::-1]
    blocks = (voxels * goal.voxel_size // BLOCK).astype(int)
    _, number, count = np.unique(blocks, axis=0, return_inverse=True, return_counts=True)
    sums = np.zeros((len(count), signal.shape[1]))
    np.add.at(sums, number.ravel(), signal)
    means = (sums / count[:, None])[count >= LEAST_VOXELS]
    shell = goal.gradients.shells[-1]
    b0 = means[:, goal.gradients.is_b0].mean()
    return float(means[:, shell.volumes].std(axis=1).mean() / b0)


def _with_values(own: Coefficients, values: np.ndarray) -> Coefficients:
    return Coefficients(values.astype(np.float32), own.mask, own.bs, own.order, own.penalties)


def _scaled(
    model: Model, scan: Scan, own: Coefficients, _source: str, target: str
) -> Coefficients:
    return _with_values(own, own.values * (model.level(target) / white_matter_level(scan)))


def _energies(training: Sequence[ScanFiles], site: str, model: Model) -> np.ndarray:
    """Return the mean energy of each shell and order, in units of the scans' levels."""
    found = []
    for files in (files for files in training if str(files.site) == site):
        scan = read_scan(files)
        own = fit_coefficients(scan, order=model.card.order, fit=model.card.fit)
        white = scan.white_matter.T[scan.mask.T]
        found.append(rish(own)[white].mean(axis=0) / white_matter_level(scan) ** 2)
    return np.mean(found, axis=0)


def _rish_scaled(
    model: Model,
    energies: dict[str, np.ndarray],
    scan: Scan,
    own: Coefficients,
    source: str,
    target: str,
) -> Coefficients:
    scales = np.sqrt(energies[target] / energies[source])  # (shell, order)
    counts = [2 * degree + 1 for degree in range(0, own.order + 1, 2)]
    channels = np.concatenate([[1.0], *(np.repeat(shell, counts) for shell in scales)])
    scaled = _scaled(model, scan, own, source, target)
    return _with_values(own, scaled.values * channels)


def _rendered(
    model: Model, scan: Scan, _own: Coefficients, _source: str, target: str
) -> Coefficients:
    return model.decode(model.encode(scan), target)


def _smoothed(
    model: Model, scan: Scan, _own: Coefficients, source: str, target: str
) -> Coefficients:
    at_home = model.decode(model.encode(scan), source)
    ratio = model.level(target) / model.level(source)
    return _with_values(at_home, at_home.values * ratio)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
