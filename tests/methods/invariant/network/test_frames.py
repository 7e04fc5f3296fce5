import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from siteless.acquisition import Array
from siteless.harmonics import sh_basis
from siteless.methods.invariant.network import fibre_frames, rotate


def _directions(count: int, seed: int = 0) -> Array:
    vectors = np.random.default_rng(seed).normal(size=(count, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("order", [2, 4, 8])
def test_rotating_coefficients_rotates_the_function(order: int) -> None:
    rotations = Rotation.random(20, random_state=1).as_matrix()
    directions = _directions(30)
    count = sh_basis(directions, order).shape[1]
    coefficients = np.random.default_rng(2).normal(size=(20, 3, count))
    turned = rotate(torch.from_numpy(coefficients), torch.from_numpy(rotations)).numpy()
    for before, after, rotation in zip(coefficients, turned, rotations, strict=True):
        expected = sh_basis(directions, order) @ before.T
        values = sh_basis(directions @ rotation.T, order) @ after.T
        np.testing.assert_allclose(values, expected, atol=1e-10)


def test_the_inverse_rotation_brings_back_what_there_was() -> None:
    rotations = torch.from_numpy(Rotation.random(50, random_state=3).as_matrix())
    coefficients = torch.randn(50, 2, 45, dtype=torch.float64)
    there = rotate(coefficients, rotations)
    torch.testing.assert_close(rotate(there, rotations.mT), coefficients)


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-4, np.pi - 1e-9, np.pi])
def test_small_tilts_are_as_exact_as_others(angle: float) -> None:
    rotation = (Rotation.from_euler("y", angle) * Rotation.from_euler("z", 1.0)).as_matrix()
    directions = _directions(30)
    coefficients = np.random.default_rng(5).normal(size=15)
    turn = torch.from_numpy(coefficients[None, None]), torch.from_numpy(rotation[None])
    values = sh_basis(directions @ rotation.T, 4) @ rotate(*turn).numpy().ravel()
    np.testing.assert_allclose(values, sh_basis(directions, 4) @ coefficients, atol=1e-10)


def test_axes_are_those_of_the_quadratic_form() -> None:
    """Along the third axis the signal is weakest, along the first it is strongest."""
    second = np.random.default_rng(4).normal(size=(40, 5))
    frames = fibre_frames(torch.from_numpy(second)).numpy()
    np.testing.assert_allclose(
        frames @ frames.swapaxes(1, 2), np.tile(np.eye(3), (40, 1, 1)), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(frames), 1)
    dense = sh_basis(_directions(20_000), 2)[:, 1:] @ second.T
    along = [np.sum(sh_basis(frames[:, :, axis], 2)[:, 1:] * second, axis=1) for axis in (0, 2)]
    np.testing.assert_array_less(dense.max(axis=0) - 1e-9, along[0])
    np.testing.assert_array_less(along[1], dense.min(axis=0) + 1e-9)


@given(st.integers(0, 2**32 - 1))
def test_in_their_frame_functions_look_the_same_however_they_were_turned(seed: int) -> None:
    """But for the sense of axes, which changes signs alone."""
    rng = np.random.default_rng(seed)
    coefficients = torch.from_numpy(rng.normal(size=(1, 1, 15)))
    turn = torch.from_numpy(Rotation.random(random_state=seed).as_matrix())[None]
    seen = []
    for function in (coefficients, rotate(coefficients, turn)):
        frame = fibre_frames(function[:, 0, 1:6])
        seen.append(rotate(function, frame.mT).abs())
    torch.testing.assert_close(*seen, atol=1e-4, rtol=0)  # near axes amplify rounding


def test_what_has_no_axes_has_a_frame_too() -> None:
    frames = fibre_frames(torch.zeros(2, 5))
    torch.testing.assert_close(frames @ frames.mT, torch.eye(3).expand(2, 3, 3))


def test_what_rendering_has_made_can_be_trained_with() -> None:
    """Tables that are kept must not be those of inference alone."""
    frames, order = torch.eye(3)[None], 6  # an order that no other test has
    count = (order + 1) * (order + 2) // 2
    with torch.inference_mode():
        rotate(torch.randn(1, 1, count), frames)
    weights = torch.randn(1, 1, count, requires_grad=True)
    rotate(weights, frames).square().sum().backward()
    torch.testing.assert_close(weights.grad, 2 * weights.detach())
