from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantoms import make_gradients, make_scan
from siteless.acquisition import Array, Scan, Site
from siteless.errors import DatasetError, ModelError, SignalError
from siteless.harmonics import (
    Coefficients,
    FitNoise,
    coefficient_orders,
    fit_coefficients,
    fit_noise,
    project,
    projection_matrix,
)
from siteless.methods import render
from siteless.methods.rish._model import (
    CLIP,
    SMOOTHING,
    Energies,
    RishModel,
    energies_of,
    site_energies,
    site_weights,
    smooth_on_template,
)
from siteless.methods.scaled import ScaledModel, mean_attenuation
from siteless.methods.scaling import UnchangedModel
from siteless.methods.template import BrainMaps, Likeness, mean_maps
from siteless.model import ModelCard
from siteless.registration import Alignment
from siteless.tissue import white_matter_level
from training_scans import PREPARATION
from training_scans import make_card as make_any_card

BS, ORDER = (700.0, 1500.0), 4
# Scales of b0, and of degrees 0, 2 and 4 over b0, at site b. Signal stays above zero.
KNOWN = (1.3, 1.03, 0.9, 0.85)
PEOPLE = 3
GRADIENTS = make_gradients({700: 30, 1500: 30}, seed=10)


def make_card(levels: dict[str, float], *, order: int = ORDER, **fields: Any) -> ModelCard:
    preparation = replace(PREPARATION, shells=BS, order=order)
    return make_any_card(levels, preparation=preparation, **fields)


