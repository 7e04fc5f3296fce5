import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from phantoms import (
    ONE_SHELL,
    centred_affine,
    load_image,
    make_gradients,
    make_scan,
    write_mask,
    write_raw,
)
from siteless.acquisition import Array, Scan
from siteless.bids import (
    ScanFiles,
    find_scans,
    read_scan,
    write_description,
    write_json,
    write_scan,
)
from siteless.errors import GradientTableError, MaskError, OutputError, SignalError
from siteless.harmonics import fit_coefficients
from siteless.storage import staged
from strategies import affines


def _read_only_scan(root: Path) -> tuple[ScanFiles, Scan]:
    [files] = find_scans(root).scans
    return files, read_scan(files)


@given(affines(), st.sampled_from([np.int16, np.float32]))
@settings(max_examples=15)
def test_read_write_read_returns_the_same(
    tmp_path_factory: pytest.TempPathFactory, affine: Array, dtype: type[np.int16 | np.float32]
) -> None:
    root = tmp_path_factory.mktemp("in")
    scan = make_scan(make_gradients(ONE_SHELL), affine=affine, mask=np.ones((20, 22, 18)))
    write_raw(scan, root / "sub-01" / "dwi", "sub-01_dwi", dtype=dtype)
    write_mask(scan.mask, affine, root / "sub-01" / "dwi" / "sub-01_desc-brain_mask.nii.gz")
    files, first = _read_only_scan(root)
    out = tmp_path_factory.mktemp("out")
    image = write_scan(first, files, out)
    [written] = find_scans(out).scans
    again, stored = load_image(image), load_image(files.dwi)
    assert np.array_equal(again.get_fdata(dtype=np.float32), first.signal)
    assert np.array_equal(again.affine, stored.affine)
    for field in ("pixdim", "qform_code", "sform_code", "xyzt_units", "srow_x", "quatern_b"):
        assert np.array_equal(again.header[field], stored.header[field]), field
    for end in ("bval", "bvec"):
        source = np.loadtxt(getattr(files, end))
        np.testing.assert_allclose(np.loadtxt(getattr(written, end)), source, atol=1e-8)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_storing_axes_in_another_order_changes_nothing_in_the_world(
    tmp_path: Path, order: tuple[int, int, int]
) -> None:
    reference = make_scan(make_gradients(ONE_SHELL))
    expected = fit_coefficients(reference)
    grid = expected.on_grid(expected.values)
    for signs in product((1, -1), repeat=3):
        # The world matrix of the re-stored grid: column i of the new affine is the old axis.
        turn = np.eye(4)
        turn[:3, :3] = np.eye(3)[:, list(order)] * signs
        corner = np.array(
            [
                n - 1 if s < 0 else 0
                for n, s in zip(np.array(reference.mask.shape)[list(order)], signs, strict=True)
            ]
        )
        turn[:3, 3] = -turn[:3, :3] @ corner
        affine = reference.affine @ turn
        flips = tuple(axis for axis, sign in enumerate(signs) if sign < 0)
        stored = np.flip(reference.signal.transpose(*order, 3), flips)
        mask = np.flip(reference.mask.transpose(order), flips)
        moved = make_scan(reference.gradients, affine=affine, shape=mask.shape, mask=mask)
        folder = tmp_path / "".join("pm"[s < 0] for s in signs)
        write_raw(
            moved.with_signal(stored), folder / "sub-1" / "dwi", "sub-1_dwi", dtype=np.float32
        )
        write_mask(mask, affine, folder / "sub-1" / "dwi" / "sub-1_desc-brain_mask.nii.gz")
        _, read = _read_only_scan(folder)
        coefficients = fit_coefficients(read, order=expected.order)
        ours = coefficients.on_grid(coefficients.values)
        back = np.flip(ours, flips).transpose(*np.argsort(order), 3)
        scale = np.abs(grid).max()
        np.testing.assert_allclose(back / scale, grid / scale, atol=1e-5)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[ScanFiles, Path, Path]:
    root = tmp_path_factory.mktemp("raw")
    scan = make_scan(make_gradients(ONE_SHELL))
    write_raw(
        scan, root / "sub-01" / "ses-a" / "dwi", "sub-01_ses-a_dwi", sidecar={"EchoTime": 0.08}
    )
    out = tmp_path_factory.mktemp("derivative")
    files, read = _read_only_scan(root)
    image = write_scan(read, files, out, metadata={"Description": "the same scan"})
    write_description(out, name="a derivative", sources=(root,))
    return files, image, out


