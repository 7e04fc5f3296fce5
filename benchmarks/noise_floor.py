"""How far is a scan from its noiseless truth, before and after its noise floor is removed?

``python -m benchmarks.noise_floor`` scans one person with several scanners, those of random worlds
among them, and prints in Markdown: the estimated noise over the true one (median over the brain);
and for the weakest and the strongest shell the mean and the amplitude of degree 2 in white matter
over those of the noiseless scan, of the magnitude and after its floor is removed. The amplitude is
that along the true harmonics, to which noise does not add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.stats import chi2

from siteless.acquisition import Array, Scan, Site
from siteless.harmonics import fit_coefficients
from siteless.noise import ExpectedMagnitudes, estimate_noise, remove_floor
from siteless.simulation import (
    USUAL_BIOLOGY,
    Biology,
    Person,
    Scanner,
    draw_world,
    make_anatomy,
    read_scanners,
    scan_person,
)

PERSON = Person("01", age=45, sex="F", split="test", seed=(2026, 1))
VOXEL_SIZE = 3.0
# Worlds that nothing was chosen by.
WORLDS = range(200, 206)


def main() -> None:
    print(
        "| scanner | SNR | noise | mean, magnitude | floor removed | degree 2, magnitude "
        "| floor removed |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, scanner, biology in scanners():
        noise, before, after = measure(scanner, biology)
        cells = (show(of[degree::2]) for degree in (0, 1) for of in (before, after))
        print(f"| {name} | {scanner.snr:.0f} | {noise:.3f} | {' | '.join(cells)} |", flush=True)


def show(of_shells: Array) -> str:
    """Show the values of the weakest and the strongest shell."""
    ends = of_shells[[0, -1]] if len(of_shells) > 1 else of_shells
    return ", ".join(f"{value:.3f}" for value in ends)


def scanners() -> Iterator[tuple[str, Scanner, Biology]]:
    prisma = read_scanners()["prisma30"]
    for snr in (28.0, 20.0, 15.0, 10.0):
        yield "Prisma 30", replace(prisma, snr=snr), USUAL_BIOLOGY
    clinical = replace(prisma, shells=(1000.0,), directions=12, b0=1, snr=15.0)
    yield "12 directions, b = 1000", clinical, USUAL_BIOLOGY
    for number in WORLDS:
        world = draw_world(number)
        # More coils than one are not estimated, and motion is no noise of a voxel.
        scanner = replace(world.scanners[0], coils=1).without("motion")
        shells = ", ".join(f"{b:g}" for b in scanner.shells)
        yield f"world {number}: {scanner.directions} at b = {shells}", scanner, world.biology


def measure(scanner: Scanner, biology: Biology) -> tuple[float, Array, Array]:
    anatomy = make_anatomy(PERSON, voxel_size=VOXEL_SIZE, biology=biology)
    simulated = scan_person(PERSON, anatomy, scanner)
    white = anatomy.on_grid(anatomy.white_matter)
    scan = Scan(
        simulated.signal,
        anatomy.affine,
        simulated.gradients,
        anatomy.mask,
        white,
        Site(scanner.site),
    )
    clean = scan.with_signal(simulated.clean)
    coefficients = fit_coefficients(scan)
    expected = ExpectedMagnitudes.of(scan, coefficients)
    sigma = estimate_noise(scan, coefficients, expected)
    assert sigma is not None
    removed = remove_floor(scan, expected, sigma)
    return (
        np.median(sigma) / true_noise(scan, clean),
        amplitudes(scan, clean),
        amplitudes(removed, clean),
    )


def true_noise(scan: Scan, clean: Scan) -> float:
    """Return the typical noise of bright volumes, whose magnitudes have the noise of one part."""
    error = (scan.signal - clean.signal)[scan.mask][:, scan.gradients.is_b0]
    median = np.median(np.square(error).sum(axis=1))
    return float(np.sqrt(median / chi2(error.shape[1]).median()))


def amplitudes(scan: Scan, clean: Scan) -> Array:
    """Return degrees 0 and 2 of each shell over those of the noiseless scan, (2 * shell,)."""
    white = scan.white_matter.T[scan.mask.T]
    ours, true = (fit_coefficients(of).values[white] for of in (scan, clean))
    channels = fit_coefficients(clean).channels
    ratios = []
    for index in range(channels.shells):
        shell = channels.shell(index)
        for degree in (0, 2):
            of = shell.start + np.flatnonzero(channels.degrees[shell] == degree)
            ratios.append((ours[:, of] * true[:, of]).sum() / np.square(true[:, of]).sum())
    return np.array(ratios)


if __name__ == "__main__":
    main()
