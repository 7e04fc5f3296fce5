from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siteless.evaluation import relative_errors

observed_values = st.one_of(st.just(0.0), st.floats(0.01, 10))
pairs = st.lists(st.tuples(st.floats(0, 10), observed_values), min_size=1, max_size=20)
lit_pairs = pairs.filter(lambda voxels: any(observed for _, observed in voxels))


@pytest.mark.parametrize(
    ("estimated", "observed", "expected"),
    [
        ([3], [2], [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ([1.1, 1.8, 0.5], [1, 2, 0], [0, 0.1, 0, 0.1, (0.1 + 0.1 + 5) / 3, np.sqrt(0.1)]),
        ([2, 0.5, 1, 1, 5], [1] * 5, [0.9, 1.1, 0, 0.5, 1.1, np.sqrt(17.25 / 5)]),
        ([0.2, 4.0], [0.1, 3.9], [20 / 39, 20 / 39, 20 / 39, 20 / 39, (0.5 + 1 / 39) / 2, 0.05]),
        ([0, 0], [2, 4], [-1, 1, -1, 1, 1, np.sqrt(10) / 3]),
    ],
    ids=["one voxel", "a zero", "an outlier", "near zero", "nothing estimated"],
)
def test_errors_by_hand(
    estimated: list[float], observed: list[float], expected: list[float]
) -> None:
    errors = relative_errors(np.array(estimated), np.array(observed))
    assert list(errors) == ["pe", "ape", "pe_median", "ape_median", "ape_floored", "cv"]
    assert list(errors.values()) == pytest.approx(expected, abs=1e-12)


@given(lit_pairs)
def test_errors_one_voxel_at_a_time(voxels: list[tuple[float, float]]) -> None:
    errors = relative_errors(*np.array(voxels).T)
    relative = [(e - o) / o for e, o in voxels if o]
    mean = fmean(o for _, o in voxels)
    assert errors["pe"] == pytest.approx(fmean(relative), abs=1e-9)
    assert errors["ape"] == pytest.approx(fmean(map(abs, relative)))
    assert errors["pe_median"] == pytest.approx(median(relative))
    assert errors["ape_median"] == pytest.approx(median(map(abs, relative)))
    floored = fmean(abs(e - o) / max(o, mean / 10) for e, o in voxels)
    assert errors["ape_floored"] == pytest.approx(floored)
    assert errors["cv"] == pytest.approx(fmean((e - o) ** 2 for e, o in voxels) ** 0.5 / mean)


@given(lit_pairs, st.floats(1e-4, 1e4))
def test_units_do_not_matter(voxels: list[tuple[float, float]], unit: float) -> None:
    estimated, observed = np.array(voxels).T
    plain, scaled = (relative_errors(k * estimated, k * observed) for k in (1.0, unit))
    assert scaled == pytest.approx(plain, rel=1e-9, abs=1e-9)


@given(lit_pairs)
def test_a_map_has_no_error_to_itself(voxels: list[tuple[float, float]]) -> None:
    observed = np.array(voxels)[:, 1]
    assert set(relative_errors(observed, observed).values()) == {0.0}


@pytest.mark.parametrize("estimated", [0.0, 1.0])
def test_a_map_of_zeros_has_no_relative_error(estimated: float) -> None:
    errors = relative_errors(np.full(3, estimated), np.zeros(3))
    assert not np.isfinite(list(errors.values())).any()


def test_whole_numbers_are_as_good_as_others() -> None:
    errors = relative_errors(np.array([3, 1], dtype=np.uint8), np.array([2, 2], dtype=np.uint8))
    assert errors["pe"] == 0
    assert errors["ape"] == 0.5
