"""Remove the noise floor of magnitudes from a scan."""

from __future__ import annotations

import numpy as np

from siteless.acquisition import Scan
from siteless.noise._expected import ExpectedMagnitudes
from siteless.noise._magnitude import Magnitude


def remove_floor(scan: Scan, expected: ExpectedMagnitudes, *, coils: int = 1) -> Scan:
    """Return a scan whose mean over repetitions of the noise is the signal.

    The mean of a magnitude exceeds the signal, the more the weaker it is. What it exceeds it by
    follows from the expected magnitude, which nearby voxels and directions show together, and is
    subtracted from each measurement; so noise is as before, and single values may be below zero.

    Parameters
    ----------
    scan
        Scan with a map of its noise, from `estimate_noise`. It is returned as it is if it has
        values below zero in the brain, since it is no magnitude then.
    expected
        Its expected magnitudes.
    coils
        Number of independent channels that are combined by their sum of squares.
    """
    if scan.noise is None or not is_magnitude(scan):
        return scan
    magnitude, sigma = Magnitude(coils), scan.noise.T[scan.mask.T]
    volumes = scan.volumes.copy()
    for block, magnitudes in expected.blocks(np.arange(len(sigma))):
        noise = sigma[block]
        means = np.divide(magnitudes, noise, where=noise > 0, out=magnitudes)
        volumes[:, scan.voxels[block]] -= magnitude.excess(means) * noise
    signal = volumes.T.reshape((*scan.mask.shape, len(volumes)), order="F")
    return scan.with_signal(signal)


def is_magnitude(scan: Scan) -> bool:
    """Whether no value in the brain is below zero, as in real-valued scans."""
    return not any((volume[scan.voxels] < 0).any() for volume in scan.volumes)
