import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from neuroCombat import neuroCombat

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, Scan, Site
from siteless.errors import DatasetError, ModelError, SignalError, SitelessError
from siteless.harmonics import fit_coefficients
from siteless.methods import load_model, render
from siteless.methods.combat._model import (
    CombatModel,
    Estimates,
    estimate,
    require_neurocombat,
)
from siteless.methods.template import BrainMaps
from siteless.microstructure import compute_maps
from siteless.model import save_model
from siteless.population import Covariate, covariate_columns
from training_scans import SHELLS, make_card

AGES = ["20", "35", "50", "65", "30", "45", "60", "75", "41", "52", "63", "28"]
SEXES = list("FMFMMFFMFMMF")
SITES = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
PEOPLE = [{"age": age, "sex": sex} for age, sex in zip(AGES, SEXES, strict=True)]


def _learned() -> list[Covariate]:
    return [Covariate.of("age", AGES), Covariate.of("sex", SEXES)]


def _values(voxels: int = 400) -> Array:
    """Make maps like MD of twelve people at three sites, shape (scan, voxel), in mm2/s."""
    random = np.random.default_rng(0)
    age = np.array(AGES, float)[:, None] - 45
    maps = 0.7 + 0.002 * age + 0.05 * random.normal(size=(12, voxels))
    maps = maps + np.array([0, 0.1, -0.05])[SITES][:, None] + 0.02 * random.normal(size=voxels)
    return 1e-3 * maps


def _by_neurocombat(values: Array) -> Array:
    """Harmonize by the package, with ages and sexes as its users give them."""
    table = pd.DataFrame({"batch": SITES, "age": [float(a) for a in AGES], "sex": SEXES})
    with contextlib.redirect_stdout(io.StringIO()):
        harmonized = neuroCombat(values.T, table, "batch", ["sex"], ["age"])
    return harmonized["data"].T


def test_the_average_is_what_neurocombat_gives(capsys: pytest.CaptureFixture[str]) -> None:
    values, columns = _values(), covariate_columns(_learned(), PEOPLE)
    effects = estimate(values, SITES, columns)
    lines = [effects.line(site, None, person) for site, person in zip(SITES, columns, strict=True)]
    harmonized = [a * y + b for y, (a, b) in zip(values, lines, strict=True)]
    np.testing.assert_allclose(harmonized, _by_neurocombat(values), rtol=1e-4)
    assert not np.allclose(harmonized, values, rtol=1e-2)
    assert capsys.readouterr().out == ""


def test_the_way_over_another_site_is_as_good_as_the_straight_one() -> None:
    columns = covariate_columns(_learned(), PEOPLE)
    effects, person = estimate(_values(), SITES, columns), columns[3]
    first, second = effects.line(0, 1, person), effects.line(1, 2, person)
    straight = effects.line(0, 2, person)
    np.testing.assert_allclose(second[0] * first[0], straight[0], rtol=1e-5)
    np.testing.assert_allclose(second[0] * first[1] + second[1], straight[1], atol=1e-9)
    gain, offset = effects.line(2, 2, person)
    np.testing.assert_array_equal(gain, 1)
    np.testing.assert_array_equal(offset, 0)


def test_covariates_keep_what_they_explain() -> None:
    age = np.array(AGES, float)
    values, columns = _values(), covariate_columns(_learned(), PEOPLE)
    effects = estimate(values, SITES, columns)
    lines = [effects.line(site, None, person) for site, person in zip(SITES, columns, strict=True)]
    harmonized = np.array([a * y + b for y, (a, b) in zip(values, lines, strict=True)])
    slope = np.polyfit(age, harmonized.mean(axis=1), 1)[0]
    assert slope == pytest.approx(2e-6, rel=0.1)
    left = harmonized.mean(axis=1) - np.polyval(np.polyfit(age, harmonized.mean(axis=1), 1), age)
    means = [left[np.array(SITES) == site].mean() for site in range(3)]
    assert np.ptp(means) < 0.05 * 0.15e-3


