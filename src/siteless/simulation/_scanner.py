"""What a site adds: its protocol, and effects of its hardware, each of which can be left out."""

from __future__ import annotations

import tomllib
import zlib
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

from siteless.acquisition import Array, GradientTable
from siteless.errors import DatasetError
from siteless.simulation._person import Anatomy, Person
from siteless.simulation._signal import clean_signal

_REFERENCE_ECHO_TIME = 0.089
_REFERENCE_SIGNAL = 1000.0
# mm. The scale of the fields of a scanner.
_RADIUS = 100.0
# How much the gain differs between two scans of a site (log), and heads lie apart (rad, mm).
_GAIN_SCATTER, _TURN, _SHIFT = 0.03, 0.07, 4.0

# What can be left out, and the settings that leave it out.
EFFECTS: dict[str, dict[str, Any]] = {
    "gain": {"gain": 1.0, "gain_scatter": 0.0},
    "echo-time": {"echo_time": _REFERENCE_ECHO_TIME},
    "receive": {"receive": 0.0, "receive_tilt": (0.0, 0.0, 0.0)},
    "nonlinearity": {"nonlinearity": 0.0},
    "blur": {"blur": 0.0},
    "noise": {"snr": np.inf},
    "position": {"turn": 0.0, "shift": 0.0},
    "b-values": {"b_scatter": 0.0},
}


@dataclass(frozen=True)
class Scanner:
    """A site's protocol and hardware; ``sites.toml`` says what each setting means."""

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

    def without(self, *effects: str) -> Self:
        """Return the site without some of its effects, by their names in `EFFECTS`."""
        unknown = [effect for effect in effects if effect not in EFFECTS]
        if unknown:
            raise DatasetError(
                f"there is no effect {unknown[0]!r}", remedy=f"choose of {', '.join(EFFECTS)}"
            )
        return replace(self, **{k: v for effect in effects for k, v in EFFECTS[effect].items()})


@dataclass(frozen=True, eq=False)
class SimulatedScan:
    """A scan and what it would have been without noise.

    Attributes
    ----------
    signal, clean
        Shape (x, y, z, volume), float32, zero outside the brain.
    gradients
        In the axes of the person's grid: turned with the head, as preprocessing leaves them.
    """

    signal: Array
    clean: Array
    gradients: GradientTable


