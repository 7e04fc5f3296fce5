import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.special import ive

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.simulation import (
    EFFECTS,
    Anatomy,
    Encoding,
    Person,
    Scanner,
    SimulatedScan,
    clean_signal,
    read_scanners,
    scan_person,
    scheme,
)
from siteless.simulation._scanner import (
    _blurred,
    _coil_error,
    _moved,
    _noise_kernels,
    _truncated,
    _with_noise,
)
from siteless.simulation._signal import _SPREAD, _cone
from siteless.tissue import fit_tensor

ALL = tuple(EFFECTS)


def _without_all_but(scanner: Scanner, *kept: str) -> Scanner:
    return scanner.without(*(effect for effect in ALL if effect not in kept))


@pytest.fixture(scope="module")
def plain(person: Person, anatomy: Anatomy, scanners: dict[str, Scanner]) -> SimulatedScan:
    """A scan with no effect at all."""
    return scan_person(person, anatomy, _without_all_but(scanners["prisma30"]))


def _scan(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], site: str, *kept: str
) -> SimulatedScan:
    same_scheme = replace(scanners[site], scheme=1, directions=30)
    return scan_person(person, anatomy, _without_all_but(same_scheme, *kept))


def test_without_effects_sites_of_one_scheme_are_identical(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    for site in scanners:
        other = _scan(person, anatomy, scanners, site)
        assert np.array_equal(other.signal, plain.signal)
        assert np.array_equal(other.gradients.bvecs, plain.gradients.bvecs)
    assert np.array_equal(plain.signal, plain.clean)


def test_gain_is_one_factor(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    other = _scan(person, anatomy, scanners, "connectom30", "gain")
    ratio = other.signal[anatomy.mask] / plain.signal[anatomy.mask]
    assert ratio.max() / ratio.min() == pytest.approx(1, abs=1e-5)
    assert ratio.mean() == pytest.approx(1.7, rel=0.15)


def test_receive_field_is_a_smooth_factor_a_voxel(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    other = _scan(person, anatomy, scanners, "connectom30", "receive")
    ratio = other.signal[anatomy.mask] / plain.signal[anatomy.mask]
    np.testing.assert_allclose(ratio, ratio[:, :1] * np.ones(ratio.shape[1]), rtol=1e-4)
    assert 1.1 < ratio.max() / ratio.min() < 2


def test_echo_time_weighs_compartments_but_leaves_how_grey_matter_decays(
    anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    table = scheme(scanners["prisma30"])
    b0 = np.flatnonzero(table.is_b0)[0]

    def decay(tissue: list[float], echo_time: float) -> tuple[Array, Array]:
        voxels = len(anatomy.tissue)
        pure = replace(
            anatomy,
            tissue=np.tile(tissue, (voxels, 1)),
            populations=np.tile([1.0, 0.0, 0.0], (voxels, 1)),
            directions=np.tile(np.eye(3), (voxels, 1, 1)),
        )
        signal = clean_signal(pure, Encoding(table, echo_time))
        return signal / signal[:, [b0]], signal[:, b0]

    short, long = (decay([0.0, 1.0, 0.0], echo_time) for echo_time in (0.068, 0.089))
    np.testing.assert_allclose(short[0], long[0], rtol=1e-5)
    assert (short[1] > long[1]).all()
    short, long = (decay([1.0, 0.0, 0.0], echo_time) for echo_time in (0.068, 0.089))
    # Sticks, which keep more signal at high b, outlive what is between them.
    strong = table.b > 2000
    assert short[0][:, strong].mean() < 0.99 * long[0][:, strong].mean()


def test_nonlinearity_leaves_b0_and_the_isocentre(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    other = _scan(person, anatomy, scanners, "connectom30", "nonlinearity")
    b0 = plain.gradients.is_b0
    np.testing.assert_allclose(other.signal[..., b0], plain.signal[..., b0], rtol=1e-5)
    change = np.abs(other.signal - plain.signal).sum(axis=-1)[anatomy.mask]
    change /= plain.signal.sum(axis=-1)[anatomy.mask]
    # The mask's voxels in the order of boolean indexing, not x fastest.
    position = anatomy.on_grid(anatomy.position)[anatomy.mask]
    radius = np.linalg.norm(position, axis=1)
    assert change[radius < 15].mean() < 0.1 * change[radius > 70].mean()


def test_blur_keeps_the_sum_and_lowers_contrast(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    other = _scan(person, anatomy, scanners, "prisma30", "blur")
    assert other.signal.sum() == pytest.approx(plain.signal.sum(), rel=0.05)
    assert (
        np.diff(other.signal[..., 0], axis=0).std() < np.diff(plain.signal[..., 0], axis=0).std()
    )


def test_position_turns_the_table_and_leaves_b0(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    other = _scan(person, anatomy, scanners, "prisma30", "position")
    b0 = plain.gradients.is_b0
    assert np.array_equal(other.signal[..., b0], plain.signal[..., b0])
    ours, theirs = plain.gradients.directions, other.gradients.directions
    np.testing.assert_allclose(theirs @ theirs.T, ours @ ours.T, atol=1e-12)
    assert np.abs(theirs - ours).max() > 0.01


def test_b_values_scatter_in_multiples_of_five(scanners: dict[str, Scanner]) -> None:
    b = scheme(scanners["prisma30"]).b
    assert (b % 5 == 0).all()
    assert len(np.unique(b[b > 2000])) > 1
    straight = scheme(scanners["prisma30"].without("b-values"))
    assert set(straight.b) == {0, 1200, 3000}


def test_noise_leaves_the_clean_scan(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    other = _scan(person, anatomy, scanners, "prisma30", "noise")
    assert np.array_equal(other.clean, plain.clean)
    b0 = np.flatnonzero(plain.gradients.is_b0)
    white = anatomy.on_grid(anatomy.tissue[:, 0] > 0.9)
    error = (other.signal - other.clean)[white][:, b0]
    assert error.std() == pytest.approx(1000 / scanners["prisma30"].snr, rel=0.05)


@pytest.mark.parametrize("coils", [1, 4])
@pytest.mark.parametrize("level", [0.0, 2.0, 20.0])
def test_noise_has_the_second_moment_of_its_distribution(coils: int, level: float) -> None:
    clean = np.full(200_000, level, dtype=np.float32)
    noisy = _with_noise(np.random.default_rng(0), clean, 1.0, coils)
    assert np.mean(noisy**2) == pytest.approx(level**2 + 2 * coils, rel=0.01)
    if coils == 1 and level == 0:
        assert noisy.mean() == pytest.approx(np.sqrt(np.pi / 2), rel=0.01)


def test_coil_error_is_the_gradient_of_a_harmonic_field() -> None:
    """Each coil's field obeys Laplace's equation, so the trace of its second derivatives is 0."""
    position, step = np.array([[30.0, -40.0, 25.0]]), 1e-2
    for coil in range(3):
        divergence = 0.0
        for axis in range(3):
            ahead, behind = position + step * np.eye(3)[axis], position - step * np.eye(3)[axis]
            rows = [_coil_error(at, 0.03)[0, axis, coil] for at in (ahead, behind)]
            divergence += (rows[0] - rows[1]) / (2 * step)
        assert divergence == pytest.approx(0, abs=1e-8)


def _coil_fields(position: Array, strength: float) -> Array:
    """The fields of the three coils, as potentials whose gradients they play out."""
    x, y, z = position / 100
    ideal = np.array([x, y, z])
    third = np.array(
        [
            x * (4 * z**2 - x**2 - y**2),
            y * (4 * z**2 - x**2 - y**2),
            z * (2 * z**2 - 3 * x**2 - 3 * y**2),
        ]
    )
    return 100 * (ideal - strength * third)


def test_coils_give_the_gradient_of_the_sum_of_their_fields() -> None:
    position, asked, step = np.array([40.0, 10.0, 60.0]), np.array([0.6, -0.3, 0.74]), 1e-3
    given = [
        (asked @ (_coil_fields(position + e, 0.03) - _coil_fields(position - e, 0.03)))
        / (2 * step)
        for e in step * np.eye(3)
    ]
    np.testing.assert_allclose(_coil_error(position[None], 0.03)[0] @ asked, given, atol=1e-7)


def test_a_turned_head_is_the_same_experiment_seen_from_the_head(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    """Scanning a turned head equals turning fibres and positions and scanning those."""
    scanner = _without_all_but(scanners["connectom30"], "nonlinearity", "position")
    # Which way tilted fibres lie about a direction does not turn with it; so none are tilted.
    anatomy = replace(anatomy, dispersion=np.zeros(len(anatomy.tissue)))
    scan = scan_person(person, anatomy, scanner)
    played = scheme(scanner)
    turn, _ = Rotation.align_vectors(played.directions, scan.gradients.directions)
    rng = np.random.default_rng((*person.seed, zlib.crc32(scanner.site.encode()), 1))
    rng.normal(size=3)
    position = anatomy.position @ turn.as_matrix().T + rng.normal(scale=scanner.shift, size=3)
    turned = replace(anatomy, directions=anatomy.directions @ turn.as_matrix().T)
    encoding = Encoding(played, scanner.echo_time, distortion=_coil_error(position, 0.03))
    expected = clean_signal(turned, encoding)
    np.testing.assert_allclose(scan.clean.swapaxes(0, 2)[anatomy.mask.T], expected, rtol=2e-3)


@pytest.mark.parametrize("voxel", [2.4, 6.0])
@pytest.mark.parametrize("width", [1.5, 3.0])
def test_blur_has_the_width_asked_for(anatomy: Anatomy, voxel: float, width: float) -> None:
    grid = replace(anatomy, affine=np.diag([voxel] * 3 + [1.0]), mask=np.ones((15, 15, 15), bool))
    impulse = np.zeros((15, 15, 15, 1), dtype=np.float32)
    impulse[7, 7, 7] = 1
    profile = _blurred(impulse, width, grid)[..., 0].sum(axis=(1, 2))
    variance = np.sum(profile * (np.arange(15) - 7) ** 2) * voxel**2
    assert variance == pytest.approx(width**2 / (8 * np.log(2)), rel=1e-3)


def test_dispersion_has_the_spread_asked_for() -> None:
    direction, dispersion = np.array([[0.0, 0.0, 1.0]]), np.array([0.2])
    cone = _cone(direction, dispersion)[0]
    tilt = np.arccos(cone[:, 2].clip(-1, 1))
    assert np.sum(_SPREAD * tilt**2) == pytest.approx(2 * 0.2**2, rel=1e-5)
    assert np.sum(_SPREAD * tilt**4) == pytest.approx(8 * 0.2**4, rel=1e-5)


def test_runs_repeat_by_their_number(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    scanner = scanners["prisma30"]
    first, second = (scan_person(person, anatomy, scanner, run=run) for run in (1, 2))
    again = scan_person(person, anatomy, scanner, run=1)
    assert np.array_equal(first.signal, again.signal)
    assert not np.array_equal(first.signal, second.signal)


def test_single_fibres_are_recovered(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    scan = scan_person(person, anatomy, scanners["prisma30"])
    single = (anatomy.populations.max(axis=1) > 0.9) & (anatomy.tissue[:, 0] > 0.8)
    voxels = np.flatnonzero(anatomy.mask.T)[single]
    volumes = scan.signal.T.reshape(len(scan.gradients), -1)
    principal = fit_tensor(volumes, voxels, scan.gradients).principal
    strongest = anatomy.populations[single].argmax(axis=1)
    truth = anatomy.directions[single][np.arange(single.sum()), strongest]
    angle = np.rad2deg(np.arccos(np.abs(np.sum(principal * truth, axis=1)).clip(0, 1)))
    assert single.sum() > 50
    assert np.median(angle) < 10


def test_signal_of_an_undispersed_fibre_is_stick_and_zeppelin(
    anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    voxel = int(anatomy.tissue[:, 0].argmax())
    chosen = slice(voxel, voxel + 1)
    alone = replace(
        anatomy,
        tissue=np.array([[1.0, 0, 0]]),
        directions=anatomy.directions[chosen],
        populations=np.array([[1.0, 0, 0]]),
        intra_axonal=np.array([0.6]),
        dispersion=np.zeros(1),
        white_matter=np.ones(1, bool),
        lesion=np.zeros(1, bool),
    )
    table = scheme(scanners["prisma30"])
    signal = clean_signal(alone, Encoding(table, 0.089))[0]
    squared = (table.directions @ alone.directions[0, 0]) ** 2
    along, across = 1.9e-3, 1.9e-3 * 0.4
    stick = np.exp(-table.b * along * squared)
    zeppelin = np.exp(-table.b * (across + (along - across) * squared))
    parts = 0.6 * np.exp(-0.089 / 0.090) * stick + 0.4 * np.exp(-0.089 / 0.060) * zeppelin
    np.testing.assert_allclose(signal, 4600 * 0.7 * parts, rtol=1e-4)


def test_sites_of_a_file_are_added_and_mistakes_named(tmp_path: Path) -> None:
    text = (tmp_path / "mine.toml").write_text
    known = "\n".join(
        f"{key} = {value!r}".replace("'", '"').replace("(", "[").replace(")", "]")
        for key, value in vars(read_scanners()["prisma30"]).items()
        if key != "site"
    )
    text(f"[mine]\n{known}\n")
    assert read_scanners(tmp_path / "mine.toml")["mine"].echo_time == 0.089
    for content, message in (
        ("[mine]\ngain = 2\n", "site mine lacks manufacturer, model"),
        (f"[mine]\n{known}\n".replace("b0 = 4", 'b0 = "4"'), "site mine has a wrong value of b0"),
        (
            f"[mine]\n{known}\n".replace("echo_time = 0.089", "echo_time = 89"),
            "expected 0.01 to 0.3",
        ),
        (f"[my-site]\n{known}\n", "letters and digits only"),
        (f"[mine]\n{known}\ncolour = 1\n", "site mine has unknown colour"),
        ("mine = 3\n", "expected a TOML table a site"),
        ("[mine\n", "expected a TOML table a site"),
    ):
        text(content)
        with pytest.raises(DatasetError, match=message):
            read_scanners(tmp_path / "mine.toml")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_scanners(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes('manufacturer = "Grün"'.encode("latin-1"))
    with pytest.raises(DatasetError, match="expected a TOML table a site"):
        read_scanners(tmp_path / "latin.toml")


def test_the_documented_site_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    example, further = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(example)
    lab = read_scanners(tmp_path / "mine.toml")["lab"]
    assert lab.directions == 45
    (tmp_path / "mine.toml").write_text(example + further)
    assert read_scanners(tmp_path / "mine.toml")["lab"] == lab


def test_unknown_effects_are_refused(scanners: dict[str, Scanner]) -> None:
    with pytest.raises(DatasetError, match="no effect 'rain'; choose from gain"):
        scanners["prisma30"].without("rain")


def test_diffusion_time_changes_what_is_hindered_and_leaves_b0(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner], plain: SimulatedScan
) -> None:
    scanner = _without_all_but(scanners["prisma30"])
    longer = scan_person(person, anatomy, replace(scanner, diffusion_time=0.06))
    b0 = plain.gradients.is_b0
    assert np.array_equal(longer.signal[..., b0], plain.signal[..., b0])
    grey = anatomy.on_grid(anatomy.tissue[:, 1] > 0.9)
    assert (longer.signal[grey][:, ~b0] >= plain.signal[grey][:, ~b0]).all()
    assert longer.signal[grey].mean() > 1.01 * plain.signal[grey].mean()


def test_ringing_keeps_what_was_acquired(anatomy: Anatomy, scanners: dict[str, Scanner]) -> None:
    grid = replace(anatomy, mask=np.ones((32, 24, 2), bool))
    signal = np.random.default_rng(0).uniform(500, 1000, size=(32, 24, 2, 3)).astype("f4")
    scanner = replace(scanners["prisma30"], acquired=0.75, partial_fourier=0.75)
    rung = _truncated(signal, scanner, grid)
    symmetric = _truncated(signal, replace(scanner, partial_fourier=1.0), grid)
    np.testing.assert_allclose(symmetric.sum(axis=(0, 1)), signal.sum(axis=(0, 1)), rtol=1e-5)
    before, after = (np.fft.fft2(image, axes=(0, 1)) for image in (signal, symmetric))
    np.testing.assert_allclose(after[:12, :9], before[:12, :9], rtol=1e-3, atol=1)
    assert np.abs(after[13:20]).max() < 1
    assert rung.shape == signal.shape
    assert np.std(rung - signal) > np.std(symmetric - signal)
    whole = replace(scanner, acquired=1.0, partial_fourier=1.0)
    assert _truncated(signal, whole, grid) is signal


def test_a_small_shift_moves_a_ramp_by_its_slope(
    anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    table = scheme(scanners["prisma30"])
    ramp = np.zeros((*anatomy.mask.shape, len(table)), dtype=np.float32)
    ramp += 1000 + 10 * np.arange(len(ramp))[:, None, None, None]
    moved = _moved(ramp, replace(scanners["prisma30"], motion=0.2), anatomy, table, seed=(1,))
    shifts = (moved - ramp)[2, 2, 2]
    np.testing.assert_allclose(moved - ramp, np.broadcast_to(shifts, ramp.shape), atol=1e-3)
    expected = 10 / np.linalg.norm(anatomy.affine[:3, 0]) * 0.2
    assert shifts.std() == pytest.approx(expected, rel=0.3)
    assert _moved(ramp, scanners["prisma30"], anatomy, table, seed=(1,)) is ramp


def test_eddy_currents_shear_along_the_second_axis_and_leave_b0(
    anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    table = scheme(scanners["prisma30"])
    ramp = np.zeros((*anatomy.mask.shape, len(table)), dtype=np.float32)
    ramp += 1000 + 10 * np.arange(ramp.shape[0])[:, None, None, None]
    scanner = replace(scanners["prisma30"], eddy=0.3)
    assert np.array_equal(_moved(ramp, scanner, anatomy, table, seed=(1,)), ramp)
    ramp += 10 * np.arange(ramp.shape[1])[:, None, None]
    change = _moved(ramp, scanner, anatomy, table, seed=(1,)) - ramp
    assert not change[..., table.is_b0].any()
    strong = np.argmax(table.b)
    sheared = anatomy.position @ table.directions[strong] / 100 * 0.3 * np.sqrt(table.b[strong])
    sheared *= 10 / np.sqrt(3000) / np.linalg.norm(anatomy.affine[:3, 1])
    np.testing.assert_allclose(change[..., strong], anatomy.on_grid(sheared), atol=1e-3)


@pytest.mark.parametrize("width", [3.0, 8.0])
def test_correlated_noise_keeps_its_variance_and_has_the_width_asked_for(
    anatomy: Anatomy, scanners: dict[str, Scanner], width: float
) -> None:
    grid = replace(anatomy, affine=np.diag([2.0, 2, 2, 1]))
    kernels = _noise_kernels(replace(scanners["prisma30"], noise_correlation=width), grid)
    clean = np.full((48, 48, 48, 1), 1e4, dtype=np.float32)
    noise = _with_noise(np.random.default_rng(0), clean, 10.0, 1, kernels) - clean
    assert noise.std() == pytest.approx(10, rel=0.03)
    variance = (width / 2) ** 2 / (8 * np.log(2))  # voxels of 2 mm
    expected = [ive(lag, variance) / ive(0, variance) for lag in (1, 2)]
    found = [np.corrcoef(noise[lag:].ravel(), noise[:-lag].ravel())[0, 1] for lag in (1, 2)]
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_noise_rises_towards_the_isocentre(
    person: Person, anatomy: Anatomy, scanners: dict[str, Scanner]
) -> None:
    scanner = _without_all_but(scanners["prisma30"], "noise", "uneven-noise")
    scan = scan_person(person, anatomy, replace(scanner, noise_rise=0.8))
    error = np.square(scan.signal - scan.clean)[..., scan.gradients.is_b0].mean(axis=-1)
    radius = np.linalg.norm(anatomy.position, axis=1)
    squares = error.T[anatomy.mask.T]
    bright = anatomy.tissue[:, 1] < 0.5
    near, far = (squares[bright & (np.abs(radius - r) < 8)].mean() for r in (20, 75))
    assert near / far == pytest.approx(np.exp(2 * 0.8 * (0.75**2 - 0.2**2)), rel=0.15)
    assert squares[bright].mean() == pytest.approx((1000 / scanner.snr) ** 2, rel=0.2)
