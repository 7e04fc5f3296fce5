import shutil
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from threadpoolctl import threadpool_limits

from phantoms import centred_affine, make_gradients, make_scan
from siteless.acquisition import GradientTable, Scan
from siteless.denoising import denoise, find_denoiser
from siteless.errors import SitelessError

DWIDENOISE = pytest.param(
    "MRtrix3 dwidenoise 3.0.3",
    marks=pytest.mark.skipif(
        shutil.which("dwidenoise") is None, reason="MRtrix3 is not installed"
    ),
)
MPPCA = "DIPY mppca 1.12.1"
either = pytest.mark.parametrize("denoiser", [DWIDENOISE, MPPCA])


def _error(scan: Scan, truth: Scan) -> float:
    return np.sqrt(np.mean((scan.signal - truth.signal)[truth.mask] ** 2))


def _program(folder: Path, script: str) -> None:
    """Put another dwidenoise in a folder."""
    path = folder / "dwidenoise"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def only_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that all programs are found in."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@either
def test_error_falls_and_nothing_else_changes(denoiser: str) -> None:
    scan, truth = make_scan(snr=20, name="sub-01"), make_scan(snr=np.inf)
    denoised = denoise(scan, denoiser)
    assert _error(denoised, truth) < 0.8 * _error(scan, truth)
    assert denoised.signal.dtype == np.float32
    assert (denoised.signal[scan.mask] >= 0).all()
    assert np.array_equal(denoised.signal[~scan.mask], scan.signal[~scan.mask])
    for field in fields(scan):
        if field.name != "signal":
            assert getattr(denoised, field.name) is getattr(scan, field.name)


@either
def test_bytes_do_not_depend_on_threads(denoiser: str) -> None:
    scan = make_scan(snr=20)
    before = scan.signal.copy()
    results = []
    for threads in (1, 1, 2):
        with threadpool_limits(threads):
            results.append(denoise(scan, denoiser).signal.tobytes())
    assert len(set(results)) == 1
    assert np.array_equal(scan.signal, before)


@either
def test_where_the_scan_lies_does_not_matter(denoiser: str) -> None:
    scan = make_scan(snr=20)
    turned = Rotation.from_euler("xyz", [170, 80, 100], degrees=True).as_matrix()
    oblique = replace(scan, affine=centred_affine(rotation=turned @ np.diag([1, -1, 1])))
    expected = denoise(scan, denoiser).signal
    assert np.array_equal(denoise(oblique, denoiser).signal, expected)


@either
def test_brain_at_the_edge_of_the_image_is_denoised(denoiser: str) -> None:
    scan, truth = make_scan(snr=20), make_scan(snr=np.inf)
    middle = (slice(6, 14), slice(6, 16), slice(5, 13))

    def cut(whole: Scan) -> Scan:
        parts = {name: getattr(whole, name)[middle] for name in ("signal", "mask", "white_matter")}
        return replace(whole, **parts)

    cut_scan, cut_truth = cut(scan), cut(truth)
    corner = np.zeros_like(cut_scan.mask)
    corner[0, 0, 0] = corner[-1, -1, -1] = True
    few = replace(cut_scan, mask=corner, white_matter=corner & cut_scan.white_matter)
    assert cut_scan.mask.all()
    assert _error(denoise(cut_scan, denoiser), cut_truth) < 0.8 * _error(cut_scan, cut_truth)
    assert (denoise(few, denoiser).signal != few.signal)[corner].all()


@either
def test_nan_outside_of_the_brain_stays_there(denoiser: str) -> None:
    scan = make_scan(snr=20)
    emptied = np.where(scan.mask[..., None], scan.signal, 0)
    holed = np.where(scan.mask[..., None], scan.signal, np.nan)
    holed[0, 0, 0], holed[-1, -1, -1] = np.inf, -np.inf
    expected = denoise(scan.with_signal(emptied), denoiser).signal[scan.mask]
    denoised = denoise(scan.with_signal(holed), denoiser).signal
    assert np.array_equal(denoised[scan.mask], expected)
    assert np.array_equal(
        denoised[~scan.mask], holed[~scan.mask].astype(np.float32), equal_nan=True
    )