def read_scanners(path: Path | None = None) -> dict[str, Scanner]:
    """Read the sites that siteless knows, and those of a TOML file of the user's."""
    known = _parse(files("siteless.simulation").joinpath("sites.toml").read_text(), None)
    if path is None:
        return known
    try:
        return known | _parse(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise DatasetError(
            f"the sites cannot be read ({error.strerror})", remedy="correct the path", path=path
        ) from None


def _parse(text: str, path: Path | None) -> dict[str, Scanner]:
    try:
        sites = tomllib.loads(text)
        return {site: _scanner(site, dict(settings)) for site, settings in sites.items()}
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise DatasetError(
            f"expected a TOML table a site ({error})", remedy="correct the file", path=path
        ) from None
    except DatasetError as error:
        raise (error.at(path) if path else error) from None


def _scanner(site: str, settings: dict[str, Any]) -> Scanner:
    known = {field.name: field for field in fields(Scanner) if field.name != "site"}
    lacking = [n for n, field in known.items() if field.default is MISSING and n not in settings]
    unknown = [name for name in settings if name not in known]
    wrong = [n for n, value in settings.items() if n in known and not _fits(value, known[n].type)]
    for names, told in (
        (lacking, "lacks"),
        (unknown, "has unknown"),
        (wrong, "has a wrong value of"),
    ):
        if names:
            raise DatasetError(
                f"site {site} {told} {', '.join(names)}", remedy="see the comments in sites.toml"
            )
    lists = {name: tuple(v) for name, v in settings.items() if isinstance(v, list)}
    return Scanner(site=site, **(settings | lists))


def _fits(value: object, annotation: object) -> bool:
    """Whether a TOML value is of an annotated type, which is text in this module."""
    if annotation == "tuple[float, ...]":
        return isinstance(value, list) and all(_fits(one, "float") for one in value)
    kinds: Any = {"str": str, "int": int, "float": (int, float)}[str(annotation)]
    return isinstance(value, kinds) and not isinstance(value, bool)


def scan_person(
    person: Person, anatomy: Anatomy, scanner: Scanner, *, run: int = 1
) -> SimulatedScan:
    """Scan a person once; another run is another draw of noise, gain and head position."""
    rng = np.random.default_rng((*person.seed, zlib.crc32(scanner.site.encode()), run))
    turn = Rotation.from_rotvec(rng.normal(scale=scanner.turn, size=3)).as_matrix()
    place = anatomy.position @ turn.T + rng.normal(scale=scanner.shift, size=3)
    gain = scanner.gain * np.exp(rng.normal(scale=scanner.gain_scatter))
    played = scheme(scanner)
    # A head turned by R sees the scanner's gradients turned by R'; row vectors make that @ R.
    gradients = GradientTable(played.bvals, played.bvecs @ turn)
    coils = None
    if scanner.nonlinearity:
        coils = turn.T @ _coil_error(place, scanner.nonlinearity) @ turn
    signal = clean_signal(anatomy, gradients, echo_time=scanner.echo_time, distortion=coils)
    signal *= (gain * _receive_field(scanner, place))[:, None]
    clean = _blurred(anatomy.on_grid(signal), scanner.blur, anatomy)
    sigma = scanner.gain * _REFERENCE_SIGNAL / scanner.snr
    noisy = _with_noise(rng, clean, sigma, scanner.coils) if sigma else clean.copy()
    return SimulatedScan(noisy * anatomy.mask[..., None], clean, gradients)


@cache
def scheme(scanner: Scanner) -> GradientTable:
    """Make the gradient table that a scanner plays out, in its own axes.

    b0 volumes are spread among the others; b-values scatter by a fraction of a per cent, as
    scanners write them.
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


def _receive_field(scanner: Scanner, place: Array) -> Array:
    """Return what the receive coils multiply the signal by, shape (voxel,)."""
    unit = place / _RADIUS
    return np.exp(scanner.receive * np.square(unit).sum(axis=1) + unit @ scanner.receive_tilt)


def _coil_error(place: Array, strength: float) -> Array:
    """Return L, what a gradient coil makes of the gradient it is asked for, (voxel, 3, 3).

    Row a of L is the gradient of the field of coil a: the ideal coordinate a, plus the third-order
    spherical harmonic that the symmetry of such coils leaves in it.
    """
    x, y, z = (place / _RADIUS).T
    zero = np.zeros_like(x)
    transverse = 4 * z**2 - x**2 - y**2
    rows = [
        [transverse - 2 * x**2, -2 * x * y, 8 * x * z],
        [-2 * x * y, transverse - 2 * y**2, 8 * y * z],
        [-6 * x * z, -6 * y * z, 6 * z**2 - 3 * x**2 - 3 * y**2 + zero],
    ]
    error = np.stack([np.stack(row, axis=-1) for row in rows], axis=1)
    return np.eye(3) - strength * error


def _blurred(signal: Array, width: float, anatomy: Anatomy) -> Array:
    if not width:
        return signal
    voxel = np.linalg.norm(anatomy.affine[:3, :3], axis=0)
    sigma = width / np.sqrt(8 * np.log(2)) / voxel
    blurred = ndimage.gaussian_filter(signal, (*sigma, 0), truncate=3, mode="constant")
    return blurred * anatomy.mask[..., None]


def _with_noise(rng: np.random.Generator, clean: Array, sigma: float, coils: int) -> Array:
    """Return the magnitude that noisy coils give: Rician, or noncentral chi for several coils."""
    squared = np.zeros_like(clean)
    for _ in range(coils):
        for part in range(2):
            noise = rng.standard_normal(clean.shape, dtype=np.float32) * np.float32(sigma)
            mean = clean / np.float32(np.sqrt(coils)) if part == 0 else 0
            squared += np.square(mean + noise)
    return np.sqrt(squared)
