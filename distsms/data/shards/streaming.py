"""Rows that do not fit in memory: read from their shards on each pass, ahead of what is computed.

Each thread's run of parts (`distsms.matrix.blocks`) begins with parts that stay in memory. The others are read on each
pass,
one by one and into two buffers in turn, by a thread beside the one that computes; the system is asked for those behind.
Parts and their order are those of rows in memory, and so are results, to the bit.

The first pass checks what it reads, as `shards.load` does with rows in memory, and keeps a sum of each part, which
later ones compare: a file that was changed or cut meanwhile is an InputError, and never a column beyond p.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.manifest import Manifest
from distsms.data.shards.reader import OpenShard, ShardRange
from distsms.data.shards.storage import PIECE, Elements
from distsms.errors import InputError
from distsms.matrix import kernels as kernel
from distsms.matrix.blocks import Entries, Part
from distsms.matrix.local import PART_ENTRIES, Dense, Features, Sparse, length_dtype, unsigned

AHEAD = 2
"""Parts behind the one being read that the system is asked for: with one wish at a time a disk idles in between."""


class MemoryBudget(NamedTuple):
    """What a rank may hold of its rows: bytes in all, and those that each row takes besides its entries."""

    bytes: int
    of_row: int = 0

    def entries(self, n_local: int) -> int:
        """Bytes for the entries of so many rows."""
        return self.bytes - self.of_row * n_local


def entry_bytes(manifest: Manifest) -> tuple[int, int]:
    """What an entry takes in memory, and in the files if it is sparse: a column, and a value unless all are 1."""
    value = 4 if manifest.dtype == "float32" else 8
    if manifest.layout == "dense":
        return value, 0
    value *= any(shard.values for shard in manifest.shards)
    return unsigned(manifest.p - 1)().itemsize + value, (4 if manifest.p < 2**31 else 8) + value


def span(lengths: NDArray[Any]) -> tuple[int, int]:
    """The entries of the longest row, and minus those of the shortest."""
    return int(lengths.max(initial=0)), -int(lengths.min()) if len(lengths) else -(2**62)


def buffer_bytes(manifest: Manifest, threads: int) -> int:
    """What streaming takes: two parts for each thread, one as it is in the files, and what is made of one meanwhile.

    More where sparse rows are longer than a sixteenth of a part, which a manifest does not tell.
    """
    held, stored = entry_bytes(manifest)
    more = max(PART_ENTRIES // 16, manifest.p * (manifest.layout == "dense"))  # parts end with blocks of rows
    pieces = 0 if manifest.compression == "none" else 2 * 8 * max(PIECE, more)  # one as it is stored, one expanded
    return threads * ((PART_ENTRIES + more) * (2 * held + stored + 12) + pieces)


@dataclass
class Stretch:
    """Local rows that one shard has: from `row` on, and from `entry` on of the local entries, there from `start` on.

    Entries of dense rows are whole rows.
    """

    shard: OpenShard  # closed by now; it knows names, and what to check
    first: int  # its first row in the shard
    row: int
    entry: int
    start: int
    stored: tuple[Elements | None, ...]  # columns, and values unless all are 1; or dense rows
    rows: int = 0
    entries: int = 0

    def piece(self, first: int, last: int) -> ShardRange:
        """Local rows, as the shard counts them."""
        offset = self.first - self.row
        return ShardRange(self.shard.shard, self.shard.offset, first + offset, last + offset)


class Place(NamedTuple):
    """What a part has of a stretch: local rows first..last, entries start..stop of the part, `at` in the shard."""

    stretch: Stretch
    first: int
    last: int
    start: int
    stop: int
    at: int


class Buffer:
    """Arrays with room for any part, and the first row of the part that they hold; -1: none."""

    def __init__(self, arrays: Entries) -> None:
        self.arrays, self.holds = arrays, -1


class Stream(ABC):
    """A rank's rows, put together from shards, and then the `matrix.blocks.EntrySource` of their parts.

    add (of every part of the shards, in order), features, load.
    """

    def __init__(self, width: int, dtype: str) -> None:
        self.width, self.dtype = width, dtype
        self.bytes_per_pass = self.bytes_read = 0
        self._stretches: list[Stretch] = []
        self._kept: dict[int, Entries] = {}  # by the part's first row
        self._sums: dict[tuple[int, int], int] = {}  # by the first rows of part and stretch
        self._buffers: list[list[Buffer]] = []  # two for each thread
        self._raw: list[Entries] = []

    @abstractmethod
    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        """Note where these rows are."""

    @abstractmethod
    def lengths_span(self) -> tuple[int, int]:
        """As `span`."""

    @abstractmethod
    def features(self, longest: int, differ: bool) -> Features:
        """The rows, whose source this is.

        longest : the entries of the longest row of all ranks; differ : whether there are rows with fewer.
        """

    @property
    def nbytes(self) -> int:
        """Bytes held: parts that stay, and buffers."""
        held = [*self._kept.values(), *self._raw, *(one.arrays for two in self._buffers for one in two)]
        return sum(array.nbytes for arrays in held for array in arrays if array is not None)

    def load(self, rows: Features, room: int) -> None:
        """Read and check all parts, and keep those that fit into `room` bytes, buffers included. Local.

        Raises InputError where not even buffers fit, and for what is wrong with files or rows.
        """
        self._rows = rows
        self._runs = [[part for part in run if part.first < part.last] for run in rows.runs]
        largest = [max((part.stop - part.start for part in run), default=0) for run in self._runs]
        self._raw = [self._as_stored(count) for count in largest]
        self._buffers = [[Buffer(self._as_held(count)) for _ in range(2)] for count in largest]
        if room < self.nbytes:
            raise InputError(
                f"--memory leaves {max(room, 0)} bytes for rows, and {self.nbytes} are needed to stream the longest: "
                f"give {math.ceil((self.nbytes - room) / 2**20)}MiB more"
            )
        self._reader, left = ThreadPoolExecutor(len(self._runs)), (room - self.nbytes) // len(self._runs)
        for thread in range(len(self._runs)):
            free = left
            for part, (_, entries) in zip(self._runs[thread], self.passing(thread), strict=True):
                free -= sum(array.nbytes for array in entries if array is not None)
                if free >= 0:
                    self._kept[part.first] = tuple(None if one is None else one.copy() for one in entries)
                else:
                    self.bytes_per_pass += self._n_bytes(part)

    def passing(self, thread: int, backward: bool = False) -> Iterator[tuple[Part, Entries]]:
        """See `matrix.blocks.EntrySource`."""
        run = self._runs[thread]
        places = {part.first: k % 2 for k, part in enumerate(run)}
        missing = [part for part in (run[::-1] if backward else run) if part.first not in self._kept]

        def begin(k: int) -> Future[Entries] | None:
            if k == len(missing):
                return None
            buffer = self._buffers[thread][places[missing[k].first]]
            return self._reader.submit(self._read, missing[k : k + 1 + AHEAD], buffer, self._raw[thread])

        k, reading = 0, begin(0)
        try:
            for part in run[::-1] if backward else run:
                entries = self._kept.get(part.first)
                if entries is None:
                    assert reading is not None
                    entries, k = reading.result(), k + 1
                    reading = begin(k)
                yield part._replace(start=0, stop=part.stop - part.start), entries
        finally:
            if reading is not None and not reading.cancel():
                reading.exception()  # waits, since it writes into a buffer

    def _read(self, parts: list[Part], buffer: Buffer, raw: Entries) -> Entries:
        """The first of some parts in a buffer; the system is asked for the others."""
        part, count = parts[0], parts[0].stop - parts[0].start
        arrays = tuple(None if one is None else one[:count] for one in buffer.arrays)
        if buffer.holds == part.first:
            return arrays
        for other in parts[1:]:
            for place in self._places(other):
                for stored in place.stretch.stored:
                    if stored is not None:
                        stored.expect(place.at, place.at + place.stop - place.start)
        buffer.holds = -1
        given = tuple(None if one is None else one[:count] for one in raw) or arrays
        for place in self._places(part):
            self._fetch(part, place, tuple(None if one is None else one[place.start : place.stop] for one in given))
        self._arrange(part, given, arrays)
        buffer.holds = part.first
        return arrays

    def _fetch(self, part: Part, place: Place, out: Entries) -> None:
        """Read a place, and compare it with what it was, or check it if it is new."""
        stretch, total = place.stretch, 0
        row = f"{stretch.shard.path}: near {stretch.shard.row_name(place.first - stretch.row + stretch.first)}"
        for stored, array in zip(stretch.stored, out, strict=True):
            if stored is None:
                if array is not None:
                    array[:] = 1
                continue
            try:
                stored.read(place.at, place.at + place.stop - place.start, array)
            except EOFError as error:
                raise InputError(f"{row}: the file has become shorter while it was in use. Copy it again.") from error
            except OSError as error:
                raise InputError(
                    f"{row}: cannot be read: {error.strerror}. Copy it again, or convert again."
                ) from error
            self.bytes_read += stored.n_bytes(place.at, place.at + place.stop - place.start)
            total = 3 * total + int(kernel.checksum(array.reshape(-1).view(np.uint32)))
        key = part.first, stretch.row
        if key not in self._sums:
            self._check(place, out)
            self._sums[key] = total
        elif self._sums[key] != total:
            raise InputError(f"{row}: the file has changed while it was in use. Start again, or convert again.")

    def _places(self, part: Part) -> Iterator[Place]:
        """Where a part lies in the shards."""
        k = bisect_right(self._stretches, part.first, key=lambda one: one.row) - 1
        while k < len(self._stretches) and self._stretches[k].row < part.last:
            one, k = self._stretches[k], k + 1
            start, stop = max(part.start, one.entry), min(part.stop, one.entry + one.entries)
            rows = max(part.first, one.row), min(part.last, one.row + one.rows)
            yield Place(one, *rows, start - part.start, stop - part.start, one.start + start - one.entry)

    def _n_bytes(self, part: Part) -> int:
        """Bytes of a part in the files."""
        return sum(
            stored.n_bytes(place.at, place.at + place.stop - place.start)
            for place in self._places(part)
            for stored in place.stretch.stored
            if stored is not None
        )

    @abstractmethod
    def _as_stored(self, count: int) -> Entries:
        """Arrays for so many entries as they are in the files; none if they are held so."""

    @abstractmethod
    def _as_held(self, count: int) -> Entries:
        """Arrays for so many entries as they are held."""

    @abstractmethod
    def _check(self, place: Place, given: Entries) -> None:
        """InputError if entries, as they are in the files, are not what the format says."""

    @abstractmethod
    def _arrange(self, part: Part, given: Entries, arrays: Entries) -> None:
        """Bring a part from the way of the files into the way it is held."""


class SparseStream(Stream):
    """The local rows of CSR shards. Their lengths are in memory, whatever is streamed."""

    def __init__(self, pieces: list[ShardRange], n_local: int, width: int, dtype: str) -> None:
        super().__init__(width, dtype)
        self._lengths = np.zeros(n_local, length_dtype(0))
        self._valued = any(piece.shard.values for piece in pieces)
        self._filled, self._column = 0, np.dtype(np.int32)

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        indptr = shard.read_indptr(part)
        lengths = np.diff(indptr)
        wanted = length_dtype(int(lengths.max(initial=0)))
        self._lengths = self._lengths.astype(np.promote_types(self._lengths.dtype, wanted), copy=False)
        self._lengths[local] = lengths
        if not self._stretches or self._stretches[-1].shard is not shard:
            stored = shard.stored("X/indices", "X/data" if shard.shard.values else None)
            assert stored[0] is not None
            self._column = np.promote_types(self._column, stored[0].dtype)
            self._stretches.append(Stretch(shard, part.start, local.start, self._filled, int(indptr[0]), stored))
        self._stretches[-1].rows += len(lengths)
        self._stretches[-1].entries += int(indptr[-1] - indptr[0])
        self._filled += int(indptr[-1] - indptr[0])

    def lengths_span(self) -> tuple[int, int]:
        return span(self._lengths)

    def features(self, longest: int, differ: bool) -> Sparse:
        self._lengths = self._lengths.astype(length_dtype(longest), copy=False)
        columns, values = self._as_held(0)
        return Sparse(values, columns, self._lengths, self.width, sort=differ, source=self)

    def _as_stored(self, count: int) -> Entries:
        return np.empty(count, self._column), np.empty(count, self.dtype) if self._valued else None

    def _as_held(self, count: int) -> Entries:
        return np.empty(count, unsigned(self.width - 1)), np.empty(count, self.dtype) if self._valued else None

    def _check(self, place: Place, given: Entries) -> None:
        indptr = self._indptr(place.first, place.last)
        piece, (columns, values) = place.stretch.piece(place.first, place.last), given
        place.stretch.shard.check_indices(piece, indptr, columns)
        if values is not None:
            place.stretch.shard.check_finite(piece, indptr, values)

    def _arrange(self, part: Part, given: Entries, arrays: Entries) -> None:
        columns, values = given
        assert isinstance(self._rows, Sparse)
        self._rows.arrange(part._replace(start=0, stop=len(columns)), columns, values, *arrays)

    def _indptr(self, first: int, last: int) -> NDArray[np.int64]:
        """Where each of these rows begins, and where the last one ends."""
        indptr = np.zeros(last - first + 1, np.int64)
        np.cumsum(self._lengths[first:last], out=indptr[1:])
        return indptr


class DenseStream(Stream):
    """The local rows of dense shards, held as they are stored."""

    def __init__(self, n_local: int, width: int, dtype: str) -> None:
        super().__init__(width, dtype)
        self._n_local = n_local

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        if not self._stretches or self._stretches[-1].shard is not shard:
            self._stretches.append(Stretch(shard, part.start, local.start, local.start, part.start, shard.stored("X")))
        self._stretches[-1].rows += part.stop - part.start
        self._stretches[-1].entries += part.stop - part.start

    def lengths_span(self) -> tuple[int, int]:
        return self.width, -self.width

    def features(self, longest: int, differ: bool) -> Dense:
        return Dense(self._as_held(0)[0], source=self, rows=self._n_local)

    def _as_stored(self, count: int) -> Entries:
        return ()

    def _as_held(self, count: int) -> Entries:
        return (np.empty((count, self.width), self.dtype),)

    def _check(self, place: Place, given: Entries) -> None:
        place.stretch.shard.check_finite(place.stretch.piece(place.first, place.last), None, given[0])

    def _arrange(self, part: Part, given: Entries, arrays: Entries) -> None:
        pass
