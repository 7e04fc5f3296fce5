"""Surveys of scans: compact features for estimating site effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import Channels, Coefficients, fit_noise, noise_channels
from siteless.neighbourhood import diffuse
from siteless.tissue import white_matter_level

# mm2. Variances of the blurs in a survey.
BLURS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
# Size of a block, mm, and its least white-matter fraction.
_BLOCK, _LEAST_SHARE = 10.0, 0.2
# Degrees with fields; energies of higher degrees are mostly noise.
DEGREES = (0, 2)
# Distances in voxels over which harmonics are compared to measure sharpness.
_LAGS = (1, 2, 3, 4, 6, 8)
# Number of white-noise channels, if those of a scan cannot be measured.
_WHITE_CHANNELS = 6
# Fraction of the scan's level below which energies over b0 squared are unreliable.
_DARK = 0.05
# Smallest energy over b0 squared of which a logarithm is taken.
_LEAST_ENERGY = 1e-5


@dataclass(frozen=True, eq=False)
class Survey:
    """Energies of white-matter blocks, and differences of harmonics between nearby voxels.

    Attributes
    ----------
    site, person
        Site and participant of the scan.
    position
        Mean world coordinates of each block's white matter, shape (block, 3), mm.
    count, share
        Number of white-matter voxels in each block, and their fraction of its brain, shape
        (block,).
    energies
        Logarithms of b0 in units of the level, and of the noise-corrected energies of each shell's
        degrees 0 and 2 over b0 squared; after each of `BLURS`, shape (blur, block, 1 + 2 * shell).
    structure
        Noise-corrected mean squared difference of degree-2 harmonics between white-matter voxels
        at several lags, after each of `BLURS`; shape (blur, axis, lag). NaN if there is no such
        pair.
    voxel_size
        Voxel size, shape (3,), mm.
    """

    site: str
    person: str
    position: Array
    count: Array
    share: Array
    energies: Array
    structure: Array
    voxel_size: Array

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays, without the site and the participant."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type == "Array"}

    @property
    def head_position(self) -> Array:
        """Position of each block relative to the centre of white matter, shape (block, 3), mm."""
        return self.position - np.average(self.position, axis=0, weights=self.count)

    @property
    def brain_volume(self) -> float:
        """Volume of the brain in all blocks, mm3."""
        return float((self.count / self.share).sum() * self.voxel_size.prod())


def survey(scan: Scan, coefficients: Coefficients, person: str) -> Survey:
    """Compute the survey of a scan from its coefficients."""
    level = white_matter_level(scan)
    values, noise = coefficients.values / np.float32(level), fit_noise(scan, coefficients)
    inside = scan.white_matter.T[scan.mask.T]
    world = scan.positions
    blocks = _Blocks(world, inside, float(np.prod(scan.voxel_size)))
    # Noise of a shell's degree in units of the level, (voxel, shell * degree).
    variance = noise.variance[:, :, None] / np.float32(level) ** 2 * noise.gain[:, : len(DEGREES)]
    kept = noise.kept[:, : len(DEGREES)]
    energies, structures = [], []
    shells, pairs = len(coefficients.bs), _pairs(scan.white_matter)
    low = np.flatnonzero(Channels(coefficients.order, shells).degrees <= DEGREES[-1])
    second = Channels(DEGREES[-1], shells).degrees == 2
    blurred = np.hstack([values[:, low], _noise_of_variance_one(scan, inside)])
    for before, blur in pairwise((0.0, *BLURS)):
        blurred = diffuse(blurred, scan.mask, scan.voxel_size, blur - before)
        signal, alone = np.hsplit(blurred, [len(low)])
        left = np.square(alone[inside]).mean()
        means = blocks.means(_features(signal, variance * left, kept))
        energies.append(np.log(np.maximum(means, _LEAST_ENERGY)))
        differences = _differences(signal[inside][:, second], pairs)
        gain = variance[inside, :, 1].mean() * shells / alone.shape[1]
        structures.append(differences - gain * _differences(alone[inside], pairs))
    return Survey(
        site=str(scan.site),
        person=person or scan.name,
        position=blocks.means(world),
        count=blocks.count,
        share=blocks.share,
        energies=np.stack(energies).astype(np.float32),
        structure=np.stack(structures),
        voxel_size=scan.voxel_size,
    )


def _features(values: Array, noise: Array, kept: Array) -> Array:
    """Return b0 and noise-corrected energies over b0 squared, shape (voxel, feature)."""
    b0 = np.maximum(values[:, :1], np.float32(_DARK))
    energies = Channels.of(values, DEGREES[-1]).energies(values)
    energies = (energies - noise) / kept / np.square(b0)[..., None]
    return np.hstack([values[:, :1], energies.reshape(len(values), -1)])


def _pairs(inside: Array) -> list[list[tuple[Array, Array]]]:
    """Return the indices of voxel pairs of a mask for each lag along each axis."""
    rows = np.full(inside.shape, -1, dtype=np.int32)
    rows.T[inside.T] = np.arange(np.count_nonzero(inside), dtype=np.int32)

    def apart(line: Array, lag: int) -> tuple[Array, Array]:
        both = (line[:-lag] >= 0) & (line[lag:] >= 0)
        return line[:-lag][both], line[lag:][both]

    return [[apart(np.moveaxis(rows, axis, 0), lag) for lag in _LAGS] for axis in range(3)]


def _noise_of_variance_one(scan: Scan, inside: Array) -> Array:
    """Return channels of unit-variance noise with the spatial correlation of the scan's.

    The noise is white if the scan has too few directions to separate noise from signal.
    """
    channels = noise_channels(scan)
    if not channels[inside].any():
        rng = np.random.default_rng(0)
        channels = rng.standard_normal((len(channels), _WHITE_CHANNELS), dtype=np.float32)
    return channels / np.sqrt(np.square(channels[inside]).mean())


def _differences(values: Array, pairs: list[list[tuple[Array, Array]]]) -> Array:
    """Return mean squared differences of channels over pairs, shape (axis, lag), or NaN."""

    def mean(near: Array, far: Array) -> float:
        squares = np.square(values[near] - values[far])
        return squares.sum(dtype=float) / len(near) if len(near) else np.nan

    return np.array([[mean(*pair) for pair in along] for along in pairs])


class _Blocks:
    """White-matter voxels divided into blocks of 10 mm along the world axes."""

    def __init__(self, world: Array, inside: Array, voxel_volume: float) -> None:
        cell = np.floor(world / _BLOCK).astype(int)
        cell -= cell.min(axis=0)
        self.block = np.ravel_multi_index(cell.T, cell.max(axis=0) + 1)
        self.inside = inside
        count, whole = np.bincount(self.block, inside), np.bincount(self.block)
        self.kept = np.flatnonzero(count * voxel_volume >= _LEAST_SHARE * _BLOCK**3)
        self.count = count[self.kept]
        self.share = self.count / whole[self.kept]

    def means(self, values: Array) -> Array:
        """Average over the white matter of each block, shape (block, column)."""
        sums = [np.bincount(self.block, column * self.inside)[self.kept] for column in values.T]
        return np.stack(sums, axis=1) / self.count[:, None]


def at_blur(stack: Array, blur: float) -> Array:
    """Interpolate values after each of `BLURS`, along the first axis."""
    last = len(BLURS) - 1
    position = float(np.interp(blur, BLURS, np.arange(last + 1)))
    lower = min(int(position), last - 1)
    part = position - lower
    return (1 - part) * stack[lower] + part * stack[lower + 1]


def usable_surveys(surveys: Sequence[Survey]) -> Array:
    """Return which surveys have blocks, shape (survey,), bool."""
    return np.array([bool(len(survey.count)) for survey in surveys])


def fine_detail(survey: Survey, near: float) -> Array:
    """Return the fine detail of a scan after each of `BLURS`, shape (blur,).

    It is the squared difference between voxels at a distance `near`, mm, divided by that at twice
    the distance. It decreases with blur, and does not depend on contrast or noise. NaN if white
    matter is too small. (At three times the distance, participants differ more.)
    """
    logs = np.log(np.maximum(survey.structure, np.finfo(np.float32).tiny))
    ratios, compared = [], np.log([near, 2 * near])
    for axis, step in enumerate(survey.voxel_size):
        known = np.isfinite(logs[:, axis]).all(axis=0)
        if known.sum() > 1:
            reach = np.log(step * np.array(_LAGS)[known])
            ends = (np.interp(compared, reach, row) for row in logs[:, axis, known])
            ratios.append([short - long for short, long in ends])
    return np.exp(np.mean(ratios, axis=0)) if ratios else np.full(len(BLURS), np.nan)
