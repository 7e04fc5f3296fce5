import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, GradientTable, Scan, Site
from siteless.errors import GradientTableError, ModelError
from siteless.harmonics import Channels, Coefficients, project
from siteless.methods import Rendering, harmonize, render
from siteless.methods._render import _deviation_within_voxel, _scales
from siteless.methods.invariant import Codes, InvariantModel
from siteless.methods.invariant.network import Autoencoder, NetworkSettings
from siteless.methods.invariant.profiles import SiteProfiles, flat_fields
from siteless.methods.invariant.training import make_parts, train
from training_scans import BS, ORDER, PREPARATION, QUICK, SHELLS, make_card, make_training_set


@pytest.fixture(scope="module")
def model() -> InvariantModel:
    """A model of two sites whose levels are 1200 and 2400."""
    trained = train(make_training_set(), replace(QUICK, updates=200))
    return InvariantModel(make_card({"a": 1200.0, "b": 2400.0}), trained.network)


@pytest.fixture(scope="module")
def scan() -> Scan:
    return make_scan(make_gradients(SHELLS, seed=10), site=Site("a"), seed=7)


def test_white_matter_is_what_the_model_renders(model: InvariantModel, scan: Scan) -> None:
    rendered = harmonize(model, scan, "b")
    expected = project(model.decode(model.encode(scan), "b"), scan.gradients).clip(min=0)
    ours = rendered.signal.T[:, scan.white_matter.T].T
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=0.05)
    assert str(rendered.site) == "b"
    assert rendered.gradients is scan.gradients


def test_codes_come_from_the_patches_of_training(scan: Scan) -> None:
    """An untrained network encodes patches that hold means of their surroundings."""
    settings = NetworkSettings(31, sites=2, neighbours=9, rendered=1, kept=6, turned=True)
    card = make_card({"a": 1200.0, "b": 2400.0}, settings={"training": {"surroundings": [1, 3]}})
    wide = InvariantModel(card, Autoencoder(settings))
    whole, _ = make_parts(scan, None, PREPARATION, parts=1, surroundings=(1, 3))
    patches = torch.from_numpy(whole.values[whole.neighbours]).flatten(1)
    with torch.inference_mode():
        frames = wide.network.frames(patches)
        expected = wide.network.encode(patches, torch.zeros(1, dtype=torch.int64), frames).mean
    np.testing.assert_allclose(wide.encode(scan).mean, expected, atol=1e-5)


def _profiles(strength: float) -> SiteProfiles:
    """Make profiles of two sites that multiply all signal, and divide it by as much."""
    weights = np.zeros((2, 35, 5))
    weights[:, 0, 0] = strength, -strength
    field = replace(flat_fields(2, 5), weights=weights)
    return SiteProfiles(("a", "b"), np.zeros(2), field, ORDER, np.zeros((2, 5)))


def _lesion(scan: Scan) -> Array:
    """A ball of white matter."""
    lesion = np.zeros(scan.mask.shape, dtype=bool)
    lesion[tuple(np.argwhere(scan.white_matter).mean(axis=0).astype(int))] = True
    return ndimage.binary_dilation(lesion, iterations=2) & scan.white_matter


def _ill(scan: Scan, factor: float) -> Scan:
    return scan.with_signal(np.where(_lesion(scan)[..., None], factor * scan.signal, scan.signal))


def test_voxels_unlike_all_that_was_learned_keep_their_signal(
    model: InvariantModel, scan: Scan
) -> None:
    ill, full = _ill(scan, 4), replace(model, profiles=_profiles(0.2))
    coefficients = full.preparation.coefficients(ill)
    codes = full.encode(ill, coefficients)
    inside = ill.white_matter.T[ill.mask.T]
    lesion = _lesion(scan).T[ill.white_matter.T]
    assert codes.unfamiliar[lesion].mean() > 0.9
    assert codes.unfamiliar[~lesion].mean() < 0.01
    assert full.profiles is not None
    without_field = full.profiles.of(ill).without_field(coefficients)[inside]
    decoded = full.decode(codes, "b", level=codes.level)
    expected = without_field[codes.unfamiliar] * np.exp(-0.2)
    np.testing.assert_allclose(decoded.values[codes.unfamiliar], expected, rtol=1e-4)
    middle = full.decode(codes, "average", level=codes.level).values[codes.unfamiliar]
    expected = without_field[codes.unfamiliar] * np.cosh(0.2)
    np.testing.assert_allclose(middle, expected, rtol=1e-4)
    deviation = full.deviation(codes, "b", decoded, level=codes.level)
    assert (deviation[lesion].mean(axis=0) > 3 * deviation[~lesion].mean(axis=0)).all()


