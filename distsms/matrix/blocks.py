"""Local rows divided into parts of nearly equal work, and multithreaded passes over the parts.

For X'c, every thread but the first needs a vector of length p, which are added up in a fixed order: results depend on
the number of threads in the last digits, but not on timing. If entries do not fit into memory, an `EntrySource` loads
those of one part after the other, with the same sums. Normalized rows are x_ij a_i b_j; entries stay as they were read,
and the factors are multiplied into the vectors, in float64.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix.base import ColumnStatistics, RowEntries
from distsms.matrix.moments import Moments
from distsms.matrix.normalization import Normalization, inverse

Vectors = Floats | Sequence[Floats]
Entries = tuple[Any, ...]
"""The arrays that hold entries: (columns, values or None) of sparse rows, or (the rows themselves,) of dense ones."""
T = TypeVar("T")
Rows = TypeVar("Rows", bound="LocalRows")


def thread_count() -> int:
    """Return the number of threads: the first number in OMP_NUM_THREADS, or 1 if there is none."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else 1


class Part(NamedTuple):
    """The local rows first <= i < last, which the arrays hold at start <= k < stop: entries if sparse, or rows."""

    first: int
    last: int
    start: int = 0
    stop: int = 0
    run: int = 0  # the index of the part's first run of equally long sparse rows; see `distsms.matrix.kernels.Runs`


class EntrySource(Protocol):
    """Loads entries that do not all fit into memory; see `distsms.shards.local_rows`."""

    @property
    def bytes_per_pass(self) -> int:
        """Bytes that one pass over all parts reads from files."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that this source occupies."""

    def passing(self, thread: int, backward: bool = False) -> Iterator[tuple[Part, Entries]]:
        """Yield each part of a thread, in order, with arrays that hold it until the next part is requested."""

    def rows_in_memory(self, n_local: int) -> NDArray[np.bool_]:
        """Return which of the local rows stay in memory, (n_local,)."""

    def held_rows(self, rows: NDArray[Any]) -> tuple[Entries, NDArray[np.int64]]:
        """Return the arrays that hold these rows, and by how much the places of `Part` must be shifted there, (k,)."""


