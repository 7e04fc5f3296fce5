import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from phantoms import (
    centred_affine,
    load_image,
    make_gradients,
    make_scan,
    spread_directions,
    write_raw,
)
from siteless.acquisition import Array, GradientTable, Scan
from siteless.errors import GradientTableError
from siteless.harmonics import (
    Coefficients,
    choose_penalty,
    coefficient_orders,
    count_coefficients,
    fit_coefficients,
    fitting_matrix,
    max_order,
    project,
    rish,
    sh_basis,
)
from strategies import rotations, seeds


def _random_coefficients(
    order: int = 4,
    bs: tuple[float, ...] = (1200.0, 3000.0),
    seed: int = 0,
    voxels: tuple[int, int, int] = (3, 4, 2),
) -> Coefficients:
    mask = np.ones(voxels, dtype=bool)
    shape = (mask.sum(), 1 + len(bs) * count_coefficients(order))
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return Coefficients(values, mask, bs, order, penalties=(0.0,) * len(bs))


def _scan_of(coefficients: Coefficients, gradients: GradientTable) -> Scan:
    signal = coefficients.on_grid(project(coefficients, gradients))
    mask = coefficients.mask
    return Scan(signal, np.eye(4), gradients, mask=mask, white_matter=mask)


@given(seeds, st.sampled_from([2, 4]))
def test_fit_undoes_project(seed: int, order: int) -> None:
    coefficients = _random_coefficients(order, seed=seed)
    scan = _scan_of(coefficients, make_gradients(seed=seed % 1000))
    again = fit_coefficients(scan, order=order, fit="pseudo-inverse")
    np.testing.assert_allclose(again.values, coefficients.values, atol=2e-5)
    assert again.bs == coefficients.bs


def test_pseudo_inverse_of_few_directions_has_the_least_norm_of_all_that_fit() -> None:
    directions = spread_directions(30)
    matrix = fitting_matrix(directions, order=8, penalty=0)
    basis = sh_basis(directions, 8)
    signal = np.random.default_rng(0).normal(size=30)
    fitted = matrix @ signal
    np.testing.assert_allclose(basis @ fitted, signal, atol=1e-5)
    np.testing.assert_allclose(fitted, np.linalg.lstsq(basis, signal)[0], atol=1e-5)


@pytest.mark.parametrize("penalty", [1e-3, 6e-3])
def test_penalised_fit_minimises_squares_and_roughness_above_degree_2(penalty: float) -> None:
    directions = spread_directions(40)
    basis, degrees = sh_basis(directions, 8), coefficient_orders(8)
    signal = np.random.default_rng(0).normal(size=40)
    rough = np.sqrt(penalty) * np.diag(np.where(degrees > 2, degrees * (degrees + 1), 0))
    stacked = np.vstack([basis, rough]), np.append(signal, np.zeros(45))
    expected = np.linalg.lstsq(*stacked)[0]
    fitted = fitting_matrix(directions, order=8, penalty=penalty) @ signal
    np.testing.assert_allclose(fitted, expected, atol=1e-5)


@given(st.sampled_from([12, 30, 60]), st.floats(1e-6, 1.0), st.integers(0, 99))
def test_no_penalty_changes_degrees_0_and_2(count: int, penalty: float, seed: int) -> None:
    directions, order = spread_directions(count, seed), max_order(count)
    low = np.random.default_rng(seed).normal(size=6)
    signal = sh_basis(directions, order)[:, :6] @ low
    fitted = fitting_matrix(directions, order=order, penalty=penalty) @ signal
    np.testing.assert_allclose(fitted[:6], low, atol=2e-4)
    np.testing.assert_allclose(fitted[6:], 0, atol=2e-4)


@pytest.mark.parametrize("count", [12, 30, 60])
@pytest.mark.parametrize("snr", [15, 20, 30])
def test_noise_does_not_shrink_degrees_0_and_2(count: int, snr: int) -> None:
    clean = make_scan(make_gradients({1000: count, 3000: count}), snr=np.inf)
    truth = fit_coefficients(clean)
    rng, repeats = np.random.default_rng(snr), 6
    sums: Array = np.zeros_like(truth.values)
    for _ in range(repeats):
        noise = rng.normal(scale=1000 / snr, size=clean.signal.shape)
        fitted = fit_coefficients(clean.with_signal((clean.signal + noise).astype(np.float32)))
        again = clean.with_signal(fitted.on_grid(project(fitted, clean.gradients)))
        sums = sums + fit_coefficients(again, order=fitted.order).values
    mean = replace(fitted, values=sums / repeats)
    for shell in range(2):
        for degree in (slice(1), slice(1, 6)):
            estimated, expected = mean.shell(shell)[:, degree], truth.shell(shell)[:, degree]
            kept = (estimated * expected).sum() / np.square(expected).sum()
            assert kept == pytest.approx(1, abs=0.005)


