import shutil
import subprocess
from dataclasses import astuple, replace
from importlib.util import find_spec
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from numpy.polynomial.legendre import leggauss
from scipy.spatial.transform import Rotation
from scipy.special import eval_legendre
from threadpoolctl import threadpool_limits

from phantoms import make_gradients
from siteless.acquisition import Array, GradientTable, Scan
from siteless.errors import GradientTableError, MaskError, SitelessError
from siteless.evaluation import (
    Responses,
    estimate_responses,
    find_engine,
    find_fods,
    peak_angles,
)
from siteless.evaluation._peaks import find_peaks
from siteless.harmonics import sh_basis
from siteless.simulation import Person, make_anatomy, read_scanners, scan_person
from siteless.tissue import white_matter_mask
from strategies import rotations, seeds

PROGRAMS = ("dwi2response", "dwi2fod", "sh2peaks")
needs_mrtrix = pytest.mark.skipif(
    any(shutil.which(program) is None for program in PROGRAMS), reason="MRtrix3 is not installed"
)
needs_cvxpy = pytest.mark.skipif(find_spec("cvxpy") is None, reason="CVXPY is not installed")
MRTRIX, DIPY = "MRtrix3 3.0.3", "DIPY 1.12.1"
either = pytest.mark.parametrize(
    "engine",
    [pytest.param(MRTRIX, marks=needs_mrtrix), pytest.param(DIPY, marks=needs_cvxpy)],
)
GREY, FLUID = 0.8e-3, 3.0e-3
FIBRES = np.array([[1.0, 0, 0], [0, 0, 1], [0.6, 0.64, -0.48], [-0.36, 0.48, 0.8]])


def fibre_signal(b: Array, cosines: Array) -> Array:
    """Return what a single fibre gives: a stick and a zeppelin, b0 of 1000."""
    stick = np.exp(-b * 1.9e-3 * cosines**2)
    zeppelin = np.exp(-b * (0.8e-3 + 1.1e-3 * cosines**2))
    return 1000 * (0.6 * stick + 0.4 * zeppelin)


def make_row(
    fibres: Array, gradients: GradientTable | None = None, affine: Array | None = None
) -> Scan:
    """Make a scan, a voxel for each set of fibres (voxel, fibre, 3), without noise."""
    gradients = make_gradients() if gradients is None else gradients
    b = np.where(gradients.is_b0, 0, gradients.b)
    signal = fibre_signal(b, np.asarray(fibres) @ gradients.directions.T).mean(axis=1)
    brain = np.ones((len(signal), 1, 1), dtype=bool)
    affine = np.eye(4) if affine is None else affine
    return Scan(signal[:, None, None], affine, gradients, brain, brain)


def exact_responses(engine: str, b: tuple[int, ...] = (0, 1200, 3000)) -> Responses:
    """Integrate the zonal harmonics of a fibre, by quadrature."""
    cosines, weights = leggauss(64)
    degrees = np.arange(0, 9, 2)
    harmonics = np.sqrt((2 * degrees + 1) / (4 * np.pi)) * eval_legendre(degrees, cosines[:, None])
    signal = fibre_signal(np.array(b)[:, None], cosines)
    white = 2 * np.pi * (signal * weights) @ harmonics
    grey, fluid = (c * np.exp(-np.array(b) * d) for c, d in ((1300, GREY), (3000, FLUID)))
    return Responses(engine, b, white, *(np.sqrt(4 * np.pi) * np.stack([grey, fluid])))


def as_peaks(directions: Array | list[Array]) -> Array:
    """Give single maxima the shape of `Fods.peaks`."""
    return np.asarray(directions, dtype=float).reshape(-1, 1, 3)


def run(*words: str | Path, folder: Path) -> None:
    subprocess.run([str(word) for word in words], cwd=folder, check=True, capture_output=True)


