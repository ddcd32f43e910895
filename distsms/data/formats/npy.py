"""NumPy's .npy (dense) and .npz: dense `X` as by numpy.savez, or CSR as by scipy.sparse.save_npz.

Labels and row ids are members of the .npz (labels: `y` unless named), or other files that end in .npy, with an entry
for each row of the input.
"""

from __future__ import annotations

import contextlib
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.formats import text_files
from distsms.data.formats.row_ranges import Size, SpanReader, as_float, csr
from distsms.data.formats.rows import RowRange
from distsms.errors import InputError

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
"""What NumPy and zipfile raise where an archive, or the header of an array, is not what it should be."""
PACKED = 1100
"""Bytes that one byte of a compressed file may stand for: deflate reaches 1032."""


class Header(NamedTuple):
    """Of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns_first: bool


class ArrayReader(SpanReader):
    """The rows of .npy and .npz files; all of one form."""

    @property
    def compressed(self) -> bool:
        """Files of .npz mostly are."""
        return self.paths[0].endswith(".npz")

    def size(self, path: str) -> Size:
        """From the headers; of CSR also the length of the data."""
        if not path.endswith(".npz"):
            return _dense_size(header(path, None), path)
        members = _members(path)
        if {"indptr", "indices", "data", "shape"} <= members:
            return _sparse_size(path, members)
        if "X" not in members:
            found = ", ".join(sorted(members))
            raise InputError(
                f"{path}: has {found}; expected an array X, or a matrix as scipy.sparse.save_npz writes it"
            )
        return _dense_size(header(path, "X"), path)

    def block(self, part: RowRange) -> sparse.csr_matrix:
        """Reads these rows; in a compressed file everything before them is decompressed, too."""
        path, size = part.path, self.sizes[part.path]
        if not path.endswith(".npz"):
            return sparse.csr_matrix(as_float(read(path, None, part.start, part.stop), path))
        if "indptr" not in _members(path):
            return sparse.csr_matrix(as_float(read(path, "X", part.start, part.stop), path))
        indptr = read(path, "indptr", part.start, part.stop + 1).astype(np.int64)
        entries = int(indptr[0]), int(indptr[-1])
        return csr(indptr, read(path, "indices", *entries), read(path, "data", *entries), size.p, part)

    def beside(self, part: RowRange, name: str | None) -> NDArray[Any]:
        """A member of the same .npz, or rows of another file (numbered through all files of the input)."""
        path, n = part.path, part.stop - part.start
        if name is not None and name.endswith(".npy"):
            found = read(name, None, part.first + part.start, part.first + part.stop)
            total = sum(size.n for size in self.sizes.values())
            if header(name, None).shape[0] != total:
                raise InputError(f"{name}: has {header(name, None).shape[0]} entries, the input {total} rows")
        elif path.endswith(".npz") and (name or "y") in _members(path):
            found = read(path, name or "y", part.start, part.stop)
        elif name is None:
            raise InputError(f"{path}: has no labels y; name an array of the file, or another file: --label y.npy")
        else:
            raise InputError(f"{path}: has no array {name!r}, for labels or ids; or is it a file that ends in .npy?")
        if found.shape != (n,):
            raise InputError(f"{path}: labels or ids {name or 'y'} have shape {found.shape}; expected one for each row")
        return found


def header(path: str, member: str | None) -> Header:
    """Shape and type of an array, of a .npy file or of a member of .npz."""
    with _stream(path, member) as (_, found):
        return found


def read(path: str, member: str | None, start: int, stop: int) -> NDArray[Any]:
    """Entries, or rows, start..stop of an array."""
    with _stream(path, member) as (stream, found):
        if found.columns_first and len(found.shape) > 1:
            raise InputError(f"{path}: is stored by columns; save numpy.ascontiguousarray(X)")
        each = found.dtype.itemsize * math.prod(found.shape[1:])
        stop = min(stop, found.shape[0]) if found.shape else 0
        stream.seek(stream.tell() + start * each)
        content = bytearray(stream.read(max(stop - start, 0) * each))
        if len(content) < (stop - start) * each:
            raise InputError(f"{path}: ends too early; copy it again")
        return np.frombuffer(content, found.dtype).reshape(-1, *found.shape[1:])


@contextlib.contextmanager
def _stream(path: str, member: str | None) -> Iterator[tuple[Any, Header]]:
    """An array's bytes, after its header."""
    try:
        with contextlib.ExitStack() as opened:
            opened.enter_context(text_files.named(path))
            stream: Any = opened.enter_context(open(path, "rb"))
            size = os.path.getsize(path)
            if member is not None:
                archive = opened.enter_context(zipfile.ZipFile(stream))
                size = min(archive.getinfo(f"{member}.npy").file_size, PACKED * size)
                stream = opened.enter_context(archive.open(f"{member}.npy"))
            if npy.read_magic(stream) != (1, 0):  # others are for records of many fields
                raise InputError(f"{path}: holds no plain array; save numbers or strings")
            shape, columns_first, dtype = npy.read_array_header_1_0(stream)
            if dtype.hasobject:
                raise InputError(f"{path}: holds Python objects, which are not read; save numbers or strings")
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
                raise InputError(f"{path}: claims the shape {shape}, for which the file is too small; copy it again")
            yield stream, Header(shape, dtype, columns_first)
    except DAMAGED as error:
        raise InputError(f"{path}: cannot be read as NumPy's format: {error}") from error


def _members(path: str) -> frozenset[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(name.removesuffix(".npy") for name in archive.namelist())
    except (OSError, *DAMAGED) as error:
        raise InputError(f"{path}: cannot be read as .npz: {error}") from error


def _whole(path: str, member: str) -> NDArray[Any]:
    with _stream(path, member) as (stream, found):
        return np.frombuffer(stream.read(), found.dtype).reshape(found.shape)


def _sparse_size(path: str, members: frozenset[str]) -> Size:
    try:
        kind = _whole(path, "format").item() if "format" in members else "csr"
        kind = kind.decode("utf-8", "replace") if isinstance(kind, bytes) else kind
        if kind != "csr":
            raise InputError(f"{path}: holds a matrix in the format {kind}; expected CSR (save X.tocsr())")
        n, p = map(int, _whole(path, "shape"))
        return Size(n, p, header(path, "data").shape[0])
    except DAMAGED as error:
        raise InputError(f"{path}: is no matrix as scipy.sparse.save_npz writes it: {error}") from error


def _dense_size(found: Header, path: str) -> Size:
    if len(found.shape) != 2:
        raise InputError(f"{path}: has the shape {found.shape}; expected rows and columns")
    n, p = found.shape
    return Size(n, p, n * p)
