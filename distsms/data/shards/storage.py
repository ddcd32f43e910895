"""Arrays in an HDF5 file, as they are or compressed: how they are written, and read beside HDF5 and Python.

HDF5 tells where the bytes are. They are read by the system's own call, by any thread, while HDF5 and Python do other
things. What is not compressed is contiguous; what is, lies in pieces of some 2^17 elements, each of which Blosc has
compressed by LZ4, bytes of equal weight brought together before (filter 32001 in HDF5's registry: h5py reads them where
hdf5plugin is installed). An array's entries are its elements, or the rows if it has two dimensions.
"""

from __future__ import annotations

import errno
import io
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError

PIECE, PIECE_BYTES = 2**17, 2**20
"""What is compressed together, at most: where a part of the rows begins within a piece, all of it is expanded."""
_FILTER = 32001
_LEVEL = 5  # of 9; the others take as long to expand
_HEADER = 16
"""Bytes of a Blosc frame before its blocks, and all that it can take beyond the elements."""


@dataclass(frozen=True)
class Elements(ABC):
    """The entries of an array in a file, which stays open and readable whatever becomes of its name."""

    file: io.FileIO
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """The entries start..stop into `out`, contiguous, of any type for as many. Raises OSError, EOFError."""
        if out.dtype == self.dtype:
            self._read(start, stop, out)
        else:
            out[:] = self.take(start, stop)

    def take(self, start: int, stop: int) -> NDArray[Any]:
        """The entries start..stop. Raises OSError, EOFError."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self._read(start, stop, out)
        return out

    def expect(self, start: int, stop: int) -> None:
        """Ask the system for the entries start..stop, which will be read soon."""
        if start < stop:
            os.posix_fadvise(self.file.fileno(), *self._span(start, stop), os.POSIX_FADV_WILLNEED)

    @abstractmethod
    def n_bytes(self, start: int, stop: int) -> int:
        """What reading the entries start..stop takes from the file."""

    @abstractmethod
    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None: ...

    @abstractmethod
    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Where in the file these entries begin, and how many bytes follow."""

    @property
    def _step(self) -> int:
        """Bytes of an entry."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def _fill(self, at: int, out: NDArray[np.uint8]) -> None:
        """Bytes of the file, from `at` on."""
        rest = out.data
        while len(rest):
            count = os.preadv(self.file.fileno(), [rest], at)
            if not count:
                raise EOFError("the file ends before it should")
            rest, at = rest[count:], at + count


@dataclass(frozen=True)
class Plain(Elements):
    """Contiguous, from `offset` on."""

    offset: int

    def n_bytes(self, start: int, stop: int) -> int:
        return (stop - start) * self._step

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return self.offset + start * self._step, self.n_bytes(start, stop)

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        self._fill(self.offset + start * self._step, _bytes(out))


@dataclass(frozen=True)
class Packed(Elements):
    """In pieces of `length` entries, the last one filled up; `places` (pieces, 2) says where each is, and its size."""

    length: int
    places: NDArray[np.int64]

    def n_bytes(self, start: int, stop: int) -> int:
        return int(self._pieces(start, stop)[:, 1].sum())

    def _pieces(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.places[start // self.length : -(-stop // self.length)] if start < stop else self.places[:0]

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        pieces = self._pieces(start, stop)
        first = int(pieces[:, 0].min())
        return first, int(pieces.sum(axis=1).max()) - first

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        for number, (at, size) in enumerate(self._pieces(start, stop).tolist(), start // self.length):
            first = number * self.length
            low, high = max(start, first), min(stop, first + self.length)
            wanted = out[low - start : high - start]
            if high - low == self.length:
                self._expand(at, size, wanted)
            else:
                piece = np.empty((self.length, *self.shape[1:]), self.dtype)
                self._expand(at, size, piece)
                wanted[:] = piece[low - first : high - first]

    def _expand(self, at: int, size: int, out: NDArray[Any]) -> None:
        """One piece; Blosc is asked only if the piece says of itself what the file says of it."""
        packed = np.empty(size, np.uint8)
        self._fill(at, packed)
        expanded, _, stored = packed[4:_HEADER].view("<u4").tolist()
        if (expanded, stored) != (out.nbytes, size):
            raise _damaged()
        try:
            _blosc().decompress(packed, _bytes(out))
        except (RuntimeError, ValueError) as error:
            raise _damaged() from error


def write(group: h5py.Group, name: str, array: NDArray[Any], compression: str = "none") -> None:
    """A new dataset of `group`, of one dimension or two. Local; memory: a piece.

    compression : one of `manifest.COMPRESSIONS`. Raises InputError where its library is missing, and what HDF5 raises.
    """
    if compression == "none" or not array.size:
        group[name] = array
        return
    blosc = _blosc()
    width, step = int(np.prod(array.shape[1:], dtype=np.int64)), array[:1].nbytes
    length = min(len(array), max(1, min(PIECE // width, PIECE_BYTES // step)))
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_chunk((length, *array.shape[1:]))
    # As Blosc's own filter notes it: versions, bytes of an element and of a piece, level, shuffle, LZ4. Optional, since
    # HDF5 itself does not have this filter.
    settings = (2, 2, array.itemsize, array[:length].nbytes, _LEVEL, blosc.SHUFFLE, 1)
    how.set_filter(_FILTER, h5py.h5z.FLAG_OPTIONAL, settings)
    space, kind = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype, logical=True)
    made = h5py.h5d.create(group.id, name.encode(), kind, space, how)
    for start in range(0, len(array), length):
        piece = array[start : start + length]
        if len(piece) < length:
            piece = np.concatenate((piece, np.zeros((length - len(piece), *array.shape[1:]), array.dtype)))
        packed = blosc.compress(np.ascontiguousarray(piece), b"lz4", _LEVEL, blosc.SHUFFLE)
        made.write_direct_chunk((start, *(0,) * (array.ndim - 1)), packed)


def elements(dataset: h5py.Dataset, file: io.FileIO, compression: str = "none") -> Elements:
    """Where the entries of a dataset are; `file` is its own, opened once more. Costs a look at each piece.

    Raises InputError if it is not stored as `compression` says, or leads out of the file.
    """
    shape, size = dataset.shape, os.fstat(file.fileno()).st_size
    if compression == "none" or not dataset.size:
        offset = dataset.id.get_offset()
        if dataset.size and (dataset.chunks or offset is None or offset + dataset.nbytes > size):
            raise _strange(dataset, "in one piece, as it is")
        return Plain(file, dataset.dtype, shape, offset or 0)
    length = dataset.chunks[0] if dataset.chunks else 0
    filters = dataset.id.get_create_plist()
    n_pieces = -(-shape[0] // max(length, 1))
    if (
        not length
        or dataset.chunks[1:] != shape[1:]
        or [filters.get_filter(k)[0] for k in range(filters.get_nfilters())] != [_FILTER]
        or n_pieces * _HEADER > size
    ):
        raise _strange(dataset, f"compressed ({compression})")
    places = np.zeros((n_pieces, 2), np.int64)
    limit = length * (dataset.nbytes // shape[0]) + _HEADER
    for number in range(n_pieces):
        piece = dataset.id.get_chunk_info_by_coord((number * length, *(0,) * (len(shape) - 1)))
        at = piece.byte_offset
        if at is None or piece.filter_mask or not _HEADER < piece.size <= limit or at + piece.size > size:
            raise _strange(dataset, f"compressed ({compression})")
        places[number] = at, piece.size
    return Packed(file, dataset.dtype, shape, length, places)


def require(where: object) -> None:
    """Raise InputError, naming what is to be read, if compressed arrays cannot be."""
    try:
        _blosc()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _blosc() -> Any:
    """Blosc of one thread, as ranks and readers want it."""
    try:
        from numcodecs import blosc
    except ImportError as absent:
        raise InputError("compressed shards need the package numcodecs: pip install numcodecs") from absent
    blosc.use_threads = False
    return blosc


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    assert array.flags.c_contiguous  # or they would be those of a copy
    return array.reshape(-1).view(np.uint8)


def _damaged() -> OSError:
    return OSError(errno.EBADMSG, "what is compressed is damaged")


def _strange(dataset: h5py.Dataset, how: str) -> InputError:
    return InputError(f"{dataset.file.filename}: '{dataset.name[1:]}' is not stored {how}. Convert again.")