def test_voxels_that_are_unfamiliar_alone_are_left_to_their_codes(
    model: InvariantModel, scan: Scan
) -> None:
    alone = np.zeros(scan.mask.shape, dtype=bool)
    alone[tuple(np.argwhere(_lesion(scan))[0])] = True
    bright = scan.with_signal(np.where(alone[..., None], 4 * scan.signal, scan.signal))
    full = replace(model, profiles=_profiles(0.2))
    assert full.unfamiliar(bright, full.preparation.coefficients(bright))[
        alone.T[scan.white_matter.T]
    ].all()
    assert not full.encode(bright).unfamiliar[alone.T[scan.white_matter.T]].any()


def test_what_codes_do_not_hold_of_means_is_kept(model: InvariantModel, scan: Scan) -> None:
    """A lesion such as no training scan has: smoothing keeps sums, and so does rendering."""
    ill, full = _ill(scan, 2.5), replace(model, profiles=_profiles(0.2))
    coefficients = full.preparation.coefficients(ill)
    means = Channels(ORDER, len(BS)).means
    inside = ill.white_matter.T[ill.mask.T]
    codes = full.encode(ill, coefficients)
    without = replace(codes, lost=np.zeros_like(codes.lost))

    def sums(codes: Codes, site: str) -> Array:
        return full.decode(codes, site, level=codes.level).values[:, means].sum(axis=0)

    assert full.profiles is not None
    measured = full.profiles.of(ill).without_field(coefficients)[inside][:, means]
    expected = np.exp(0.2) * measured.sum(axis=0)
    np.testing.assert_allclose(sums(codes, "a"), expected, rtol=1e-3)
    assert np.abs(sums(without, "a") / expected - 1).max() > 0.01
    given = np.exp(-0.2) * codes.level * codes.lost.sum(axis=0)
    np.testing.assert_allclose(sums(codes, "b") - sums(without, "b"), given, rtol=0.01)


def test_what_is_not_rendered_can_be_left(model: InvariantModel, scan: Scan) -> None:
    rendering = render(model, scan, "b", outside="unchanged")
    other = ~scan.white_matter
    np.testing.assert_array_equal(rendering.scan.signal[other], scan.signal[other])
    assert not rendering.change[other].any()
    assert rendering.change[scan.white_matter].any()


def _volumes(scan: Scan) -> list[Array]:
    return [scan.gradients.is_b0, *(shell.volumes for shell in scan.gradients.shells)]


def _ratio(rendering: Rendering, scan: Scan, where: Array, volumes: Array) -> float:
    return rendering.scan.signal[where][:, volumes].mean() / scan.signal[where][:, volumes].mean()


def test_there_is_no_step_at_the_boundary(model: InvariantModel, scan: Scan) -> None:
    rendering = render(model, scan, "b")
    white = scan.white_matter
    inner = white & ndimage.binary_dilation(~white)
    outer = scan.mask & ~white & ndimage.binary_dilation(white)
    for volumes in _volumes(scan):
        inside, outside = (_ratio(rendering, scan, rim, volumes) for rim in (inner, outer))
        assert outside == pytest.approx(inside, rel=0.01)


def test_the_scale_follows_what_is_rendered_near_by() -> None:
    """A ratio that grows along x only, on a grid with three different sides."""
    shape, order = (24, 7, 11), 2
    rng = np.random.default_rng(0)
    white = rng.random(shape) < 0.5
    x = np.broadcast_to(np.arange(24)[:, None, None], shape)
    values = rng.uniform(0.9, 1.1, (np.prod(shape), 7)).astype(np.float32)
    measured = Coefficients(values, np.ones(shape, bool), (1000.0,), order, (0.0,))
    ratio = (1 + 0.01 * x).T.ravel()[:, None].astype(np.float32) * np.array([1] + [2] * 6)
    inside = white.T.ravel()
    rendered = Coefficients((values * ratio)[inside], white, (1000.0,), order, (0.0,))
    scales = _scales(measured, rendered, np.full(3, 2.0))
    expected = ratio[:, [0, 1]].T
    inner = ((x > 3) & (x < 20)).T.ravel()
    np.testing.assert_allclose(scales[:, inner], expected[:, inner], rtol=0.01)