@given(seeds, rotations)
def test_angles_have_no_sign_and_do_not_depend_on_axes_or_amplitudes(
    seed: int, rotation: Array
) -> None:
    rng = np.random.default_rng(seed)
    estimated, expected = rng.normal(size=(2, 7, 3, 3))
    angles = peak_angles(estimated, expected)
    signs, sizes = rng.choice([-1, 1], size=(7, 3, 1)), rng.uniform(0.1, 2, size=(7, 3, 1))
    other = peak_angles(estimated @ rotation.T, signs * sizes * expected @ rotation.T)
    np.testing.assert_allclose(astuple(other), astuple(angles), atol=1e-9)
    assert (angles.closest <= angles.largest).all()
    assert (angles.closest >= 0).all()
    assert (angles.largest <= 90).all()


@given(seeds)
def test_peaks_are_at_no_angle_to_themselves(seed: int) -> None:
    peaks = np.random.default_rng(seed).normal(size=(7, 3, 3)).astype(np.float32)
    angles = peak_angles(peaks, -peaks)
    assert angles.closest.tolist() == angles.largest.tolist() == [0.0] * 7


def test_angles_are_unknown_where_there_is_no_maximum() -> None:
    none, x, y = np.zeros(3), np.array([1.0, 0, 0]), np.array([0, 1.0, 0])
    estimated = np.array([[none, none], [x, none], [x, y], [x, none]])
    expected = np.array([[x, none], [none, none], [y, none], [y, x]])
    angles = peak_angles(estimated, expected)
    np.testing.assert_array_equal(angles.closest, [np.nan, np.nan, 90, 0])
    np.testing.assert_array_equal(angles.largest, [np.nan, np.nan, 90, 90])


