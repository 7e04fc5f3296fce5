import gzip
import io
from contextlib import suppress
from pathlib import Path
from unittest import mock

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from phantoms import load_image
from siteless.bids import read_header, read_signal
from siteless.bids._gzip import GzipWriter
from siteless.bids._nifti import write_image
from siteless.errors import MissingFileError, SitelessError, UnreadableFileError


def _image(
    dtype: DTypeLike,
    slope: float = 1.0,
    intercept: float = 0.0,
    kind: type[nib.Nifti1Image] = nib.Nifti1Image,
) -> nib.Nifti1Image:
    values = np.random.default_rng(0).integers(0, 200, size=(5, 4, 3, 6)).astype(dtype)
    image = kind(values, np.diag([-2.0, 2, 3, 1]))
    image.header.set_slope_inter(slope, intercept)
    return image


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i2", "u2", "<f4", ">f4", "f8", "i4"])
@pytest.mark.parametrize("end", ["nii", "nii.gz"])
@pytest.mark.parametrize("scale", [(1.0, 0.0), (0.25, -3.0)])
def test_signal_is_what_nibabel_reads(
    tmp_path: Path, dtype: str, end: str, scale: tuple[float, float]
) -> None:
    path = tmp_path / f"a.b c.{end}"
    image = _image(np.dtype(dtype), *scale)
    image.set_data_dtype(np.dtype(dtype))
    image.to_filename(path)
    signal, affine = read_signal(path)
    assert signal.dtype == np.float32
    assert signal.flags.f_contiguous
    np.testing.assert_allclose(signal, load_image(path).get_fdata(), rtol=1e-6)
    assert np.array_equal(affine, np.diag([-2.0, 2, 3, 1]))


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("end", ["nii", "nii.gz"])
def test_written_values_are_read_back_by_nibabel(
    tmp_path: Path, kind: type[nib.Nifti1Image], end: str
) -> None:
    path = tmp_path / f"out.{end}"
    values = np.random.default_rng(1).normal(size=(5, 4, 3, 7)).astype(np.float32)
    source = _image(np.int16, 0.5, 2.0, kind)
    source.header["descrip"] = b"kept"
    write_image(path, values, source.header, source.affine)
    again = load_image(path)
    assert np.array_equal(again.get_fdata(dtype=np.float32), values)
    assert np.array_equal(again.affine, source.affine)
    assert again.header["descrip"] == b"kept"


def test_masks_have_three_dimensions_and_their_own_type(tmp_path: Path) -> None:
    path = tmp_path / "mask.nii.gz"
    mask = np.random.default_rng(1).random((5, 4, 3)) > 0.5
    image = _image(np.int16)
    write_image(path, mask.astype(np.uint8), image.header, image.affine)
    assert np.array_equal(load_image(path).get_fdata() > 0, mask)
    assert load_image(path).get_data_dtype() == np.uint8


@given(st.lists(st.binary(max_size=90_000), max_size=8), st.integers(1, 5))
def test_what_is_compressed_on_several_cores_comes_back(blocks: list[bytes], repeats: int) -> None:
    compressed = io.BytesIO()
    with GzipWriter(compressed) as writer:
        for block in blocks:
            writer.write(block * repeats)
    expected = b"".join(block * repeats for block in blocks)
    assert gzip.decompress(compressed.getvalue()) == expected


def _compressed(content: bytes, threads: int) -> bytes:
    compressed = io.BytesIO()
    with mock.patch("siteless.bids._gzip.os.cpu_count", return_value=threads):
        writer = io.BufferedWriter(GzipWriter(compressed), 2**16)
    with writer:
        writer.write(content)
    return compressed.getvalue()


def test_compressed_bytes_depend_on_the_content_alone() -> None:
    rng = np.random.default_rng(0)
    content = rng.normal(size=10**6).astype("f4").round(2).tobytes()
    first = _compressed(content, 1)
    for threads in (1, 2, 3, 4):
        held = [rng.bytes(int(rng.integers(10**6))) for _ in range(20)]  # other memory is at hand
        assert _compressed(content, threads) == first
        del held
    assert gzip.decompress(first) == content


