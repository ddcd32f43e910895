"""xz files as streams of bytes: like Python's module lzma, but with a limit for the memory that a file may ask for."""

from __future__ import annotations

import io
import lzma

from distsms.data.formats.frames import buffered

MEMORY = 2**28
"""Bytes that decompression may take. `xz -9` needs a quarter of that; a file's header may ask for 4 GiB."""


def open(path: str, mode: str = "rb") -> io.BufferedReader:
    """Return the decompressed bytes of a file as a stream. Reading it raises LZMAError if the data are damaged."""
    return buffered(path, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY))
