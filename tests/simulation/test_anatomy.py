from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from siteless.acquisition import Array
from siteless.simulation import (
    SYSTEMS,
    Anatomy,
    Biology,
    Person,
    load_atlas,
    make_anatomy,
)
from siteless.simulation._person import _fibres

COMMISSURAL, PROJECTION, ASSOCIATION = range(3)


def _flux_at(*centre: float) -> tuple[Array, Array]:
    """Average the atlas's flux, as density and direction, over a ball of 4 mm."""
    atlas = load_atlas()
    grid = np.moveaxis(np.indices(atlas.flux.shape[:3]), 0, -1)
    position = grid @ atlas.flux_affine[:3, :3].T + atlas.flux_affine[:3, 3]
    near = np.linalg.norm(position - centre, axis=-1) < 4
    flux = atlas.flux[near].mean(axis=0)
    density = np.linalg.norm(flux, axis=-1)
    return density, np.abs(flux) / np.maximum(density, 1e-9)[:, None]


@pytest.mark.parametrize("y", [-30, 0, 20])
def test_the_callosum_runs_left_right(y: int) -> None:
    tissue = load_atlas()
    midline = int(np.linalg.inv(tissue.tissue_affine)[0, 3])
    row = int(y - tissue.tissue_affine[1, 3])
    white = np.flatnonzero(tissue.tissue[midline, row, :, 0] > 0.7)
    z = (white + tissue.tissue_affine[2, 3])[white + tissue.tissue_affine[2, 3] > 5].mean()
    density, direction = _flux_at(0, y, z)
    assert density.argmax() == COMMISSURAL
    assert direction[COMMISSURAL].argmax() == 0
    assert direction[COMMISSURAL, 0] > 0.95


@pytest.mark.parametrize("x", [-26, 26])
def test_the_corticospinal_path_runs_up_down(x: int) -> None:
    density, direction = _flux_at(x, -20, 10)
    assert density[PROJECTION] > density[ASSOCIATION]
    assert direction[PROJECTION].argmax() == 2


@pytest.mark.parametrize("x", [-28, 28])
def test_association_fibres_run_front_back(x: int) -> None:
    _, direction = _flux_at(x, -10, 28)
    assert direction[ASSOCIATION].argmax() == 1


def test_systems_cross_in_the_centrum_semiovale() -> None:
    for x in (-26, 26):
        density, _ = _flux_at(x, -20, 32)
        shares = density**0.6 / (density**0.6).sum()
        assert shares[COMMISSURAL] > 0.25
        assert shares[PROJECTION] > 0.25


def test_tissue_parts_add_up(anatomy: Anatomy) -> None:
    np.testing.assert_allclose(anatomy.tissue.sum(axis=1), 1, atol=1e-5)
    white = anatomy.white_matter
    np.testing.assert_allclose(anatomy.populations[white].sum(axis=1), 1, atol=1e-5)
    assert (anatomy.populations >= 0).all()
    lengths = np.linalg.norm(anatomy.directions, axis=-1)[anatomy.populations > 0]
    np.testing.assert_allclose(lengths, 1, atol=1e-5)
    assert anatomy.populations.shape[1] == len(SYSTEMS)


def test_brains_have_the_size_of_brains(anatomy: Anatomy) -> None:
    volume = anatomy.mask.sum() * 4.0**3 / 1e6
    assert 1.4 < volume < 2.4  # litres, with the fluid around
    assert 0.25 < anatomy.white_matter.mean() < 0.45


def test_people_differ_and_a_person_does_not(person: Person, anatomy: Anatomy) -> None:
    again = make_anatomy(person, voxel_size=4.0)
    assert np.array_equal(again.intra_axonal, anatomy.intra_axonal)
    other = make_anatomy(replace(person, seed=(7, 2)), voxel_size=4.0)
    assert not np.allclose(other.affine, anatomy.affine)
    assert other.mask.shape != anatomy.mask.shape or (other.mask != anatomy.mask).any()


def test_affines_are_oblique(anatomy: Anatomy) -> None:
    axes = anatomy.affine[:3, :3] / 4.0
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-10)
    assert np.abs(np.abs(axes) - np.eye(3)).max() > 0.01
    assert np.linalg.det(axes) < 0


def test_age_lowers_the_intra_axonal_part_by_the_stated_amount(
    person: Person, anatomy: Anatomy
) -> None:
    older = make_anatomy(replace(person, age=65), voxel_size=4.0)
    change = older.intra_axonal - anatomy.intra_axonal
    np.testing.assert_allclose(change, 20 * Biology().intra_axonal_per_year, atol=1e-9)


def test_a_lesion_changes_white_matter_where_its_mask_says(
    person: Person, anatomy: Anatomy
) -> None:
    hurt = make_anatomy(replace(person, lesion=True), voxel_size=4.0)
    assert 5 < hurt.lesion.sum() < 60
    assert (anatomy.tissue[hurt.lesion, 0] > 0.5).all()
    assert (hurt.tissue[hurt.lesion, 2] > anatomy.tissue[hurt.lesion, 2] + 0.1).all()
    for name in ("tissue", "intra_axonal", "dispersion"):
        ours, theirs = getattr(hurt, name), getattr(anatomy, name)
        np.testing.assert_array_equal(ours[~hurt.lesion], theirs[~hurt.lesion])
    np.testing.assert_allclose(
        hurt.intra_axonal[hurt.lesion], anatomy.intra_axonal[hurt.lesion] / 2
    )
    assert np.array_equal(hurt.white_matter, anatomy.white_matter)


def test_fibres_turn_with_the_head(anatomy: Anatomy) -> None:
    turn = Rotation.from_euler("xyz", [20, -30, 40], degrees=True).as_matrix()
    positions = anatomy.position[::50]
    straight, volumes = _fibres(positions, lambda position: position)
    turned, same_volumes = _fibres(positions @ turn, lambda position: position @ turn.T)
    np.testing.assert_allclose(same_volumes, volumes, atol=1e-6)
    np.testing.assert_allclose(turned[volumes > 0], (straight @ turn)[volumes > 0], atol=1e-6)