def test_a_disk_that_fills_up_is_noticed() -> None:
    """Also at the end, when the last blocks are written."""
    stream = mock.Mock()
    stream.write.side_effect = [10, OSError(28, "No space left on device")]
    writer = GzipWriter(stream)
    writer.write(b"x" * 10**6)
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert writer.closed


def test_the_same_values_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first.nii.gz", "second.nii.gz"):
        image = _image(np.int16)
        write_image(tmp_path / name, np.ones((3, 3, 3, 2), np.float32), image.header, image.affine)
    assert (tmp_path / "first.nii.gz").read_bytes() == (tmp_path / "second.nii.gz").read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 30, 200, -1, -4, -100])
def test_truncated_files_are_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "scan.nii.gz"
    _image(np.int16).to_filename(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UnreadableFileError, match="scan"):
        read_signal(path)


def test_a_flipped_bit_is_noticed_by_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii.gz"
    # Stored without compression, so that only the checksum shows it.
    stored = bytearray(gzip.compress(_image(np.int16).to_bytes(), compresslevel=0))
    stored[700] ^= 1
    path.write_bytes(stored)
    with pytest.raises(UnreadableFileError, match=r"damaged .*CRC"):
        read_signal(path)


@given(st.lists(st.tuples(st.integers(0, 347), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_headers_are_read_or_refused_but_never_crash(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("header") / "scan.nii"
    content = bytearray(_image(np.int16).to_bytes())
    for offset, value in changes:
        content[offset] = value
    path.write_bytes(content)
    with suppress(SitelessError), np.errstate(all="ignore"):
        signal, affine = read_signal(path)
        assert signal.dtype == np.float32
        assert np.isfinite(affine).all()


def test_wide_integers_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    values = (2_000_000_000 + np.arange(8, dtype=np.int32)).reshape(2, 2, 2)
    image = nib.Nifti1Image(values, np.eye(4))
    image.to_filename(tmp_path / "wide.nii")
    content = bytearray((tmp_path / "wide.nii").read_bytes())
    content[112:120] = np.array([1, -2e9], "<f4").tobytes()
    (tmp_path / "wide.nii").write_bytes(content)
    signal, _ = read_signal(tmp_path / "wide.nii")
    assert sorted(signal.ravel()) == list(range(8))


def test_header_extensions_and_another_affine_are_written(tmp_path: Path) -> None:
    source = _image(np.int16)
    source.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"kept"))
    moved = np.diag([-3.0, 3, 3, 1])
    write_image(tmp_path / "x.nii.gz", np.ones((3, 3, 3, 2), np.float32), source.header, moved)
    again = load_image(tmp_path / "x.nii.gz")
    assert again.header.extensions[0].get_content().rstrip(b"\0") == b"kept"
    assert np.array_equal(again.affine, moved)


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_images_without_a_place_are_refused(tmp_path: Path, value: float) -> None:
    image = _image(np.int16)
    image.header["srow_x"] = value
    content = bytearray(image.to_bytes())
    content[280:296] = np.full(4, value, "<f4").tobytes()
    (tmp_path / "x.nii").write_bytes(content)
    with pytest.raises(UnreadableFileError, match="does not say where the image lies"):
        read_header(tmp_path / "x.nii")


def test_truncated_uncompressed_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "scan.nii"
    _image(np.int16).to_filename(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UnreadableFileError, match="10 bytes of a volume are missing"):
        read_signal(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name, content, message in (
        ("text.nii", b"hello", "expected a NIfTI image"),
        ("plain.nii.gz", _image(np.int16).to_bytes(), "not compressed; rename it to .nii"),
        ("empty.nii.gz", b"", "the file is empty"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableFileError, match=message):
            read_header(tmp_path / name)
    (tmp_path / "folder.nii.gz").mkdir()
    with pytest.raises(UnreadableFileError, match="Is a directory"):
        read_header(tmp_path / "folder.nii.gz")
    with pytest.raises(MissingFileError, match="no such file"):
        read_header(tmp_path / "none.nii.gz")


def test_complex_images_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "complex.nii.gz"
    nib.Nifti1Image(np.ones((2, 2, 2, 2), np.complex64), np.eye(4)).to_filename(path)
    with pytest.raises(UnreadableFileError, match="expected real numbers, found complex64"):
        read_signal(path)
