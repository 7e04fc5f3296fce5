from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from phantoms import make_gradients
from siteless.acquisition import Array, Scan, Site
from siteless.harmonics import (
    Coefficients,
    coefficient_orders,
    fit_coefficients,
    projection_matrix,
)
from siteless.methods.invariant.profiles import (
    SiteProfiles,
    Survey,
    extend_profiles,
    flat_fields,
    learn_profiles,
    survey,
)
from siteless.neighbourhood import diffuse

SHELLS = {1200: 30, 3000: 30}
BS, ORDER = (1200.0, 3000.0), 4
SHAPE, SIZE = (24, 22, 20), 2.5
LEVEL = 1000.0


def _scan(
    site: str = "a", seed: int = 0, *, blur: float = 0.0, noise: float = 0.0, tilt: float = 0.0
) -> Scan:
    """Make a scan whose harmonics vary in space, seen through a point spread and a field."""
    rng = np.random.default_rng(seed)
    gradients = make_gradients(SHELLS, seed=1)
    mask = np.ones(SHAPE, dtype=bool)
    degrees = coefficient_orders(ORDER)
    size = np.concatenate([[0.1], *[[{0: 0.3, 2: 0.3, 4: 0.03}[d] for d in degrees]] * 2])
    fine = rng.normal(size=(*SHAPE, len(size)))
    fields = ndimage.gaussian_filter(fine, (1.2, 1.2, 1.2, 0))
    values = size * fields / fields.std(axis=(0, 1, 2))
    values[..., 0] += 1
    values[..., [1, 1 + len(degrees)]] += [1.8, 1.0]
    rows = np.ascontiguousarray(values.swapaxes(0, 2).reshape(-1, len(size)), dtype=np.float32)
    rows = diffuse(rows, mask, np.full(3, SIZE), blur)
    signal = rows @ projection_matrix(gradients, bs=BS, order=ORDER)
    affine = np.diag([SIZE, SIZE, SIZE, 1.0])
    affine[:3, 3] = -SIZE * np.array(SHAPE) / 2
    x = np.array(np.unravel_index(np.arange(len(rows)), SHAPE, order="F"))[0] * SIZE + affine[0, 3]
    signal = signal * np.exp(tilt * x / 30)[:, None] + noise * rng.normal(size=signal.shape)
    image = LEVEL * signal.reshape(*SHAPE[::-1], -1).swapaxes(0, 2)
    return Scan(image, affine, gradients, mask, mask, site=Site(site), name=f"{site}{seed}")


def _survey(scan: Scan, person: str = "p") -> Survey:
    return survey(scan, fit_coefficients(scan, order=ORDER), person)


def _surveys(**blurs: float) -> list[Survey]:
    """Survey three people at each site, whose scans are blurred."""
    return [
        _survey(_scan(site, seed, blur=blur), f"{site}{seed}")
        for site, blur in blurs.items()
        for seed in range(3)
    ]


def _without(profiles: SiteProfiles, coefficients: Coefficients, scan: Scan) -> Array:
    """Take the profile of a scan's site out of its coefficients."""
    profile = profiles.of(scan)
    return profile.blurred(profile.without_field(coefficients))


def test_noise_changes_neither_energies_nor_structure() -> None:
    clean, noisy = (_survey(_scan(noise=noise)) for noise in (0.0, 0.05))
    np.testing.assert_allclose(noisy.energies, clean.energies, atol=0.12)
    assert np.abs(noisy.energies - clean.energies).mean() < 0.02
    # What a fit shrinks, it shrinks at all distances.
    ratios = [survey.structure[..., 0] / survey.structure[..., 2] for survey in (noisy, clean)]
    np.testing.assert_allclose(ratios[0], ratios[1], rtol=0.02)


@pytest.mark.parametrize("grain", [0.4, 0.6])
def test_correlated_noise_changes_neither_energies_nor_structure(grain: float) -> None:
    clean, scan = _survey(_scan()), _scan()
    noise = np.random.default_rng(5).normal(size=scan.signal.shape)
    noise = ndimage.gaussian_filter(noise, (grain, grain, grain, 0))
    noisy = _survey(scan.with_signal(scan.signal + 0.05 * LEVEL * noise / noise.std()))
    means = [
        np.average(survey.energies, axis=1, weights=survey.count) for survey in (noisy, clean)
    ]
    np.testing.assert_allclose(means[0], means[1], atol=0.02)
    ratios = [survey.structure[..., 0] / survey.structure[..., 1] for survey in (noisy, clean)]
    np.testing.assert_allclose(ratios[0], ratios[1], rtol=0.006)


