"""Zstandard files as streams of bytes: `open`, with the interface of Python's own modules for compressed files."""

from __future__ import annotations

import io

from distsms.data.formats.frames import buffered
from distsms.errors import InputError

try:
    import zstandard
except ImportError as absent:
    raise InputError("Zstandard files need the package zstandard: pip install zstandard") from absent


def open(path: str, mode: str = "rb") -> io.BufferedReader:
    """Return the decompressed bytes of a file as a stream. Reading it raises ZstdError if the data are damaged."""
    return buffered(path, lambda: zstandard.ZstdDecompressor().decompressobj())