def test_what_is_scaled_counts_as_changed(model: InvariantModel, scan: Scan) -> None:
    rendering = render(model, scan, "b")
    other = scan.mask & ~scan.white_matter
    b0 = int(np.flatnonzero(scan.gradients.is_b0)[0])
    scale = rendering.scan.signal[other][:, b0] / scan.signal[other][:, b0]
    mean_b0 = scan.signal[other][:, scan.gradients.is_b0].mean(axis=1)
    expected = mean_b0 * np.abs(scale - rendering.levels[1] / rendering.levels[0])
    np.testing.assert_allclose(rendering.change[other][:, 0], expected, rtol=1e-3, atol=0.05)


def test_at_home_a_scan_keeps_its_level(model: InvariantModel, scan: Scan) -> None:
    loud = scan.with_signal(3 * scan.signal)
    rendering = render(model, loud, "a")
    assert rendering.levels[0] == rendering.levels[1] == pytest.approx(3600, rel=0.05)
    assert rendering.scan.signal[scan.white_matter].mean() == pytest.approx(
        loud.signal[scan.white_matter].mean(), rel=0.05
    )


def test_far_from_what_is_rendered_the_mean_scale_is_taken(
    model: InvariantModel, scan: Scan
) -> None:
    white = np.zeros_like(scan.white_matter)
    white[:6] = scan.white_matter[:6]
    half = replace(scan, white_matter=white)
    rendering = render(model, half, "b")
    for volumes in _volumes(scan):
        expected = _ratio(rendering, half, white, volumes)
        far = np.zeros_like(white)
        far[-2:] = True
        assert _ratio(rendering, half, far, volumes) == pytest.approx(expected, rel=0.03)


def test_every_volume_of_a_voxel_keeps_its_contrast_where_it_is_scaled(
    model: InvariantModel, scan: Scan
) -> None:
    rendering = render(model, scan, "b")
    other = scan.mask & ~scan.white_matter
    for volumes in _volumes(scan):
        ratio = rendering.scan.signal[other][:, volumes] / scan.signal[other][:, volumes]
        np.testing.assert_allclose(ratio, np.broadcast_to(ratio[:, :1], ratio.shape), rtol=1e-4)


def test_change_is_the_distance_from_the_scan_at_the_targets_level(
    model: InvariantModel, scan: Scan
) -> None:
    rendering = render(model, scan, "b")
    coefficients, level = model.preparation.coefficients(scan), model.encode(scan).level
    assert rendering.levels[0] == level
    assert rendering.levels[1] == pytest.approx(2400)
    dense = make_gradients({1200: 400, 3000: 400}, b0=1)
    after = project(model.decode(model.encode(scan), "b"), dense)
    before = project(coefficients, dense)[scan.white_matter.T[scan.mask.T]] * (2400 / level)
    changed = rendering.change.T[:, scan.white_matter.T].T
    for volume, volumes in enumerate([dense.is_b0, *(shell.volumes for shell in dense.shells)]):
        expected = np.sqrt(np.square(after - before)[:, volumes].mean(axis=1))
        np.testing.assert_allclose(changed[:, volume], expected, rtol=0.02)
    assert not rendering.change[~scan.mask].any()


def test_spread_is_how_much_renderings_of_drawn_codes_differ(
    model: InvariantModel, scan: Scan
) -> None:
    codes = model.encode(scan)
    ours = model.deviation(codes, "b", model.decode(codes, "b"))
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(100):
        noise = rng.normal(size=codes.mean.shape) * np.sqrt(codes.variance)
        sample = replace(codes, mean=(codes.mean + noise).astype(np.float32))
        drawn.append(project(model.decode(sample, "b"), scan.gradients))
    deviation = np.array(drawn) - project(model.decode(codes, "b"), scan.gradients)
    for volume, volumes in enumerate(_volumes(scan)):
        expected = np.square(deviation[:, :, volumes]).mean()
        assert np.square(ours[:, volume]).mean() == pytest.approx(expected, rel=0.1)
    sure = replace(codes, variance=np.zeros_like(codes.variance))
    np.testing.assert_allclose(model.deviation(sure, "b", model.decode(sure, "b")), 0, atol=1e-2)


