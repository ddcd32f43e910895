"""A rank's rows, as they are loaded from their shards: into memory, a bounded part at a time, or as a stream.

Rows that do not fit in memory are streamed: they are read from their shards on each pass, ahead of the computation.
Each computing thread processes several consecutive parts, of which some stay in memory, and another thread reads the
others into two buffers in turn. Parts and order are those of rows in memory, so the results are identical. The first
pass checks what it reads; later ones compare checksums, so that a changed file raises InputError.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.matrix import kernels as kernel
from distsms.matrix.blocks import Entries, LocalRows, Part
from distsms.matrix.code_maps import CodeMap
from distsms.matrix.coded import CodedRows
from distsms.matrix.local import PART_ENTRIES, DenseRows, SparseRows, length_dtype, unsigned
from distsms.shards.coded_columns import StoredPart, read_part
from distsms.shards.entries_in_memory import EntriesInMemory
from distsms.shards.reader import OpenShard, ShardRange
from distsms.shards.storage import StoredArray


def _count_entries(lengths: NDArray[Any], local: slice, new: NDArray[np.int64]) -> NDArray[Any]:
    """Return the numbers of entries of all local rows, with those of some rows, in a type that holds them."""
    lengths = lengths.astype(np.promote_types(lengths.dtype, length_dtype(int(new.max(initial=0)))), copy=False)
    lengths[local] = new
    return lengths


class SparseLoader:
    """The local rows of CSR shards, read into arrays of the final size and type, or taken over from a `store`."""

    def __init__(
        self,
        ranges: list[ShardRange],
        n_local: int,
        nnz: int,
        width: int,
        dtype: str,
        store: EntriesInMemory | None = None,
    ) -> None:
        nnz = max(nnz, 0)  # it is negative only if indptr descends, which `add` reports
        self.lengths, self.width, self._taken_over = np.zeros(n_local, length_dtype(0)), width, store is not None
        if store is not None:
            self.indices, self.values, self.filled = store.columns, store.values, nnz
        else:
            self.indices, self.filled = np.empty(nnz, unsigned(width - 1)), 0
            self.values = np.empty(nnz, dtype) if any(part.shard.values for part in ranges) else None

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        indptr = shard.read_indptr(part)
        self.lengths = _count_entries(self.lengths, local, np.diff(indptr))
        if self._taken_over:
            return
        cut = 0
        while cut < len(indptr) - 1:
            end = max(cut + 1, int(np.searchsorted(indptr, indptr[cut] + PART_ENTRIES, side="right")) - 1)
            piece = part._replace(start=part.start + cut, stop=part.start + end)
            self._add_entries(shard, piece, indptr[cut : end + 1], slice(local.start + cut, local.start + end))
            cut = end

    def _add_entries(self, shard: OpenShard, rows: ShardRange, indptr: NDArray[np.int64], local: slice) -> None:
        start, stop = int(indptr[0]), int(indptr[-1])
        indptr = indptr - start
        indices = shard.read_indices(rows, indptr, start)
        new = indices >= self.width  # columns to leave out; without ignore_new_features, `load` has refused them
        entries = slice(self.filled, self.filled + stop - start)
        if self.values is not None:
            shard.read("X/data", start, stop, self.values[entries])
            shard.check_finite(rows, indptr, self.values[entries])
        if new.any():
            old = ~new
            indptr = np.concatenate(([0], np.cumsum(old)))[indptr]
            self.lengths[local] = np.diff(indptr)
            indices = indices[old]
            if self.values is not None:
                self.values[self.filled : self.filled + len(indices)] = self.values[entries][old]
        self.indices[self.filled : self.filled + len(indices)] = indices
        self.filled += len(indices)

    def features(self, longest: int, differ: bool) -> SparseRows:
        """Return the rows; `longest` is the longest of all ranks, and some have fewer entries if they `differ`."""
        indices, lengths = self.indices[: self.filled], self.lengths.astype(length_dtype(longest), copy=False)
        values = None if self.values is None else self.values[: self.filled]
        return SparseRows(values, indices, lengths, self.width, sort=differ)


class DenseLoader:
    """The local rows of dense shards. Columns beyond `width` are left out."""

    lengths = None

    def __init__(self, n_local: int, width: int, dtype: str) -> None:
        self.array = np.zeros((n_local, width), dtype)

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        for piece in part.parts(max(1, PART_ENTRIES // max(shard.file["X"].shape[1], self.array.shape[1]))):
            rows = self.array[local.start + piece.start - part.start : local.start + piece.stop - part.start]
            shard.read_dense(piece, rows)
            shard.check_finite(piece, None, rows)

    def features(self, longest: int, differ: bool) -> DenseRows:
        """Return the rows. The parameters are for sparse rows."""
        return DenseRows(self.array)


class CodedLoader:
    """The codes of the local rows, of group `number` of the coded columns."""

    lengths = None

    def __init__(self, number: int, code_map: CodeMap, n_local: int) -> None:
        self.number, self.code_map = number, code_map
        self.codes, self.cuts = np.empty(n_local * code_map.n_codes, code_map.dtype), [0]

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        n_codes = self.code_map.n_codes
        ends = shard.read_codes(self.number, part, self.codes[local.start * n_codes : local.stop * n_codes])
        self.cuts += [local.start + end for end in ends]

    def features(self, longest: int, differ: bool) -> CodedRows:
        """Return the rows. The parameters are for sparse rows."""
        return CodedRows(self.code_map, self.codes, self.cuts)


def _some(arrays: Entries, place: slice) -> Entries:
    """Return what arrays have of some entries."""
    return tuple(None if array is None else array[place] for array in arrays)


def evenly(parts: Sequence[Part], max_entries: int) -> list[Part]:
    """Return some of the parts, spread evenly, which have together at most so many entries (or rows, if dense)."""
    sizes = [part.stop - part.start for part in parts]
    share = min(1.0, max_entries / max(sum(sizes), 1))
    passed, used, kept = 0, 0, []
    for part, size in zip(parts, sizes, strict=True):
        passed += size
        if used + size <= share * passed:
            kept.append(part)
            used += size
    return kept


class KeptParts:
    """Parts in memory, one behind the other in `arrays`; `stored` has the entries of each by the part's first row."""

    def __init__(self, parts: list[Part], arrays: Entries) -> None:
        self.arrays = arrays
        self.stored: dict[int, Entries] = {}
        self._parts = parts
        begins = np.cumsum([0, *(part.stop - part.start for part in parts)])[:-1]
        self._begins = {part.first: int(begin) for part, begin in zip(parts, begins, strict=True)}

    def store(self, part: Part, entries: Entries) -> bool:
        """Copy the entries of a part, if it is to stay. Return whether it is."""
        if part.first not in self._begins:
            return False
        begin = self._begins[part.first]
        place = slice(begin, begin + part.stop - part.start)
        self.stored[part.first] = _some(self.arrays, place)
        for array, values in zip(self.stored[part.first], entries, strict=True):
            if array is not None:
                array[:] = values
        return True

    def rows(self, n_local: int) -> NDArray[np.bool_]:
        """Return which of the local rows are in these parts, (n_local,)."""
        kept = np.zeros(n_local, bool)
        for part in self._parts:
            kept[part.first : part.last] = True
        return kept

    def shifts(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return, for rows of these parts, how much farther they are in `arrays` than in arrays of all parts, (k,)."""
        firsts = np.array([part.first for part in self._parts], np.int64)
        moved = np.array([self._begins[part.first] - part.start for part in self._parts], np.int64)
        return moved[np.searchsorted(firsts, rows, side="right") - 1]


AHEAD = 2
"""The system is asked to load this many parts ahead, since a disk would be idle between single requests."""


@dataclass
class ShardSegment:
    """Consecutive local rows in one shard, from local row `row` and local entry `entry` on, which is entry `start` of
    the shard. Entries of dense rows are whole rows."""

    shard: OpenShard  # its file has been closed; its methods that check rows and name them in messages still work
    first: int  # the number of the first of these rows in the shard
    row: int
    entry: int
    start: int
    stored: tuple[StoredArray, ...]  # (columns, values), (dense rows,) or (codes,)
    rows: int = 0
    entries: int = 0
    distance: int = 0  # of codes, which are all in one part of the shard: the number of rows of that part

    def shard_range(self, first: int, last: int) -> ShardRange:
        """Return the range of the shard's rows that are the local rows first..last - 1."""
        offset = self.first - self.row
        return ShardRange(self.shard.shard, self.shard.offset, first + offset, last + offset)


class Overlap(NamedTuple):
    """Local rows first..last - 1 in a segment: entries start..stop - 1 of a part, from `at` on in the shard."""

    segment: ShardSegment
    first: int
    last: int
    start: int
    stop: int
    at: int

    @property
    def end(self) -> int:
        """Where they end in the shard."""
        return self.at + self.stop - self.start

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the file that have to be read for them."""
        return sum(stored.n_bytes(self.at, self.end) for stored in self.segment.stored)


@dataclass
class Buffer:
    """Arrays that are large enough for any part; `holds` is the first row of the part that is in them, or -1."""

    arrays: Entries
    holds: int = -1


class Stream(ABC):
    """The rows of a rank, read from shards part by part: `add` all, then `features`, `prepare` and `load`."""

    lengths: NDArray[Any] | None = None  # of sparse rows, (n_local,): the number of entries of each

    def __init__(self, width: int, dtype: str) -> None:
        self.width, self.dtype = width, dtype
        self.bytes_per_pass = self.bytes_read = 0
        self._segments: list[ShardSegment] = []
        self._kept = KeptParts([], ())
        self._sums: dict[tuple[int, int], int] = {}  # checksums, by the first rows of part and segment
        self._buffers: list[list[Buffer]] = []  # two for each thread
        self._raw: list[Entries] = []

    @abstractmethod
    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        """Remember in which shard the rows of `part` are, which are the local rows `local`."""

    @abstractmethod
    def features(self, longest: int, differ: bool) -> LocalRows:
        """Return the rows, which use this object as source; see `SparseLoader.features`."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use: parts that stay, and buffers."""
        buffered = [buffer.arrays for pair in self._buffers for buffer in pair]
        in_memory = [self._kept.arrays, *self._raw, *buffered]
        return sum(array.nbytes for arrays in in_memory for array in arrays if array is not None)

    def prepare(self, rows: LocalRows) -> None:
        """Allocate the buffers for these rows, which use this object as their source."""
        self._runs = [[part for part in run if part.first < part.last] for run in rows.runs]
        self._rows = rows
        largest = [max((part.stop - part.start for part in run), default=0) for run in self._runs]
        self._raw = [self._as_stored(count) for count in largest]
        self._buffers = [[Buffer(self._as_held(count)) for _ in range(2)] for count in largest]

    def load(self, available: int) -> None:
        """Read and check all parts, and keep as many in memory as fit with the buffers. Local."""
        if available < self.nbytes:
            problem = f"leaves {max(available, 0)} bytes for rows, and {self.nbytes} are needed to stream them"
            more = math.ceil((self.nbytes - available) / 2**20)
            raise InputError(f"{option('memory')} {problem}: give {more}MiB more")
        self._reader, left = ThreadPoolExecutor(len(self._runs)), (available - self.nbytes) // len(self._runs)
        each = sum(array.nbytes for array in self._as_held(1) if array is not None)
        kept = [part for run in self._runs for part in evenly(run, left // max(each, 1))]
        self._kept = KeptParts(kept, self._as_held(sum(part.stop - part.start for part in kept)))
        for thread in range(len(self._runs)):
            for part, (_, entries) in zip(self._runs[thread], self.passing(thread), strict=True):
                if not self._kept.store(part, entries):
                    self.bytes_per_pass += sum(overlap.n_bytes for overlap in self._overlaps(part))

    def rows_in_memory(self, n_local: int) -> NDArray[np.bool_]:
        return self._kept.rows(n_local)

    def held_rows(self, rows: NDArray[np.intp]) -> tuple[Entries, NDArray[np.int64]]:
        """Return the arrays that hold rows in memory, and what to add to their places; see `KeptParts.shifts`."""
        return self._kept.arrays, self._kept.shifts(rows)

    def passing(self, thread: int, backward: bool = False) -> Iterator[tuple[Part, Entries]]:
        """Yield each part of a thread, in order, with its entries; see `matrix.blocks.EntrySource`."""
        run = self._runs[thread]
        missing = [part for part in run if part.first not in self._kept.stored]
        buffer_of = {part.first: k % 2 for k, part in enumerate(missing)}  # the next part never takes the same one
        missing = missing[::-1] if backward else missing

        def begin(k: int) -> Future[Entries] | None:
            if k == len(missing):
                return None
            buffer = self._buffers[thread][buffer_of[missing[k].first]]
            return self._reader.submit(self._read, missing[k : k + 1 + AHEAD], buffer, self._raw[thread])

        k, reading = 0, begin(0)
        try:
            for part in run[::-1] if backward else run:
                entries = self._kept.stored.get(part.first)
                if entries is None:
                    assert reading is not None
                    entries, k = reading.result(), k + 1
                    reading = begin(k)
                yield self._in_buffer(part), entries
        finally:
            if reading is not None and not reading.cancel():
                reading.exception()  # wait until the reading thread no longer writes to a buffer

    def _in_buffer(self, part: Part) -> Part:
        return part._replace(start=0, stop=part.stop - part.start)

    def _read(self, parts: list[Part], buffer: Buffer, raw: Entries) -> Entries:
        """Read the first of `parts` into a buffer; ask the operating system to load the others."""
        part, count = parts[0], parts[0].stop - parts[0].start
        arrays = _some(buffer.arrays, slice(count))
        if buffer.holds == part.first:
            return arrays
        for other in parts[1:]:
            for overlap in self._overlaps(other):
                for stored in overlap.segment.stored:
                    stored.prefetch(overlap.at, overlap.end)
        buffer.holds = -1
        entries = _some(raw, slice(count)) or arrays
        for overlap in self._overlaps(part):
            self._fetch(part, overlap, _some(entries, slice(overlap.start, overlap.stop)))
        self._arrange(part, entries, arrays)
        buffer.holds = part.first
        return arrays

    def _fetch(self, part: Part, overlap: Overlap, out: Entries) -> None:
        """Read the entries of an overlap. The first time, check them; later, compare their checksum."""
        segment = overlap.segment
        row = f"{segment.shard.path}: near {segment.shard.row_name(overlap.first - segment.row + segment.first)}"
        try:
            total = self._read_overlap(overlap, out)
        except EOFError as error:
            raise InputError(f"{row}: the file has become shorter while it was in use. Copy it again.") from error
        except OSError as error:
            raise InputError(f"{row}: {error.strerror}. Copy the data set again, or convert again.") from error
        self.bytes_read += overlap.n_bytes
        key = part.first, segment.row
        if key not in self._sums:
            self._check(overlap, out)
            self._sums[key] = total
        elif self._sums[key] != total:
            raise InputError(f"{row}: the file has changed while it was in use. Start again, or convert again.")

    def _read_overlap(self, overlap: Overlap, out: Entries) -> int:
        """Read the entries of an overlap; return a checksum of those without their own. Raises OSError or EOFError."""
        total = 0
        for stored, array in zip(overlap.segment.stored, out, strict=True):
            if array is None:  # all values are 1
                continue
            stored.read(overlap.at, overlap.end, array)
            if not stored.checked:
                total = 3 * total + int(kernel.checksum(array.reshape(-1).view(np.uint32)))
        return total

    def _overlaps(self, part: Part) -> Iterator[Overlap]:
        k = bisect_right(self._segments, part.first, key=lambda segment: segment.row) - 1
        while k < len(self._segments) and self._segments[k].row < part.last:
            segment, k = self._segments[k], k + 1
            start, stop = max(part.start, segment.entry), min(part.stop, segment.entry + segment.entries)
            first, last = max(part.first, segment.row), min(part.last, segment.row + segment.rows)
            at = segment.start + start - segment.entry
            yield Overlap(segment, first, last, start - part.start, stop - part.start, at)

    def _as_stored(self, count: int) -> Entries:
        """Return arrays for `count` entries as they are in the files; () if the form in memory is the same."""
        return ()

    @abstractmethod
    def _as_held(self, count: int) -> Entries:
        """Return arrays for `count` entries as they are held in memory."""

    @abstractmethod
    def _check(self, overlap: Overlap, entries: Entries) -> None:
        """Raise InputError if entries, in the form of the files, violate the format."""

    def _arrange(self, part: Part, entries: Entries, arrays: Entries) -> None:  # noqa: B027 - the form may be the same
        """Bring a part from the form of the files into the form in memory."""


class SparseStream(Stream):
    """The local rows of CSR shards. Their lengths are always in memory."""

    lengths: NDArray[Any]

    def __init__(self, ranges: list[ShardRange], n_local: int, width: int, dtype: str) -> None:
        super().__init__(width, dtype)
        self.lengths = np.zeros(n_local, length_dtype(0))
        self._valued = any(rows.shard.values for rows in ranges)
        self._filled, self._column = 0, np.dtype(np.int32)

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        indptr = shard.read_indptr(part)
        self.lengths = _count_entries(self.lengths, local, np.diff(indptr))
        if not self._segments or self._segments[-1].shard is not shard:
            stored = shard.stored("X/indices", "X/data")
            self._column = np.promote_types(self._column, stored[0].dtype)
            self._segments.append(ShardSegment(shard, part.start, local.start, self._filled, int(indptr[0]), stored))
        self._segments[-1].rows += part.rows
        self._segments[-1].entries += int(indptr[-1] - indptr[0])
        self._filled += int(indptr[-1] - indptr[0])

    def features(self, longest: int, differ: bool) -> SparseRows:
        self.lengths = self.lengths.astype(length_dtype(longest), copy=False)
        columns, values = self._as_held(0)
        return SparseRows(values, columns, self.lengths, self.width, sort=differ, source=self)

    def _as_stored(self, count: int) -> Entries:
        return np.empty(count, self._column), np.empty(count, self.dtype) if self._valued else None

    def _as_held(self, count: int) -> Entries:
        return np.empty(count, unsigned(self.width - 1)), np.empty(count, self.dtype) if self._valued else None

    def _check(self, overlap: Overlap, entries: Entries) -> None:
        lengths = self.lengths[overlap.first : overlap.last]
        indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        shard_range, (columns, values) = overlap.segment.shard_range(overlap.first, overlap.last), entries
        overlap.segment.shard.check_indices(shard_range, indptr, columns)
        if values is not None:
            overlap.segment.shard.check_finite(shard_range, indptr, values)

    def _arrange(self, part: Part, entries: Entries, arrays: Entries) -> None:
        columns, values = entries
        assert isinstance(self._rows, SparseRows)
        self._rows.arrange(part._replace(start=0, stop=len(columns)), columns, values, *arrays)


class DenseStream(Stream):
    """The local rows of dense shards, held in memory as they are stored."""

    def __init__(self, n_local: int, width: int, dtype: str) -> None:
        super().__init__(width, dtype)
        self._n_local = n_local

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        if not self._segments or self._segments[-1].shard is not shard:
            self._segments.append(
                ShardSegment(shard, part.start, local.start, local.start, part.start, shard.stored("X"))
            )
        self._segments[-1].rows += part.rows
        self._segments[-1].entries += part.stop - part.start

    def features(self, longest: int, differ: bool) -> DenseRows:
        return DenseRows(self._as_held(0)[0], source=self, rows=self._n_local)

    def _as_held(self, count: int) -> Entries:
        return (np.empty((count, self.width), self.dtype),)

    def _check(self, overlap: Overlap, entries: Entries) -> None:
        overlap.segment.shard.check_finite(overlap.segment.shard_range(overlap.first, overlap.last), None, entries[0])


class CodedStream(Stream):
    """The codes of the local rows, of group `number` of the coded columns. Each part lies in one segment."""

    def __init__(self, number: int, code_map: CodeMap) -> None:
        super().__init__(code_map.p, code_map.dtype.name)
        self._number, self._map, self._cuts = number, code_map, [0]

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        stored = shard.stored(f"codes/{self._number}")
        for piece in shard.coded_parts(self._number, part):
            rows, row = piece.last - piece.first, self._cuts[-1]
            self._segments.append(
                ShardSegment(shard, piece.first, row, 0, piece.at, stored, rows, distance=piece.distance)
            )
            self._cuts.append(row + rows)

    def features(self, longest: int, differ: bool) -> CodedRows:
        return CodedRows(self._map, self._as_held(0)[0], self._cuts, source=self)

    def _in_buffer(self, part: Part) -> Part:
        return Part(part.first, part.last, 0, part.stop - part.start, part.last - part.first)

    def _overlaps(self, part: Part) -> Iterator[Overlap]:
        """Yield the segment in which a part lies. If it is a piece of a segment, its codes begin at `at`."""
        segment = self._segments[bisect_right(self._segments, part.first, key=lambda segment: segment.row) - 1]
        at = segment.start + part.first - segment.row
        yield Overlap(segment, part.first, part.last, 0, part.stop - part.start, at)

    def _read_overlap(self, overlap: Overlap, out: Entries) -> int:
        segment, (buffer,) = overlap.segment, out
        first = overlap.first - segment.row + segment.first
        last = first + overlap.last - overlap.first
        table = self._table(overlap, buffer)
        read_part(segment.stored[0], StoredPart(first, last, overlap.at, segment.distance), table)
        if segment.stored[0].checked:
            return 0
        octets = buffer.view(np.uint8)
        words = len(octets) // 4 * 4
        return int(kernel.checksum(octets[:words].view(np.uint32))) + int(octets[words:].sum(dtype=np.uint64))

    def _check(self, overlap: Overlap, entries: Entries) -> None:
        shard_range = overlap.segment.shard_range(overlap.first, overlap.last)
        overlap.segment.shard.check_codes(self._number, shard_range, self._table(overlap, entries[0]))

    def _table(self, overlap: Overlap, buffer: NDArray[Any]) -> NDArray[Any]:
        return buffer.reshape(self._map.n_codes, overlap.last - overlap.first)

    def _as_held(self, count: int) -> Entries:
        return (np.empty(count, self._map.dtype),)


ColumnGroup: TypeAlias = SparseLoader | DenseLoader | CodedLoader | Stream
"""The local rows of a group of columns: of X, or of a group of coded columns."""
