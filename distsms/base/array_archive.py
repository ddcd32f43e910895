"""Archives of arrays, as NumPy writes them (.npz)."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from typing import Any

DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy, zipfile and h5py raise if an archive, or the header of an array, is damaged."""


def open_zip(file: Any) -> zipfile.ZipFile:
    """Return an archive of arrays, given its path or stream. Raises ValueError unless NumPy may have written it."""
    archive = zipfile.ZipFile(file)
    # Of other kinds of compression than deflate, zipfile expands whole blocks, however large they become.
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in archive.infolist()):
        archive.close()
        raise ValueError("it is compressed, but not by deflate")
    return archive
