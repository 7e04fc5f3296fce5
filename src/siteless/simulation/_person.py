"""Simulated people: deformations of the atlas with individual tissue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Self

import numpy as np
from scipy import ndimage
from scipy.spatial.transform import Rotation

from siteless.acquisition import Array, on_grid
from siteless.simulation._atlas import SYSTEMS, load_atlas
from siteless.simulation._biology import MEAN_AGE, USUAL_BIOLOGY, Biology

Field = Callable[[Array], Array]

# mm. The field of view, and its centre in the atlas.
_FIELD_OF_VIEW = np.array([180.0, 220.0, 190.0])
_CENTRE = np.array([0.0, -18.0, 6.0])
# Smaller fibre populations of a voxel's white matter are left out.
_LEAST_POPULATION = 0.12
# Exponent from flux to volume: below 1, so that the denser system does not dominate crossings.
_FLUX_EXPONENT = 0.6
# mm. Smoothness of tissue, and of the surface to which cortical sticks are perpendicular.
_TISSUE_SCALE, _SURFACE_SCALE = 20.0, 3.0
# Random streams of a person apart from the anatomy's, and of the variations that all share.
_LESION, _GREY, _RELAXATION, _ALL = 1, 2, 3, 0


@dataclass(frozen=True)
class Effect:
    """A change of the intra-axonal fraction in an ellipsoid of the atlas, in MNI152 mm."""

    centre: tuple[float, float, float]
    radii: tuple[float, float, float]
    intra_axonal: float

    def holds(self, place: Array) -> Array:
        """Return whether positions in the atlas, shape (voxel, 3), are in the ellipsoid."""
        return np.square((place - self.centre) / self.radii).sum(axis=1) < 1


# The effect of being a patient: bilateral frontal white matter around the genu.
PATIENT_EFFECT = Effect((0.0, 30.0, 14.0), (34.0, 22.0, 24.0), intra_axonal=-0.06)


@dataclass(frozen=True)
class Visit:
    """A session at a site."""

    site: str
    session: str  # label, as in ``ses-<session>``
    years: float = 0.0  # since the person's first visit


@dataclass(frozen=True)
class Person:
    """A simulated person."""

    label: str  # as in ``sub-<label>``
    age: float  # at the first visit, years
    sex: str  # F or M
    split: str  # train, val or test
    seed: tuple[int, ...]
    lesion: bool = False
    group: str = ""  # control or patient; empty in cohorts without groups
    visits: tuple[Visit, ...] = ()  # empty for one at every site

    def after(self, years: float) -> Self:
        """Return the same person at a later age."""
        return replace(self, age=self.age + years) if years else self


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A person's brain, on the common grid of their scans.

    All but the affine and the mask have a row for each voxel of the mask, x fastest.
    """

    affine: Array  # voxel to world, shape (4, 4); oblique
    mask: Array  # brain, shape (x, y, z)
    tissue: Array  # fractions of white matter, grey matter and fluid, shape (voxel, 3)
    directions: Array  # unit vectors of fibre populations in world axes, (voxel, system, 3)
    populations: Array  # fraction of white matter in each population, shape (voxel, system)
    intra_axonal: Array  # fraction of a fibre's water inside axons, shape (voxel,)
    # Standard deviation of the tilt of fibres from their population's direction, along each of two
    # perpendicular axes, shape (voxel,), radians.
    dispersion: Array
    white_matter: Array  # mostly white matter, apart from a lesion, shape (voxel,), bool
    lesion: Array  # shape (voxel,), bool
    affected: Array  # what `PATIENT_EFFECT` changes in patients, shape (voxel,), bool
    biology: Biology = USUAL_BIOLOGY
    # Variations over the brain, shape (voxel,), where the biology has them: of the fast fraction
    # of grey matter, and of all relaxation times, as a factor.
    grey_fast: Array | None = None
    relaxation: Array | None = None
    # Direction of cortical sticks, zero where there are none, shape (voxel, 3).
    radial: Array | None = None

    def grey_fast_of(self, block: slice) -> Any:
        """Return the fast fraction of grey matter: one number, or shape (voxel, 1)."""
        known = self.grey_fast
        return self.biology.grey_fast_part if known is None else known[block, None]

    def relaxation_of(self, block: slice) -> Any:
        """Return the factor of relaxation times: one number, or shape (voxel, 1)."""
        return 1.0 if self.relaxation is None else self.relaxation[block, None]

    @cached_property
    def position(self) -> Array:
        """World position of each voxel, shape (voxel, 3), mm."""
        return _positions(self.mask, self.affine)

    def on_grid(self, values: Array) -> Array:
        """Place voxel values, shape (voxel, ...), on the grid, zero outside the brain."""
        return on_grid(values, self.mask)


