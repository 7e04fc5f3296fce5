from dataclasses import asdict

import pytest

from siteless.simulation import Scanner, draw_scanners
from siteless.simulation._scanner import _scanner

RANGES = {
    "echo_time": (0.06, 0.1),
    "gain": (0.4, 2.5),
    "receive": (0.05, 0.35),
    "nonlinearity": (0.002, 0.035),
    "blur": (1.2, 3.4),
    "snr": (18, 35),
}


@pytest.fixture(scope="module")
def many() -> tuple[Scanner, ...]:
    return draw_scanners(200, seed=3)


def test_one_seed_draws_the_same_scanners_and_another_does_not() -> None:
    assert draw_scanners(5, seed=3) == draw_scanners(5, seed=3)
    assert draw_scanners(5, seed=3)[:3] == draw_scanners(3, seed=3)
    assert draw_scanners(5, seed=3) != draw_scanners(5, seed=4)


@pytest.mark.parametrize("name", RANGES)
def test_settings_fill_their_ranges(many: tuple[Scanner, ...], name: str) -> None:
    low, high = RANGES[name]
    values = [getattr(scanner, name) for scanner in many]
    assert low <= min(values) < low + 0.1 * (high - low)
    assert high - 0.1 * (high - low) < max(values) <= high


def test_choices_are_all_made(many: tuple[Scanner, ...]) -> None:
    assert {scanner.directions for scanner in many} == {24, 30, 45, 60, 64}
    assert {scanner.manufacturer for scanner in many} == {"Siemens", "GE", "Philips"}
    assert all(abs(tilt) <= 0.08 for scanner in many for tilt in scanner.receive_tilt)


def test_all_scanners_have_the_same_shells_which_depend_on_the_seed(
    many: tuple[Scanner, ...],
) -> None:
    assert len({scanner.shells for scanner in many}) == 1
    drawn = {draw_scanners(1, seed=seed)[0].shells for seed in range(10)}
    assert drawn == {(1000.0, 2000.0), (1200.0, 3000.0)}


def test_directions_and_names_are_their_own(many: tuple[Scanner, ...]) -> None:
    assert len({scanner.scheme for scanner in many}) == len(many)
    assert len({scanner.site for scanner in many}) == len(many)


def test_drawn_scanners_could_be_read_from_a_file(many: tuple[Scanner, ...]) -> None:
    for scanner in many:
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scanner).items()}
        assert _scanner(str(settings.pop("site")), settings) == scanner