def test_words_and_numbers_become_columns_that_are_zero_on_average() -> None:
    columns = covariate_columns(_learned(), PEOPLE)
    np.testing.assert_allclose(columns.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(np.diff(columns[:3, 0]), 15)
    np.testing.assert_allclose(columns[:2, 1], [-0.5, 0.5])
    assert Covariate.of("age", ["30", "30"]).columns(["50"]).shape == (1, 0)
    assert Covariate.of("hand", ["l", "r", "b"]).columns(["r"]).shape == (1, 2)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"sex": "F"}, "the age of the scan is unknown"),
        ({"age": "n/a", "sex": "F"}, "the age of the scan is unknown"),
        ({"age": "old", "sex": "F"}, "expected a number as the age, found 'old'"),
        ({"age": "30", "sex": "X"}, "expected one of F, M as the sex, found 'X'"),
    ],
)
def test_covariates_that_are_not_understood_are_refused(
    attributes: dict[str, str], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        covariate_columns(_learned(), [attributes])


def test_the_missing_package_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_neurocombat()
    monkeypatch.setattr(
        "siteless.methods.combat._model.find_spec",
        lambda name: None if name == "neuroCombat" else name,
    )
    with pytest.raises(SitelessError, match=r"pip install 'siteless\[combat\]'"):
        require_neurocombat()


def _scan(site: str = "a", **more: Any) -> Scan:
    return make_scan(make_gradients(SHELLS), site=Site(site), **more)


def _model(
    shift_b: float = 2.0,
    scale_b: float = 1.0,
    covariates: Sequence[Mapping[str, Any]] = (),
    known: Array | None = None,
) -> CombatModel:
    """Make a model of two sites whose FA differs by a shift, in deviations of 0.05."""
    scan = _scan()
    template = BrainMaps.of(scan, fit_coefficients(scan, order=4))
    known = scan.mask if known is None else known
    ones = np.ones(known.sum(), dtype=np.float32)
    fa = Estimates(
        mean=0.4 * ones,
        effects=np.zeros((0, len(ones)), dtype=np.float32),
        spread=0.05 * ones,
        shift=np.stack([0 * ones, shift_b * ones]),
        scale=np.stack([ones, scale_b * ones]),
    )
    card = make_card(
        {"a": 1200.0, "b": 1200.0},
        method="combat",
        settings={"maps": ["fa"], "same_space": True, "learned_covariates": covariates},
        summary={
            "likeness": dict.fromkeys(("overlap_before", "overlap"), 0.9)
            | dict.fromkeys(("correlation_before", "correlation"), 0.9)
        },
    )
    return CombatModel(card, template, known, {"fa": fa})


def test_a_map_is_shifted_where_the_template_knows_and_nowhere_else() -> None:
    half = _scan().mask.copy()
    half[:10] = False
    scan, model = _scan(), _model(known=half)
    [original] = compute_maps(scan, ["fa"]).values()
    [harmonized] = model.harmonize_maps(scan, "b").values()
    inside = half.copy()
    inside[:11] = False
    np.testing.assert_allclose(
        harmonized[inside], np.minimum(original[inside] + 0.1, 1), atol=1e-5
    )
    outside = scan.mask.copy()
    outside[9:] = False
    np.testing.assert_array_equal(harmonized[outside], original[outside])
    assert not harmonized[~scan.mask].any()
    [home] = model.harmonize_maps(scan, "a").values()
    np.testing.assert_array_equal(home, original)


def test_results_stay_in_the_range_of_the_map() -> None:
    for shift in (-20, 20):
        [harmonized] = _model(shift_b=shift).harmonize_maps(_scan(), "b").values()
        assert harmonized.min() >= 0
        assert harmonized.max() <= 1


def test_a_file_keeps_the_model_and_the_same_bytes(tmp_path: Path) -> None:
    model, scan = _model(scale_b=1.2), _scan("b")
    for name in "xy":
        save_model(model, tmp_path / f"{name}.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    loaded = load_model(tmp_path / "x.safetensors")
    assert isinstance(loaded, CombatModel)
    assert loaded.identity == model.identity
    np.testing.assert_array_equal(
        loaded.harmonize_maps(scan, "average")["fa"], model.harmonize_maps(scan, "average")["fa"]
    )


def test_what_a_model_of_maps_cannot_do_is_refused() -> None:
    model = _model(covariates=[{"name": "age", "words": (), "means": (40.0,)}])
    with pytest.raises(ModelError, match="the method combat gives maps, not scans"):
        render(model, _scan(), "b")
    with pytest.raises(DatasetError, match="the age of the scan is unknown"):
        model.harmonize_maps(_scan(), "b")
    with pytest.raises(ModelError, match="does not know the site 'c'"):
        model.harmonize_maps(_scan(), "c", {"age": "30"})
    with pytest.raises(ModelError, match="has not learned the scan's site, c"):
        model.harmonize_maps(_scan("c"), "b", {"age": "30"})
    away = np.eye(4)
    away[:3, 3] = 15
    with pytest.raises(SignalError, match="could not be registered"):
        model.harmonize_maps(replace(_scan(), affine=away @ _scan().affine), "b", {"age": "30"})
