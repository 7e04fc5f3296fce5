"""Remove the noise floor of magnitudes from a scan, or add it."""

from __future__ import annotations

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Coefficients
from siteless.noise._expected import expected_magnitudes
from siteless.noise._magnitude import Magnitude


def remove_floor(scan: Scan, coefficients: Coefficients, *, coils: int = 1) -> Scan:
    """Return a scan whose mean over repetitions of the noise is the signal.

    The mean of a magnitude exceeds the signal, the more the weaker it is. What it exceeds it by
    follows from the expected magnitude, which nearby voxels and directions show together, and is
    subtracted from each measurement; so noise is as before, and single values may be below zero.

    Parameters
    ----------
    scan
        Scan with a map of its noise, from `estimate_noise`. It is returned as it is if it has
        values below zero in the brain, since it is no magnitude then.
    coefficients
        Its coefficients.
    coils
        Number of independent channels that are combined by their sum of squares.
    """
    if scan.noise is None or not is_magnitude(scan):
        return scan
    magnitude, sigma = Magnitude(coils), scan.noise.T[scan.mask.T]
    volumes = scan.volumes.copy()
    for block, expected in expected_magnitudes(scan, coefficients):
        noise = sigma[block]
        signal = magnitude.signal(np.divide(expected, noise, where=noise > 0, out=expected))
        volumes[:, scan.voxels[block]] -= magnitude.floor(signal) * noise
    return _with_volumes(scan, volumes)


def add_floor(scan: Scan, *, coils: int = 1) -> Scan:
    """Return a scan without noise, or with little, as its magnitude would be on average."""
    if scan.noise is None:
        return scan
    sigma, inside = scan.noise.T[scan.mask.T], scan.noise.T[scan.mask.T] > 0
    voxels, sigma, volumes = scan.voxels[inside], sigma[inside], scan.volumes.copy()
    signal = volumes[:, voxels].clip(min=0)
    volumes[:, voxels] = Magnitude(coils).mean(signal / sigma) * sigma
    return _with_volumes(scan, volumes)


def is_magnitude(scan: Scan) -> bool:
    """Whether no value in the brain is below zero, as in real-valued scans."""
    return not any((volume[scan.voxels] < 0).any() for volume in scan.volumes)


def _with_volumes(scan: Scan, volumes: Array) -> Scan:
    signal = volumes.T.reshape((*scan.mask.shape, len(volumes)), order="F")
    return scan.with_signal(signal)