def test_where_signal_is_steep_its_place_in_a_voxel_adds_to_the_spread(
    model: InvariantModel, scan: Scan
) -> None:
    rendering, codes = render(model, scan, "b"), model.encode(scan)
    assert not rendering.spread[~scan.white_matter].any()
    b0 = np.zeros(scan.mask.shape)
    rendered = model.decode(codes, "b")
    b0.T[scan.white_matter.T] = rendered.b0
    inner = ndimage.binary_erosion(scan.white_matter)
    slopes = np.square(np.gradient(b0)).sum(axis=0)[inner]
    posterior = np.zeros(scan.mask.shape)
    posterior.T[scan.white_matter.T] = model.deviation(codes, "b", rendered)[:, 0]
    expected = np.sqrt(posterior[inner] ** 2 + slopes / 12)
    np.testing.assert_allclose(rendering.spread[inner][:, 0], expected, rtol=1e-3)


def test_slopes_are_not_halved_at_the_edge() -> None:
    values = np.repeat(np.arange(5, dtype=np.float32)[:, None], 7, axis=1)
    ramp = Coefficients(values, np.ones((5, 1, 1), bool), (1000.0,), 2, (0.0,))
    np.testing.assert_allclose(_deviation_within_voxel(ramp)[:, 0], np.sqrt(1 / 12), rtol=1e-6)


def test_b_values_need_not_be_the_models_to_the_digit(model: InvariantModel, scan: Scan) -> None:
    gradients = scan.gradients
    weak = np.where(np.abs(gradients.b - 1200) < 1, 1140.0, gradients.bvals)
    weaker = replace(scan, gradients=GradientTable(weak, gradients.bvecs))
    strong = np.where(np.abs(gradients.b - 1200) < 1, 1260.0, gradients.bvals)
    table = GradientTable(strong, gradients.bvecs)
    assert harmonize(model, weaker, "b", gradients=table).signal.shape[3] == len(table)


def test_what_is_unlike_the_training_scans_is_flagged(model: InvariantModel, scan: Scan) -> None:
    healthy = render(model, scan, "b")
    assert healthy.unfamiliar_part < 0.05
    lesion = np.zeros_like(scan.white_matter)
    lesion[8:12, 8:14, 6:12] = True
    lesion &= scan.white_matter
    signal = scan.signal.copy()
    free = np.exp(-scan.gradients.b * 2.5e-3).astype(np.float32)
    signal[lesion] = 0.3 * signal[lesion] + 1200 * free
    rendering = render(model, scan.with_signal(signal), "b")
    assert rendering.unfamiliar[lesion].mean() > 0.9
    assert rendering.unfamiliar[scan.white_matter & ~lesion].mean() < 0.05
    assert not rendering.unfamiliar[~scan.white_matter].any()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_how_a_scan_is_stored_does_not_matter(
    model: InvariantModel, scan: Scan, axis: int
) -> None:
    flip = np.eye(4)
    flip[axis, axis], flip[axis, 3] = -1, scan.mask.shape[axis] - 1
    other = replace(
        scan,
        signal=np.flip(scan.signal, axis),
        affine=scan.affine @ flip,
        mask=np.flip(scan.mask, axis),
        white_matter=np.flip(scan.white_matter, axis),
    )
    back = np.flip(harmonize(model, other, "b").signal, axis)
    np.testing.assert_allclose(back, harmonize(model, scan, "b").signal, rtol=1e-3, atol=0.5)


def _with_names_swapped(model: InvariantModel) -> InvariantModel:
    """Return the model as it would be had its two sites been numbered the other way round."""
    network = copy.deepcopy(model.network)
    network.set_units(model.network.offset.flip(0), model.network.scale.flip(0))
    shift, mixing = model.network.code_shift.flip(0), model.network.code_mixing.flip(0)
    network.set_alignment(shift, mixing, model.network.code_covariance)
    first = network.decoder.hidden[0]
    assert isinstance(first, torch.nn.Linear)
    with torch.no_grad():
        first.weight[:, -2:] = first.weight[:, -2:].flip(1)
    sites = dict(reversed(list(model.card.sites.items())))
    return InvariantModel(replace(model.card, sites=sites), network)


