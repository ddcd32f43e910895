"""Zstandard files as streams of bytes: `open`, with the interface of Python's own modules for compressed files."""

from __future__ import annotations

import builtins
import io
from typing import Any

from distsms.errors import InputError

try:
    import zstandard
except ImportError as absent:
    raise InputError("Zstandard files need the package zstandard: pip install zstandard") from absent

CHUNK = 512
"""Compressed bytes that are read at a time: few, because a block of 128 KiB can be as small as four bytes."""


class _Frames(io.RawIOBase):
    """The decompressed content of a file's frames.

    Raises EOFError if the last frame is cut, which zstandard's own reader ignores.
    """

    def __init__(self, path: str) -> None:
        self._file = builtins.open(path, "rb")  # noqa: SIM115 - until this stream is closed
        self._frame: Any = None
        self._compressed = self._content = b""

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        """Fill `out` as far as the next piece of content reaches; return 0 at the end."""
        while not self._content:
            self._compressed = self._compressed or self._file.read(CHUNK)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._content = self._frame.decompress(self._compressed)
            self._compressed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(out), len(self._content))
        out[:count], self._content = self._content[:count], self._content[count:]
        return count

    def close(self) -> None:
        """Close the file as well."""
        self._file.close()
        super().close()


def open(path: str, mode: str = "rb") -> io.BufferedReader:
    """Return the decompressed bytes of a file as a stream. Reading it raises ZstdError if the data are damaged."""
    return io.BufferedReader(_Frames(path), 2**20)