class LocalRows(ABC):
    """What sparse and dense local rows have in common: parts, threads, normalization, the products of `Features`."""

    stored = "nonzeros"  # what `nnz` counts, for people
    nnz: int
    longest: int
    """At least the number of entries of each row; for codes also at least the roundings of an entry's term."""

    def __init__(
        self, shape: tuple[int, int], parts: list[Part], threads: int, entries: Entries, source: EntrySource | None
    ) -> None:
        """Divide the parts among the threads; with a source, `entries` are empty arrays of the right types."""
        self.shape = shape  # (n_local, p)
        self.source = source
        self.arrays = entries  # that hold the entries; without those of the source
        share = -(-len(parts) // threads)
        self.column_factors, self.row_factors = np.empty(0), np.empty(0)  # see `normalize`; empty if all are 1
        self._weighted = np.empty((0, 0))  # w or c multiplied by the factors
        self.runs = [parts[i : i + share] for i in range(0, len(parts), share)]
        self._pool = ThreadPoolExecutor(threads) if len(self.runs) > 1 else None
        self._sums = np.empty((len(self.runs) - 1, 1, shape[1]))  # X'c of all threads but the first
        # These calls compile the kernels, or load them from their cache, before the first evaluation needs them.
        no_rows, nothing = Part(0, 0), np.empty(0)
        self._dot(no_rows, entries, nothing, nothing)
        self._add(no_rows, entries, nothing, nothing)
        self._largest(no_rows, entries, nothing)
        self._describe(no_rows, entries, ColumnStatistics(nothing, nothing, nothing))
        self._length(no_rows, entries, nothing)

    def score_buffer(self, k: int) -> Floats:
        return np.empty((k, self.shape[0]))

    @property
    def bytes_per_pass(self) -> int:  # from files
        return 0 if self.source is None else self.source.bytes_per_pass

    @abstractmethod
    def take(self: Rows, rows: NDArray[np.bool_]) -> Rows:
        """Return a copy of the rows that `rows` (n_local,) marks, normalized in the same way. Local, one pass."""

    @property
    def nbytes(self) -> int:
        arrays = [*self.arrays, self.column_factors, self.row_factors, self._weighted]
        return sum(array.nbytes for array in arrays if array is not None) + (self.source.nbytes if self.source else 0)

    def normalize(self, normalization: Normalization) -> None:
        """Use normalized rows from now on; columns beyond those of the normalization stay as they are. Local."""
        p, scale = self.shape[1], normalization.scale
        if scale is not None:
            self.column_factors = scale[:p] if len(scale) >= p else np.append(scale, np.ones(p - len(scale)))
        if normalization.kind == "l2":
            self.row_factors = inverse(self.lengths())

    def _normalized(self, taken: Rows, rows: NDArray[np.bool_]) -> Rows:
        taken.column_factors = self.column_factors
        taken.row_factors = self.row_factors[rows] if len(self.row_factors) else self.row_factors
        return taken

    def lengths(self) -> Floats:
        """Return the norms ||x_i|| of the rows as they are stored, (n_local,)."""
        lengths = np.empty(self.shape[0])

        def run(thread: int) -> None:
            for part, entries in self._passing(thread):
                self._length(part, entries, lengths)

        self._on_threads(run)
        return lengths

    def margins(self, W: Vectors, out: Floats | None = None, add: bool = False) -> Floats:
        """Compute X W, or with `add` add it to `out`; W may be a sequence of k arrays (p,)."""
        vectors, out, rows = prepared(W, out, self.shape[1], self.shape[0])
        vectors = self._times(vectors, self.column_factors)

        def run(thread: int) -> None:
            # X'c passes forward, so this pass goes backward: it begins with the parts that are still in the caches.
            for part, entries in self._passing(thread, backward=True):
                here = slice(part.first, part.last)
                for w, s in zip(vectors, rows, strict=True):
                    before = s[here].copy() if add else None
                    self._dot(part, entries, w, s)
                    if len(self.row_factors):
                        s[here] *= self.row_factors[here]
                    if before is not None:
                        s[here] += before

        self._on_threads(run)
        return out

    def transposed_times(self, C: Vectors, out: Floats | None = None) -> Floats:
        vectors, out, first = prepared(C, out, self.shape[0], self.shape[1])
        vectors = self._times(vectors, self.row_factors)
        if self._sums.shape[1] != len(vectors):
            self._sums = np.empty((len(self._sums), len(vectors), self.shape[1]))

        def run(thread: int) -> None:
            sums = self._sums[thread - 1] if thread else first
            for total in sums:
                total[:] = 0
            for part, entries in self._passing(thread):
                for c, total in zip(vectors, sums, strict=True):
                    self._add(part, entries, c, total)

        self._on_threads(run)
        for others in self._sums:
            for total, other in zip(first, others, strict=True):
                total += other
        if len(self.column_factors):
            for total in first:
                total *= self.column_factors
        return out

    def largest_terms(self, w: Floats) -> float:  # the factors count as exact
        vectors, _, _ = prepared(w, None, self.shape[1], 0)
        (vector,) = self._times(vectors, self.column_factors)

        def run(thread: int) -> float:
            return max((self._largest(part, entries, vector) for part, entries in self._passing(thread)), default=0.0)

        return float(max(self._on_threads(run)))

    def most_terms(self, largest: float) -> float:
        return (self.longest + 4) * self.longest**0.5 * largest

    def columns(self, weights: Floats | None = None) -> ColumnStatistics:
        statistics, factors = self._described(), self.row_factors
        if weights is not None:  # the squares of a row times sqrt(a) are a times its squares
            self.row_factors = np.sqrt(weights) * (factors if len(factors) else 1.0)
            statistics = statistics._replace(squares=self._described().squares)
            self.row_factors = factors
        if len(self.column_factors):
            with np.errstate(over="ignore"):
                for array in (statistics.largest, statistics.squares, statistics.squares):
                    array *= self.column_factors
        return statistics

    def _described(self) -> ColumnStatistics:
        """Describe the columns before they are multiplied by their factors."""
        statistics = ColumnStatistics._make(np.zeros(self.shape[1]) for _ in ColumnStatistics._fields)
        for part, entries in self._all_parts():
            self._describe(part, entries, statistics)
        return statistics

    def rows_in_memory(self) -> NDArray[np.bool_]:
        return np.ones(self.shape[0], bool) if self.source is None else self.source.rows_in_memory(self.shape[0])

    def row_entries(self, rows: NDArray[Any] | None = None) -> RowEntries | None:
        if self.source is not None and rows is None:
            return None
        # The arrays that hold the rows, and what to add to the places of these rows in `Part`.
        arrays, shifts = (self.arrays, 0) if self.source is None or rows is None else self.source.held_rows(rows)
        of_rows = self.row_factors if rows is None or not len(self.row_factors) else self.row_factors[rows]
        of_columns = self.column_factors if len(self.column_factors) else None
        entries = self._entries_of(rows, arrays, shifts)
        return entries._replace(column_factors=of_columns, row_factors=of_rows if len(of_rows) else None)

    def _entries_of(self, rows: NDArray[Any] | None, arrays: Entries, shifts: Any) -> RowEntries:
        """Return the entries of some rows, or of all, without factors."""
        raise NotImplementedError

    @np.errstate(over="ignore", invalid="ignore")
    def moments(self, group: NDArray[np.int16], k: int, weights: Floats | None = None) -> Moments:
        """Return weighted moments of k groups of rows, negative ones left out; NotImplementedError for codes."""
        moments = Moments.empty(k, self.shape[1])
        self._gather(group, np.empty(0) if weights is None else weights, moments)
        if len(self.column_factors):
            moments.mean[:] *= self.column_factors
            moments.scatter[:] *= np.outer(self.column_factors, self.column_factors)
        return moments

    def _gather(self, group: NDArray[np.int16], weights: Floats, moments: Moments) -> None:
        """Add up `moments`, without the factors of columns; weights are empty if all are 1."""
        raise NotImplementedError

    @abstractmethod
    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None: ...

    @abstractmethod
    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None: ...

    @abstractmethod
    def _largest(self, part: Part, entries: Entries, w: Floats) -> float: ...

    @abstractmethod
    def _describe(self, part: Part, entries: Entries, statistics: ColumnStatistics) -> None: ...

    @abstractmethod
    def _length(self, part: Part, entries: Entries, out: Floats) -> None: ...

    def _passing(self, thread: int, backward: bool = False) -> Iterator[tuple[Part, Entries]]:
        if self.source is not None:
            return self.source.passing(thread, backward)
        return ((part, self.arrays) for part in self.runs[thread])

    def _all_parts(self) -> Iterator[tuple[Part, Entries]]:
        return chain.from_iterable(map(self._passing, range(len(self.runs))))

    def _on_threads(self, run: Callable[[int], T]) -> Iterable[T]:
        """Call run(thread) on each thread and return the results."""
        if self._pool is None:
            return [run(0)]
        return list(self._pool.map(run, range(len(self.runs))))

    def _times(self, vectors: list[Floats], factors: Floats) -> list[Floats]:
        """Return the k vectors, multiplied by the factors if there are any, valid until the next call."""
        if not len(factors):
            return vectors
        if self._weighted.shape != (shape := (len(vectors), len(factors))):
            self._weighted = np.empty(shape)
        return [np.multiply(vector, factors, out=row) for vector, row in zip(vectors, self._weighted, strict=True)]


def prepared(
    vectors_of_call: Vectors, out: Floats | None, length: int, result: int
) -> tuple[list[Floats], Floats, list[Floats]]:
    """Return k checked vectors of a length for kernels, the array for k results of a length, and its k rows."""
    single = isinstance(vectors_of_call, np.ndarray) and vectors_of_call.ndim == 1
    listed = [vectors_of_call] if single else vectors_of_call
    vectors = [np.ascontiguousarray(vector, np.float64) for vector in listed]
    shape = (result,) if single else (len(vectors), result)
    out = np.empty(shape) if out is None else out
    if wrong := [vector.shape for vector in vectors if vector.shape != (length,)]:
        raise ValueError(f"a vector has the shape {wrong[0]}, but ({length},) is needed")
    if out.shape != shape or out.dtype != np.float64 or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous float64 of shape {shape}; it is {out.dtype} of shape {out.shape}")
    return vectors, out, [out] if single else list(out)
