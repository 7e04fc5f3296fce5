"""Write gzip on several cores, with bytes that depend on the content alone.

Blocks are compressed separately, as in pigz, each with the end of the previous block as its
dictionary. Readers see an ordinary gzip file with one member. Every block has a new compressor: a
reused one keeps state, and the bytes would then depend on the number of threads.
"""

from __future__ import annotations

import io
import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from zlib_ng import zlib_ng

# Level 1 of zlib-ng makes files a quarter larger; level 3 saves nothing, as noise is
# incompressible.
_LEVEL = 2
# Longest distance of a deflate back-reference.
_WINDOW = 2**15
_RAW = -15
# A name or a time would make equal images differ.
_HEADER = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, 0, 0, 0, 255)
_MAX_THREADS = 4


class GzipWriter(io.RawIOBase):
    """A stream that compresses each `write` as one block; small writes should be buffered.

    The stream that receives the compressed bytes is left open.
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
        """Return the number of uncompressed bytes so far."""
        return self._size

    def seekable(self) -> bool:
        """Return True: nibabel seeks to the current position and forward."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move forward, filling the gap with zeros."""
        if whence != 0 or offset < self._size:
            raise io.UnsupportedOperation("what is compressed stays as it is")
        if offset > self._size:
            self.write(bytes(offset - self._size))
        return self._size

    def write(self, content: Any) -> int:
        """Compress a block in the background."""
        block = bytes(content)
        self._pending.append(self._pool.submit(_deflate, block, self._dictionary))
        self._dictionary = (self._dictionary + block[-_WINDOW:])[-_WINDOW:]
        self._checksum = zlib_ng.crc32(block, self._checksum)
        self._size += len(block)
        self._drain(keep=2 * self._threads)
        return len(block)

    def close(self) -> None:
        """Write the remaining blocks and the end of the file."""
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
