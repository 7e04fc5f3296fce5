import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ncx2, rice

from siteless.noise import MOST_COILS, Magnitude

SIGNALS = np.array([0.0, 0.003, 0.4, 1.0, 2.5, 6.0, 15.0, 23.99, 24.0, 36.0])
coils = st.sampled_from([1, 2, 4, 16])
signals = st.floats(0, 200, width=32)


def test_one_channel_is_rician() -> None:
    expected = rice(SIGNALS)
    np.testing.assert_allclose(Magnitude().mean(SIGNALS), expected.mean(), rtol=1e-4)
    np.testing.assert_allclose(Magnitude().variance(SIGNALS), expected.var(), atol=2e-3)


@pytest.mark.parametrize("count", [2, 4, MOST_COILS])
@pytest.mark.parametrize("signal", [0.0, 0.7, 3.0, 20.0])
def test_several_channels_are_noncentral_chi(count: int, signal: float) -> None:
    squares = ncx2(2 * count, signal**2) if signal else ncx2(2 * count, 1e-12)
    mean = squares.expect(np.sqrt)
    magnitude, given_signal = Magnitude(count), np.array([signal])
    assert magnitude.mean(given_signal)[0] == pytest.approx(mean, rel=1e-3)
    second = signal**2 + 2 * count
    assert magnitude.variance(given_signal)[0] == pytest.approx(second - mean**2, abs=5e-3)


def test_pure_noise_has_the_mean_and_variance_of_rayleigh() -> None:
    zero = np.zeros(1)
    assert Magnitude().mean(zero)[0] == pytest.approx(np.sqrt(np.pi / 2), rel=1e-5)
    assert Magnitude().variance(zero)[0] == pytest.approx(2 - np.pi / 2, rel=1e-4)


@given(coils, signals)
def test_the_signal_of_a_mean_is_the_inverse(count: int, signal: float) -> None:
    magnitude, value = Magnitude(count), np.array([signal], dtype=np.float32)
    again = magnitude.mean(magnitude.signal(magnitude.mean(value)))
    np.testing.assert_allclose(again, magnitude.mean(value), rtol=2e-3)


@given(coils, signals, signals)
def test_a_stronger_signal_has_a_larger_mean_and_a_lower_floor(
    count: int, one: float, another: float
) -> None:
    pair = np.sort(np.array([one, another], dtype=np.float32))
    magnitude = Magnitude(count)
    assert np.diff(magnitude.mean(pair))[0] >= -1e-5
    assert np.diff(magnitude.floor(pair))[0] <= 1e-4
    assert (magnitude.floor(pair) >= 0).all()


@given(coils, signals)
def test_the_excess_of_a_mean_is_the_floor_of_its_signal(count: int, signal: float) -> None:
    magnitude, value = Magnitude(count), np.array([signal], dtype=np.float32)
    excess, floor = magnitude.excess(magnitude.mean(value)), magnitude.floor(value)
    # Near no signal the mean hardly depends on it, so that the inverse is steep.
    np.testing.assert_allclose(excess, floor, rtol=5e-3, atol=0.05 if signal < 0.5 else 2e-3)


def test_a_mean_below_the_smallest_is_no_signal() -> None:
    assert Magnitude().signal(np.array([0.3]))[0] == 0
    assert Magnitude().signal(np.array([-1.0]))[0] == 0


def test_a_magnitude_of_too_few_or_many_channels_is_refused() -> None:
    for count in (0, MOST_COILS + 1):
        with pytest.raises(ValueError, match="expected 1 to 16 channels"):
            Magnitude(count)
