"""Gzip written on several cores, with bytes that depend on the content alone.

Blocks are compressed apart, as pigz does, each with the end of the one before as its dictionary.
Readers see an ordinary gzip file of one member. Every block has a compressor of its own: one that
is used again remembers what it has seen, and the bytes would depend on the number of threads.
"""

from __future__ import annotations

import io
import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from zlib_ng import zlib_ng

# Level 1 of zlib-ng makes files a quarter larger, and level 3 saves nothing: noise is noise.
_LEVEL = 2
# How far back deflate can point.
_WINDOW = 2**15
_RAW = -15
# Neither a name nor a time, which would make equal images differ.
_HEADER = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, 0, 0, 0, 255)
_MAX_THREADS = 4


class GzipWriter(io.RawIOBase):
    """A stream to write to, whose every call of `write` is a block; buffer small ones before it.

    Parameters
    ----------
    stream
        To write compressed bytes to; it is left open.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._threads = min(_MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self._threads)
        self._pending: deque[Future[bytes]] = deque()
        self._dictionary = b""
        self._checksum, self._size = 0, 0
        stream.write(_HEADER)

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were given."""
        return self._size

    def seekable(self) -> bool:
        """Return True: nibabel seeks to where it is, and forward."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go forward, over zeros."""
        if whence != 0 or offset < self._size:
            raise io.UnsupportedOperation("what is compressed stays as it is")
        if offset > self._size:
            self.write(bytes(offset - self._size))
        return self._size

    def write(self, content: Any) -> int:
        """Compress a block while the next ones come."""
        block = bytes(content)
        self._pending.append(self._pool.submit(_deflate, block, self._dictionary))
        self._dictionary = (self._dictionary + block[-_WINDOW:])[-_WINDOW:]
        self._checksum = zlib_ng.crc32(block, self._checksum)
        self._size += len(block)
        self._drain(keep=2 * self._threads)
        return len(block)

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        if self.closed:
            return
        try:
            self._drain(keep=0)
            self._stream.write(zlib_ng.compress(b"", _LEVEL, _RAW))
            self._stream.write(struct.pack("<II", self._checksum, self._size % 2**32))
        finally:
            self._pool.shutdown(cancel_futures=True)
            super().close()

    def _drain(self, keep: int) -> None:
        while len(self._pending) > keep:
            self._stream.write(self._pending.popleft().result())


def _deflate(block: bytes, dictionary: bytes) -> bytes:
    compressor = zlib_ng.compressobj(_LEVEL, zlib_ng.DEFLATED, _RAW, zdict=dictionary)
    return compressor.compress(block) + compressor.flush(zlib_ng.Z_SYNC_FLUSH)
