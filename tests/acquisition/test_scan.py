from typing import Any

import numpy as np
import pytest

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.errors import GradientTableError, MaskError, SignalError, SitelessError


def test_voxels_find_the_mask_in_volumes() -> None:
    scan = make_scan()
    expected = scan.signal[..., 3].T[scan.mask.T]
    assert np.array_equal(scan.volumes[3, scan.voxels], expected)


def test_volumes_are_a_view_of_the_signal() -> None:
    scan = make_scan()
    assert np.shares_memory(scan.volumes, scan.signal)


def test_a_scan_prints_as_a_line() -> None:
    assert repr(make_scan(name="sub-1")) == (
        "<Scan sub-1: 20 x 22 x 18 voxels, 2 b0, b=1200 x 30, b=3000 x 30, site a>"
    )


def test_replacing_the_signal_leaves_the_scan_as_it_was() -> None:
    scan = make_scan()
    other = scan.with_signal(np.zeros_like(scan.signal), site=Site("b"))
    assert other.site == Site("b")
    assert scan.site == Site("a")
    assert scan.signal.any()
    assert not other.signal.any()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"signal": np.zeros((20, 22, 18))}, SitelessError, "4 dimensions"),
        ({"gradients": make_gradients({})}, GradientTableError, "62 volumes .* got 2"),
        ({"mask": np.ones((2, 2, 2))}, MaskError, r"shape \(20, 22, 18\), got \(2, 2, 2\)"),
        ({"mask": np.zeros((20, 22, 18))}, MaskError, "empty"),
        ({"white_matter": np.ones((20, 22, 18))}, MaskError, "must lie in the brain"),
        ({"affine": np.eye(3)}, SitelessError, r"\(4, 4\), got \(3, 3\)"),
        ({"signal": np.full((20, 22, 18, 62), np.nan)}, SignalError, "62 of 62 volumes hold NaN"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    change: dict[str, GradientTable | Array], error: type[SitelessError], message: str
) -> None:
    scan = make_scan()
    parts: dict[str, Any] = {
        "signal": scan.signal,
        "affine": scan.affine,
        "gradients": scan.gradients,
        "mask": scan.mask,
        "white_matter": scan.white_matter,
    }
    with pytest.raises(error, match=message):
        Scan(**(parts | change))