def test_how_an_image_is_stored_changes_nothing() -> None:
    scan = _scan(noise=0.02)
    flipped = replace(
        scan,
        signal=scan.signal[::-1],
        affine=scan.affine
        @ np.array([[-1, 0, 0, SHAPE[0] - 1], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
    )
    first, second = _survey(scan), _survey(flipped)
    np.testing.assert_allclose(second.position, first.position, atol=1e-9)
    np.testing.assert_allclose(second.energies, first.energies, atol=1e-4)
    np.testing.assert_allclose(second.structure, first.structure, rtol=1e-4)


@pytest.mark.parametrize("noise", [0.0, 0.04])
def test_the_blur_between_sites_is_found(noise: float) -> None:
    surveys = [
        _survey(_scan(site, seed, blur=blur, noise=noise), f"{site}{seed}")
        for site, blur in (("a", 3.0), ("b", 0.0), ("c", 1.5))
        for seed in range(3)
    ]
    learned = learn_profiles(surveys, ("a", "b", "c"), ORDER)
    np.testing.assert_allclose(learned.blurs, [0.0, 3.0, 1.5], atol=0.25)


def test_larger_brains_are_not_taken_for_blurred_ones() -> None:
    """Detail falls with the volume of the brain at all sites, and one site has large brains."""
    rng = np.random.default_rng(0)
    plain, surveys = _survey(_scan()), []
    for site, usual in (("a", 0.0), ("b", 0.2)):
        for number in range(8):
            size = usual + rng.normal(scale=0.15)
            structure = plain.structure.copy()
            structure[:, :, 0] *= np.exp(-0.5 * size + rng.normal(scale=0.005))
            share = plain.share * np.exp(-size)
            person = f"{site}{number}"
            surveys.append(
                replace(plain, site=site, person=person, structure=structure, share=share)
            )
    assert np.abs(learn_profiles(surveys, ("a", "b"), ORDER).blurs).max() < 0.1
    alike = [replace(survey, share=plain.share) for survey in surveys]
    assert np.abs(learn_profiles(alike, ("a", "b"), ORDER).blurs).max() > 0.2


def test_sharpening_is_what_a_blur_takes_of_amplitudes() -> None:
    surveys = _surveys(a=3.0, b=0.0)
    learned = learn_profiles(surveys, ("a", "b"), ORDER)
    blurred = [_survey(_scan("b", seed, blur=3.0)) for seed in range(3)]
    lost = [
        np.average(sharp.energies[0] - dull.energies[0], 0, sharp.count)
        for sharp, dull in zip(surveys[3:], blurred, strict=True)
    ]
    b0, *energies = np.mean(lost, axis=0)
    expected = np.append(b0, b0 + np.array(energies) / 2)
    np.testing.assert_allclose(learned.sharpening[1], expected, atol=0.02)
    assert not learned.sharpening[0].any()


def test_scans_whose_blur_is_unknown_do_not_decide_it() -> None:
    surveys = _surveys(a=3.0, b=0.0)
    mute = replace(surveys[3], structure=np.full_like(surveys[3].structure, np.nan))
    expected = learn_profiles(surveys, ("a", "b"), ORDER).blurs
    blurs = learn_profiles([*surveys, mute], ("a", "b"), ORDER).blurs
    np.testing.assert_allclose(blurs, expected, atol=0.2)
    nothing = [
        replace(survey, structure=np.full_like(survey.structure, np.nan)) for survey in surveys
    ]
    assert not learn_profiles(nothing, ("a", "b"), ORDER).blurs.any()


def test_the_most_blurred_site_is_not_blurred_even_where_blurs_seem_to_sharpen() -> None:
    """Noise that is taken for more than it is lets detail rise with the blur."""
    surveys = []
    for site, detail in (("a", 0.5), ("b", 0.7)):
        plain = _survey(_scan(site))
        structure = plain.structure.copy()
        structure[:, :, 0] = np.array(detail + 0.02 * np.arange(6))[:, None] * structure[:, :, 1]
        surveys += [replace(plain, structure=structure, person=f"{site}{n}") for n in range(3)]
    blurs = learn_profiles(surveys, ("a", "b"), ORDER).blurs
    assert blurs[0] == 0


def test_scans_without_blocks_do_not_decide_the_blur() -> None:
    surveys = _surveys(a=3.0, b=0.0)
    expected = learn_profiles(surveys, ("a", "b"), ORDER)
    none = np.zeros(0)
    empty = replace(
        surveys[0],
        person="small",
        position=np.zeros((0, 3)),
        count=none,
        share=none,
        energies=surveys[0].energies[:, :0],
    )
    learned = learn_profiles([*surveys, empty], ("a", "b"), ORDER)
    np.testing.assert_array_equal(learned.blurs, expected.blurs)
    assert not learn_profiles(
        [replace(empty, site=s) for s in "ab"], ("a", "b"), ORDER
    ).blurs.any()
    alone, beside = (
        extend_profiles(expected, [replace(survey, site="c") for survey in scans], "c")
        for scans in ([surveys[0]], [surveys[0], empty])
    )
    np.testing.assert_array_equal(beside.blurs, alone.blurs)


def test_volumes_beyond_those_that_were_learned_from_do_not_extrapolate() -> None:
    surveys = _surveys(a=3.0, b=0.0)
    known = learn_profiles(surveys, ("a", "b"), ORDER)
    larger = [replace(survey, site="c", share=survey.share / 1.3) for survey in surveys[3:]]
    same = [replace(survey, site="c") for survey in surveys[3:]]
    blurs = [extend_profiles(known, of_site, "c").blurs[2] for of_site in (larger, same)]
    assert blurs[0] == pytest.approx(blurs[1], abs=0.1)


def test_what_is_known_of_detail_survives_a_file() -> None:
    surveys = _surveys(a=3.0, b=0.0)
    known = learn_profiles(surveys, ("a", "b"), ORDER)
    again = SiteProfiles.from_arrays(("a", "b"), ORDER, known.arrays)
    assert again.detail is not None
    for array, expected in zip(again.arrays.values(), known.arrays.values(), strict=True):
        np.testing.assert_array_equal(array, expected)
    further = [replace(survey, site="c") for survey in surveys[:2]]
    blurs = [extend_profiles(profiles, further, "c").blurs for profiles in (known, again)]
    np.testing.assert_array_equal(blurs[0], blurs[1])


def test_a_new_site_is_blurred_as_the_others_were() -> None:
    surveys = _surveys(a=3.0, b=0.0, c=1.5)
    known = learn_profiles([survey for survey in surveys if survey.site != "c"], ("a", "b"), ORDER)
    extended = extend_profiles(known, [survey for survey in surveys if survey.site == "c"], "c")
    np.testing.assert_array_equal(extended.blurs[:2], known.blurs)
    assert extended.blurs[2] == pytest.approx(1.5, abs=0.25)
    assert extended.sites == ("a", "b", "c")


def test_a_field_is_found_and_taken_out() -> None:
    surveys = [
        _survey(_scan(site, seed, tilt=tilt), str(seed))
        for site, tilt in (("a", 0.1), ("b", -0.1))
        for seed in range(4)
    ]
    learned = learn_profiles(surveys, ("a", "b"), ORDER)
    same = [_scan(site, 9, tilt=tilt) for site, tilt in (("a", 0.1), ("b", -0.1))]
    fitted = [fit_coefficients(scan, order=ORDER) for scan in same]
    before = [coefficients.values for coefficients in fitted]
    of_scans = zip(fitted, same, strict=True)
    after = [_without(learned, coefficients, scan) for coefficients, scan in of_scans]
    unlike, alike = (np.abs(np.log(a[:, 0] / b[:, 0])).mean() for a, b in (before, after))
    assert alike < 0.15 * unlike


def _profiles(weights: Array, blurs: tuple[float, float] = (0.0, 0.0)) -> SiteProfiles:
    field = replace(flat_fields(2, 5), weights=weights)
    return SiteProfiles(("a", "b"), np.array(blurs), field, ORDER, np.zeros((2, 5)))


def _weights(seed: int = 0) -> Array:
    weights = np.random.default_rng(seed).normal(scale=0.02, size=(2, 35, 5))
    return weights - weights.mean(axis=0)


def test_gains_multiply_amplitudes_and_b0_is_in_all_of_them() -> None:
    profiles = _profiles(_weights())
    world = np.random.default_rng(1).uniform(-80, 80, size=(50, 3))
    gains, logs = profiles.gains(world, "a"), profiles.field.logarithms(world, 0)
    degrees = coefficient_orders(ORDER)
    np.testing.assert_allclose(gains[:, 0], np.exp(logs[:, 0]), rtol=1e-5)
    for shell in range(2):
        of_shell = gains[:, 1 + shell * len(degrees) :][:, : len(degrees)]
        for position, degree in enumerate((0, 2)):
            squared = np.exp(2 * logs[:, 0] + logs[:, 1 + 2 * shell + position])
            np.testing.assert_allclose(
                of_shell[:, degrees == degree] ** 2,
                squared[:, None].repeat(2 * degree + 1, 1),
                rtol=1e-5,
            )
        np.testing.assert_array_equal(
            of_shell[:, degrees == 4][:, 0], of_shell[:, degrees == 2][:, 0]
        )
    np.testing.assert_allclose(gains * profiles.gains(world, "b"), 1, rtol=1e-5)


def test_a_scan_without_its_profile_is_the_scan_divided_and_blurred() -> None:
    profiles, scan = _profiles(_weights(), (2.0, 0.0)), _scan("a", 3)
    coefficients = fit_coefficients(scan, order=ORDER, fit="pseudo-inverse")  # which keeps all
    divided = coefficients.values / profiles.gains(scan.positions, "a")
    np.testing.assert_allclose(profiles.of(scan).without_field(coefficients), divided, rtol=1e-4)
    expected = diffuse(divided, scan.mask, scan.voxel_size, 2.0)
    values = _without(profiles, coefficients, scan)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-3)
    assert values.dtype == np.float32


def test_profiles_are_what_their_arrays_hold() -> None:
    profiles = _profiles(_weights(), (2.0, 0.0))
    again = SiteProfiles.from_arrays(profiles.sites, ORDER, profiles.arrays)
    world = np.random.default_rng(1).uniform(-80, 80, size=(5, 3))
    np.testing.assert_array_equal(again.gains(world, "b"), profiles.gains(world, "b"))
    np.testing.assert_array_equal(again.blurs, profiles.blurs)