def test_the_average_favours_no_site(model: InvariantModel, scan: Scan) -> None:
    average = harmonize(model, scan, "average")
    swapped = harmonize(_with_names_swapped(model), scan, "average")
    np.testing.assert_allclose(swapped.signal, average.signal, rtol=1e-4, atol=1e-2)
    codes = model.encode(scan)
    parts = [model.decode(codes, site).values / model.level(site) for site in "ab"]
    level = np.sqrt(1200 * 2400)
    assert model.level("average") == pytest.approx(level)
    expected = level * (parts[0] + parts[1]) / 2
    np.testing.assert_allclose(
        model.decode(codes, "average").values, expected, rtol=1e-4, atol=0.1
    )


def test_the_protocol_of_a_site_can_be_rendered_at(model: InvariantModel, scan: Scan) -> None:
    table = model.protocol("b")
    assert harmonize(model, scan, "b", gradients=table).signal.shape[3] == len(table)
    with pytest.raises(ModelError, match="average of sites has no gradient table"):
        model.protocol("average")


def test_at_home_a_scan_comes_closer_to_its_noiseless_truth(model: InvariantModel) -> None:
    gradients = make_gradients(SHELLS, seed=10)
    clean = make_scan(gradients, snr=np.inf)
    noisy = make_scan(gradients, snr=10, seed=3, site=Site("a"))
    rendered = harmonize(model, noisy, "a", outside="unchanged")
    white = clean.white_matter
    ours = rendered.signal[white]
    before = np.sqrt(np.square(noisy.signal[white] - clean.signal[white]).mean())
    after = np.sqrt(np.square(ours - clean.signal[white]).mean())
    assert after < before


def test_signal_is_finite_and_nowhere_negative(model: InvariantModel, scan: Scan) -> None:
    weak = scan.with_signal((scan.signal - np.float32(150)).clip(min=0))
    rendered = harmonize(model, weak, "b")
    assert np.isfinite(rendered.signal).all()
    assert rendered.signal.min() >= 0
    outside = scan.signal.copy()
    outside[0, 0, 0] = np.nan
    outside[0, 0, 1] = np.inf
    assert np.isfinite(harmonize(model, scan.with_signal(outside), "b").signal).all()


def test_real_valued_scans_may_have_values_below_zero(model: InvariantModel, scan: Scan) -> None:
    weak = scan.with_signal(scan.signal - np.float32(150))
    assert weak.signal[weak.mask].min() < 0
    rendered = harmonize(model, weak, "b", outside="unchanged")
    outside = weak.mask & ~weak.white_matter
    np.testing.assert_array_equal(rendered.signal[outside], weak.signal[outside])


def test_the_input_is_not_changed(model: InvariantModel, scan: Scan) -> None:
    before = scan.signal.copy()
    harmonize(model, scan, "b")
    np.testing.assert_array_equal(scan.signal, before)


def test_other_gradients_are_rendered_at_in_the_brain(model: InvariantModel, scan: Scan) -> None:
    other = make_gradients({1200: 12, 3000: 7}, b0=1, seed=4)
    rendered = harmonize(model, scan, "b", gradients=other)
    assert rendered.signal.shape == (*scan.mask.shape, 20)
    assert not rendered.signal[~scan.mask].any()
    assert (rendered.signal[scan.mask].mean(axis=0) > 0).all()
    with pytest.raises(GradientTableError, match="the gradient table has b=700"):
        harmonize(model, scan, "b", gradients=make_gradients({700: 20}))


def test_other_shells_and_sites_are_refused(model: InvariantModel, scan: Scan) -> None:
    with pytest.raises(GradientTableError, match="the signal at b=1200, b=3000"):
        harmonize(model, make_scan(make_gradients({1200: 20})), "b")
    with pytest.raises(ModelError, match="has not learned the scan's site, elsewhere"):
        harmonize(model, replace(scan, site=Site("elsewhere")), "b")


def test_an_unknown_target_is_refused(model: InvariantModel, scan: Scan) -> None:
    with pytest.raises(
        ModelError, match="does not know the site 'c'; choose from a, b, or average"
    ):
        harmonize(model, scan, "c")
