"""Scanners: the protocol of a site, and effects of its hardware, which can be switched off."""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from scipy import fft, ndimage
from scipy.spatial.transform import Rotation
from scipy.special import ive

from siteless.acquisition import Array, GradientTable
from siteless.errors import DatasetError, errors_at
from siteless.simulation._person import Anatomy, Person
from siteless.simulation._signal import REFERENCE_DIFFUSION_TIME, Encoding, clean_signal

_REFERENCE_ECHO_TIME = 0.089
_REFERENCE_SIGNAL = 1000.0
# mm. Scale of the spatial fields of a scanner.
_RADIUS = 100.0
# s/mm2. b-value to which the distortion by eddy currents refers.
_EDDY_B = 3000.0
# Standard deviations between scans of a site: log gain, and head position (rad, mm).
_GAIN_SCATTER, _TURN, _SHIFT = 0.03, 0.07, 4.0

# Ranges of settings; other settings are text.
_LIMITS = {
    "echo_time": (0.01, 0.3),
    "shells": (100, 20_000),
    "directions": (6, 1000),
    "b0": (1, 100),
    "scheme": (0, 10**6),
    "gain": (0.05, 3),
    "receive": (0, 0.6),
    "receive_tilt": (-0.3, 0.3),
    "nonlinearity": (0, 0.1),
    "blur": (0, 20),
    "snr": (0, 1000),
    "coils": (1, 128),
    "gain_scatter": (0, 0.3),
    "turn": (0, 0.5),
    "shift": (0, 30),
    "b_scatter": (0, 0.05),
    "diffusion_time": (0.005, 0.2),
    "noise_correlation": (0, 10),
    "noise_rise": (-2, 2),
    "acquired": (0.5, 1),
    "partial_fourier": (0.5, 1),
    "motion": (0, 2),
    "eddy": (0, 2),
}
_WHOLE = ("directions", "b0", "scheme", "coils")
# Settings that are lists, with their allowed lengths.
_LISTS = {"shells": range(1, 10), "receive_tilt": (3,)}

# Effects that can be switched off, and the settings that do so.
EFFECTS: dict[str, dict[str, Any]] = {
    "gain": {"gain": 1.0, "gain_scatter": 0.0},
    "echo-time": {"echo_time": _REFERENCE_ECHO_TIME},
    "receive": {"receive": 0.0, "receive_tilt": (0.0, 0.0, 0.0)},
    "nonlinearity": {"nonlinearity": 0.0},
    "blur": {"blur": 0.0},
    "noise": {"snr": 0.0},
    "position": {"turn": 0.0, "shift": 0.0},
    "b-values": {"b_scatter": 0.0},
    "diffusion-time": {"diffusion_time": REFERENCE_DIFFUSION_TIME},
    "uneven-noise": {"noise_correlation": 0.0, "noise_rise": 0.0},
    "ringing": {"acquired": 1.0, "partial_fourier": 1.0},
    "motion": {"motion": 0.0, "eddy": 0.0},
}


@dataclass(frozen=True)
class Scanner:
    """A site's protocol and hardware; ``sites.toml`` documents each setting."""

    site: str
    manufacturer: str
    model: str
    serial: str
    echo_time: float
    shells: tuple[float, ...]
    directions: int
    b0: int
    scheme: int
    gain: float
    receive: float
    receive_tilt: tuple[float, ...]
    nonlinearity: float
    blur: float
    snr: float
    coils: int
    gain_scatter: float = _GAIN_SCATTER
    turn: float = _TURN
    shift: float = _SHIFT
    b_scatter: float = 0.004
    diffusion_time: float = REFERENCE_DIFFUSION_TIME
    noise_correlation: float = 0.0
    noise_rise: float = 0.0
    acquired: float = 1.0
    partial_fourier: float = 1.0
    motion: float = 0.0
    eddy: float = 0.0

    def without(self, *effects: str) -> Self:
        """Return the site without some effects, named as in `EFFECTS`."""
        unknown = [effect for effect in effects if effect not in EFFECTS]
        if unknown:
            raise DatasetError(
                f"there is no effect {unknown[0]!r}", remedy=f"choose from {', '.join(EFFECTS)}"
            )
        return replace(self, **{k: v for effect in effects for k, v in EFFECTS[effect].items()})