def make_anatomy(
    person: Person, *, voxel_size: float, biology: Biology = USUAL_BIOLOGY
) -> Anatomy:
    """Deform the atlas into a person's anatomy, and draw their tissue."""
    rng = np.random.default_rng((*person.seed, 0))
    affine, shape = _draw_grid(rng, voxel_size)
    warp = _draw_warp(rng, biology)
    everywhere = np.ones(shape, dtype=bool)
    sampled = _sample(*_tissue_of_voxels(voxel_size), warp(_positions(everywhere, affine)))
    brain = (sampled.sum(axis=1) > 0.5).reshape(shape[::-1]).T
    mask, affine = _cropped(np.asarray(ndimage.binary_fill_holes(brain)), affine)
    position = _positions(mask, affine)
    place = warp(position)
    tissue = _sample(*_tissue_of_voxels(voxel_size), place)
    tissue /= np.maximum(tissue.sum(axis=1, keepdims=True), 1e-6)
    directions, populations = _fibres(position, warp)
    tissue[populations.sum(axis=1) == 0] @= [[0, 1, 0], [0, 1, 0], [0, 0, 1]]  # no fibres: grey
    white = tissue[:, 0] > 0.5
    lesion = _draw_lesion(person, position, tissue)
    tissue[lesion] = tissue[lesion] @ [[0.7, 0, 0.3], [0, 1, 0], [0, 0, 1]]
    intra, dispersion = _draw_microstructure(rng, person, place, biology)
    affected = PATIENT_EFFECT.holds(place) & white
    if person.group == "patient":
        intra = intra + PATIENT_EFFECT.intra_axonal * affected
    return Anatomy(
        affine=affine,
        mask=mask,
        tissue=tissue,
        directions=directions,
        populations=populations,
        intra_axonal=np.where(lesion, 0.5, 1.0) * intra,
        dispersion=dispersion,
        white_matter=white,
        lesion=lesion,
        affected=affected,
        biology=biology,
        grey_fast=_draw_grey_fast(person, place, biology),
        relaxation=_draw_relaxation(person, place, biology),
        radial=_radial(mask, tissue, affine) if biology.cortical_sticks else None,
    )


def _draw_grid(rng: np.random.Generator, voxel_size: float) -> tuple[Array, tuple[int, ...]]:
    """Draw an oblique LAS grid around the world's origin."""
    shape = tuple(int(size) for size in np.ceil(_FIELD_OF_VIEW / voxel_size))
    tilt = Rotation.from_rotvec(rng.normal(scale=np.deg2rad(6), size=3)).as_matrix()
    affine = np.eye(4)
    affine[:3, :3] = tilt * [-voxel_size, voxel_size, voxel_size]
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(shape) - 1) / 2)
    return affine, shape


def _draw_warp(rng: np.random.Generator, biology: Biology) -> Field:
    """Draw the map from world to atlas: head position, brain size and smooth deformation."""
    turn = Rotation.from_rotvec(rng.normal(scale=np.deg2rad(4), size=3)).as_matrix()
    scale = rng.normal(1.0, 0.03, size=3)
    shift = rng.normal(scale=3.0, size=3)
    bend = [_smooth_field(rng, biology.deformation_scale) for _ in range(3)]

    def warp(position: Array) -> Array:
        rigid = (position - shift) @ turn * scale + _CENTRE
        return rigid + biology.deformation * np.stack([field(rigid) for field in bend], axis=-1)

    return warp


def _smooth_field(rng: np.random.Generator, scale: float, waves: int = 24) -> Field:
    """Draw a smooth function of position with mean 0 and variance 1: a sum of random waves."""
    frequencies = rng.normal(scale=1 / scale, size=(waves, 3))
    phases = rng.uniform(0, 2 * np.pi, size=waves)
    return lambda position: np.sqrt(2 / waves) * np.cos(position @ frequencies.T + phases).sum(-1)


def _fibres(position: Array, warp: Field) -> tuple[Array, Array]:
    """Return the unit vectors and volumes of a person's fibre populations."""
    atlas = load_atlas()
    maps = atlas.flux.reshape(*atlas.flux.shape[:3], -1)
    flux = _sample(maps, atlas.flux_affine, warp(position)).reshape(-1, len(SYSTEMS), 3)
    # Fibres are tangent vectors, which transform by the inverse of the warp.
    steps = [warp(position + step) - warp(position - step) for step in 0.5 * np.eye(3)]
    bent = np.linalg.solve(np.stack(steps, axis=-1), flux.swapaxes(1, 2)).swapaxes(1, 2)
    density = np.linalg.norm(flux, axis=-1) ** _FLUX_EXPONENT
    volume = density / np.maximum(density.sum(axis=1, keepdims=True), 1e-9)
    volume = np.where(volume < _LEAST_POPULATION, 0, volume)
    volume /= np.maximum(volume.sum(axis=1, keepdims=True), 1e-9)
    return bent / np.maximum(np.linalg.norm(bent, axis=-1, keepdims=True), 1e-30), volume


