"""Arrays in an HDF5 file, plain or compressed: how they are written, and how they are read without HDF5 and Python.

HDF5 tells where the bytes are. They are read by a system call, by any thread, while HDF5 and Python do other things. An
array that is not compressed is contiguous. A compressed one lies in chunks of some 2^17 elements, each of which Blosc
has compressed by LZ4 after grouping bytes of equal significance (filter 32001 in HDF5's registry: h5py reads them if
hdf5plugin is installed). An array's entries are its elements, or its rows if it has two dimensions.
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

CHUNK, CHUNK_BYTES = 2**17, 2**20
"""The most elements and bytes that are compressed together.

Wherever a part of the rows begins in a chunk, all of the chunk is expanded.
"""
_FILTER = 32001
_LEVEL = 5  # of 9; other levels take as long to expand
_HEADER = 16
"""Bytes of a Blosc frame before its blocks, which is also the most that a frame can exceed the elements by."""


@dataclass(frozen=True)
class StoredArray(ABC):
    """The entries of an array in a file, which stays open and readable whatever becomes of its name."""

    file: io.FileIO
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Read the entries start..stop into `out`, contiguous, of any dtype for as many. Raises OSError or EOFError."""
        if out.dtype == self.dtype:
            self._read(start, stop, out)
        else:
            out[:] = self.take(start, stop)

    def take(self, start: int, stop: int) -> NDArray[Any]:
        """Return the entries start..stop. Raises OSError or EOFError."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self._read(start, stop, out)
        return out

    def prefetch(self, start: int, stop: int) -> None:
        """Ask the system to load the entries start..stop, which will be read soon."""
        if start < stop:
            os.posix_fadvise(self.file.fileno(), *self._span(start, stop), os.POSIX_FADV_WILLNEED)

    @abstractmethod
    def n_bytes(self, start: int, stop: int) -> int:
        """Return the number of bytes of the file that reading the entries start..stop takes."""

    @abstractmethod
    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None: ...

    @abstractmethod
    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Return where in the file these entries begin, and how many bytes follow."""

    @property
    def _step(self) -> int:
        """Bytes of an entry."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def _fill(self, at: int, out: NDArray[np.uint8]) -> None:
        """Read bytes of the file, from `at` on, until `out` is full."""
        rest = out.data
        while len(rest):
            count = os.preadv(self.file.fileno(), [rest], at)
            if not count:
                raise EOFError("the file ends before it should")
            rest, at = rest[count:], at + count


@dataclass(frozen=True)
class ContiguousArray(StoredArray):
    """A contiguous array, from `offset` on."""

    offset: int

    def n_bytes(self, start: int, stop: int) -> int:
        return (stop - start) * self._step

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return self.offset + start * self._step, self.n_bytes(start, stop)

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        self._fill(self.offset + start * self._step, _bytes(out))


@dataclass(frozen=True)
class CompressedArray(StoredArray):
    """An array in chunks of `length` entries, the last of which is padded.

    `places` (chunks, 2): where each is, and its size.
    """

    length: int
    places: NDArray[np.int64]

    def n_bytes(self, start: int, stop: int) -> int:
        return int(self._chunks(start, stop)[:, 1].sum())

    def _chunks(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.places[start // self.length : -(-stop // self.length)] if start < stop else self.places[:0]

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        chunks = self._chunks(start, stop)
        first = int(chunks[:, 0].min())
        return first, int(chunks.sum(axis=1).max()) - first

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        for number, (at, size) in enumerate(self._chunks(start, stop).tolist(), start // self.length):
            first = number * self.length
            low, high = max(start, first), min(stop, first + self.length)
            wanted = out[low - start : high - start]
            if high - low == self.length:
                self._expand(at, size, wanted)
            else:
                chunk = np.empty((self.length, *self.shape[1:]), self.dtype)
                self._expand(at, size, chunk)
                wanted[:] = chunk[low - first : high - first]

    def _expand(self, at: int, size: int, out: NDArray[Any]) -> None:
        """Expand one chunk. Blosc is called only if the chunk's own header agrees with what the file says about it."""
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
    """Write an array of one or two dimensions as a new dataset of `group`.

    Parameters
    ----------
    group : h5py.Group
        Where the dataset goes.
    name : str
        Its name.
    array : array
        Its content.
    compression : str
        One of `manifest.COMPRESSIONS`.

    Raises
    ------
    InputError
        If the library for the compression is missing. Errors of HDF5 are passed on.

    Notes
    -----
    Local. Memory: one chunk.
    """
    if compression == "none" or not array.size:
        group[name] = array
        return
    blosc = _blosc()
    width, step = int(np.prod(array.shape[1:], dtype=np.int64)), array[:1].nbytes
    length = min(len(array), max(1, min(CHUNK // width, CHUNK_BYTES // step)))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((length, *array.shape[1:]))
    # The settings as Blosc's own filter writes them: versions, bytes of an element and of a chunk, level, shuffle, LZ4.
    # The filter is marked as optional because HDF5 itself does not have it.
    settings = (2, 2, array.itemsize, array[:length].nbytes, _LEVEL, blosc.SHUFFLE, 1)
    properties.set_filter(_FILTER, h5py.h5z.FLAG_OPTIONAL, settings)
    space, kind = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(array.dtype, logical=True)
    dataset = h5py.h5d.create(group.id, name.encode(), kind, space, properties)
    for start in range(0, len(array), length):
        chunk = array[start : start + length]
        if len(chunk) < length:
            chunk = np.concatenate((chunk, np.zeros((length - len(chunk), *array.shape[1:]), array.dtype)))
        packed = blosc.compress(np.ascontiguousarray(chunk), b"lz4", _LEVEL, blosc.SHUFFLE)
        dataset.write_direct_chunk((start, *(0,) * (array.ndim - 1)), packed)


def open_array(dataset: h5py.Dataset, file: io.FileIO, compression: str = "none") -> StoredArray:
    """Find out where the entries of a dataset are, and return them as an array that is read without HDF5.

    Parameters
    ----------
    dataset : h5py.Dataset
        The dataset.
    file : io.FileIO
        Its file, opened once more.
    compression : str
        One of `manifest.COMPRESSIONS`, as the manifest says.

    Raises
    ------
    InputError
        If the dataset is not stored as `compression` says, or leads out of the file.

    Notes
    -----
    Local. Costs one look-up for each chunk.
    """
    shape, size = dataset.shape, os.fstat(file.fileno()).st_size
    if compression == "none" or not dataset.size:
        offset = dataset.id.get_offset()
        if dataset.size and (dataset.chunks or offset is None or offset + dataset.nbytes > size):
            raise _wrong_layout(dataset, "in one piece, as it is")
        return ContiguousArray(file, dataset.dtype, shape, offset or 0)
    length = dataset.chunks[0] if dataset.chunks else 0
    filters = dataset.id.get_create_plist()
    n_chunks = -(-shape[0] // max(length, 1))
    if (
        not length
        or dataset.chunks[1:] != shape[1:]
        or [filters.get_filter(k)[0] for k in range(filters.get_nfilters())] != [_FILTER]
        or n_chunks * _HEADER > size
    ):
        raise _wrong_layout(dataset, f"compressed ({compression})")
    places = np.zeros((n_chunks, 2), np.int64)
    limit = length * (dataset.nbytes // shape[0]) + _HEADER
    for number in range(n_chunks):
        chunk = dataset.id.get_chunk_info_by_coord((number * length, *(0,) * (len(shape) - 1)))
        at = chunk.byte_offset
        if at is None or chunk.filter_mask or not _HEADER < chunk.size <= limit or at + chunk.size > size:
            raise _wrong_layout(dataset, f"compressed ({compression})")
        places[number] = at, chunk.size
    return CompressedArray(file, dataset.dtype, shape, length, places)


def require(where: object) -> None:
    """Raise InputError that names `where` if compressed arrays cannot be read here."""
    try:
        _blosc()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _blosc() -> Any:
    """Return Blosc, limited to one thread, since ranks and readers are parallel already."""
    try:
        from numcodecs import blosc
    except ImportError as absent:
        raise InputError("compressed shards need the package numcodecs: pip install numcodecs") from absent
    blosc.use_threads = False
    return blosc


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    assert array.flags.c_contiguous  # otherwise these would be the bytes of a copy
    return array.reshape(-1).view(np.uint8)


def _damaged() -> OSError:
    return OSError(errno.EBADMSG, "the compressed data are damaged")


def _wrong_layout(dataset: h5py.Dataset, how: str) -> InputError:
    return InputError(f"{dataset.file.filename}: '{dataset.name[1:]}' is not stored {how}. Convert again.")