@dataclass(frozen=True, eq=False)
class SimulatedScan:
    """A simulated scan with and without noise, shape (x, y, z, volume), zero outside the brain."""

    signal: Array
    clean: Array
    # In the axes of the person's grid, rotated with the head as by preprocessing.
    gradients: GradientTable


def read_scanners(path: Path | None = None) -> dict[str, Scanner]:
    """Read the predefined sites, and those of a user's TOML file."""
    known = _parse(files("siteless.simulation").joinpath("sites.toml"))
    if path is None:
        return known
    with errors_at(path):
        return known | _parse(path)


def _parse(file: Traversable) -> dict[str, Scanner]:
    try:
        sites = tomllib.loads(file.read_text(encoding="utf-8"))
        return {site: _scanner(site, dict(settings)) for site, settings in sites.items()}
    except OSError as error:
        problem = f"the sites cannot be read ({error.strerror})"
        raise DatasetError(problem, remedy="correct the path") from None
    except (TypeError, ValueError) as error:
        problem = f"expected a TOML table a site ({error})"
        raise DatasetError(problem, remedy="correct the file") from None


def _scanner(site: str, settings: dict[str, Any]) -> Scanner:
    known = {field.name: field for field in fields(Scanner) if field.name != "site"}
    lacking = [n for n, field in known.items() if field.default is MISSING and n not in settings]
    unknown = [name for name in settings if name not in known]
    wrong = [name for name, value in settings.items() if name in known and not _fits(name, value)]
    problems = ((lacking, "lacks"), (unknown, "has unknown"), (wrong, "has a wrong value of"))
    for names, problem in problems:
        if names:
            limits = " to ".join(f"{limit:g}" for limit in _LIMITS.get(names[0], ()))
            remedy = f"expected {limits}" if limits else "see the documentation of simulated sites"
            raise DatasetError(f"site {site} {problem} {', '.join(names)}", remedy=remedy)
    if not re.fullmatch("[0-9A-Za-z]+", site):
        raise DatasetError(
            f"site {site!r} cannot be a BIDS session", remedy="use letters and digits only"
        )
    lists = {name: tuple(v) for name, v in settings.items() if isinstance(v, list)}
    return Scanner(site=site, **(settings | lists))


def _fits(name: str, value: object) -> bool:
    """Whether a setting has the right type and range."""
    if name not in _LIMITS:
        return isinstance(value, str)
    if name in _LISTS:
        if not isinstance(value, list) or len(value) not in _LISTS[name]:
            return False
        entries = cast("list[object]", value)
    else:
        entries = [value]
    low, high = _LIMITS[name]
    kind = int if name in _WHOLE else int | float
    return all(
        isinstance(entry, kind) and not isinstance(entry, bool) and low <= entry <= high
        for entry in entries
    )


def scan_person(
    person: Person, anatomy: Anatomy, scanner: Scanner, *, run: int = 1, session: str = ""
) -> SimulatedScan:
    """Scan a person once.

    Another run, or another session at the same site, has different noise, gain and head position.
    The session has the name of the site unless `session` is given.
    """
    stream = (zlib.crc32((session or scanner.site).encode()), run)
    rng = np.random.default_rng((*person.seed, *stream))
    turn = Rotation.from_rotvec(rng.normal(scale=scanner.turn, size=3)).as_matrix()
    place = anatomy.position @ turn.T + rng.normal(scale=scanner.shift, size=3)
    gain = scanner.gain * np.exp(rng.normal(scale=scanner.gain_scatter))
    played = scheme(scanner)
    # In a head rotated by R the gradients are rotated by R'; for row vectors that is @ R.
    gradients = GradientTable(played.bvals, played.bvecs @ turn)
    coils = None
    if scanner.nonlinearity:
        coils = turn.T @ _coil_error(place, scanner.nonlinearity) @ turn
    encoding = Encoding(gradients, scanner.echo_time, scanner.diffusion_time, coils)
    signal = clean_signal(anatomy, encoding)
    unit = place / _RADIUS
    receive = np.exp(scanner.receive * np.square(unit).sum(axis=1) + unit @ scanner.receive_tilt)
    signal *= (gain * receive)[:, None]
    clean = _blurred(anatomy.on_grid(signal), scanner.blur, anatomy)
    clean = _truncated(clean, scanner, anatomy)
    noisy = _moved(clean, scanner, anatomy, gradients, seed=(*person.seed, *stream))
    if scanner.snr:
        sigma = gain * _REFERENCE_SIGNAL / scanner.snr * _noise_rise(unit, scanner, anatomy)
        noisy = _with_noise(rng, noisy, sigma, scanner.coils, _noise_kernels(scanner, anatomy))
    return SimulatedScan(noisy * anatomy.mask[..., None], clean, gradients)


