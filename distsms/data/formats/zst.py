"""Zstandard's files as streams of bytes: `open`, as Python's own modules for compressed files have it."""

from __future__ import annotations

import builtins
import io
from typing import Any

from distsms.errors import InputError

try:
    import zstandard
except ImportError as absent:
    raise InputError("Zstandard's files are read by the package zstandard: pip install zstandard") from absent

CHUNK = 512
"""Bytes that are expanded at a time: a block of 128 KiB can be as small as four."""


class _Frames(io.RawIOBase):
    """The content of a file's frames. EOFError where the last one is cut, which zstandard's own reader passes over."""

    def __init__(self, path: str) -> None:
        self._file = builtins.open(path, "rb")  # noqa: SIM115 - until this stream is closed
        self._frame: Any = None
        self._given = self._found = b""

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        """Fill `out` as far as the next piece does; 0 at the end."""
        while not self._found:
            self._given = self._given or self._file.read(CHUNK)
            if not self._given:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._found = self._frame.decompress(self._given)
            self._given = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(out), len(self._found))
        out[:count], self._found = self._found[:count], self._found[count:]
        return count

    def close(self) -> None:
        """Close the file, too."""
        self._file.close()
        super().close()


def open(path: str, mode: str = "rb") -> io.BufferedReader:
    """The decompressed bytes of a file. Raises ZstdError for what is damaged."""
    return io.BufferedReader(_Frames(path), 2**20)