@pytest.mark.parametrize("angle", [0.5, 5.0, 30.0, 85.0])
@given(seeds)
def test_turned_fods_score_the_angle_that_they_were_turned_by(angle: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fibre, across, *_ = np.linalg.qr(rng.normal(size=(3, 3)))[0].T
    turn = Rotation.from_rotvec(np.deg2rad(angle) * across).as_matrix()
    # Turned by its values on a sphere: f'(d) = f(R'd).
    sphere = rng.normal(size=(400, 3))
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    sharp = sh_basis(fibre[None], 8) * np.exp(-np.array([0, 6, 20, 42, 72]) / 60).repeat(
        [1, 5, 9, 13, 17]
    )
    values = sh_basis(sphere @ turn, 8) @ sharp[0]
    turned = np.linalg.lstsq(sh_basis(sphere, 8), values)[0]
    peaks = find_peaks(np.stack([sharp[0], turned]))
    np.testing.assert_allclose(peak_angles(peaks[:1], as_peaks(fibre)).largest, 0, atol=0.05)
    np.testing.assert_allclose(peak_angles(peaks[1:], peaks[:1]).largest, angle, atol=0.1)
    height = np.linalg.norm(peaks, axis=2)
    np.testing.assert_allclose(height[:, 0], sh_basis(fibre[None], 8)[0] @ sharp[0], rtol=1e-4)
    assert (np.diff(height, axis=1) <= 0).all()


def test_fods_without_a_positive_maximum_have_no_peaks() -> None:
    coefficients = np.zeros((2, 45))
    coefficients[1, 0] = -1
    assert not find_peaks(coefficients).any()


@needs_mrtrix
def test_largest_maxima_are_those_of_sh2peaks() -> None:
    rng = np.random.default_rng(0)
    fibres = rng.normal(size=(60, 3, 3))
    fibres /= np.linalg.norm(fibres, axis=2, keepdims=True)
    scan = make_row(fibres)
    fods = find_fods(scan, exact_responses(MRTRIX), scan.mask)
    peaks = find_peaks(fods.coefficients)
    np.testing.assert_allclose(
        np.linalg.norm(peaks, axis=2)[:, 0], np.linalg.norm(fods.peaks, axis=2)[:, 0], rtol=1e-3
    )
    assert (peak_angles(peaks, fods.peaks).closest < 0.5).all()


@either
def test_fibres_are_found_where_they_are_and_turn_as_they_are_turned(engine: str) -> None:
    turn = Rotation.from_euler("xyz", (8, -5, 6), degrees=True).as_matrix()
    scan = make_row(np.concatenate([FIBRES, FIBRES @ turn.T])[:, None])
    fods = find_fods(scan, exact_responses(engine), scan.mask)
    assert fods.coefficients.shape == (8, 45)
    assert fods.peaks.shape == (8, 3, 3)
    truth = as_peaks(np.concatenate([FIBRES, FIBRES @ turn.T]))
    assert (peak_angles(fods.peaks, truth).largest < 1).all()
    turned = peak_angles(as_peaks(FIBRES @ turn.T), as_peaks(FIBRES)).largest
    between_halves = peak_angles(fods.peaks[4:], fods.peaks[:4]).largest
    np.testing.assert_allclose(between_halves, turned, atol=1)


@either
@pytest.mark.parametrize("between", [70, 90])
def test_both_fibres_of_a_crossing_are_found(engine: str, between: int) -> None:
    half = np.deg2rad(between / 2)
    turn = Rotation.from_euler("xyz", (20, 35, -50), degrees=True).as_matrix()
    crossing = np.array([[np.cos(half), np.sin(half), 0], [np.cos(half), -np.sin(half), 0]])
    fibres = crossing @ turn.T
    scan = make_row(fibres[None])
    [peaks] = find_fods(scan, exact_responses(engine), scan.mask).peaks
    for fibre in fibres:
        assert peak_angles(as_peaks(fibre), peaks[None, :2]).closest[0] < 5
    assert np.linalg.norm(peaks[2]) < 0.3 * np.linalg.norm(peaks[0])


@needs_mrtrix
@needs_cvxpy
def test_engines_agree() -> None:
    scan = make_row(FIBRES[[[0, 1], [2, 3], [2, 2]]])
    theirs, dipys = (
        find_fods(scan, exact_responses(engine), scan.mask) for engine in (MRTRIX, DIPY)
    )
    largest = np.abs(theirs.coefficients).max()
    np.testing.assert_allclose(dipys.coefficients, theirs.coefficients, atol=0.1 * largest)
    assert (peak_angles(dipys.peaks, theirs.peaks).closest < 3).all()


@needs_mrtrix
@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_axes_are_those_of_mrtrix_with_an_fsl_table(tmp_path: Path, flip: float) -> None:
    affine = np.eye(4)
    turn = Rotation.from_euler("xyz", (20, -15, 30), degrees=True).as_matrix()
    affine[:3, :3] = turn @ np.diag([flip, 1, 1]) * [2, 2.5, 3]
    scan = make_row(FIBRES[:, None], affine=affine)
    responses = exact_responses(MRTRIX)
    bvals, bvecs = scan.gradients.to_fsl(affine)
    np.savetxt(tmp_path / "bval", bvals[None])
    np.savetxt(tmp_path / "bvec", bvecs.T)
    for name in ("white", "grey", "fluid"):
        np.savetxt(tmp_path / f"{name}.txt", getattr(responses, name))
    nib.Nifti1Image(scan.signal, affine).to_filename(tmp_path / "dwi.nii")
    tissues = [f"{name}.{end}" for name in ("white", "grey", "fluid") for end in ("txt", "nii")]
    command = ["dwi2fod", "msmt_csd", "dwi.nii", *tissues, "-fslgrad", "bvec", "bval"]
    run(*command, folder=tmp_path)
    run("sh2peaks", "white.nii", "peaks.nii", folder=tmp_path)
    image = nib.Nifti1Image.from_filename(tmp_path / "peaks.nii")
    theirs = np.asarray(image.dataobj)
    # Flipped images come back from right to left; their affine shows it.
    start = np.linalg.norm(image.affine[:3, 3] - affine[:3, 3]) < 1e-3
    theirs = theirs[:, 0, 0] if start else theirs[::-1, 0, 0]
    ours = find_fods(scan, responses, scan.mask).peaks
    assert (peak_angles(ours, theirs.reshape(-1, 3, 3)).largest < 0.1).all()


@either
@pytest.mark.parametrize("angles", [(0, 0, 0), (20, -15, 30)])
@pytest.mark.parametrize("flip", [1.0, -1.0])
def test_tables_along_any_image_axes_give_the_same_world_peaks(
    engine: str, angles: tuple[int, int, int], flip: float
) -> None:
    affine = np.eye(4)
    turn = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    affine[:3, :3] = turn @ np.diag([flip, 1, 1]) * [2, 2.5, 3]
    scan = make_row(FIBRES[:, None], affine=affine)
    read = GradientTable.from_fsl(*scan.gradients.to_fsl(affine), affine)
    fods = find_fods(replace(scan, gradients=read), exact_responses(engine), scan.mask)
    assert (peak_angles(fods.peaks, as_peaks(FIBRES)).largest < 1).all()


@either
def test_voxels_are_in_the_order_of_the_file(engine: str) -> None:
    shape = (3, 2, 2)
    fibres = np.random.default_rng(3).normal(size=(12, 3))
    fibres /= np.linalg.norm(fibres, axis=1, keepdims=True)
    row = make_row(fibres[:, None])
    brain = np.ones(shape, dtype=bool)
    signal = row.signal[:, 0, 0].reshape(*shape, -1)  # z fastest
    where = np.arange(12).reshape(shape) % 5 != 0
    scan = Scan(signal, np.eye(4), row.gradients, brain, brain)
    fods = find_fods(scan, exact_responses(engine), where)
    truth = [fibres[np.ravel_multi_index((x, y, z), shape)] for z, y, x in np.argwhere(where.T)]
    assert (peak_angles(fods.peaks, as_peaks(truth)).largest < 1.5).all()


@either
def test_b_values_may_scatter_and_volumes_may_be_in_any_order(engine: str) -> None:
    table, rng = make_gradients(), np.random.default_rng(0)
    scan = make_row(FIBRES[:, None], table)
    order = rng.permutation(len(table))
    bvals = np.where(table.is_b0, 5, table.bvals * rng.uniform(0.99, 1.01, len(table)))
    mixed = replace(
        scan,
        signal=scan.signal[..., order],
        gradients=GradientTable(bvals[order], table.bvecs[order]),
    )
    responses = exact_responses(engine)
    expected, estimated = (find_fods(measured, responses, scan.mask) for measured in (scan, mixed))
    assert (peak_angles(estimated.peaks, expected.peaks).largest < 0.5).all()


@either
def test_no_voxels_give_no_fods(engine: str) -> None:
    scan = make_row(FIBRES[:, None])
    fods = find_fods(scan, exact_responses(engine), np.zeros_like(scan.mask))
    assert fods.coefficients.shape == (0, 45)
    assert fods.peaks.shape == (0, 3, 3)


@needs_mrtrix
def test_one_shell_is_enough_for_mrtrix() -> None:
    scan = make_row(FIBRES[:, None], make_gradients({3000: 45}))
    fods = find_fods(scan, exact_responses(MRTRIX, (0, 3000)), scan.mask)
    assert (peak_angles(fods.peaks, as_peaks(FIBRES)).largest < 1.5).all()


def make_tissues() -> Scan:
    """Make a scan of 90 voxels of white matter, 60 of grey matter and 40 of fluid."""
    fibres = np.random.default_rng(5).normal(size=(90, 1, 3))
    white = make_row(fibres / np.linalg.norm(fibres, axis=2, keepdims=True))
    b = white.gradients.b
    grey, fluid = (np.tile(c * np.exp(-b * d), (n, 1, 1, 1)) for c, d, n in [
        (1300, GREY, 60), (3000, FLUID, 40)
    ])  # fmt: skip
    signal = np.concatenate([white.signal, grey, fluid])
    brain = np.ones(signal.shape[:3], dtype=bool)
    is_white = np.arange(190)[:, None, None] < 90
    return Scan(signal, np.eye(4), white.gradients, brain, is_white)


@needs_cvxpy
def test_dipys_responses_are_those_of_the_tissues() -> None:
    estimated, exact = estimate_responses(make_tissues(), DIPY), exact_responses(DIPY)
    assert estimated.b == exact.b
    np.testing.assert_allclose(estimated.white, exact.white, atol=5e-3 * exact.white[0, 0])
    np.testing.assert_allclose(estimated.grey, exact.grey, rtol=1e-5)
    np.testing.assert_allclose(estimated.fluid, exact.fluid, rtol=1e-5)


@needs_cvxpy
@pytest.mark.parametrize(
    ("kept", "lacking"), [(slice(0, 150), "fluid"), (slice(90, 190), "white")]
)
def test_scans_without_a_tissue_are_refused(kept: slice, lacking: str) -> None:
    scan = make_tissues()
    names = ("signal", "mask", "white_matter")
    with pytest.raises(SitelessError, match=f"found no {lacking}"):
        estimate_responses(replace(scan, **{n: getattr(scan, n)[kept] for n in names}), DIPY)


@pytest.fixture(scope="module")
def person() -> tuple[Scan, Array]:
    """Give the scan of a simulated brain, and its true fibres as peaks in white matter."""
    someone = Person("01", age=45, sex="F", split="train", seed=(7, 1))
    anatomy = make_anatomy(someone, voxel_size=4.0)
    simulated = scan_person(someone, anatomy, read_scanners()["prisma30"])
    white = white_matter_mask(simulated.signal, simulated.gradients, anatomy.mask)
    scan = Scan(simulated.signal, anatomy.affine, simulated.gradients, anatomy.mask, white)
    truth = anatomy.directions * anatomy.populations[..., None]
    order = np.argsort(-anatomy.populations, axis=1)
    return scan, np.take_along_axis(truth, order[..., None], axis=1)


def some_voxels(mask: Array, count: int) -> Array:
    some = np.zeros_like(mask)
    places = np.flatnonzero(mask)
    some.flat[places[:: max(1, len(places) // count)]] = True
    return some


@either
def test_simulated_fibres_are_found(person: tuple[Scan, Array], engine: str) -> None:
    scan, truth = person
    some = some_voxels(scan.white_matter, 80)
    fods = find_fods(scan, estimate_responses(scan, engine), some)
    angles = peak_angles(fods.peaks, truth[some.T[scan.mask.T]])
    assert np.median(angles.closest) < 6
    assert np.percentile(angles.closest, 90) < 15


@needs_mrtrix
@needs_cvxpy
def test_responses_of_engines_agree(person: tuple[Scan, Array]) -> None:
    theirs, dipys = (estimate_responses(person[0], engine) for engine in (MRTRIX, DIPY))
    assert theirs.b == dipys.b == (0, 1200, 3000)
    np.testing.assert_allclose(dipys.white[:, 0], theirs.white[:, 0], rtol=0.1)
    np.testing.assert_allclose(dipys.white[1:, 1], theirs.white[1:, 1], rtol=0.15)
    np.testing.assert_allclose(dipys.grey, theirs.grey, rtol=0.1)
    np.testing.assert_allclose(dipys.fluid[0], theirs.fluid[0], rtol=0.15)


@either
def test_bytes_do_not_depend_on_threads_or_on_chance(
    person: tuple[Scan, Array], engine: str
) -> None:
    scan, _ = person
    some = some_voxels(scan.white_matter, 25)
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            responses = estimate_responses(scan, engine)
            fods = find_fods(scan, responses, some)
        results.append([responses.white, responses.grey, responses.fluid, *astuple(fods)])
    assert [array.tobytes() for array in results[0]] == [array.tobytes() for array in results[1]]


@needs_cvxpy
def test_one_shell_is_refused_by_dipy() -> None:
    scan = make_row(FIBRES[:, None], make_gradients({3000: 45}))
    with pytest.raises(GradientTableError, match="at least two shells, found b=3000; install MR"):
        estimate_responses(scan, DIPY)


def test_scans_without_b0_are_refused() -> None:
    scan = make_row(FIBRES[:, None], make_gradients(b0=0))
    with pytest.raises(GradientTableError, match="need b0 and at least one shell"):
        estimate_responses(scan, MRTRIX)


@pytest.mark.parametrize("shells", [{1200: 30}, {1000: 30, 3000: 30}, {700: 9, 1200: 9, 3000: 9}])
def test_other_shells_are_refused(shells: dict[int, int]) -> None:
    scan = make_row(FIBRES[:, None], make_gradients(shells))
    with pytest.raises(GradientTableError, match=r"expected .* b=1200, b=3000; found b="):
        find_fods(scan, exact_responses(MRTRIX), scan.mask)


def test_voxels_outside_of_the_brain_are_refused() -> None:
    scan = make_row(FIBRES[:, None])
    half_brain = replace(
        scan, mask=np.array([1, 1, 0, 0], bool)[:, None, None], white_matter=~scan.mask
    )
    for where in (scan.mask, half_brain.mask[:3]):
        with pytest.raises(MaskError, match="expected voxels of the brain"):
            find_fods(half_brain, exact_responses(MRTRIX), where)


@pytest.mark.parametrize("engine", ["", "mrtrix3", "FSL 6.0"])
def test_unknown_engines_are_refused(engine: str) -> None:
    scan = make_row(FIBRES[:, None])
    for call in (
        lambda: estimate_responses(scan, engine),
        lambda: find_fods(scan, exact_responses(engine), scan.mask),
    ):
        with pytest.raises(SitelessError, match="expected a version of MRtrix3 or DIPY"):
            call()


@pytest.fixture
def only_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that all programs are found in."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put_programs(folder: Path, script: str) -> None:
    for program in PROGRAMS:
        (folder / program).write_text(f"#!/bin/sh\n{script}\n")
        (folder / program).chmod(0o755)


def test_version_is_what_the_program_prints(only_programs: Path) -> None:
    put_programs(only_programs, "echo '== dwi2fod 3.0.4-12-gab =='; echo 64 bit")
    assert find_engine() == "MRtrix3 3.0.4-12-gab"
    put_programs(only_programs, "echo something else")
    with pytest.raises(SitelessError, match="expected dwi2fod to tell its version"):
        find_engine()


@needs_cvxpy
def test_dipy_is_found_where_a_program_is_missing_but_does_not_take_its_place(
    only_programs: Path,
) -> None:
    put_programs(only_programs, "exit 1")
    (only_programs / "dwi2fod").unlink()
    assert find_engine().startswith("DIPY ")
    scan = make_row(FIBRES[:, None])
    with pytest.raises(SitelessError, match="expected MRtrix3, found no dwi2fod on PATH"):
        find_fods(scan, exact_responses(MRTRIX), scan.mask)


@pytest.mark.usefixtures("only_programs")
def test_the_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siteless.evaluation._orientation.find_spec", lambda _: None)
    with pytest.raises(SitelessError, match=r"found no dwi2response.* and no CVXPY; install"):
        find_engine()
    with pytest.raises(SitelessError, match="needs CVXPY"):
        estimate_responses(make_tissues(), DIPY)


@needs_mrtrix
def test_found_engine_can_be_used() -> None:
    scan = make_row(FIBRES[:, None])
    assert find_fods(scan, exact_responses(find_engine()), scan.mask).peaks.any()


def test_failures_are_one_line_and_leave_no_files(
    only_programs: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch [1]")
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    scan = make_row(FIBRES[:, None])
    words = "echo 'dwi2fod: [WARNING] first' >&2; echo 'dwi2fod: [ERROR] second' >&2; exit 1"
    for script, reason in ((words, r"\[ERROR\] second"), ("kill -9 $$", "exit status -9")):
        put_programs(only_programs, script)
        with pytest.raises(SitelessError, match=f"dwi2fod failed .*{reason}") as caught:
            find_fods(scan, exact_responses(MRTRIX), scan.mask)
        assert "\n" not in str(caught.value)
        with pytest.raises(SitelessError, match=f"dwi2response failed .*{reason}"):
            estimate_responses(scan, MRTRIX)
        assert list(scratch.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(scratch / "none"))
    with pytest.raises(SitelessError, match="cannot write temporary files"):
        find_fods(scan, exact_responses(MRTRIX), scan.mask)