@cache
def scheme(scanner: Scanner) -> GradientTable:
    """Make the gradient table of a scanner, in its axes.

    b0 volumes are distributed among the others; b-values scatter by a fraction of a per cent.
    """
    from dipy.core.sphere import HemiSphere, disperse_charges

    rng = np.random.default_rng(scanner.scheme)
    shells, directions = [], []
    for b in scanner.shells:
        start = rng.normal(size=(scanner.directions, 3))
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        sphere, _ = disperse_charges(HemiSphere(xyz=start), iters=500)
        scatter = 1 + scanner.b_scatter * rng.uniform(-1, 1, size=scanner.directions)
        shells.append(5 * np.round(b * scatter / 5))  # scanners write multiples of 5
        directions.append(sphere.vertices)
    order = rng.permutation(len(scanner.shells) * scanner.directions)
    bvals, bvecs = np.concatenate(shells)[order], np.concatenate(directions)[order]
    places = np.linspace(0, len(bvals), scanner.b0, endpoint=False).astype(int)
    return GradientTable(np.insert(bvals, places, 0.0), np.insert(bvecs, places, 0.0, axis=0))


def _coil_error(place: Array, strength: float) -> Array:
    """Return L, shape (voxel, 3, 3): L g is the actual gradient for a nominal gradient g.

    Column a of L is the gradient of the field of coil a: the ideal coordinate a, plus the
    third-order spherical harmonic that the symmetry of coils allows.
    """
    x, y, z = (place / _RADIUS).T
    transverse = 4 * z**2 - x**2 - y**2
    coils = [
        [transverse - 2 * x**2, -2 * x * y, 8 * x * z],  # of x (4 z^2 - x^2 - y^2)
        [-2 * x * y, transverse - 2 * y**2, 8 * y * z],  # of y (4 z^2 - x^2 - y^2)
        [-6 * x * z, -6 * y * z, 6 * z**2 - 3 * x**2 - 3 * y**2],  # of z (2 z^2 - 3 x^2 - 3 y^2)
    ]
    error = np.stack([np.stack(gradient, axis=-1) for gradient in coils], axis=2)
    return np.eye(3) - strength * error


def _blurred(signal: Array, width: float, anatomy: Anatomy) -> Array:
    """Blur volumes by a kernel of exact variance, even if it is narrower than a voxel."""
    if not width:
        return signal
    for axis, kernel in enumerate(_kernels(width, anatomy)):
        signal = ndimage.convolve1d(signal, kernel, axis=axis, mode="constant")
    return signal * anatomy.mask[..., None]


def _kernels(width: float, anatomy: Anatomy) -> list[Array]:
    """Return kernels of a full width at half maximum, mm, along each axis; their sums are 1.

    (The modified Bessel functions are the discrete counterpart of a Gaussian.)
    """
    voxel = np.linalg.norm(anatomy.affine[:3, :3], axis=0)
    kernels = []
    for variance in (width / np.sqrt(8 * np.log(2)) / voxel) ** 2:
        reach = int(np.ceil(4 * np.sqrt(variance))) + 1
        kernel = ive(np.abs(np.arange(-reach, reach + 1)), variance)
        kernels.append(kernel / kernel.sum())
    return kernels


