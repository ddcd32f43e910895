"""NumPy's arrays: .npy (dense), and .npz with a dense `X` (numpy.savez) or a CSR matrix (scipy.sparse.save_npz).

Labels and row ids are arrays of the .npz (labels: `y` unless another one is named), or other files that end in .npy,
with an entry for each row of the input.
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
from distsms.data.formats.row_ranges import MatrixSize, RowRangeReader, as_float, checked_csr
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
"""What NumPy and zipfile raise if an archive, or the header of an array, is damaged."""
MAX_EXPANSION = 1100
"""The most bytes that one byte of a compressed file may stand for: deflate reaches 1032."""


class ArrayHeader(NamedTuple):
    """The shape, the dtype and the order of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns_first: bool


class ArrayReader(RowRangeReader):
    """Reader of .npy and .npz files, all with matrices of one form; see `distsms.data.formats.base.Reader`."""

    @property
    def compressed(self) -> bool:
        """Whether the files are .npz, which mostly are compressed."""
        return self.paths[0].endswith(".npz")

    def read_size(self, path: str) -> MatrixSize:
        """Return the size of the matrix as the headers of its arrays state it."""
        if not path.endswith(".npz"):
            return _dense_size(read_header(path, None), path)
        members = _members(path)
        if {"indptr", "indices", "data", "shape"} <= members:
            return _sparse_size(path, members)
        if "X" not in members:
            found = ", ".join(sorted(members))
            raise InputError(
                f"{path}: has {found}; expected an array X, or a matrix as scipy.sparse.save_npz writes it"
            )
        return _dense_size(read_header(path, "X"), path)

    def read_block(self, part: RowRange) -> sparse.csr_matrix:
        """Read these rows. In a compressed file, everything before them is decompressed as well."""
        path, size = part.path, self.sizes[part.path]
        if not path.endswith(".npz"):
            return sparse.csr_matrix(as_float(read_entries(path, None, part.start, part.stop), path))
        if "indptr" not in _members(path):
            return sparse.csr_matrix(as_float(read_entries(path, "X", part.start, part.stop), path))
        indptr = read_entries(path, "indptr", part.start, part.stop + 1).astype(np.int64)
        entries = int(indptr[0]), int(indptr[-1])
        return checked_csr(
            indptr, read_entries(path, "indices", *entries), read_entries(path, "data", *entries), size.p, part
        )

    def read_column(self, part: RowRange, name: str | None) -> NDArray[Any]:
        """Read an array of the same .npz, or entries of another file, which go through all files of the input."""
        path, n = part.path, part.stop - part.start
        if name is not None and name.endswith(".npy"):
            found = read_entries(name, None, part.first + part.start, part.first + part.stop)
            total = sum(size.n for size in self.sizes.values())
            if read_header(name, None).shape[0] != total:
                raise InputError(f"{name}: has {read_header(name, None).shape[0]} entries, the input {total} rows")
        elif path.endswith(".npz") and (name or "y") in _members(path):
            found = read_entries(path, name or "y", part.start, part.stop)
        elif name is None:
            raise InputError(f"{path}: has no labels y; name an array of the file, or another file: --label y.npy")
        else:
            raise InputError(f"{path}: has no array {name!r}, for labels or ids; or is it a file that ends in .npy?")
        if found.shape != (n,):
            raise InputError(f"{path}: labels or ids {name or 'y'} have shape {found.shape}; expected one for each row")
        return found


def read_header(path: str, member: str | None) -> ArrayHeader:
    """Return shape and dtype of an array: of a .npy file, or of a member of a .npz file."""
    with _stream(path, member) as (_, found):
        return found


def read_entries(path: str, member: str | None, start: int, stop: int) -> NDArray[Any]:
    """Read the entries, or rows, start..stop of an array."""
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
def _stream(path: str, member: str | None) -> Iterator[tuple[Any, ArrayHeader]]:
    """Open an array: yield its bytes, after its header, and the header."""
    try:
        with contextlib.ExitStack() as opened:
            opened.enter_context(text_files.naming_errors(path))
            stream: Any = opened.enter_context(open(path, "rb"))
            size = os.path.getsize(path)
            if member is not None:
                archive = opened.enter_context(zipfile.ZipFile(stream))
                size = min(archive.getinfo(f"{member}.npy").file_size, MAX_EXPANSION * size)
                stream = opened.enter_context(archive.open(f"{member}.npy"))
            if npy.read_magic(stream) != (1, 0):  # others are for records of many fields
                raise InputError(f"{path}: holds no plain array; save numbers or strings")
            shape, columns_first, dtype = npy.read_array_header_1_0(stream)
            if dtype.hasobject:
                raise InputError(f"{path}: holds Python objects, which are not read; save numbers or strings")
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
                raise InputError(f"{path}: claims the shape {shape}, for which the file is too small; copy it again")
            yield stream, ArrayHeader(shape, dtype, columns_first)
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


def _sparse_size(path: str, members: frozenset[str]) -> MatrixSize:
    try:
        kind = _whole(path, "format").item() if "format" in members else "csr"
        kind = kind.decode("utf-8", "replace") if isinstance(kind, bytes) else kind
        if kind != "csr":
            raise InputError(f"{path}: holds a matrix in the format {kind}; expected CSR (save X.tocsr())")
        n, p = map(int, _whole(path, "shape"))
        return MatrixSize(n, p, read_header(path, "data").shape[0])
    except DAMAGED as error:
        raise InputError(f"{path}: is no matrix as scipy.sparse.save_npz writes it: {error}") from error


def _dense_size(found: ArrayHeader, path: str) -> MatrixSize:
    if len(found.shape) != 2:
        raise InputError(f"{path}: has the shape {found.shape}; expected rows and columns")
    n, p = found.shape
    return MatrixSize(n, p, n * p)
