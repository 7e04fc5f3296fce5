from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.harmonics import fit_coefficients
from siteless.methods.invariant.profiles import SiteProfiles, flat_fields
from siteless.methods.invariant.training import WHOLE, make_parts, part_volumes
from training_scans import ORDER, PREPARATION, SHELLS, fitted_scan


@given(directions=st.integers(6, 40), parts=st.integers(2, 4), seed=st.integers(0, 5))
def test_every_part_has_its_share_of_b0_and_of_each_shell(
    directions: int, parts: int, seed: int
) -> None:
    gradients = make_gradients({1000: directions, 2000: directions + 3}, seed=seed)
    number = part_volumes(gradients, parts)
    groups = [np.flatnonzero(gradients.is_b0), *(shell.volumes for shell in gradients.shells)]
    for volumes, least in zip(groups, (1, 6, 6), strict=True):
        if len(volumes) < least * parts:
            assert (number[volumes] == WHOLE).all()
        else:
            counts = np.bincount(number[volumes], minlength=parts)
            assert np.ptp(counts) <= 1


@pytest.mark.parametrize("shells", [{1000: 8}, {1000: 15, 2000: 15}, {500: 6, 1000: 15, 3000: 60}])
def test_shells_of_few_directions_are_not_parted(shells: dict[int, int]) -> None:
    gradients = make_gradients(shells)
    scan = make_scan(gradients, seed=0, site=Site("a"))
    preparation = replace(PREPARATION, order=2, shells=tuple(map(float, shells)))
    *parts, whole = make_parts(scan, None, preparation, parts=3)
    assert np.bincount(whole.shell)[1:].tolist() == list(shells.values())
    for part in parts:
        counts = np.bincount(part.shell)[1:]
        assert counts.tolist() == [n if n < 18 else n // 3 for n in shells.values()]


def test_parts_of_tables_whose_vectors_encode_the_shells_are_those_of_others() -> None:
    plain = make_scan(make_gradients({1200: 20, 3000: 20}), seed=0, site=Site("a"))
    length = np.sqrt(plain.gradients.b / 3000)[:, None]
    bvals = np.where(plain.gradients.is_b0, 0.0, 3000.0)
    table = GradientTable(bvals, plain.gradients.directions * length)
    scaled = plain.with_signal(plain.signal, gradients=table)
    for part, other in zip(
        *(make_parts(scan, None, PREPARATION, parts=3) for scan in (plain, scaled)), strict=True
    ):
        np.testing.assert_allclose(part.values, other.values, atol=1e-5)


def test_a_part_holds_the_means_of_what_surrounds_its_patches() -> None:
    scan = make_scan(make_gradients(SHELLS), seed=0, site=Site("a"))
    plain, wide = (
        make_parts(scan, None, PREPARATION, parts=3, surroundings=passes)[0]
        for passes in ((), (1,))
    )
    patches = plain.values[plain.neighbours]
    np.testing.assert_array_equal(wide.values[wide.neighbours[:, :7]], patches)
    means = wide.values[wide.neighbours[:, 7]]
    np.testing.assert_allclose(means, patches.mean(axis=1), atol=1e-5)
    np.testing.assert_array_equal(wide.voxels, plain.voxels)


def test_near_directions_are_in_different_parts() -> None:
    gradients = make_gradients({1000: 30}, seed=0)
    [shell] = gradients.shells
    directions, number = gradients.directions[shell.volumes], part_volumes(gradients, 3)
    number = number[shell.volumes]
    likeness = np.abs(directions @ directions.T) - np.eye(30)

    def nearest(number: Array) -> float:
        return np.mean(
            [(likeness[index] * (number == number[index])).max() for index in range(30)]
        )

    rng = np.random.default_rng(0)
    shuffled = [nearest(rng.permutation(number)) for _ in range(100)]
    assert nearest(number) < np.percentile(shuffled, 5)


def _scan() -> Scan:
    return make_scan(make_gradients(SHELLS), seed=0, site=Site("a"))


def test_patches_do_not_see_the_volumes_that_they_are_judged_by() -> None:
    scan, parts = _scan(), 3
    number = part_volumes(scan.gradients, parts)
    *scan_parts, _ = make_parts(scan, None, PREPARATION, parts=parts)
    for index, scan_part in enumerate(scan_parts):
        changed = np.array(scan.signal)
        changed[..., (number == index) & ~scan.gradients.is_b0] *= 1.5
        other = make_parts(scan.with_signal(changed), None, PREPARATION, parts=parts)[index]
        np.testing.assert_array_equal(other.values, scan_part.values)
        np.testing.assert_allclose(other.signal[:, 1:], 1.5 * scan_part.signal[:, 1:], rtol=1e-5)
    columns = sum(scan_part.signal.shape[1] - 1 for scan_part in scan_parts)
    assert columns == (~scan.gradients.is_b0).sum()


def test_one_part_is_the_whole_scan() -> None:
    part, _ = make_parts(_scan(), None, PREPARATION, parts=1)
    assert part.content == fitted_scan(_scan()).content


def test_the_last_one_has_some_patches_of_all_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siteless.methods.invariant.training._parts._PATCHES_OF_WHOLE", 50)
    *_, some = make_parts(_scan(), None, PREPARATION, parts=3, surroundings=(1,))
    [every, _] = make_parts(_scan(), None, PREPARATION, parts=1, surroundings=(1,))
    assert 25 < len(some.voxels) <= 50
    rows = np.searchsorted(every.voxels, some.voxels)
    np.testing.assert_array_equal(every.voxels[rows], some.voxels)
    patches, expected = some.values[some.neighbours], every.values[every.neighbours[rows]]
    np.testing.assert_array_equal(patches, expected)


def test_a_single_b0_is_in_every_part() -> None:
    scan = _scan()
    only = np.flatnonzero(scan.gradients.is_b0)[0]
    kept = ~scan.gradients.is_b0
    kept[only] = True
    table = GradientTable(scan.gradients.bvals[kept], scan.gradients.bvecs[kept])
    scan = scan.with_signal(scan.signal[..., kept], gradients=table)
    whole = fitted_scan(scan)
    for part in make_parts(scan, None, PREPARATION, parts=3):
        np.testing.assert_allclose(part.signal[:, 0], whole.signal[:, 0], rtol=1e-6)


def test_the_signal_is_rid_of_the_field_and_keeps_its_sharpness() -> None:
    scan = _scan()
    weights = np.zeros((1, 35, 5))
    weights[0, 0, 0] = np.log(1.25)  # the first cosine is constant, the first feature b0
    field = replace(flat_fields(1, 5), weights=weights)
    profiles = SiteProfiles(("a",), np.array([4.0]), field, ORDER, np.zeros((1, 5)))
    plain, corrected = (make_parts(scan, p, PREPARATION, parts=3) for p in (None, profiles))
    coefficients = fit_coefficients(scan, order=ORDER).values / plain[0].level
    inside = np.searchsorted(scan.voxels, plain[0].voxels)
    for before, after in zip(plain[:-1], corrected[:-1], strict=True):
        assert after.values.dtype == after.signal.dtype == np.float32
        moved = before.signal - coefficients[inside] @ before.mixing * (1 - 1 / 1.25)
        np.testing.assert_allclose(after.signal, moved, atol=1e-5)
        # Patches are blurred as well.
        assert after.values[:, 1].std() * 1.25 < 0.95 * before.values[:, 1].std()


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_are_the_same_each_time(parts: int) -> None:
    first, again = (make_parts(_scan(), None, PREPARATION, parts=parts) for _ in range(2))
    assert [scan.content for scan in first] == [scan.content for scan in again]