def _truncated(signal: Array, scanner: Scanner, anatomy: Anatomy) -> Array:
    """Fill what was not acquired of the spatial frequencies of each slice with zeros.

    This rings at edges. Partial Fourier leaves out frequencies of one sign along the second axis.
    """
    if scanner.acquired == scanner.partial_fourier == 1:
        return signal
    along, across = (np.abs(np.fft.fftfreq(size)) * 2 for size in signal.shape[:2])
    least = -(2 * scanner.partial_fourier - 1) * scanner.acquired
    signed = np.fft.fftfreq(signal.shape[1]) * 2
    kept = np.outer(along <= scanner.acquired, (across <= scanner.acquired) & (signed >= least))
    truncated = np.empty_like(signal)
    for volume in range(signal.shape[3]):
        frequencies = fft.fft2(signal[..., volume], axes=(0, 1)) * kept[..., None]
        truncated[..., volume] = np.abs(fft.ifft2(frequencies, axes=(0, 1)))
    return truncated * anatomy.mask[..., None]


def _moved(
    signal: Array,
    scanner: Scanner,
    anatomy: Anatomy,
    gradients: GradientTable,
    *,
    seed: tuple[int, ...],
) -> Array:
    """Shift each volume by the motion, and along the second axis by the eddy currents, left in it.

    Both are what correction leaves, far less than a voxel, so that images change linearly.
    """
    if not (scanner.motion or scanner.eddy):
        return signal
    rng = np.random.default_rng((*seed, 1))  # separate, so that the noise is unchanged
    to_voxels = np.linalg.inv(anatomy.affine[:3, :3])
    shifts = rng.normal(scale=scanner.motion, size=(len(gradients), 3)) @ to_voxels.T
    strengths = scanner.eddy * np.sqrt(gradients.b / _EDDY_B) * np.linalg.norm(to_voxels[1])
    moved = np.empty_like(signal)
    for volume, (shift, strength) in enumerate(zip(shifts, strengths, strict=True)):
        slopes = np.gradient(signal[..., volume])
        sheared = anatomy.position @ gradients.directions[volume] / _RADIUS * strength
        change = sum(step * slope for step, slope in zip(shift, slopes, strict=True))
        change += anatomy.on_grid(sheared) * slopes[1]
        moved[..., volume] = np.maximum(signal[..., volume] + change, 0)
    return moved


def _noise_rise(unit: Array, scanner: Scanner, anatomy: Anatomy) -> Array:
    """Return the standard deviation of noise over its root mean square, 1 or (x, y, z, 1)."""
    if not scanner.noise_rise:
        return np.ones(())
    rise = np.exp(-scanner.noise_rise * np.square(unit).sum(axis=1))
    return np.asarray(anatomy.on_grid(rise / np.sqrt(np.square(rise).mean()))[..., None])


def _noise_kernels(scanner: Scanner, anatomy: Anatomy) -> list[Array]:
    """Return kernels that correlate noise along each axis and keep its variance."""
    if not scanner.noise_correlation:
        return []
    # Noise that is smoothed by a kernel is correlated over a width of root two times its own.
    kernels = _kernels(scanner.noise_correlation / np.sqrt(2), anatomy)
    return [kernel / np.sqrt(np.square(kernel).sum()) for kernel in kernels]


def _with_noise(
    rng: np.random.Generator,
    clean: Array,
    sigma: Array | float,
    coils: int,
    kernels: Sequence[Array] = (),
) -> Array:
    """Return the magnitude with coil noise: Rician, or noncentral chi for several coils."""
    sigma = np.asarray(sigma, dtype=np.float32)
    squared = np.zeros_like(clean)
    for _ in range(coils):
        for part in range(2):
            noise = rng.standard_normal(clean.shape, dtype=np.float32)
            for axis, kernel in enumerate(kernels):
                noise = ndimage.convolve1d(noise, kernel, axis=axis, mode="wrap")
            mean = clean / np.float32(np.sqrt(coils)) if part == 0 else 0
            squared += np.square(mean + noise * sigma)
    return np.sqrt(squared)