@pytest.mark.usefixtures("mrtrix")
@pytest.mark.parametrize("option", ["-size", "-spacing", "-transform", "-dwgrad"])
def test_mrtrix_reads_the_same_header(written: tuple[ScanFiles, Path, Path], option: str) -> None:
    files, image, _ = written

    def mrinfo(path: Path) -> list[float]:
        stem = str(path).removesuffix(".nii.gz")
        gradients = ["-fslgrad", f"{stem}.bvec", f"{stem}.bval"]
        command = ["mrinfo", "-quiet", option, str(path), *gradients]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [float(word) for word in output.split()]

    assert mrinfo(image)
    np.testing.assert_allclose(mrinfo(image), mrinfo(files.dwi), atol=1e-6)


def test_the_validator_accepts_the_derivative(written: tuple[ScanFiles, Path, Path]) -> None:
    _, _, out = written
    validator = Path(sys.executable).with_name("bids-validator-deno")
    command: list[str | Path] = [validator, "--format", "json", out]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    issues = json.loads(process.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []


def test_sidecar_is_the_sources_with_what_was_added(written: tuple[ScanFiles, Path, Path]) -> None:
    _, image, _ = written
    sidecar = json.loads(Path(str(image).replace(".nii.gz", ".json")).read_text())
    assert sidecar["EchoTime"] == 0.08
    assert sidecar["Description"] == "the same scan"
    assert sidecar["BrainMask"].startswith("computed: DIPY median_otsu")


def test_nothing_is_left_behind_beside_the_outputs(written: tuple[ScanFiles, Path, Path]) -> None:
    _, image, _ = written
    stem = "sub-01_ses-a_desc-harmonized_dwi"
    expected = {f"{stem}{end}" for end in (".nii.gz", ".bval", ".bvec", ".json")}
    assert {path.name for path in image.parent.iterdir()} == expected


def test_a_failure_leaves_no_output(tmp_path: Path) -> None:
    def fail() -> None:
        with staged(tmp_path / "out") as stage:
            (stage / "half.txt").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left on device"):
        fail()
    assert list((tmp_path / "out").iterdir()) == []


def test_the_image_appears_last_and_an_old_one_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.nii.gz").write_text("old")
    moved = []
    replace_file = Path.replace

    def watched(source: Path, target: Path) -> Path:
        moved.append((source.name, (tmp_path / "x.nii.gz").exists()))
        return replace_file(source, target)

    monkeypatch.setattr(Path, "replace", watched)
    with staged(tmp_path, last="x.nii.gz") as stage:
        for name in ("x.nii.gz", "x.bval", "x_map.nii.gz"):
            (stage / name).write_text("new")
    assert moved[-1][0] == "x.nii.gz"
    assert len(moved) == 3
    assert not any(image_there for _, image_there in moved)
    assert (tmp_path / "x.nii.gz").read_text() == "new"


def test_json_follows_links_and_writes_to_devices(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("target.json")
    write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "target.json").read_text()) == {"a": 1}
    write_json(Path(os.devnull), {"a": 1})
    assert Path(os.devnull).is_char_device()


