import subprocess
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from dipy.reconst.shm import convert_sh_descoteaux_tournier, real_sh_descoteaux, real_sh_tournier

from phantoms import load_image, spread_directions
from siteless.acquisition import Array
from siteless.harmonics import count_coefficients, max_order, sh_basis


def _angles(directions: Array) -> tuple[Array, Array]:
    return np.arccos(directions[:, 2]), np.arctan2(directions[:, 1], directions[:, 0])


@pytest.mark.parametrize("order", [0, 2, 8, 12])
def test_basis_is_dipys_tournier(order: int) -> None:
    directions = spread_directions(40)
    expected, _, _ = real_sh_tournier(order, *_angles(directions), legacy=False)
    np.testing.assert_allclose(sh_basis(directions, order), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_dipys_conversion_leads_to_descoteaux() -> None:
    directions = spread_directions(60)
    coefficients = np.random.default_rng(0).normal(size=45)
    descoteaux, _, _ = real_sh_descoteaux(8, *_angles(directions), legacy=True)
    converted = convert_sh_descoteaux_tournier(coefficients)
    np.testing.assert_allclose(
        descoteaux @ converted, sh_basis(directions, 8) @ coefficients, atol=1e-10
    )


@pytest.mark.usefixtures("mrtrix")
def test_basis_is_mrtrix(tmp_path: Path) -> None:
    directions = spread_directions(60)
    np.savetxt(tmp_path / "directions.txt", directions)
    unit = np.eye(45, dtype=np.float32).reshape(45, 1, 1, 45)
    nib.Nifti1Image(unit, np.eye(4)).to_filename(tmp_path / "sh.nii")
    command = ["sh2amp", "-quiet", "sh.nii", "directions.txt", "amplitudes.nii"]
    subprocess.run(command, cwd=tmp_path, check=True)
    amplitudes = load_image(tmp_path / "amplitudes.nii").get_fdata().reshape(45, 60).T
    np.testing.assert_allclose(amplitudes, sh_basis(directions, 8), atol=1e-6)


def test_basis_is_orthonormal_and_even() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(20)
    azimuth = np.arange(40) * 2 * np.pi / 40
    cosine, phi = (grid.ravel() for grid in np.meshgrid(nodes, azimuth, indexing="ij"))
    sine = np.sqrt(1 - cosine**2)
    directions = np.stack([sine * np.cos(phi), sine * np.sin(phi), cosine], axis=1)
    basis = sh_basis(directions, 8)
    area = np.repeat(weights, 40) * 2 * np.pi / 40
    np.testing.assert_allclose(basis.T @ (area[:, None] * basis), np.eye(45), atol=1e-10)
    np.testing.assert_allclose(sh_basis(-directions, 8), basis, atol=1e-10)


def test_orders_of_an_even_basis_are_even() -> None:
    with pytest.raises(ValueError, match="got 3"):
        count_coefficients(3)


@pytest.mark.parametrize("directions", range(1, 100))
def test_supported_order_has_two_directions_for_three_coefficients(directions: int) -> None:
    order = max_order(directions)
    assert order == 0 or 3 * directions >= 2 * count_coefficients(order)
    assert 3 * directions < 2 * count_coefficients(order + 2)
