"""Does re-projecting a scan shrink its anisotropy?

``python -m benchmarks.shrinkage`` simulates a person at scanners with 12, 30 and 60 directions,
adds noise of several strengths to the noiseless scans, renders them at home with the method
`unchanged`, averages the results over repetitions of the noise, and prints their amplitude of
degree 2 and their mean FA in white matter, over those of the noiseless scan. Noise is additive, or
Rician, whose floor raises weak signals: this bias is in the scan itself, so the scan is shown too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.scores import read_targets
from siteless.acquisition import Array, Scan
from siteless.evaluation import Target, maps_within
from siteless.harmonics import fit_coefficients
from siteless.methods import Unchanged, load_model, render
from siteless.model import Model
from siteless.pipelines import fit_model, simulate_cohort
from siteless.simulation import draw_cohort, read_scanners

DIRECTIONS, SNRS, REPETITIONS = (12, 30, 60), (15, 20, 30), 8
VOXEL_SIZE = 4.0
Noise = Callable[[np.random.Generator, Array, float], Array]


def additive(rng: np.random.Generator, signal: Array, sigma: float) -> Array:
    return signal + rng.normal(scale=sigma, size=signal.shape)


def rician(rng: np.random.Generator, signal: Array, sigma: float) -> Array:
    return np.hypot(additive(rng, signal, sigma), rng.normal(scale=sigma, size=signal.shape))


def main() -> None:
    print("| directions | SNR | noise | degree 2, scan | re-projected | FA, scan | re-projected |")
    print("|---:|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        dataset, path = Path(folder) / "cohort", Path(folder) / "unchanged.safetensors"
        simulate(dataset)
        fit_model(dataset, path, Unchanged(noise_floor="keep"))
        model = load_model(path)
        for (_, site), target in read_targets(dataset).items():
            for snr in SNRS:
                for noise in (additive, rician):
                    cells = (f"{value:.4f}" for value in measure(model, target, site, snr, noise))
                    print(f"| {site[1:]} | {snr} | {noise.__name__} | {' | '.join(cells)} |")


def simulate(dataset: Path) -> None:
    prisma = read_scanners()["prisma30"]
    scanners = (replace(prisma, site=f"d{count}", directions=count) for count in DIRECTIONS)
    simulate_cohort(dataset, draw_cohort(tuple(scanners), subjects=2, voxel_size=VOXEL_SIZE))


def measure(
    model: Model, target: Target, site: str, snr: float, noise: Noise
) -> tuple[float, float, float, float]:
    """Return the amplitude of degree 2 and FA, of scans and of re-projected ones."""
    clean, rng = target.truth, np.random.default_rng(round(snr))
    assert clean is not None
    b0 = clean.signal[..., clean.gradients.is_b0].mean(axis=-1)
    sigma = float(np.median(b0[clean.white_matter])) / snr
    scans, rendered = np.zeros(clean.signal.shape), np.zeros(clean.signal.shape)
    for _ in range(REPETITIONS):
        noisy = clean.with_signal(noise(rng, clean.signal, sigma).astype(np.float32))
        scans += noisy.signal / REPETITIONS
        rendered += render(model, noisy, site).scan.signal / REPETITIONS
    means = [clean.with_signal(mean.astype(np.float32)) for mean in (scans, rendered)]
    (before, after), true = means, mean_fa(clean)
    amplitudes = kept_amplitude(before, clean), kept_amplitude(after, clean)
    return *amplitudes, mean_fa(before) / true, mean_fa(after) / true


def kept_amplitude(scan: Scan, clean: Scan) -> float:
    """Return the part of a clean scan's harmonics of degree 2 that a scan has."""
    fitted, true = (fit_coefficients(source, fit="pseudo-inverse") for source in (scan, clean))
    pairs = [
        (fitted.shell(shell)[:, 1:6], true.shell(shell)[:, 1:6]) for shell in range(len(true.bs))
    ]
    product = sum(float((measured * expected).sum()) for measured, expected in pairs)
    return product / sum(float(np.square(expected).sum()) for _, expected in pairs)


def mean_fa(scan: Scan) -> float:
    maps = maps_within(scan, ("fa",), [scan.white_matter])
    return float(np.nanmean(maps["fa"][scan.white_matter]))


if __name__ == "__main__":
    main()
