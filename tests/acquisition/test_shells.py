import numpy as np
import pytest
from hypothesis import given

from phantoms import spread_directions
from siteless.acquisition import Array, find_shells, same_b
from siteless.errors import NotShelledError
from strategies import jittered_shells


@given(jittered_shells())
def test_every_weighted_volume_is_in_the_shell_of_its_b_value(
    scheme: tuple[Array, Array, list[float]],
) -> None:
    b, directions, nominal = scheme
    shells = find_shells(b, directions)
    np.testing.assert_allclose([shell.b for shell in shells], nominal, rtol=0.02)
    for shell in shells:
        assert np.array_equal(shell.volumes, np.flatnonzero(same_b(b, shell.b)))
    assert sum(map(len, shells)) == np.count_nonzero(b > 50)


@pytest.mark.parametrize(
    "stored", [np.linspace(990, 1010, 30), np.linspace(1985, 2010, 30), np.full(30, 928.289)]
)
def test_one_shell_with_scatter_is_one_shell(stored: Array) -> None:
    [shell] = find_shells(np.r_[1.25, stored], np.r_[[[0, 0, 0]], spread_directions(30)])
    assert len(shell) == 30


def test_cartesian_samples_are_not_shells() -> None:
    steps = np.array(list(np.ndindex(11, 11, 11))) - 5.0
    squared = np.sum(steps**2, axis=1)
    inside = (squared > 0) & (squared <= 25)
    directions = steps[inside] / np.sqrt(squared[inside])[:, None]
    with pytest.raises(NotShelledError, match=r"514 volumes spread over .* from 160 to 4000"):
        find_shells(160 * squared[inside], directions)


def test_b_values_that_spread_continuously_are_not_shells() -> None:
    with pytest.raises(NotShelledError):
        find_shells(np.linspace(500, 3000, 90), spread_directions(90))


@pytest.mark.parametrize("radius", [2, 3, 4])
@pytest.mark.parametrize("half", [False, True])
def test_small_grids_are_not_shells_either(radius: int, half: bool) -> None:
    steps = np.array(list(np.ndindex(*[2 * radius + 1] * 3))) - float(radius)
    squared = np.sum(steps**2, axis=1)
    inside = (squared > 0) & (squared <= radius**2)
    if half:
        inside &= steps @ [1, 0.1, 0.01] > 0
    directions = steps[inside] / np.sqrt(squared[inside])[:, None]
    with pytest.raises(NotShelledError):
        find_shells(250 * squared[inside], directions)


def test_wide_scatter_is_still_one_shell() -> None:
    [shell] = find_shells(np.linspace(960, 1040, 30), spread_directions(30))
    assert len(shell) == 30


def test_two_stray_volumes_do_not_hide_two_shells() -> None:
    b = np.r_[np.full(30, 1000), np.full(30, 3000), 1500, 2200]
    shells = find_shells(b, np.r_[spread_directions(30), spread_directions(32, seed=1)])
    assert [len(shell) for shell in shells] == [30, 1, 1, 30]


def test_one_stray_volume_does_not_hide_the_shells() -> None:
    shells = find_shells(np.r_[np.full(30, 1000), 2000], spread_directions(31))
    assert [len(shell) for shell in shells] == [30, 1]


def test_b0_alone_has_no_shells() -> None:
    assert find_shells([0, 5], np.zeros((2, 3))) == ()
