"""Write arrays to an HDF5 file, plain or compressed, and read them without the HDF5 library.

HDF5 says at which bytes an array is stored, which any thread can then read without locks. An array is contiguous or, if
compressed, in chunks of up to 2^17 elements, by Blosc with LZ4 (filter 32001 in HDF5's registry, for h5py by
hdf5plugin). Below, its entries are its elements, or its rows if it has two dimensions. The group `checksums` has XXH3
checksums of the blocks of each array, compressed chunks or 2^16 bytes, with which all that is read is compared.
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
import xxhash
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.base.wording import option

CHECKSUMS, BLOCK = "checksums", 2**16
Checksums = NDArray[np.uint64]
_READ = 16 * BLOCK  # bytes that are read before they are compared, while they are in a cache
CHUNK, CHUNK_BYTES = 2**17, 2**20
"""The largest number of elements, and of bytes, of a chunk. To read a part of a chunk, all of it has to be expanded."""
_FILTER = 32001
_LEVEL = 5  # the level of compression, from 1 to 9; the time to expand is the same for all
COPY_AGAIN = "Copy the data set again, or convert again."
_HEADER = 16
"""The number of bytes of the header of a Blosc frame. A frame is larger than its elements by at most this number."""


@dataclass(frozen=True)
class StoredArray(ABC):
    """The entries of an array, in a file or in memory."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the entries start..stop - 1, in `out` (stop - start, ...) if there is one, C-contiguous and of any
        dtype. Raises OSError or EOFError."""
        if out is not None and out.dtype == self.dtype:
            self._read(start, stop, out)
            return out
        entries = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self._read(start, stop, entries)
        if out is None:
            return entries
        out[:] = entries
        return out

    def prefetch(self, start: int, stop: int) -> None:  # noqa: B027 - there is nothing to do in memory
        """Ask the operating system to load the entries start..stop - 1, which will be read soon."""

    def n_bytes(self, start: int, stop: int) -> int:
        """Return the number of bytes of the file that have to be read for the entries start..stop - 1."""
        return 0

    @property
    def checked(self) -> bool:
        """Whether all that is read is compared with checksums that were written with it."""
        return False

    @abstractmethod
    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None: ...


@dataclass(frozen=True)
class MemoryArray(StoredArray):
    """An array in memory, which may have another type than a file would have, `dtype`."""

    array: NDArray[Any]

    @classmethod
    def ones(cls, dtype: Any, n: int) -> MemoryArray:
        """Return the values of n entries that are all 1."""
        return cls(np.dtype(dtype), (n,), np.broadcast_to(np.ones(1, dtype), n))

    @property
    def checked(self) -> bool:
        return True  # no file can change

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        out[:] = self.array[start:stop]


@dataclass(frozen=True)
class FileArray(StoredArray):
    """An array in a file, which stays open even if it is deleted; `checksums` of its blocks are None if not known."""

    file: io.FileIO
    checksums: Checksums | None

    @property
    def checked(self) -> bool:
        return self.checksums is not None

    def prefetch(self, start: int, stop: int) -> None:
        if start < stop:
            offset, n_bytes = self._span(start, stop)
            os.posix_fadvise(self.file.fileno(), offset, n_bytes, os.POSIX_FADV_WILLNEED)

    @abstractmethod
    def _span(self, start: int, stop: int) -> tuple[int, int]:
        """Return where in the file these entries begin, and how many bytes follow."""

    @property
    def _step(self) -> int:
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
class ContiguousArray(FileArray):
    """A contiguous array, from `offset` on."""

    offset: int

    def n_bytes(self, start: int, stop: int) -> int:
        return (stop - start) * self._step

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return self.offset + start * self._step, self.n_bytes(start, stop)

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        at, data = start * self._step, _bytes(out)
        if self.checksums is None:
            self._fill(self.offset + at, data)
            return
        end, size = at + len(data), self.n_bytes(0, self.shape[0])
        for low in range(at - at % BLOCK, end, _READ):  # whole blocks, of which the first and last may reach beyond
            high = min(low + _READ, -(-end // BLOCK) * BLOCK, size)
            is_inside = at <= low and high <= end
            blocks = data[low - at : high - at] if is_inside else np.empty(high - low, np.uint8)
            self._fill(self.offset + low, blocks)
            if _of_blocks(blocks) != self.checksums[low // BLOCK : -(-high // BLOCK)].tolist():
                raise _damaged()
            if not is_inside:
                inside = slice(max(low, at), min(high, end))
                data[inside.start - at : inside.stop - at] = blocks[inside.start - low : inside.stop - low]


@dataclass(frozen=True)
class CompressedArray(FileArray):
    """An array in chunks of `length` entries; `places` (chunks, 2) has the position and the bytes of each."""

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
            target = out[low - start : high - start]
            if high - low == self.length:
                self._expand(number, at, size, target)
            else:
                chunk = np.empty((self.length, *self.shape[1:]), self.dtype)
                self._expand(number, at, size, chunk)
                target[:] = chunk[low - first : high - first]

    def _expand(self, number: int, at: int, size: int, out: NDArray[Any]) -> None:
        """Expand the chunk at byte `at` of the file. Its header is checked first, since Blosc trusts the header."""
        packed = np.empty(size, np.uint8)
        self._fill(at, packed)
        if self.checksums is not None and xxhash.xxh3_64_intdigest(packed.data) != int(self.checksums[number]):
            raise _damaged()
        expanded, _, stored = packed[4:_HEADER].view("<u4").tolist()
        if (expanded, stored) != (out.nbytes, size):
            raise _damaged()
        try:
            _blosc().decompress(packed, _bytes(out))
        except (RuntimeError, ValueError) as error:
            raise _damaged() from error


def write(group: h5py.Group, name: str, array: NDArray[Any], compression: str = "none", dtype: Any = None) -> None:
    """Write an array of one or two dimensions as a new dataset of `group`, also as another dtype. Local. Memory: one
    chunk, or some rows."""
    checksums, dtype = list[int](), np.dtype(dtype or array.dtype)
    if compression == "none" or not array.size:
        dataset = group.create_dataset(name, array.shape, dtype)
        for start in range(0, len(array), _READ):  # whole blocks
            part = array[start : start + _READ].astype(dtype, copy=False)
            dataset[start : start + _READ] = part
            checksums += _of_blocks(part)
        _write_checksums(dataset, checksums)
        return
    blosc = _blosc()
    width, step = int(np.prod(array.shape[1:], dtype=np.int64)), array[:1].size * dtype.itemsize
    length = min(len(array), max(1, min(CHUNK // width, CHUNK_BYTES // step)))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((length, *array.shape[1:]))
    properties.set_obj_track_times(False)  # equal rows make equal files
    # The settings as Blosc's own filter writes them: versions, bytes of an element and of a chunk, level, shuffle, LZ4.
    # The filter is marked as optional because HDF5 itself does not have it.
    settings = (2, 2, dtype.itemsize, length * step, _LEVEL, blosc.SHUFFLE, 1)
    properties.set_filter(_FILTER, h5py.h5z.FLAG_OPTIONAL, settings)
    space, kind = h5py.h5s.create_simple(array.shape), h5py.h5t.py_create(dtype, logical=True)
    chunks = h5py.h5d.create(group.id, name.encode(), kind, space, properties)
    for start in range(0, len(array), length):
        chunk = np.zeros((length, *array.shape[1:]), dtype)
        chunk[: len(array) - start] = array[start : start + length]
        packed = blosc.compress(chunk, b"lz4", _LEVEL, blosc.SHUFFLE)
        chunks.write_direct_chunk((start, *(0,) * (array.ndim - 1)), packed)
        checksums.append(xxhash.xxh3_64_intdigest(packed))
    _write_checksums(group[name], checksums)


def remove(dataset: h5py.Dataset) -> None:
    """Remove an array from its file, in which its bytes stay."""
    del dataset.file[CHECKSUMS + dataset.name], dataset.file[dataset.name]


def _of_blocks(array: NDArray[Any]) -> list[int]:
    view = _bytes(np.ascontiguousarray(array)).data
    return [xxhash.xxh3_64_intdigest(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK)]


def _write_checksums(dataset: h5py.Dataset, checksums: list[int]) -> None:
    dataset.file[CHECKSUMS + dataset.name] = np.array(checksums, np.uint64)


def digests(file: h5py.File) -> dict[str, str]:
    """Return a digest of the checksums of each array of a file that has some, by their names, for `read_checksums`."""
    names = list[str]()
    file[CHECKSUMS].visit(names.append)
    arrays = {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
    return {name: _digest(array, file[f"{CHECKSUMS}/{name}"][()]) for name, array in arrays.items()}


def read_checksums(dataset: h5py.Dataset, digest: str | None) -> Checksums | None:
    """Return the checksums of the blocks of an array, which must have this digest; None without one."""
    if digest is None:
        return None
    stored = hdf5.dataset(dataset.file, CHECKSUMS + dataset.name)
    n_blocks = -(-dataset.shape[0] // dataset.chunks[0]) if dataset.chunks else -(-dataset.nbytes // BLOCK)
    fits = (stored.shape, stored.dtype) == ((n_blocks,), np.uint64)
    if not fits or _digest(dataset, checksums := stored[()]) != digest:
        problem = "is not what the manifest says: the file was damaged, or belongs to another data set"
        raise InputError(f"{dataset.file.filename}: '{dataset.name[1:]}' {problem}. {COPY_AGAIN}")
    return checksums


def _digest(dataset: h5py.Dataset, checksums: Checksums) -> str:
    rows = hdf5.attribute(dataset, "part_rows") if dataset.name.startswith("/codes/") else None
    about = f"{dataset.dtype.str} {dataset.shape} {dataset.chunks} {rows} "
    return xxhash.xxh3_64_hexdigest(about.encode() + checksums.tobytes())


def open_array(
    dataset: h5py.Dataset, file: io.FileIO, compression: str = "none", digest: str | None = None
) -> StoredArray:
    """Return a dataset as an array that is read without HDF5, from `file`, and compared with its checksums, which have
    this digest. Local. Raises InputError if it is not stored as `compression` says, or ends beyond the file."""
    checksums, shape, size = read_checksums(dataset, digest), dataset.shape, os.fstat(file.fileno()).st_size
    if compression == "none" or not dataset.size:
        offset = dataset.id.get_offset()
        if dataset.size and (dataset.chunks or offset is None or offset + dataset.nbytes > size):
            raise _wrong_layout(dataset, "in one piece and uncompressed")
        return ContiguousArray(dataset.dtype, shape, file, checksums, offset or 0)
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
    return CompressedArray(dataset.dtype, shape, file, checksums, length, places)


def check_codec(compression: str, where: object = option("compression")) -> None:
    """Raise InputError that names `where` if arrays with this compression can be neither read nor written here."""
    try:
        if compression != "none":
            _blosc()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _blosc() -> Any:
    """Return the module of Blosc, limited to one thread, since several ranks and threads already read in parallel."""
    try:
        from numcodecs import blosc
    except ImportError as absent:
        raise InputError("compressed shards need the package numcodecs: pip install 'distsms[codecs]'") from absent
    blosc.use_threads = False
    return blosc


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    assert array.flags.c_contiguous  # otherwise these would be the bytes of a copy
    return array.reshape(-1).view(np.uint8)


def _damaged() -> OSError:
    return OSError(errno.EBADMSG, "its content is not what was written")


def _wrong_layout(dataset: h5py.Dataset, layout: str) -> InputError:
    return InputError(f"{dataset.file.filename}: '{dataset.name[1:]}' is not stored {layout}. Convert again.")
