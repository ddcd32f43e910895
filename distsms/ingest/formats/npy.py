"""NumPy's arrays: .npy (dense), and .npz with a dense `X` (numpy.savez) or a CSR matrix (scipy.sparse.save_npz).

Labels and row ids are arrays of the .npz (labels: `y` unless another one is named), or other files that end in .npy,
with an entry for each row of the input.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.lib import format as npy
from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import DAMAGED, look_at, open_zip
from distsms.base.wording import option
from distsms.ingest.formats.base import MatrixSize, RowRangeReader, blocks_of
from distsms.ingest.options import ReadOptions
from distsms.shards.rows import RowRange

MAX_EXPANSION = 1100
"""One byte of a compressed file may become at most this many bytes; the largest ratio of deflate is 1032."""
MAX_READ = 2**28
"""Bytes of an array that are read at once; it takes more only where one row, or one text, is this long."""
OPEN = 16
"""So many arrays stay open while rows are read."""


class ArrayReader(RowRangeReader):
    """Reader of .npy and .npz files, all with matrices of one form; see `distsms.ingest.formats.base.Reader`."""

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        self.compressed = paths[0].lower().endswith(".npz")  # they mostly are
        self._members, self._array = dict[str, frozenset[str]](), functools.lru_cache(OPEN)(NpyArray)
        super().__init__(paths, options, comm)

    def read_size(self, path: str) -> MatrixSize:
        members = self._members[path] = _members(path) if self.compressed else frozenset()
        with _naming_damage(path):
            if {"indptr", "indices", "data", "shape"} <= members:
                kind = self._array(path, "format").read(0, 1).astype(str).item() if "format" in members else "csr"
                if kind != "csr":
                    raise InputError(f"{path}: holds a matrix in the format {kind}; expected CSR (save X.tocsr())")
                n, p = map(int, self._array(path, "shape").read(0, 3))
                if min(n, p) < 0 or self._array(path, "indptr").shape != (n + 1,):
                    raise InputError(f"{path}: X claims to be {n} x {p}, which its indptr is not; copy the file again")
                return MatrixSize(n, p, self._array(path, "data").shape[0])
            if self.compressed and "X" not in members:
                arrays = ", ".join(sorted(members))
                raise InputError(f"{path}: has {arrays}; expected an array X, or what scipy.sparse.save_npz writes")
            shape = self._array(path, "X" if self.compressed else None).shape
            if len(shape) != 2:
                raise InputError(f"{path}: has the shape {shape}; expected rows and columns")
            return MatrixSize(shape[0], shape[1], shape[0] * shape[1])

    def read_blocks(self, part: RowRange) -> Iterator[tuple[RowRange, scipy.sparse.csr_matrix]]:
        """Read these rows; a compressed file is decompressed from those before on, or from its start."""

        def read(name: str, start: int, stop: int) -> NDArray[Any]:
            return self._array(part.path, name if self.compressed else None).read(start, stop)

        return blocks_of(part, self.sizes[part.path].p, "indptr" in self._members[part.path], read)

    def read_column(self, part: RowRange, name: str | None) -> NDArray[Any]:
        """Read from an array of the same .npz, or from another file with an entry for each row of all input files."""
        path = part.path
        if name is not None and name.lower().endswith(".npy"):
            array, total = self._array(name), sum(size.n for size in self.sizes.values())
            if array.shape[:1] != (total,):
                entries = f"{array.shape[0]} entries" if array.shape else "a single number"
                raise InputError(f"{name}: has {entries}, but the input has {total} rows; give one for each row")
            column = array.read(part.first + part.start, part.first + part.stop)
        elif (name or "y") in self._members[path]:
            column = self._array(path, name or "y").read(part.start, part.stop)
        else:
            lacking = "labels y" if name is None else f"array {name!r}"
            raise InputError(f"{path}: has no {lacking}; name an array, or a file: {option('label', 'y.npy')}")
        if column.shape != (part.size,):
            raise InputError(f"{path}: {name or 'y'} has the shape {column.shape}; expected one entry for each row")
        return column


class NpyArray:
    """A .npy file, or an array `member` of a .npz file, open for reading; what follows needs no second decompression.
    Raises InputError if the array is damaged or no plain array."""

    def __init__(self, path: str, member: str | None = None) -> None:
        self.path = path
        with _naming_damage(path), contextlib.ExitStack() as opened:
            size = look_at(path).st_size
            self._stream: Any = opened.enter_context(open(path, "rb"))
            if member is not None:
                archive = opened.enter_context(open_zip(self._stream))
                size = min(archive.getinfo(f"{member}.npy").file_size, MAX_EXPANSION * size)
                self._stream = opened.enter_context(archive.open(f"{member}.npy"))
            if npy.read_magic(self._stream) != (1, 0):  # other versions are for records of many fields
                raise InputError(f"{path}: holds no plain array; save numbers or strings")
            self.shape, self._by_columns, self.dtype = npy.read_array_header_1_0(self._stream)
            if self.dtype.hasobject:
                raise InputError(f"{path}: holds Python objects, which are not read; save numbers or strings")
            if min(self.shape, default=0) < 0 or math.prod(self.shape) * self.dtype.itemsize > size:
                raise InputError(f"{path}: claims the shape {self.shape}, but the file is too small; copy it again")
            self._first = self._stream.tell()
            self._files = opened.pop_all()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self._files.close()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read the entries, or rows, start..stop, as far as there are any; a number alone is one."""
        if self._by_columns and len(self.shape) > 1:
            raise InputError(f"{self.path}: is stored by columns; save numpy.ascontiguousarray(X)")
        n_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        stop = min(stop, self.shape[0] if self.shape else 1)
        size = (stop - start) * n_bytes
        if size > MAX_READ:
            rows = f"rows {start} to {stop - 1} (counted from 0) of an array of {self.dtype}"
            raise InputError(f"{self.path}: {rows} take {size} bytes, more than is read at once; save shorter ones")
        with _naming_damage(self.path):
            self._stream.seek(self._first + start * n_bytes)
            content = bytearray(self._stream.read(max(size, 0)))
            if len(content) < size:
                raise InputError(f"{self.path}: ends too early; copy it again")
            return np.frombuffer(content, self.dtype).reshape(-1, *self.shape[1:])


@contextlib.contextmanager
def _naming_damage(path: str) -> Iterator[None]:
    try:
        with text_files.naming_errors(path):
            yield
    except DAMAGED as error:
        raise InputError(f"{path}: cannot be read as NumPy's format: {error}") from error


def _members(path: str) -> frozenset[str]:
    with _naming_damage(path):
        look_at(path)
        with open_zip(path) as archive:
            return frozenset(name.removesuffix(".npy") for name in archive.namelist())
