"""What a scan tells of its site, small enough to keep of every scan of a cohort."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.harmonics import (
    Channels,
    Coefficients,
    fit_noise,
    noise_channels,
)
from siteless.methods.invariant.profiles._spread import diffuse
from siteless.tissue import white_matter_level

# mm2. Point spreads that a survey is taken after.
SPREADS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
# mm, and the part of a block that must be white matter.
_BLOCK, _LEAST_SHARE = 10.0, 0.2
# Degrees that fields are estimated of; energies of higher ones are mostly noise.
DEGREES = (0, 2)
# In voxels, over which harmonics are compared to tell how sharp a scan is.
_LAGS = (1, 2, 3, 4, 6, 8)
# Of noise, where a scan does not show its own.
_WHITE_CHANNELS = 6
# Of the scan's level. The energy of darker voxels, over b0 squared, is not known.
_DARK = 0.05
# Energies of blocks below this part of b0 squared have no logarithm to speak of.
_LEAST_ENERGY = 1e-5


@dataclass(frozen=True, eq=False)
class Survey:
    """Energies of blocks of white matter, and how harmonics differ between near voxels.

    Attributes
    ----------
    site, person
        Where the scan is from, and who was scanned.
    position
        Of each block: the mean place of its white matter in the world, shape (block, 3), mm.
    count, share
        Voxels of white matter in a block, and their part of its brain, shape (block,).
    energies
        Logarithms of b0 in units of the level and, over b0 squared and without noise, of the
        energies of each shell's degrees 0 and 2; after each of `SPREADS`, shape
        (spread, block, 1 + 2 * shell).
    structure
        Mean square difference of degree-2 harmonics, without noise, between white-matter voxels
        that lie some voxels apart, after each of `SPREADS`; shape (spread, axis, lag). NaN where
        no two voxels lie so.
    voxel_size
        Shape (3,), mm.
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
        """All but the site and the person."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type == "Array"}

    @classmethod
    def from_arrays(cls, site: str, person: str, arrays: dict[str, Array]) -> Self:
        """Make a survey of what a file holds."""
        return cls(site, person, **arrays)

    @property
    def head_position(self) -> Array:
        """Of each block, from the centre of white matter, shape (block, 3), mm."""
        return self.position - np.average(self.position, axis=0, weights=self.count)

    @property
    def brain_volume(self) -> float:
        """Of the brain in all blocks, mm3."""
        return float((self.count / self.share).sum() * self.voxel_size.prod())


def survey(scan: Scan, own: Coefficients, person: str) -> Survey:
    """Take a survey of a scan, given its coefficients."""
    level = white_matter_level(scan)
    values, noise = own.values / np.float32(level), fit_noise(scan, own)
    inside = scan.white_matter.T[scan.mask.T]
    world = scan.positions
    blocks = _Blocks(world, inside, float(np.prod(scan.voxel_size)))
    # Noise of a shell's degree in units of the level, (voxel, shell * degree).
    variance = noise.variance[:, :, None] / np.float32(level) ** 2 * noise.gain[:, : len(DEGREES)]
    kept = noise.kept[:, : len(DEGREES)]
    energies, structures = [], []
    low, pairs = _low_channels(own.order, len(own.bs)), _pairs(scan.white_matter)
    blurred = np.hstack([values[:, low], _noise_of_variance_one(scan, inside)])
    for before, spread in pairwise((0.0, *SPREADS)):
        blurred = diffuse(blurred, scan.mask, scan.voxel_size, spread - before)
        signal, alone = np.hsplit(blurred, [len(low)])
        left = np.square(alone[inside]).mean()
        energies.append(blocks.log_means(_features(signal, variance * left, kept)))
        differences = _differences(_second_degree(signal[inside], len(own.bs)), pairs)
        given = variance[inside, :, 1].mean() * len(own.bs) / alone.shape[1]
        structures.append(differences - given * _differences(alone[inside], pairs))
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


def _low_channels(order: int, shells: int) -> Array:
    """Return the channels of b0 and of each shell's degrees that fields are estimated of."""
    return np.flatnonzero(Channels(order, shells).degrees <= DEGREES[-1])


