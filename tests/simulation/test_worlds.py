from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from siteless.acquisition import Array
from siteless.simulation import (
    EFFECTS,
    USUAL_BIOLOGY,
    Anatomy,
    Biology,
    Encoding,
    Person,
    clean_signal,
    draw_world,
    make_anatomy,
    read_scanners,
    scan_person,
    scheme,
)
from siteless.simulation._scanner import _scanner


def test_a_number_draws_one_world_and_another_does_not() -> None:
    assert draw_world(3) == draw_world(3)
    assert draw_world(3) != draw_world(4)
    assert draw_world(3, sites=6).scanners[:4] == draw_world(3).scanners
    assert draw_world(3, sites=6).biology == draw_world(3).biology


def test_worlds_have_every_effect_and_settings_that_a_file_could_have() -> None:
    scanners = [scanner for number in range(60) for scanner in draw_world(number).scanners]
    for effect, without in EFFECTS.items():
        if effect not in ("position", "b-values"):  # the same in all worlds
            assert any(
                getattr(s, name) != value for s in scanners for name, value in without.items()
            )
    for scanner in scanners:
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(scanner).items()}
        assert _scanner(str(settings.pop("site")), settings) == scanner
        assert 10 <= scanner.snr <= 40
        assert scanner.directions >= (12 if len(scanner.shells) == 1 else 20)
    assert {len(scanner.shells) for scanner in scanners} == {1, 2, 3}
    assert {scanner.coils for scanner in scanners} == {1, 4}


def test_scanners_of_a_world_share_its_shells() -> None:
    for number in range(10):
        assert len({scanner.shells for scanner in draw_world(number).scanners}) == 1


def test_biologies_stay_near_the_usual_one() -> None:
    for number in range(60):
        for field in fields(Biology):
            value, usual = (
                np.array(getattr(of, field.name))
                for of in (draw_world(number).biology, USUAL_BIOLOGY)
            )
            if usual.all():
                assert (np.abs(np.log(value / usual)) < np.log(2.2)).all(), field.name


@pytest.fixture(scope="module")
def rich(person: Person) -> Anatomy:
    biology = replace(USUAL_BIOLOGY, grey_variation=0.05, cortical_sticks=0.2, t2_variation=0.05)
    return make_anatomy(person, voxel_size=4.0, biology=biology)


def test_richer_tissue_leaves_all_else(anatomy: Anatomy, rich: Anatomy) -> None:
    for name in ("tissue", "directions", "populations", "intra_axonal", "dispersion", "lesion"):
        assert np.array_equal(getattr(rich, name), getattr(anatomy, name)), name


def test_grey_matter_varies_as_asked(rich: Anatomy) -> None:
    assert rich.grey_fast is not None
    assert rich.relaxation is not None
    assert rich.grey_fast.std() == pytest.approx(0.05, rel=0.4)
    assert np.log(rich.relaxation).std() == pytest.approx(0.05, rel=0.4)


def test_cortical_sticks_are_unit_vectors_along_the_slope_of_white_matter(rich: Anatomy) -> None:
    assert rich.radial is not None
    length = np.linalg.norm(rich.radial, axis=1)
    cortex = (rich.tissue[:, 1] > 0.5) & (length > 0)
    assert cortex.sum() > 1000
    np.testing.assert_allclose(length[cortex], 1, atol=1e-6)
    white = rich.on_grid(rich.tissue[:, 0])
    inverse = np.linalg.inv(rich.affine[:3, :3])
    z, y, x = np.nonzero(rich.mask.T)
    ahead = np.stack([x, y, z], axis=1) + np.rint(4.0 * rich.radial @ inverse.T).astype(int)
    inside = ((ahead >= 0) & (ahead < rich.mask.shape)).all(axis=1) & cortex
    gained = white[tuple(ahead[inside].T)] - rich.tissue[inside, 0]
    assert np.mean(gained > 0) > 0.8


def test_cortical_sticks_make_grey_matter_anisotropic(anatomy: Anatomy, rich: Anatomy) -> None:
    table = scheme(read_scanners()["prisma30"])
    strong = np.flatnonzero(table.b > 2000)

    def anisotropy(of: Anatomy) -> Array:
        grey = (rich.tissue[:, 1] > 0.95) & np.any(rich.radial, axis=1)
        signal = clean_signal(of, Encoding(table, 0.08))[grey][:, strong]
        return np.asarray(signal.std(axis=1) / signal.mean(axis=1))

    assert np.median(anisotropy(rich)) > 3 * np.median(anisotropy(anatomy))


def test_a_scan_of_a_world_is_positive_and_has_its_noise_apart(person: Person) -> None:
    world = draw_world(5)
    anatomy = make_anatomy(person, voxel_size=6.0, biology=world.biology)
    scan = scan_person(person, anatomy, world.scanners[0])
    assert np.isfinite(scan.signal).all()
    assert (scan.signal >= 0).all()
    assert not scan.signal[~anatomy.mask].any()
    quiet = scan_person(person, anatomy, world.scanners[0].without("noise", "motion"))
    assert np.array_equal(scan.clean, quiet.signal)
