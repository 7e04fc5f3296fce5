import gzip

import nibabel as nib
import numpy as np
import pytest

from siteless.bids import read_header, read_signal
from siteless.bids._nifti import write_image
from siteless.errors import MissingFileError, UnreadableFileError


def _image(dtype, slope=1.0, intercept=0.0, kind=nib.Nifti1Image):
    values = np.random.default_rng(0).integers(0, 200, size=(5, 4, 3, 6)).astype(dtype)
    image = kind(values, np.diag([-2.0, 2, 3, 1]))
    image.header.set_slope_inter(slope, intercept)
    return image


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">i2", "u2", "<f4", ">f4", "f8", "i4"])
@pytest.mark.parametrize("end", ["nii", "nii.gz"])
@pytest.mark.parametrize("scale", [(1.0, 0.0), (0.25, -3.0)])
def test_signal_is_what_nibabel_reads(tmp_path, dtype, end, scale):
    path = tmp_path / f"a.b c.{end}"
    image = _image(np.dtype(dtype), *scale)
    image.set_data_dtype(np.dtype(dtype))
    image.to_filename(path)
    signal, affine = read_signal(path)
    assert signal.dtype == np.float32
    assert signal.flags.f_contiguous
    np.testing.assert_allclose(signal, nib.load(path).get_fdata(), rtol=1e-6)
    assert np.array_equal(affine, np.diag([-2.0, 2, 3, 1]))


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("end", ["nii", "nii.gz"])
def test_written_values_are_read_back_by_nibabel(tmp_path, kind, end):
    path = tmp_path / f"out.{end}"
    values = np.random.default_rng(1).normal(size=(5, 4, 3, 7)).astype(np.float32)
    source = _image(np.int16, 0.5, 2.0, kind)
    source.header["descrip"] = b"kept"
    write_image(path, values, source.header)
    again = nib.load(path)
    assert np.array_equal(again.get_fdata(dtype=np.float32), values)
    assert np.array_equal(again.affine, source.affine)
    assert again.header["descrip"] == b"kept"


def test_masks_have_three_dimensions_and_their_own_type(tmp_path):
    path = tmp_path / "mask.nii.gz"
    mask = np.random.default_rng(1).random((5, 4, 3)) > 0.5
    write_image(path, mask.astype(np.uint8), _image(np.int16).header)
    assert np.array_equal(nib.load(path).get_fdata() > 0, mask)
    assert nib.load(path).get_data_dtype() == np.uint8


def test_the_same_values_give_the_same_bytes(tmp_path):
    for name in ("first.nii.gz", "second.nii.gz"):
        write_image(tmp_path / name, np.ones((3, 3, 3, 2), np.float32), _image(np.int16).header)
    assert (tmp_path / "first.nii.gz").read_bytes() == (tmp_path / "second.nii.gz").read_bytes()


@pytest.mark.parametrize("keep", [0, 5, 30, 200, -1, -4, -100])
def test_truncated_files_are_named(tmp_path, keep):
    path = tmp_path / "scan.nii.gz"
    _image(np.int16).to_filename(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UnreadableFileError, match="scan"):
        read_signal(path)


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "scan.nii.gz"
    stored = bytearray(gzip.compress(_image(np.int16).to_bytes(), compresslevel=0))
    stored[700] ^= 1
    path.write_bytes(stored)
    with pytest.raises(UnreadableFileError, match="truncated or damaged"):
        read_signal(path)


def test_truncated_uncompressed_files_are_named(tmp_path):
    path = tmp_path / "scan.nii"
    _image(np.int16).to_filename(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UnreadableFileError, match="10 bytes of a volume are missing"):
        read_signal(path)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.nii.gz").write_text("hello")
    (tmp_path / "text.nii").write_text("hello")
    for name in ("text.nii.gz", "text.nii"):
        with pytest.raises(UnreadableFileError, match="expected a NIfTI image"):
            read_header(tmp_path / name)
    with pytest.raises(MissingFileError, match="no such file"):
        read_header(tmp_path / "none.nii.gz")


def test_complex_images_are_refused(tmp_path):
    path = tmp_path / "complex.nii.gz"
    nib.Nifti1Image(np.ones((2, 2, 2, 2), np.complex64), np.eye(4)).to_filename(path)
    with pytest.raises(UnreadableFileError, match="expected real numbers, found complex64"):
        read_signal(path)
