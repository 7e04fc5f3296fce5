"""Read NIfTI images into float32 volume by volume, and write them.

Compressed files are read through ISA-L, about three times faster than through zlib. They are
written by zlib-ng on several cores; ISA-L would be faster, but its bytes sometimes differ for the
same image. Reading a volume at a time keeps memory at one copy of the signal.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import nibabel as nib
import numpy as np
from isal import igzip, isal_zlib
from nibabel.spatialimages import HeaderDataError

from siteless.acquisition import Array
from siteless.bids._gzip import GzipWriter
from siteless.bids._tables import missing, unreadable
from siteless.errors import UnreadableFileError

Header: TypeAlias = nib.Nifti1Header

# Smallest number of bytes compressed at once.
_BLOCK = 2**20
_BROKEN_STREAM: Any = (EOFError, zlib.error, isal_zlib.IsalError, igzip.BadGzipFile)


def read_header(path: Path) -> tuple[Header, Array]:
    """Read an image's header and voxel-to-world matrix, without its signal."""
    image = _load(path)
    return image.header, image.affine


def read_signal(path: Path) -> tuple[Array, Array]:
    """Read a whole image, float32 and x fastest, with the header's scaling, and its affine."""
    image = _load(path)
    stored = image.dataobj
    if stored.dtype.kind not in "iuf":
        raise unreadable(path, TypeError(f"expected real numbers, found {stored.dtype}"))
    volumes = np.empty((int(np.prod(stored.shape[3:])), *stored.shape[2::-1]), dtype=np.float32)
    opener: Any = igzip.open if path.name.endswith(".gz") else open
    with _errors_named(path), opener(path, "rb") as stream:
        _read_exactly(stream, stored.offset)
        for volume in volumes:
            raw = _read_exactly(stream, volume.size * stored.dtype.itemsize)
            values = np.frombuffer(raw, stored.dtype).reshape(volume.shape)
            if (stored.slope, stored.inter) != (1, 0):
                values = values * float(stored.slope) + float(stored.inter)
            volume[...] = values
        stream.read(1)  # gzip verifies its checksum when read past the last byte
    return volumes.reshape(stored.shape[::-1]).T, image.affine


def write_image(path: Path, values: Array, header: Header, affine: Array) -> None:
    """Write values with a header and an affine, in their own data type; booleans become bytes.

    The same values and header give the same bytes.
    """
    values = values.astype(np.uint8) if values.dtype == bool else values
    header = header.copy()
    header.set_data_dtype(values.dtype)
    kept = np.allclose(header.get_best_affine(), affine, atol=1e-4)
    kind: Any = nib.Nifti1Image if header["sizeof_hdr"] == 348 else nib.Nifti2Image
    image = kind(values, None if kept else affine, header)
    with ExitStack() as stack:
        stream: Any = stack.enter_context(path.open("wb"))
        if path.name.endswith(".gz"):
            stream = stack.enter_context(io.BufferedWriter(GzipWriter(stream), _BLOCK))
        image.to_stream(stream)


def make_header(affine: Array) -> Header:
    """Make the header of a new image in scanner space, in mm and s."""
    header = nib.Nifti1Header()
    header.set_xyzt_units("mm", "sec")
    header.set_data_shape((1, 1, 1))
    header.set_sform(affine, code="scanner")
    header.set_qform(affine, code="scanner", strip_shears=True)
    return header


def _load(path: Path) -> Any:
    """Load an image with nibabel and check its header."""
    if not path.exists():
        raise missing(path)
    try:
        with _errors_named(path):
            _require_compression(path)
            image = nib.load(path)
    except (nib.filebasedimages.ImageFileError, HeaderDataError, ValueError, TypeError):
        image = None
    if not isinstance(image, nib.Nifti1Image) or min(image.shape, default=0) < 1:
        raise UnreadableFileError(
            "expected a NIfTI image, but the file is none", remedy="convert it again", path=path
        )
    if not np.isfinite(image.affine).all() or np.linalg.cond(image.affine[:3, :3]) > 1e6:
        raise UnreadableFileError(
            "the header does not say where the image lies: its affine is singular or not finite",
            remedy="convert it again",
            path=path,
        )
    return image


def _require_compression(path: Path) -> None:
    with path.open("rb") as stream:
        start = stream.read(2)
    if len(start) < 2:
        raise EOFError("the file is empty")
    if path.name.endswith(".gz") and start != b"\x1f\x8b":
        raise UnreadableFileError(
            "expected a compressed image, as the name ends in .gz, but the file is not compressed",
            remedy="rename it to .nii if it is a NIfTI image",
            path=path,
        )


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    raw = stream.read(size)
    if len(raw) < size:
        raise EOFError(f"{size - len(raw)} bytes of a volume are missing")
    return raw


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN_STREAM as error:
        raise UnreadableFileError(
            f"the image is truncated or damaged ({error})",
            remedy="copy or convert it again",
            path=path,
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