def at_site_b(scan: Scan, known: Sequence[float] = KNOWN) -> Scan:
    """Return a noiseless scan as a site would show it that differs by scales alone."""
    coefficients = fit_coefficients(scan, order=ORDER, fit="pseudo-inverse")
    b0, *degrees = known
    channels = b0 * np.array(degrees)[coefficient_orders(ORDER) // 2]
    values = coefficients.values * np.hstack([[b0], *[channels] * len(BS)])
    signal = np.zeros_like(scan.signal)
    signal.T[:, scan.mask.T] = project(replace(coefficients, values=values), scan.gradients).T
    return scan.with_signal(signal, site=Site("b"))


def noisy(scan: Scan, seed: int, sigma: float = 10.0) -> Scan:
    noise = np.random.default_rng(seed).normal(scale=sigma, size=(2, *scan.signal.shape))
    return scan.with_signal(np.hypot(scan.signal + noise[0], noise[1]).astype(np.float32))


@pytest.fixture(scope="module")
def scans() -> list[Scan]:
    """Scans of some people, which look alike, at both sites."""
    clean = make_scan(GRADIENTS, snr=np.inf, site=Site("a"))
    pairs = {"a": clean, "b": at_site_b(clean)}
    return [noisy(pairs[site], 10 * seed + ord(site)) for site in "ab" for seed in range(PEOPLE)]


def energies_on_template(scan: Scan) -> tuple[BrainMaps, Energies]:
    coefficients = fit_coefficients(scan, order=ORDER)
    maps = BrainMaps.of(scan, coefficients)
    energies = energies_of(scan, coefficients, white_matter_level(scan))
    grid = Energies(*(coefficients.on_grid(values) for values in vars(energies).values()))
    return maps, smooth_on_template(grid, Alignment(maps.grid, maps.grid))


@pytest.fixture(scope="module")
def model(scans: list[Scan]) -> RishModel:
    smoothed = [energies_on_template(scan) for scan in scans]
    template = mean_maps(maps for maps, _ in smoothed)
    sites, people = [0] * PEOPLE + [1] * PEOPLE, list("xyzxyz")
    weights = site_weights(sites, people, np.zeros((2 * PEOPLE, 0)), travelling=False)
    inside = template.image > 0

    def read(number: int) -> Energies:
        return Energies(*(values[inside] for values in vars(smoothed[number][1]).values()))

    signal, noise = site_energies(read, weights)
    levels = {
        site: float(np.median([white_matter_level(s) for s in scans if str(s.site) == site]))
        for site in "ab"
    }
    card = make_card(
        levels,
        method="rish",
        settings={"same_space": True, "clip": CLIP},
        summary={"likeness": vars(Likeness(1.0, 1.0, 1.0, 1.0))},
    )
    return RishModel(card, template, signal, noise)


def test_known_scales_are_found(model: RishModel, scans: list[Scan]) -> None:
    white = scans[0].white_matter
    b0, *degrees = np.moveaxis(model.scales(0, [1])[white], -1, 0)
    levels = [model.level(site) for site in "ab"]
    np.testing.assert_allclose(np.median(b0) * levels[1] / levels[0], KNOWN[0], rtol=0.01)
    ratios = np.median(degrees, axis=1).reshape(len(BS), -1)
    np.testing.assert_allclose(ratios, np.tile(KNOWN[1:], (len(BS), 1)), rtol=0.05)


def test_scales_there_and_back_cancel(model: RishModel) -> None:
    there, back = model.scales(0, [1]), model.scales(1, [0])
    np.testing.assert_allclose(there * back, 1, rtol=1e-5)
    assert (there >= CLIP[0]).all()
    assert (there <= CLIP[1]).all()


def test_the_average_is_half_way(model: RishModel) -> None:
    half = model.scales(0, [0, 1])
    inside = (half > 1.01 * CLIP[0]) & (half < 0.99 * CLIP[1])
    np.testing.assert_allclose((half**2)[inside], model.scales(0, [1])[inside], rtol=1e-4)


def test_scale_maps_are_those_of_the_formula_voxel_by_voxel(
    model: RishModel, scans: list[Scan]
) -> None:
    """A double loop over voxels and neighbours, with nothing shared but the fit."""
    grid = scans[0].mask.shape
    chosen = [v for v in np.argwhere(scans[0].white_matter)[::97] if np.abs(v - 9).max() < 6][:4]
    assert len(chosen) == 4  # deep in the brain, where nothing must be guessed
    size = float(scans[0].voxel_size[0])
    reach = int(4 * SMOOTHING / size + 0.5)
    scales = model.scales(0, [1])
    for voxel in chosen:
        energy = {"a": np.zeros((2, 3)), "b": np.zeros((2, 3))}
        noise = np.zeros((2, 3))
        for scan in scans:
            signal, uncertain = _loop(scan, voxel, reach, grid, size)
            energy[str(scan.site)] += signal / PEOPLE
            noise += uncertain / len(scans)
        ratio = (energy["b"].clip(0) + 0.1 * noise) / (energy["a"].clip(0) + 0.1 * noise)
        expected = np.sqrt(ratio).clip(*CLIP).ravel()
        np.testing.assert_allclose(scales[tuple(voxel)][1:], expected, rtol=2e-3)


_CACHE: dict[int, tuple[Coefficients, FitNoise, Array]] = {}


def _fit(scan: Scan) -> tuple[Coefficients, FitNoise, Array]:
    if id(scan) not in _CACHE:
        coefficients = fit_coefficients(scan, order=ORDER)
        rows = np.full(scan.mask.shape, -1)
        rows.T[scan.mask.T] = np.arange(len(coefficients.values))
        _CACHE[id(scan)] = coefficients, fit_noise(scan, coefficients), rows
    return _CACHE[id(scan)]


def _loop(
    scan: Scan, voxel: Array, reach: int, grid: tuple[int, ...], size: float
) -> tuple[Array, Array]:
    coefficients, noise, rows = _fit(scan)
    total, total_noise, weight = np.zeros((2, 3)), np.zeros((2, 3)), 0.0
    steps = np.arange(-reach, reach + 1) * size / SMOOTHING
    width = np.exp(-0.5 * np.square(steps)).sum()
    for offset in np.ndindex(*(2 * reach + 1,) * 3):
        step = np.array(offset) - reach
        near = voxel + step
        if (near >= 0).all() and (near < grid).all() and rows[tuple(near)] >= 0:
            kernel = np.exp(-0.5 * np.square(step * size / SMOOTHING).sum()) / width**3
            energy, of_noise = _energy(coefficients, noise, rows[tuple(near)])
            total, total_noise = total + kernel * energy, total_noise + kernel * of_noise
            weight += kernel
    return total / weight, total_noise / weight


def _energy(coefficients: Coefficients, noise: FitNoise, row: int) -> tuple[Array, Array]:
    b0 = coefficients.b0[row]
    signal, of_noise = np.zeros((2, 3)), np.zeros((2, 3))
    for shell in range(2):
        start = 0
        for degree in range(3):
            for m in range(4 * degree + 1):
                signal[shell, degree] += (coefficients.shell(shell)[row, start + m] / b0) ** 2
            start += 4 * degree + 1
            of_noise[shell, degree] = noise.variance[row, shell] * noise.gain[shell, degree]
    of_noise = of_noise / noise.kept / b0**2
    return signal / noise.kept - of_noise, of_noise


def test_a_scan_comes_close_to_the_target(model: RishModel, scans: list[Scan]) -> None:
    clean = make_scan(GRADIENTS, snr=np.inf, site=Site("a"))
    goal = at_site_b(clean)
    signal = render(model, scans[0], "b").scan.signal[clean.white_matter]
    truth = goal.signal[clean.white_matter]
    before = fit_coefficients(scans[0], order=ORDER)
    projected = project(before, GRADIENTS)[clean.white_matter.T[clean.mask.T]]
    off = np.sqrt(np.mean((signal - truth) ** 2))
    fit_only = np.sqrt(np.mean((projected - clean.signal.T[:, clean.white_matter.T].T) ** 2))
    assert off < 1.3 * fit_only * KNOWN[0]


def test_b0_and_diffusivities_stay_together(model: RishModel, scans: list[Scan]) -> None:
    """Scaling the weighted volumes but not b0 would change the diffusivities of a third scan."""
    rendering = render(model, scans[0], "b")
    white = scans[0].white_matter
    b0 = rendering.scan.signal[white][:, GRADIENTS.is_b0].mean()
    shell = rendering.scan.signal[white][:, GRADIENTS.shells[0].volumes].mean()
    own_b0 = scans[0].signal[white][:, GRADIENTS.is_b0].mean()
    own_shell = scans[0].signal[white][:, GRADIENTS.shells[0].volumes].mean()
    assert b0 / own_b0 == pytest.approx(KNOWN[0], rel=0.03)
    assert (shell / b0) / (own_shell / own_b0) == pytest.approx(KNOWN[1], rel=0.02)


def test_at_home_nothing_changes(model: RishModel, scans: list[Scan]) -> None:
    rendering = render(model, scans[0], "a")
    projected = project(fit_coefficients(scans[0], order=ORDER), GRADIENTS).clip(min=0)
    np.testing.assert_allclose(
        rendering.scan.signal.T[:, scans[0].mask.T].T, projected, rtol=1e-4, atol=1e-2
    )
    assert rendering.change.max() < 1e-3 * rendering.levels[0]
    assert rendering.rendered.sum() == scans[0].mask.sum()


def test_a_lesion_keeps_its_contrast(model: RishModel, scans: list[Scan]) -> None:
    """Scales of the person would flatten it: it is larger than energies are averaged over."""
    scan = scans[1]
    centre = np.argwhere(scan.white_matter)[200]
    distance = np.linalg.norm(np.moveaxis(np.indices(scan.mask.shape), 0, -1) - centre, axis=-1)
    lesion = scan.mask & (distance * scan.voxel_size[0] < 8)
    signal = scan.signal.copy()
    signal[np.ix_(*map(np.arange, signal.shape[:3]), ~GRADIENTS.is_b0)] *= np.where(
        lesion[..., None], np.float32(0.6), np.float32(1)
    )
    ill = render(model, scan.with_signal(signal), "b").scan.signal[..., ~GRADIENTS.is_b0]
    well = render(model, scan, "b").scan.signal[..., ~GRADIENTS.is_b0]
    np.testing.assert_allclose(ill[lesion].mean() / well[lesion].mean(), 0.6, rtol=0.02)
    outside = scan.mask & ~lesion
    np.testing.assert_allclose(ill[outside], well[outside], rtol=0.01, atol=5)


def test_a_scan_elsewhere_is_refused(model: RishModel, scans: list[Scan]) -> None:
    moved = replace(scans[0], affine=scans[0].affine + np.eye(4, k=3) * 60)
    with pytest.raises(SignalError, match="could not be registered"):
        render(model, moved, "b")


def test_a_model_comes_back_from_its_arrays(model: RishModel) -> None:
    back = RishModel.from_arrays(model.card, model.arrays)
    assert back.identity == model.identity
    np.testing.assert_array_equal(back.scales(0, [1]), model.scales(0, [1]))


def test_the_spread_is_that_of_the_noise() -> None:
    card = make_card({"a": 1200.0, "b": 1200.0}, method="unchanged", order=8)
    gradients = make_gradients({700: 45, 1500: 60})
    clean = make_scan(gradients, snr=np.inf, site=Site("a"))
    model = UnchangedModel(card)
    draws = [noisy(clean, seed, sigma=30.0) for seed in range(8)]
    translations = [
        model.translate(scan, model.preparation.coefficients(scan), "b") for scan in draws
    ]
    white = clean.white_matter.T[clean.mask.T]
    mixing = projection_matrix(gradients, bs=BS, order=8)
    drawn = np.std([m.coefficients.values[white] @ mixing for m in translations], axis=0, ddof=1)
    stated = np.mean([m.deviation[white] for m in translations], axis=0)
    groups = [np.flatnonzero(gradients.is_b0), *(s.volumes for s in gradients.shells)]
    for index, group in enumerate(groups):
        seen = np.sqrt(np.square(drawn[:, group]).mean())
        assert np.sqrt(np.square(stated[:, index]).mean()) == pytest.approx(seen, rel=0.1)


def test_scaled_brings_level_and_shells_to_the_targets(scans: list[Scan]) -> None:
    means = {}
    for site in "ab":
        of_site = [fit_coefficients(s, order=ORDER) for s in scans if str(s.site) == site]
        white = scans[0].white_matter.T[scans[0].mask.T]
        means[site] = np.mean([mean_attenuation(o.values[white], ORDER) for o in of_site], axis=0)
    levels = {
        s: float(white_matter_level(next(x for x in scans if str(x.site) == s))) for s in "ab"
    }
    model = ScaledModel(make_card(levels, method="scaled"), np.stack([means["a"], means["b"]]))
    rendering = render(model, scans[0], "b")
    white = scans[0].white_matter
    for volumes in (GRADIENTS.is_b0, *(s.volumes for s in GRADIENTS.shells)):
        ours = rendering.scan.signal[white][:, volumes].mean()
        goal = scans[PEOPLE].signal[white][:, volumes].mean()
        assert ours == pytest.approx(goal, rel=0.03)


def test_unchanged_is_the_fit_at_any_gradients(scans: list[Scan]) -> None:
    model = UnchangedModel(make_card({"a": 1200.0, "b": 77.0}, method="unchanged"))
    other = make_gradients({700: 9, 1500: 11}, seed=3)
    rendering = render(model, scans[0], "b", gradients=other)
    expected = project(fit_coefficients(scans[0], order=ORDER), other).clip(min=0)
    np.testing.assert_allclose(rendering.scan.signal.T[:, scans[0].mask.T].T, expected, rtol=1e-4)
    assert not rendering.change.any()
    with pytest.raises(ModelError, match="does not know"):
        render(model, scans[0], "c")


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(2, 6))
def test_weights_without_covariates_are_means(seed: int, sites: int, each: int) -> None:
    numbers = np.random.default_rng(seed).permutation(np.repeat(np.arange(sites), each))
    people = [str(number) for number in range(sites * each)]
    nothing = np.zeros((sites * each, 0))
    weights = site_weights(numbers.tolist(), people, nothing, travelling=False)
    expected = (numbers == np.arange(sites)[:, None]) / each
    np.testing.assert_allclose(weights, expected, atol=1e-12)