def test_a_moved_scan_is_written_where_it_lies(tmp_path: Path) -> None:
    root = tmp_path / "in"
    scan = make_scan(make_gradients(ONE_SHELL))
    write_raw(scan, root / "sub-1" / "dwi", "sub-1_dwi", dtype=np.float32)
    files, read = _read_only_scan(root)
    turned = read.affine.copy()
    turned[:3, :3] = Rotation.from_euler("z", 30, degrees=True).as_matrix() @ turned[:3, :3]
    write_scan(replace(read, affine=turned), files, tmp_path / "out")
    _, again = _read_only_scan(tmp_path / "out")
    np.testing.assert_allclose(again.affine, turned, atol=1e-5)
    np.testing.assert_allclose(again.gradients.bvecs, read.gradients.bvecs, atol=1e-5)


def test_scans_with_not_a_number_are_named(tmp_path: Path) -> None:
    scan = make_scan(make_gradients(ONE_SHELL))
    signal = scan.signal.copy()
    signal[10, 11, 9, 4] = np.nan
    image = tmp_path / "sub-1" / "dwi" / "sub-1_dwi.nii.gz"
    write_raw(scan, image.parent, "sub-1_dwi", dtype=np.float32)
    nib.Nifti1Image(signal, scan.affine).to_filename(image)
    with pytest.raises(SignalError, match=r"sub-1_dwi.*1 of 14 volumes hold NaN"):
        _read_only_scan(tmp_path)


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="cannot write here"):
        write_description(tmp_path / "out", name="x")


@pytest.mark.parametrize("makers", [None, 3, [None], [{"Name": "another"}]])
def test_a_folder_that_another_program_described_is_refused(
    tmp_path: Path, makers: object
) -> None:
    description = {"Name": "x", "GeneratedBy": makers}
    (tmp_path / "dataset_description.json").write_text(json.dumps(description))
    with pytest.raises(OutputError, match="holds another dataset"):
        write_description(tmp_path, name="x")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda s: (s / "sub-1_dwi.bval").write_text("0 1000\n"),
            GradientTableError,
            "found 2",
        ),
        (lambda s: (s / "sub-1_dwi.bval").write_text("0 x\n"), GradientTableError, "numbers"),
        (lambda s: (s / "sub-1_dwi.bval").write_text(""), GradientTableError, "empty"),
        (lambda s: (s / "sub-1_dwi.bvec").write_text("1 0\n0 1\n"), GradientTableError, "3 lines"),
    ],
)
def test_broken_gradient_files_are_named(
    tmp_path: Path, change: Callable[[Path], object], error: type[GradientTableError], message: str
) -> None:
    folder = tmp_path / "sub-1" / "dwi"
    write_raw(make_scan(make_gradients(ONE_SHELL)), folder, "sub-1_dwi")
    change(folder)
    [files] = find_scans(tmp_path).scans
    with pytest.raises(error, match=message) as caught:
        read_scan(files)
    assert caught.value.path is not None
    assert caught.value.path.parent == folder


def test_vectors_stored_by_rows_are_understood(tmp_path: Path) -> None:
    folder = tmp_path / "sub-1" / "dwi"
    scan = make_scan(make_gradients(ONE_SHELL))
    write_raw(scan, folder, "sub-1_dwi")
    np.savetxt(folder / "sub-1_dwi.bvec", np.loadtxt(folder / "sub-1_dwi.bvec").T)
    _, read = _read_only_scan(tmp_path)
    np.testing.assert_allclose(read.gradients.bvecs, scan.gradients.bvecs, atol=1e-5)


@pytest.mark.parametrize("shift", [1e-7, 1e-3, 0.05])
def test_grids_that_differ_by_rounding_are_the_same(tmp_path: Path, shift: float) -> None:
    scan = make_scan(make_gradients(ONE_SHELL))
    folder = tmp_path / "sub-1" / "dwi"
    write_raw(scan, folder, "sub-1_dwi")
    moved = centred_affine()
    moved[0, 3] += shift
    mask = folder / "sub-1_desc-brain_mask.nii.gz"
    write_mask(scan.mask, moved, mask)
    assert np.array_equal(_read_only_scan(tmp_path)[1].mask, scan.mask)
    moved[0, 3] += 1
    write_mask(scan.mask, moved, mask)
    with pytest.raises(MaskError, match=r"1\.\d mm apart"):
        _read_only_scan(tmp_path)
