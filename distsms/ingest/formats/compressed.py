"""xz and Zstandard files as streams of bytes, in memory that does not depend on what they expand to."""

from __future__ import annotations

import io
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO

from distsms.base.errors import InputError

XZ_MEMORY = 2**28
"""Bytes that decompression of xz may take. `xz -9` needs a quarter of that; a file's header may ask for 4 GiB."""
CHUNK = 512
"""Compressed bytes that are read at a time: few, because 4 of them can stand for 128 KiB."""


class Frames(io.RawIOBase):
    """The content of a file's frames, each by a new object of `decompressor`, with `padding` between or behind them.
    Reading raises EOFError if the last frame is cut, and what the decompressor raises for damaged data."""

    def __init__(self, file: BinaryIO, decompressor: Callable[[], Any], padding: bytes = b"") -> None:
        self._file = file
        self._decompressor, self._padding = decompressor, padding
        self._frame: Any = None
        self._compressed = self._content = b""

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        """Fill `out` as far as the next piece of content reaches; return 0 at the end."""
        while not self._content:
            read = self._compressed or self._file.read(CHUNK)
            self._compressed = read.lstrip(self._padding) if self._frame is None and self._padding else read
            if read and not self._compressed:
                continue
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._decompressor()
            self._content = self._frame.decompress(self._compressed)
            self._compressed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(out), len(self._content))
        out[:count], self._content = self._content[:count], self._content[count:]
        return count


def open_xz(file: BinaryIO, mode: str = "rb") -> io.BufferedReader:
    """Return the decompressed bytes of a file as a stream. Reading it raises LZMAError if the data are damaged."""
    return _buffered(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY), b"\0")


def open_zst(file: BinaryIO, mode: str = "rb") -> io.BufferedReader:
    """Return the decompressed bytes of a file as a stream. Reading it raises ZstdError if the data are damaged."""
    try:
        import zstandard
    except ImportError as absent:
        raise InputError("Zstandard files need the package zstandard: pip install zstandard") from absent
    return _buffered(file, lambda: zstandard.ZstdDecompressor().decompressobj())


def _buffered(file: BinaryIO, decompressor: Callable[[], Any], padding: bytes = b"") -> io.BufferedReader:
    return io.BufferedReader(Frames(file, decompressor, padding), 2**20)