def _features(values: Array, noise: Array, kept: Array) -> Array:
    """Return b0 and, over b0 squared and without noise, energies; shape (voxel, feature)."""
    b0 = np.maximum(values[:, :1], np.float32(_DARK))
    energies = Channels.of(values, DEGREES[-1]).energies(values)
    energies = (energies - noise) / kept / np.square(b0)[..., None]
    return np.hstack([values[:, :1], energies.reshape(len(values), -1)])


def _pairs(inside: Array) -> list[list[tuple[Array, Array]]]:
    """Return the voxels of a mask that lie each of the lags apart, by number, along each axis."""
    rows = np.full(inside.shape, -1, dtype=np.int32)
    rows.T[inside.T] = np.arange(np.count_nonzero(inside), dtype=np.int32)

    def apart(line: Array, lag: int) -> tuple[Array, Array]:
        both = (line[:-lag] >= 0) & (line[lag:] >= 0)
        return line[:-lag][both], line[lag:][both]

    return [[apart(np.moveaxis(rows, axis, 0), lag) for lag in _LAGS] for axis in range(3)]


def _noise_of_variance_one(scan: Scan, inside: Array) -> Array:
    """Return channels of noise that is correlated between voxels as the scan's is.

    It is white where a scan has too few directions to show its noise alone.
    """
    channels = noise_channels(scan)
    if not channels[inside].any():
        rng = np.random.default_rng(0)
        channels = rng.standard_normal((len(channels), _WHITE_CHANNELS), dtype=np.float32)
    return channels / np.sqrt(np.square(channels[inside]).mean())


def _second_degree(values: Array, shells: int) -> Array:
    """Return the channels of degree 2, given those of degrees 0 and 2."""
    second: Array = values[:, Channels(DEGREES[-1], shells).degrees == 2]
    return second


def _differences(values: Array, pairs: list[list[tuple[Array, Array]]]) -> Array:
    """Return mean square differences of channels over pairs, shape (axis, lag), or NaN."""

    def mean(near: Array, far: Array) -> float:
        squares = np.square(values[near] - values[far])
        return squares.sum(dtype=float) / len(near) if len(near) else np.nan

    return np.array([[mean(*one) for one in along] for along in pairs])


class _Blocks:
    """Voxels of white matter parted into blocks of 10 mm, in the world's axes."""

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

    def log_means(self, values: Array) -> Array:
        return np.log(np.maximum(self.means(values), _LEAST_ENERGY))


def at_spread(stack: Array, spread: float) -> Array:
    """Interpolate what was found after each of `SPREADS`, along the first axis."""
    last = len(SPREADS) - 1
    position = float(np.interp(spread, SPREADS, np.arange(last + 1)))
    lower = min(int(position), last - 1)
    part = position - lower
    between: Array = (1 - part) * stack[lower] + part * stack[lower + 1]
    return between


def fine_detail(one: Survey, near: float) -> Array:
    """Return the part of harmonics' differences that is fine detail, shape (spread,).

    It is the difference between voxels that are near, over that between voxels twice as far
    apart: less where a scan is blurred, and the same whatever its contrast or its noise. NaN when
    white matter is too small to tell. (Over three times the distance, people differ more.)

    Parameters
    ----------
    one
        Survey of a scan.
    near
        A distance, mm.
    """
    logs = np.log(np.maximum(one.structure, np.finfo(np.float32).tiny))
    ratios, compared = [], np.log([near, 2 * near])
    for axis, step in enumerate(one.voxel_size):
        known = np.isfinite(logs[:, axis]).all(axis=0)
        if known.sum() > 1:
            reach = np.log(step * np.array(_LAGS)[known])
            ends = (np.interp(compared, reach, row) for row in logs[:, axis, known])
            ratios.append([short - long for short, long in ends])
    return np.exp(np.mean(ratios, axis=0)) if ratios else np.full(len(SPREADS), np.nan)