@given(st.integers(0, 2**32 - 1))
def test_covariates_are_separated_from_sites(seed: int) -> None:
    """Sites of different ages: weights give the sites' effects at the same, mean, age."""
    rng = np.random.default_rng(seed)
    sites = np.repeat([0, 1, 2], 8)
    age = rng.uniform(20, 80, size=24) + 10 * sites
    effects = np.array([1.0, 2.0, 4.0])
    energy = effects[sites] + 0.03 * age
    people = [str(number) for number in range(24)]
    weights = site_weights(sites.tolist(), people, age[:, None], travelling=False)
    np.testing.assert_allclose(weights @ energy, effects + 0.03 * age.mean(), rtol=1e-9)


def test_travelling_people_are_compared_with_themselves() -> None:
    """People differ, and not all were everywhere; the sites' effects come out exactly."""
    people, sites = ["x", "x", "y", "y", "z", "z"], [0, 1, 1, 2, 0, 2]
    of_person, of_site = {"x": 5.0, "y": 1.0, "z": -3.0}, np.array([1.0, 2.0, 4.0])
    energy = of_site[sites] + np.array([of_person[p] for p in people])
    weights = site_weights(sites, people, np.zeros((6, 0)), travelling=True)
    estimates = weights @ energy
    np.testing.assert_allclose(estimates - estimates[0], of_site - of_site[0], atol=1e-9)


