import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantoms import make_gradients, make_scan
from siteless.acquisition import GradientTable, Scan, same_b, same_shells
from siteless.errors import GradientTableError
from siteless.harmonics import (
    at_shells,
    common_bs,
    fit_coefficients,
    interpolated_bs,
    shells_for,
    table_at_shells,
    unused_bs,
)
from strategies import seeds


def _kurtotic(
    gradients: GradientTable, seed: int = 0, shape: tuple[int, int, int] = (3, 4, 2)
) -> Scan:
    """Make a scan whose signal is exp(-bD + b^2 K) of an anisotropic D, without noise."""
    rng = np.random.default_rng(seed)
    mean, along = rng.uniform(4e-4, 9e-4, shape), rng.uniform(0, 3e-4, shape)
    kurtosis = rng.uniform(2e-8, 6e-8, shape)
    axis = np.array([0.6, 0.0, 0.8])
    cosine = np.square(gradients.directions @ axis)
    rate = mean[..., None] + along[..., None] * cosine
    signal = 500 * np.exp(-gradients.b * rate + np.square(gradients.b) * kurtosis[..., None])
    mask = np.ones(shape, dtype=bool)
    return Scan(signal, np.eye(4), gradients, mask=mask, white_matter=mask)


@given(seeds, st.sampled_from([(1000.0, 2000.0), (700.0, 2600.0), (1500.0, 2500.0)]))
def test_signal_with_a_kurtosis_is_interpolated_at_any_b_value_between(
    seed: int, bs: tuple[float, float]
) -> None:
    scan = _kurtotic(make_gradients({1200: 45, 3000: 60}, seed=seed % 1000), seed)
    interpolated = at_shells(scan, bs)
    expected = _kurtotic(interpolated.gradients, seed)
    assert tuple(shell.b for shell in interpolated.gradients.shells) == bs
    np.testing.assert_allclose(interpolated.signal, expected.signal, atol=2.5)


def test_a_shell_that_is_there_stays_and_one_that_is_not_needed_goes() -> None:
    scan = make_scan(make_gradients({700: 20, 1200: 30, 3000: 40}))
    interpolated = at_shells(scan, (1210.0, 3000.0))
    np.testing.assert_array_equal(interpolated.signal, scan.signal[..., np.r_[:2, 22:92]])
    np.testing.assert_array_equal(interpolated.gradients.b, scan.gradients.b[np.r_[:2, 22:92]])
    assert at_shells(scan, (700.0, 1200.0, 3000.0)) is scan


def test_noise_grows_little_between_shells() -> None:
    table, bs = make_gradients({1000: 60, 3000: 60}), (1000.0, 2000.0)
    noisy, clean = (at_shells(make_scan(table, snr=snr), bs) for snr in (30.0, 1e6))
    measured, true = (make_scan(noisy.gradients, snr=snr) for snr in (30.0, 1e6))

    def deviation(scan: Scan, reference: Scan) -> float:
        strong, where = scan.gradients.shells[1].volumes, scan.white_matter
        return (scan.signal - reference.signal)[where][:, strong].std()

    assert deviation(noisy, clean) < 1.2 * deviation(measured, true)


def test_a_dark_voxel_keeps_what_was_measured() -> None:
    scan = make_scan(make_gradients({1200: 30, 3000: 30}))
    signal = scan.signal.copy()
    voxel = tuple(np.argwhere(scan.mask)[0])
    signal[(*voxel, slice(0, 2))] = 0
    interpolated = at_shells(scan.with_signal(signal), (1000.0, 2000.0))
    assert np.isfinite(interpolated.signal).all()
    np.testing.assert_array_equal(interpolated.signal[voxel], signal[voxel])
    outside = ~scan.mask
    np.testing.assert_array_equal(interpolated.signal[outside], signal[outside])


@pytest.mark.parametrize(
    ("measured", "requested"),
    [((1000,), (1000, 2000)), ((1000,), (800,)), ((1000, 2000), (1000, 3000))],
)
def test_shells_that_cannot_be_interpolated_are_refused(
    measured: tuple[int, ...], requested: tuple[int, ...]
) -> None:
    assert shells_for(measured, requested) is None
    table = make_gradients(dict.fromkeys(measured, 20))
    with pytest.raises(GradientTableError, match=f"the signal at b={requested[0]}"):
        table_at_shells(table, requested)


def test_a_table_without_shells_is_refused() -> None:
    table = GradientTable(np.zeros(2), np.zeros((2, 3)))
    with pytest.raises(GradientTableError, match="found b0 only"):
        table_at_shells(table, (1000.0,))


_BS = st.sampled_from([300.0, 700.0, 1000.0, 1200.0, 1500.0, 2000.0, 2500.0, 3000.0])
_SHELLS = st.lists(_BS, min_size=1, max_size=4, unique=True).map(sorted)


@given(st.lists(_SHELLS, min_size=1, max_size=4))
def test_all_scans_can_be_brought_to_what_is_common(given: list[list[float]]) -> None:
    chosen = common_bs(given)
    if chosen is None:
        assert not any(
            all(shells_for(measured, bs) is not None for measured in given) for bs in given
        )
        return
    for measured in given:
        table, kept = table_at_shells(make_gradients(dict.fromkeys(measured, 6)), chosen)
        assert len(table) == len(kept) == 2 + 6 * len(chosen)
        assert same_shells([shell.b for shell in table.shells], chosen)
    shared = [b for b in given[0] if all(same_b(b, measured).any() for measured in given)]
    if len(shared) > 1:
        assert chosen == tuple(shared)


def test_interpolated_and_unused_shells_are_listed() -> None:
    assert interpolated_bs((1000, 2000, 3000), (700, 1000, 2000)) == (700, 1000, 2000)
    assert interpolated_bs((1200, 3000), (1200, 2000)) == (2000,)
    assert unused_bs((700, 1000, 2000), (1000, 2000)) == (700,)
    assert interpolated_bs((700, 1000, 2000), (1000, 2000)) == ()
    assert common_bs([(1000, 2000), ()]) is None
    assert common_bs([]) is None
    assert common_bs([(1000, 3000), (1000, 2000, 2500)]) == (1000,)


def test_a_scan_whose_vectors_encode_the_b_values_is_interpolated_too() -> None:
    plain = make_scan(make_gradients({1200: 30, 3000: 30}), snr=1e6)
    length = np.sqrt(plain.gradients.b / 3000)
    weighted = ~plain.gradients.is_b0
    scaled = GradientTable(
        np.where(weighted, 3000.0, 0.0), plain.gradients.directions * length[:, None]
    )
    first, other = (
        at_shells(plain.with_signal(plain.signal, gradients=table), (1000.0, 2000.0))
        for table in (plain.gradients, scaled)
    )
    np.testing.assert_allclose(first.signal, other.signal, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(first.gradients.b, other.gradients.b)
    assert fit_coefficients(other).bs == (1000.0, 2000.0)
