from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from phantoms import ONE_SHELL, centred_affine, make_gradients, make_scan
from siteless.acquisition import GradientTable, Scan
from siteless.preflight import AxisError, find_axis_error

CHANGES = [AxisError(o, f, 1.0) for o, f in product(permutations(range(3)), (None, 0, 1, 2))]


def _with_stored_vectors(scan: Scan, change: AxisError) -> Scan:
    """Return the scan with the table that `change` would put right."""
    bvals, bvecs = scan.gradients.to_fsl(scan.affine)
    stored = bvecs @ np.linalg.inv(change.matrix).T
    return replace(scan, gradients=GradientTable.from_fsl(bvals, stored, scan.affine))


@pytest.mark.parametrize("change", CHANGES[1:], ids=str)
@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_every_wrong_table_is_found_with_what_is_wrong(change: AxisError, flip: float) -> None:
    scan = make_scan(affine=centred_affine(rotation=np.diag([flip, 1, 1])))
    error = find_axis_error(_with_stored_vectors(scan, change))
    assert error is not None
    assert np.array_equal(error.matrix, change.matrix)
    assert error.gain > 1.1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("angles", [(0, 0, 0), (15, -20, 30), (0, 0, 90)])
def test_right_tables_are_left_alone(seed: int, angles: tuple[int, int, int]) -> None:
    rotation = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    affine = centred_affine(rotation=rotation)
    scan = make_scan(make_gradients(ONE_SHELL, seed=seed), affine=affine, seed=seed)
    assert find_axis_error(scan) is None


def test_tables_in_world_axes_are_judged_in_world_axes() -> None:
    rotation = Rotation.from_euler("xyz", (20, -25, 30), degrees=True).as_matrix()
    scan = make_scan(affine=centred_affine(rotation=rotation))
    swapped = GradientTable(scan.gradients.bvals, scan.gradients.bvecs[:, [1, 0, 2]])
    error = find_axis_error(replace(scan, gradients=swapped), np.eye(3))
    assert str(error) == "x and y are swapped"


def test_noise_accuses_no_table() -> None:
    scan = make_scan(make_gradients(ONE_SHELL), snr=0.5)
    assert find_axis_error(scan) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (AxisError((0, 1, 2), 2, 1.0), "z has the wrong sign"),
        (AxisError((1, 0, 2), None, 1.0), "x and y are swapped"),
        (AxisError((2, 1, 0), 1, 1.0), "x and z are swapped and y has the wrong sign"),
        (AxisError((1, 2, 0), None, 1.0), "the components are stored in the order z, x, y"),
    ],
)
def test_errors_say_what_to_change(change: AxisError, words: str) -> None:
    assert str(change) == words


def test_the_recipe_is_what_the_matrix_does() -> None:
    for change in CHANGES:
        words = change.recipe.split(", ")
        stored = np.array([10.0, 20.0, 30.0])
        written = [np.sign(int(word)) * stored[abs(int(word)) - 1] for word in words]
        assert np.array_equal(change.matrix @ stored, written)


def test_the_matrix_turns_the_stored_table_right() -> None:
    stored_zxy = np.array([3.0, 1.0, 2.0])
    assert (AxisError((1, 2, 0), None, 1.0).matrix @ stored_zxy).tolist() == [1, 2, 3]