@either
def test_a_scan_without_noise_stays_nearly_the_same(denoiser: str) -> None:
    truth = make_scan(snr=np.inf)
    assert _error(denoise(truth, denoiser), truth) < 1e-4 * truth.signal[truth.mask].mean()


@either
@pytest.mark.parametrize("volumes", [2, 27, 28])
def test_scans_as_small_as_the_window_are_denoised_and_smaller_ones_refused(
    denoiser: str, volumes: int
) -> None:
    side = 5 if volumes == 28 else 3
    scan = make_scan(make_gradients({1000: volumes - 1}, b0=1), shape=(side, side, side))
    assert np.isfinite(denoise(scan, denoiser).signal).all()
    thin = make_scan(scan.gradients, shape=(30, 30, side - 1))
    with pytest.raises(SitelessError, match=f"{side} voxels along each axis for {volumes}; found"):
        denoise(thin, denoiser)


@either
def test_a_single_volume_is_refused(denoiser: str) -> None:
    scan = make_scan(GradientTable(np.zeros(1), np.zeros((1, 3))))
    with pytest.raises(SitelessError, match="at least 2 volumes"):
        denoise(scan, denoiser)


@pytest.mark.usefixtures("mrtrix")
def test_denoisers_agree_better_with_each_other_than_with_the_scan() -> None:
    scan = make_scan(snr=20)
    theirs, dipys = denoise(scan, "MRtrix3 dwidenoise 3.0.3"), denoise(scan, MPPCA)
    assert _error(theirs, dipys) < 0.4 * min(_error(theirs, scan), _error(dipys, scan))


@pytest.mark.parametrize("name", ["", "nlmeans 1.0", "DIPY localpca 1.12.1", "dwidenoise"])
def test_unknown_denoisers_are_refused(name: str) -> None:
    with pytest.raises(SitelessError, match="expected a version of MRtrix3 dwidenoise or DIPY"):
        denoise(make_scan(), name)


@pytest.mark.usefixtures("only_programs")
def test_dipy_is_found_where_dwidenoise_is_missing_but_does_not_take_its_place() -> None:
    assert find_denoiser() == f"DIPY mppca {version('dipy')}"
    with pytest.raises(SitelessError, match=r"found no dwidenoise on PATH; .*apt install") as it:
        denoise(make_scan(), "MRtrix3 dwidenoise 3.0.3")
    assert "\n" not in str(it.value)


def test_version_is_what_the_program_prints(only_programs: Path) -> None:
    _program(only_programs, "echo '== dwidenoise 3.0.4-12-gab =='; echo 64 bit")
    assert find_denoiser() == "MRtrix3 dwidenoise 3.0.4-12-gab"
    _program(only_programs, "echo something else")
    with pytest.raises(SitelessError, match="expected dwidenoise to tell its version"):
        find_denoiser()


@pytest.mark.usefixtures("mrtrix")
def test_found_denoiser_can_be_used() -> None:
    assert find_denoiser().startswith("MRtrix3 dwidenoise ")
    denoise(make_scan(), find_denoiser())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo first >&2; echo 'dwidenoise: [ERROR] last' >&2; exit 1", r"\[ERROR\] last"),
        ("kill -9 $$", "exit status -9"),
    ],
)
def test_failures_of_the_program_are_one_line(
    only_programs: Path, script: str, reason: str
) -> None:
    _program(only_programs, script)
    with pytest.raises(SitelessError, match=f"dwidenoise failed .*{reason}") as caught:
        denoise(make_scan(), "MRtrix3 dwidenoise 3.0.3")
    assert "\n" not in str(caught.value)


def test_temporary_files_are_removed_and_a_missing_folder_for_them_is_an_error(
    only_programs: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch [1]")
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    _program(only_programs, "exit 1")
    with pytest.raises(SitelessError, match="dwidenoise failed"):
        denoise(make_scan(), "MRtrix3 dwidenoise 3.0.3")
    assert list(scratch.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(scratch / "none"))
    with pytest.raises(SitelessError, match="cannot write temporary files"):
        denoise(make_scan(), "MRtrix3 dwidenoise 3.0.3")