def test_effects_that_cannot_be_separated_are_refused() -> None:
    age = np.array([[0.0], [0], [1], [1]])
    with pytest.raises(DatasetError, match="covariates"):
        site_weights([0, 0, 1, 1], list("wxyz"), age, travelling=False)
    with pytest.raises(DatasetError, match="people"):
        site_weights([0, 1, 2, 3], list("xxyy"), np.zeros((4, 0)), travelling=True)


def test_sessions_of_one_person_are_one_person() -> None:
    sites, people = [0, 0, 0, 0, 1], ["x", "x", "x", "y", "x"]
    weights = site_weights(sites, people, np.zeros((5, 0)), travelling=False)
    expected = np.array([[1 / 6, 1 / 6, 1 / 6, 1 / 2, 0], [0, 0, 0, 0, 1]])
    np.testing.assert_allclose(weights, expected)


def test_sites_that_cover_other_parts_are_compared_by_what_they_share() -> None:
    """The second site is 1.5 times the first, and lacks half of the brain."""
    pattern = np.linspace(1, 3, 200)[:, None]
    covered = np.ones((200, 1))
    half = (np.arange(200) < 100).astype(float)[:, None]
    scans = [
        Energies(pattern, 0 * pattern, covered),
        Energies(1.5 * pattern * half, 0 * pattern, half),
    ]
    energies, _ = site_energies(lambda number: scans[number], np.eye(2))
    np.testing.assert_allclose(energies[1] / energies[0], 1.5, rtol=0.03)
    np.testing.assert_allclose((energies[1] / energies[0])[:90], 1.5, rtol=0.01)
