import numpy as np
import pytest

from phantoms import make_gradients, make_scan
from siteless.evaluation import (
    Angles,
    Target,
    describe_metric,
    score_angles,
    score_maps,
    score_signal,
    summarise_map,
)
from siteless.microstructure import MAPS

LEAKAGE = ("leakage_accuracy", "leakage_nats")
INTERVALS = [f"{name}_{end}" for name in LEAKAGE for end in ("low", "high")]


@pytest.fixture(scope="module")
def given_metrics() -> list[str]:
    """Names of all scores that evaluation gives to a scan with blocks, a truth and fibres."""
    gradients = make_gradients({700: 8, 3000: 8})
    truth = make_scan(gradients, snr=np.inf)
    target, where = Target(make_scan(gradients), truth=truth), truth.white_matter
    names = [*score_signal(truth, target, where), *target.noise(where)]
    names += Target(target.scan).noise(where)
    degrees = np.arange(3.0)
    names += score_angles(Angles(degrees, degrees), degrees > 0)
    of_fa = [*score_maps(target.reference_maps, target, where), *summarise_map("fa", degrees)]
    kinds = {name.partition("_")[2] for name in of_fa}
    return [*names, *(f"{map_name}_{kind}" for map_name in MAPS for kind in kinds)]


def test_every_metric_is_described(given_metrics: list[str]) -> None:
    assert {"rmse_truth_b3000", "shell_error_b700", "block_anisotropy", "mk_cv"} <= {
        *given_metrics
    }
    for name in given_metrics:
        unit, meaning = describe_metric(name)
        assert unit
        assert meaning


def test_units_are_those_of_what_is_measured(given_metrics: list[str]) -> None:
    for name in given_metrics:
        unit, _ = describe_metric(name)
        assert (unit == "%") == (name.endswith("percent") or name.startswith(("shell", "block_")))
        assert (unit == "degree") == name.startswith("angle")
    for map_name, kind in MAPS.items():
        for statistic in ("mean", "sd", "p50"):
            assert describe_metric(f"{map_name}_{statistic}")[0] == kind.units
        assert describe_metric(f"{map_name}_cv")[0] == "1"


@pytest.mark.parametrize(
    "name", [*INTERVALS, "md_age_slope_low", "fa_age_slope_high", "fa_change_per_year_low"]
)
def test_ends_of_an_interval_have_the_unit_of_what_is_between(name: str) -> None:
    assert describe_metric(name)[0] == describe_metric(name.rpartition("_")[0])[0]


def test_a_map_is_named_in_its_metrics() -> None:
    for map_name in MAPS:
        assert describe_metric(f"{map_name}_ape")[1].startswith(f"{map_name}: mean of |")


@pytest.mark.parametrize("name", ["rmsee", "fa_rmse", "xx_mean", "rmse_b", "shell_error_bx"])
def test_names_that_are_no_metrics_are_unknown(name: str) -> None:
    with pytest.raises(KeyError):
        describe_metric(name)
