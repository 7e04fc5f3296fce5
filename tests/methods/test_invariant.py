from dataclasses import replace

import numpy as np
import pytest

from lessons import QUICK, SHELLS, lesson
from phantoms import make_gradients, make_scan
from siteless.acquisition import Site
from siteless.errors import GradientTableError, ModelError
from siteless.harmonics import project
from siteless.methods import harmonize
from siteless.model import Model, ModelCard
from siteless.training import train


@pytest.fixture(scope="module")
def model():
    """A model of two sites whose levels are 1200 and 2400."""
    trained = train(lesson(), replace(QUICK, updates=200))
    card = ModelCard(
        sites={"a": 1200.0, "b": 2400.0},
        bs=(1200.0, 3000.0),
        order=4,
        fit="laplace-beltrami",
        tissue="white-matter",
        network=trained.network.settings,
        preset="siteless",
        seed=0,
        settings={},
        summary={},
        versions={},
    )
    return Model(card, trained.network)


@pytest.fixture(scope="module")
def scan():
    return make_scan(make_gradients(SHELLS, seed=10), site=Site("a"), seed=7)


def test_white_matter_is_what_the_model_renders(model, scan):
    rendered = harmonize(model, scan, "b")
    expected = project(model.decode(model.encode(scan), "b"), scan.gradients).clip(min=0)
    ours = rendered.signal.T[:, scan.white_matter.T].T
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=0.05)
    assert str(rendered.site) == "b"
    assert rendered.gradients is scan.gradients


@pytest.mark.parametrize(("outside", "factor"), [("scaled", 2400 / 1200), ("unchanged", 1.0)])
def test_what_is_not_rendered_is_scaled_or_left(model, scan, outside, factor):
    rendered = harmonize(model, scan, "b", outside=outside)
    level = model.encode(scan).level
    ratio = 2400 / level if outside == "scaled" else factor
    other = ~scan.white_matter
    np.testing.assert_allclose(rendered.signal[other], ratio * scan.signal[other], rtol=1e-5)


def test_at_home_a_scan_comes_closer_to_its_noiseless_truth(model):
    gradients = make_gradients(SHELLS, seed=10)
    clean = make_scan(gradients, snr=np.inf)
    noisy = make_scan(gradients, snr=10, seed=3, site=Site("a"))
    rendered = harmonize(model, noisy, "a", outside="unchanged")
    white = clean.white_matter
    level = model.encode(noisy).level
    ours = rendered.signal[white] * (level / 1200)
    before = np.sqrt(np.square(noisy.signal[white] - clean.signal[white]).mean())
    after = np.sqrt(np.square(ours - clean.signal[white]).mean())
    assert after < before


def test_signal_is_finite_and_nowhere_negative(model, scan):
    weak = scan.with_signal(scan.signal - np.float32(150))
    rendered = harmonize(model, weak, "b")
    assert np.isfinite(rendered.signal).all()
    assert rendered.signal.min() >= 0


def test_the_input_is_not_changed(model, scan):
    before = scan.signal.copy()
    harmonize(model, scan, "b")
    np.testing.assert_array_equal(scan.signal, before)


def test_other_gradients_are_rendered_at_in_the_brain(model, scan):
    other = make_gradients({1200: 12, 3000: 7}, b0=1, seed=4)
    rendered = harmonize(model, scan, "b", gradients=other)
    assert rendered.signal.shape == (*scan.mask.shape, 20)
    assert not rendered.signal[~scan.mask].any()
    assert (rendered.signal[scan.mask].mean(axis=0) > 0).all()
    with pytest.raises(GradientTableError, match="the gradient table has b=700"):
        harmonize(model, scan, "b", gradients=make_gradients({700: 20}))


def test_an_unknown_target_is_refused(model, scan):
    with pytest.raises(ModelError, match="does not know the site 'c'; choose of a, b"):
        harmonize(model, scan, "c")