def _draw_microstructure(
    rng: np.random.Generator, person: Person, place: Array, biology: Biology
) -> tuple[Array, Array]:
    """Draw the intra-axonal fraction and the dispersion, with shared and individual parts."""
    common = np.random.default_rng(_ALL)
    shared = [_smooth_field(common, _TISSUE_SCALE)(place) for _ in range(2)]
    individual = [_smooth_field(rng, _TISSUE_SCALE)(place) for _ in range(2)]
    level = biology.intra_axonal + biology.intra_axonal_per_year * (person.age - MEAN_AGE)
    of_all, of_one = biology.intra_axonal_variation
    scatter = rng.normal(scale=biology.intra_axonal_scatter)
    intra = level + scatter + of_all * shared[0] + of_one * individual[0]
    of_all, of_one = biology.dispersion_variation
    dispersion = biology.dispersion + of_all * shared[1] + of_one * individual[1]
    return intra.clip(0.2, 0.8), dispersion.clip(0.05, 0.5)


def _draw_grey_fast(person: Person, place: Array, biology: Biology) -> Array | None:
    """Draw the fast fraction of grey matter, if it varies."""
    if not biology.grey_variation:
        return None
    varied = _varying(person, _GREY, place)
    return (biology.grey_fast_part + biology.grey_variation * varied).clip(0.2, 0.95)


def _draw_relaxation(person: Person, place: Array, biology: Biology) -> Array | None:
    """Draw a factor of relaxation times, if they vary."""
    if not biology.t2_variation:
        return None
    return np.asarray(np.exp(biology.t2_variation * _varying(person, _RELAXATION, place)))


def _varying(person: Person, stream: int, place: Array) -> Array:
    """Draw a smooth variation of variance 1, most of which all people share."""
    common = _smooth_field(np.random.default_rng((_ALL, stream)), _TISSUE_SCALE)(place)
    own = _smooth_field(np.random.default_rng((*person.seed, stream)), _TISSUE_SCALE)(place)
    varied: Array = np.sqrt(0.8) * common + np.sqrt(0.2) * own
    return varied


def _radial(mask: Array, tissue: Array, affine: Array) -> Array:
    """Return the direction perpendicular to the surface of white matter, shape (voxel, 3).

    It is the gradient of the smoothed white-matter fraction, and zero where that is flat.
    """
    voxel = np.linalg.norm(affine[:3, :3], axis=0)
    white = ndimage.gaussian_filter(on_grid(tissue[:, 0], mask), _SURFACE_SCALE / voxel)
    steps = [np.gradient(white, size, axis=axis) for axis, size in enumerate(voxel)]
    slope = np.stack(steps, axis=-1).swapaxes(0, 2)[mask.T] @ (affine[:3, :3] / voxel).T
    length = np.linalg.norm(slope, axis=1, keepdims=True)
    return np.where(length > 1e-3, slope / np.maximum(length, 1e-30), 0)


def _draw_lesion(person: Person, position: Array, tissue: Array) -> Array:
    """Draw a lesion: white matter within 7 mm of a random white-matter voxel."""
    if not person.lesion:
        return np.zeros(len(tissue), dtype=bool)
    rng = np.random.default_rng((*person.seed, _LESION))  # separate, so that all else is unchanged
    centre = position[rng.choice(tissue[:, 0].argsort()[-len(tissue) // 20 :])]
    return (np.linalg.norm(position - centre, axis=1) < 7) & (tissue[:, 0] > 0.5)


@cache
def _tissue_of_voxels(voxel_size: float) -> tuple[Array, Array]:
    """Return the atlas tissue averaged over voxels, and its affine."""
    atlas = load_atlas()
    # A Gaussian with the variance of a voxel-sized box.
    blur = (voxel_size / np.sqrt(12),) * 3
    return ndimage.gaussian_filter(atlas.tissue, (*blur, 0), truncate=3), atlas.tissue_affine


def _sample(values: Array, affine: Array, points: Array) -> Array:
    """Interpolate maps, shape (x, y, z, map), at points, (point, 3), mm; return (point, map)."""
    inverse = np.linalg.inv(affine)
    indices = (points @ inverse[:3, :3].T + inverse[:3, 3]).T
    channels = np.moveaxis(values, -1, 0)
    sampled = [ndimage.map_coordinates(channel, indices, order=1) for channel in channels]
    return np.stack(sampled, axis=-1)


def _positions(mask: Array, affine: Array) -> Array:
    """Return the world positions of a mask's voxels, x fastest, shape (voxel, 3)."""
    z, y, x = np.nonzero(mask.T)
    return np.stack([x, y, z], axis=1) @ affine[:3, :3].T + affine[:3, 3]


def _cropped(mask: Array, affine: Array) -> tuple[Array, Array]:
    """Crop a mask to its bounding box with a margin of two voxels."""
    box = ndimage.find_objects(mask.astype(int))[0]
    box = tuple(slice(max(side.start - 2, 0), side.stop + 2) for side in box)
    moved = affine.copy()
    moved[:3, 3] += affine[:3, :3] @ [side.start for side in box]
    return mask[box], moved
