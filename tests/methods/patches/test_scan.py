import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phantoms import make_gradients, make_scan
from siteless.acquisition import Scan
from siteless.errors import OutputError, SignalError
from siteless.harmonics import fit_coefficients, project
from siteless.methods.patches import is_stored, open_scan, store_scan
from siteless.neighbourhood import cut, index_neighbours
from siteless.tissue import Tissue
from training_scans import ORDER, PREPARATION, SHELLS, fitted_scan

BRAIN = replace(PREPARATION, tissue="brain")


@pytest.fixture(scope="module")
def scan() -> Scan:
    return make_scan(make_gradients(SHELLS))


@pytest.mark.parametrize("tissue", ["white-matter", "brain"])
def test_patches_are_those_of_the_scan_in_units_of_its_level(scan: Scan, tissue: Tissue) -> None:
    training_scan = fitted_scan(scan, replace(PREPARATION, tissue=tissue))
    coefficients = fit_coefficients(scan, order=ORDER)
    selected = (scan.white_matter if tissue == "white-matter" else scan.mask).T[scan.mask.T]
    everywhere = cut(coefficients.values, index_neighbours(scan.mask))
    np.testing.assert_allclose(
        cut(training_scan.values, training_scan.neighbours) * training_scan.level,
        everywhere[selected],
        rtol=1e-4,
        atol=1e-3,
    )
    b0 = coefficients.b0[scan.white_matter.T[scan.mask.T]]
    assert training_scan.level == pytest.approx(np.median(b0))


def test_signal_is_what_was_measured_and_mixing_projects(scan: Scan) -> None:
    training_scan = fitted_scan(scan, BRAIN)
    weighted = ~scan.gradients.is_b0
    np.testing.assert_allclose(
        training_scan.signal[:, 1:] * training_scan.level,
        scan.signal.T[:, scan.mask.T].T[:, weighted],
        rtol=1e-5,
    )
    np.testing.assert_array_equal(
        training_scan.signal[:, 0], training_scan.values[training_scan.neighbours[:, 0], 0]
    )
    projected = project(fit_coefficients(scan, order=ORDER), scan.gradients)
    ours = (
        training_scan.values[training_scan.neighbours[:, 0]]
        @ training_scan.mixing
        * training_scan.level
    )
    np.testing.assert_allclose(ours[:, 1:], projected[:, weighted], rtol=1e-3, atol=0.1)
    np.testing.assert_allclose(ours[:, 0], projected[:, ~weighted][:, 0], rtol=1e-4)
    assert np.bincount(training_scan.shell).tolist() == [1, 20, 20]


def test_only_white_matter_and_its_neighbours_are_kept(scan: Scan) -> None:
    training_scan = fitted_scan(scan)
    assert len(training_scan.neighbours) == scan.white_matter.sum()
    assert len(training_scan.neighbours) < len(training_scan.values) < scan.mask.sum()
    assert set(np.unique(training_scan.neighbours)) == set(range(len(training_scan.values)))


def test_the_grid_gives_the_positions_of_centres(scan: Scan) -> None:
    training_scan = fitted_scan(scan, subject="01")
    assert training_scan.subject == "01"
    assert training_scan.shape == scan.mask.shape
    np.testing.assert_array_equal(np.reshape(training_scan.affine, (4, 4)), scan.affine)
    b0 = scan.volumes[scan.gradients.is_b0].mean(axis=0)
    np.testing.assert_allclose(
        b0[training_scan.voxels] / training_scan.level, training_scan.signal[:, 0], rtol=1e-4
    )


def test_a_scan_without_white_matter_is_refused(scan: Scan) -> None:
    nothing = np.zeros_like(scan.mask)
    empty = make_scan(make_gradients(SHELLS), white_matter=nothing)
    with pytest.raises(SignalError, match="expected white matter with a b0 above zero, found 0"):
        fitted_scan(empty)
    dark = scan.with_signal(np.where(scan.white_matter[..., None], scan.signal, 0))
    training_scan = fitted_scan(dark, BRAIN)
    assert len(training_scan.neighbours) == scan.white_matter.sum()


def test_stored_scans_come_back_mapped(scan: Scan, tmp_path: Path) -> None:
    training_scan = fitted_scan(scan)
    path = tmp_path / "a scan v1.0"
    store_scan(training_scan, path)
    back = open_scan(path)
    assert back.content == training_scan.content
    for name, value in vars(training_scan).items():
        np.testing.assert_array_equal(getattr(back, name), value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_mapped_scans_hold_no_file_open(scan: Scan, tmp_path: Path) -> None:
    store_scan(fitted_scan(scan), tmp_path / "one")
    before = len(list(Path("/proc/self/fd").iterdir()))
    opened = [open_scan(tmp_path / "one") for _ in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    opened[0].values[:] = 0
    assert open_scan(tmp_path / "one").values.any()


def test_two_fits_can_store_the_same_scan_at_once(scan: Scan, tmp_path: Path) -> None:
    training_scan = fitted_scan(scan)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: store_scan(training_scan, tmp_path / "one"), range(40)))
    assert is_stored(tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_folder_that_cannot_be_written_to_is_an_error(scan: Scan, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    training_scan = fitted_scan(scan)
    with pytest.raises(OutputError, match="cannot write here"):
        store_scan(training_scan, tmp_path / "file" / "one")


@pytest.mark.parametrize("field", ["values", "signal", "shell", "voxels", '"level', "content"])
def test_stored_scans_that_changed_are_not_used(scan: Scan, tmp_path: Path, field: str) -> None:
    training_scan = fitted_scan(scan)
    path = tmp_path / "one"
    store_scan(training_scan, path)
    content = bytearray(path.read_bytes())
    content[_where(field, bytes(content))] ^= 1
    path.write_bytes(content)
    assert not is_stored(path)
    path.write_bytes(content[:-20])
    assert not is_stored(path)
    path.unlink()
    assert not is_stored(path)
    store_scan(training_scan, path)
    assert is_stored(path)


def _where(field: str, content: bytes) -> int:
    """Return the offset of a byte of an array, or of the metadata, in a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    arrays = json.loads(content[8 : 8 + size])
    if field in arrays:
        return 8 + size + arrays[field]["data_offsets"][1] - 2
    return content.index(field.encode()) + len(field) + 4