@pytest.mark.usefixtures("mrtrix")
@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_coefficients_are_mrtrix_coefficients_on_an_oblique_scan(
    tmp_path: Path, flip: float
) -> None:
    turned = Rotation.from_euler("xyz", [20, -35, 50], degrees=True).as_matrix()
    affine = centred_affine(rotation=turned @ np.diag([flip, 1, 1]))
    scan = make_scan(make_gradients({2000: 40}), affine=affine)
    image = write_raw(scan, tmp_path, "scan", dtype=np.float32)
    command = ["amp2sh", "-quiet", "-lmax", "6", "-fslgrad", "scan.bvec", "scan.bval"]
    subprocess.run([*command, image.name, "sh.nii"], cwd=tmp_path, check=True)
    theirs = load_image(tmp_path / "sh.nii").get_fdata().transpose(2, 1, 0, 3)[scan.mask.T]
    ours = fit_coefficients(scan, order=6, fit="pseudo-inverse").shell(0)
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


@given(rotations)
def test_turning_grid_and_content_together_leaves_world_coefficients_unchanged(
    rotation: Array,
) -> None:
    def uniform_scan(affine: Array) -> Scan:
        # The file of such a scan holds the world's directions along the image's axes.
        stored = make_gradients().bvecs @ (affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0))
        stored[:, 0] *= -1  # FSL's sign for this handedness
        gradients = GradientTable.from_fsl(make_gradients().bvals, stored, affine)
        attenuation = np.exp(
            -gradients.b * 1.5e-3 * (make_gradients().directions @ [0.6, 0, 0.8]) ** 2
        )
        signal = np.broadcast_to(attenuation, (3, 3, 3, len(gradients)))
        mask = np.ones((3, 3, 3), dtype=bool)
        return Scan(signal, affine, gradients, mask=mask, white_matter=mask)

    straight = fit_coefficients(uniform_scan(np.eye(4)), order=8)
    oblique = fit_coefficients(uniform_scan(centred_affine((3, 3, 3), rotation=rotation)), order=8)
    np.testing.assert_allclose(oblique.values, straight.values, atol=1e-5)


@given(rotations, seeds)
def test_rish_ignores_rotation(rotation: Array, seed: int) -> None:
    gradients = make_gradients({1000: 60}, seed=seed % 1000)
    rotated = GradientTable(gradients.bvals, gradients.bvecs @ rotation.T)
    coefficients = _random_coefficients(6, bs=(1000.0,), seed=seed)
    scan = _scan_of(coefficients, gradients)
    turned = fit_coefficients(replace(scan, gradients=rotated), order=6, fit="pseudo-inverse")
    np.testing.assert_allclose(rish(turned), rish(coefficients), rtol=2e-3, atol=1e-4)


def test_rish_is_the_sum_over_phases() -> None:
    coefficients = _random_coefficients(4)
    energies = rish(coefficients)
    assert energies.shape == (24, 2, 3)
    starts, ends = (0, 1, 6), (1, 6, 15)
    for voxel in range(24):
        for shell in range(2):
            values = coefficients.shell(shell)[voxel]
            for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
                expected = sum(float(value) ** 2 for value in values[start:end])
                assert energies[voxel, shell, index] == pytest.approx(expected, rel=1e-5)


def test_chosen_penalty_predicts_held_out_directions_better_than_none_and_than_much() -> None:
    scan = make_scan(make_gradients({3000: 60}), snr=15)
    keep = np.r_[0:2, 2:62:2]
    truth = make_scan(make_gradients({3000: 60}), snr=np.inf)
    half = replace(
        scan,
        signal=scan.signal[..., keep],
        gradients=GradientTable(scan.gradients.bvals[keep], scan.gradients.bvecs[keep]),
    )
    [shell] = half.gradients.shells
    white = half.volumes[np.ix_(shell.volumes, np.flatnonzero(half.white_matter.T))]
    chosen = choose_penalty(white, half.gradients.directions[shell.volumes], order=8)
    held_out = np.arange(3, 62, 2)

    def error(penalty: float) -> float:
        matrix = fitting_matrix(half.gradients.directions[shell.volumes], order=8, penalty=penalty)
        basis = sh_basis(scan.gradients.directions[held_out], 8)
        inside = np.flatnonzero(scan.white_matter.T)
        predicted = basis @ (matrix @ half.volumes[np.ix_(shell.volumes, inside)])
        return np.sqrt(np.mean((predicted - truth.volumes[np.ix_(held_out, inside)]) ** 2))

    assert error(chosen) < 0.95 * error(0)
    assert error(chosen) < 0.95 * error(100 * chosen)


