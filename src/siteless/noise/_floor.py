"""Remove the noise floor of magnitudes from a scan."""

from __future__ import annotations

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.noise._expected import ExpectedMagnitudes
from siteless.noise._magnitude import Magnitude

# Largest fraction of negative values in a magnitude, from interpolation.
_FEW = 1e-3


def remove_floor(
    scan: Scan, expected: ExpectedMagnitudes, sigma: Array, *, coils: int = 1
) -> Scan:
    """Return a scan whose mean over repetitions of the noise is the signal.

    The mean of a magnitude exceeds the signal, the more the weaker it is. What it exceeds it by
    follows from the expected magnitude, which nearby voxels and directions show together, and is
    subtracted from each measurement; so noise is as before, and single values may be below zero.

    Parameters
    ----------
    scan
        Scan whose values are magnitudes.
    expected
        Its expected magnitudes.
    sigma
        Its noise, from `estimate_noise`, shape (voxel,).
    coils
        Effective number of channels that are combined by their sum of squares.
    """
    magnitude, volumes = Magnitude(coils), scan.volumes.copy()
    for block, magnitudes in expected.blocks(np.arange(len(sigma))):
        noise = sigma[block]
        means = np.divide(magnitudes, noise, where=noise > 0, out=magnitudes)
        volumes[:, scan.voxels[block]] -= magnitude.excess(means) * noise
    signal = volumes.T.reshape((*scan.mask.shape, len(volumes)), order="F")
    return scan.with_signal(signal)


def is_magnitude(scan: Scan) -> bool:
    """Whether hardly any value in the brain is below zero, unlike in real-valued scans.

    Interpolation leaves a few negative values in magnitudes.
    """
    negative = sum(np.count_nonzero(volume[scan.voxels] < 0) for volume in scan.volumes)
    return bool(negative <= _FEW * len(scan.voxels) * len(scan.volumes))