@pytest.mark.parametrize("directions", [12, 30, 60])
def test_penalty_minimises_cross_validation_computed_voxel_by_voxel(directions: int) -> None:
    shape = (10, 11, 9)
    gradients = make_gradients({3000: directions})
    scan = make_scan(gradients, shape=shape, affine=centred_affine(shape, voxel=5.0))
    [shell] = scan.gradients.shells
    order = 4 if directions < 30 else 8
    basis = sh_basis(scan.gradients.directions[shell.volumes], order)
    signal = scan.volumes[np.ix_(shell.volumes, np.flatnonzero(scan.white_matter.T))]

    def score(penalty: float) -> float:
        hat = basis @ fitting_matrix(
            scan.gradients.directions[shell.volumes], order=order, penalty=penalty
        )
        residuals = [np.sum((s - hat @ s) ** 2) for s in signal.T.astype(float)]
        return sum(residuals) / np.trace(np.eye(directions) - hat) ** 2

    directions_of = scan.gradients.directions[shell.volumes]
    chosen = choose_penalty(signal, directions_of, order=order)
    assert fit_coefficients(scan, order=order).penalties == (chosen,)
    candidates = np.logspace(-6, 0, 61)
    assert chosen == pytest.approx(min(candidates, key=score), rel=0.3)
    assert score(chosen) <= 1.001 * min(map(score, candidates))


def test_stray_volumes_are_refused_and_repeats_count_once() -> None:
    with pytest.raises(GradientTableError, match="at least 6 directions"):
        fit_coefficients(make_scan(make_gradients({1000: 30, 2000: 1})))
    six = make_gradients({1000: 6})
    repeated = np.r_[0, 1, np.tile(np.arange(2, 8), 5)]
    table = GradientTable(six.bvals[repeated], six.bvecs[repeated])
    assert fit_coefficients(make_scan(table)).order == 2


def test_unknown_fits_are_refused() -> None:
    with pytest.raises(ValueError, match="one of laplace-beltrami, pseudo-inverse, got 'other'"):
        fit_coefficients(make_scan(), fit="other")  # type: ignore[arg-type]


def test_projection_goes_to_any_vectors_of_known_shells() -> None:
    table = GradientTable(np.array([1190, 3010, 5]), np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0]]))
    coefficients = _random_coefficients()
    expected = np.stack(
        [
            coefficients.shell(0) @ sh_basis([[0, 0, 1]], 4)[0],
            coefficients.shell(1) @ sh_basis([[0, 1, 0]], 4)[0],
            coefficients.b0,
        ],
        axis=1,
    )
    np.testing.assert_allclose(project(coefficients, table), expected, atol=1e-5)


def test_order_follows_the_shell_with_fewestspread_directions() -> None:
    scan = make_scan(make_gradients({1000: 60, 2000: 12}))
    assert fit_coefficients(scan).order == 4
    assert fit_coefficients(make_scan()).order == 8


def test_b0_is_the_mean_and_passes_through() -> None:
    scan = make_scan()
    coefficients = fit_coefficients(scan)
    np.testing.assert_allclose(
        coefficients.b0, scan.volumes[:2, scan.voxels].mean(axis=0), rtol=1e-6
    )
    projected = project(coefficients, scan.gradients)
    np.testing.assert_array_equal(projected[:, 0], coefficients.b0)


def test_fit_of_a_masked_scan_is_the_masked_fit() -> None:
    scan = make_scan()
    everywhere = replace(scan, mask=np.ones_like(scan.mask))
    inside = np.flatnonzero(scan.mask.T)
    # Matrix products of other sizes may add in another order.
    np.testing.assert_allclose(
        fit_coefficients(scan).values, fit_coefficients(everywhere).values[inside], atol=0.01
    )


def test_values_return_to_their_voxels() -> None:
    scan = make_scan()
    coefficients = fit_coefficients(scan)
    grid = coefficients.on_grid(coefficients.values)
    expected = scan.signal[..., :2].mean(axis=-1)
    np.testing.assert_allclose(grid[..., 0], np.where(scan.mask, expected, 0), rtol=1e-6)


def test_projecting_to_an_unknown_shell_is_refused() -> None:
    with pytest.raises(GradientTableError, match=r"of b=1200, b=3000, but .* has b=2000"):
        project(_random_coefficients(), make_gradients({2000: 30}))


@pytest.mark.parametrize("gradients", [make_gradients({}), make_gradients(b0=0)])
def test_scans_without_b0_or_shell_cannot_be_fitted(gradients: GradientTable) -> None:
    with pytest.raises(GradientTableError, match="expected b0 volumes and at least one shell"):
        fit_coefficients(make_scan(gradients))
