"""Local rows cut into parts, and passes over them on threads.

The rows are cut into parts of nearly equal work. Each thread takes a run of parts, and all but the first need a vector
of length p of their own for X'c, summed in a fixed order: results depend on the number of threads in the last digits,
and not on chance. Threads are OMP_NUM_THREADS, or 1.

Where not all entries are in memory, a `Source` brings those of one part after the other; sums are the same to the bit.

Normalized rows are x_ij a_i b_j, with a factor for each row or each column. Entries stay as they were read: the factors
are multiplied into the vectors, in float64, so that a row has one score, whatever type its entries are held in.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from distsms.matrix.normalization import Normalization, inverse
from distsms.utils.typing import Floats

Vectors = Floats | Sequence[Floats]
Entries = tuple[Any, ...]
"""The arrays that hold entries: columns, and values or None, of sparse rows; the rows themselves of dense ones."""
T = TypeVar("T")


def threads_wanted() -> int:
    """OMP_NUM_THREADS (its first number, if several are given), or 1."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else 1


class Part(NamedTuple):
    """Local rows first..last. In the arrays that hold them they are start..stop: entries, or rows of dense ones.

    run : the first run of sparse rows.
    """

    first: int
    last: int
    start: int = 0
    stop: int = 0
    run: int = 0


class Source(Protocol):
    """Where entries are that are not all in memory; see `distsms.data.shards.streaming`."""

    @property
    def bytes_per_pass(self) -> int:
        """Bytes read from files on each pass over all parts."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""

    def passing(self, thread: int, backward: bool = False) -> Iterator[tuple[Part, Entries]]:
        """Each part of a thread's run, and arrays that hold it until the next one is asked for."""


class Rows(ABC):
    """Local rows cut into parts; what sparse and dense ones have in common."""

    def __init__(
        self, shape: tuple[int, int], parts: list[Part], threads: int, entries: Entries, source: Source | None
    ) -> None:
        """entries : where the parts are; with a source, arrays of their types alone."""
        self.shape = shape  # (n_local, p)
        self.source = source
        self._entries = entries
        share = -(-len(parts) // threads)
        self.column_factors, self.row_factors = np.empty(0), np.empty(0)  # see `normalize`; empty: all are 1
        self._weighted = np.empty((0, 0))  # w or c times factors
        self.runs = [parts[i : i + share] for i in range(0, len(parts), share)]
        self._pool = ThreadPoolExecutor(threads) if len(self.runs) > 1 else None
        self._sums = np.empty((len(self.runs) - 1, 1, shape[1]))  # X'c of all threads but the first
        # Compiles the kernels, or loads them from their cache, now and not in the first evaluation.
        no_rows, nothing = Part(0, 0), np.empty(0)
        self._dot(no_rows, entries, nothing, nothing)
        self._add(no_rows, entries, nothing, nothing)
        self._largest(no_rows, entries, nothing)
        self._describe(no_rows, entries, nothing, nothing)
        self._square(no_rows, entries, nothing)
        self._length(no_rows, entries, nothing)

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Stored entries."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        held = [*self._entries, self.column_factors, self.row_factors, self._weighted]
        return sum(array.nbytes for array in held if array is not None) + (self.source.nbytes if self.source else 0)

    def normalize(self, how: Normalization) -> None:
        """Take the rows as `how` has them from now on. Local. Columns beyond the scale stay as they are.

        Cost: 8 bytes for each column (standard, maxabs) or row (l2), and 8 more for each vector of a product, in which
        these are multiplied; and for l2 a pass.
        """
        p = self.shape[1]
        if how.scale is not None:
            more = max(p - len(how.scale), 0)
            self.column_factors = np.append(how.scale, np.ones(more)) if more else how.scale[:p]
        if how.kind == "l2":
            self.row_factors = inverse(self.lengths())

    def lengths(self) -> Floats:
        """sqrt(sum_j x_ij^2) of each row as it is held, (n_local,)."""
        found = np.empty(self.shape[0])

        def run(thread: int) -> None:
            for part, entries in self._passing(thread):
                self._length(part, entries, found)

        self._on_threads(run)
        return found

    def margins(self, W: Vectors, out: Floats | None = None) -> Floats:
        """X W, into `out` if given (C-contiguous, of the shape of the result)."""
        vectors, out, rows = self._prepared(W, out, self.shape[1], self.shape[0])
        vectors = self._times(vectors, self.column_factors)

        def run(thread: int) -> None:
            # Backward: it begins with what the last pass, forward for its sums, has left in buffers and caches.
            for part, entries in self._passing(thread, backward=True):
                for w, s in zip(vectors, rows, strict=True):
                    self._dot(part, entries, w, s)
                    if len(self.row_factors):
                        s[part.first : part.last] *= self.row_factors[part.first : part.last]

        self._on_threads(run)
        return out

    def transposed_times(self, C: Vectors, out: Floats | None = None) -> Floats:
        """X' C, to be summed over ranks; into `out` if given. C may also be a sequence of k arrays (n_local,)."""
        vectors, out, first = self._prepared(C, out, self.shape[0], self.shape[1])
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

    def largest_terms(self, w: Floats) -> float:
        """The largest over rows of (entries + 2) sum_j |x_ij w_j|: eps/2 of it bounds what rounding does to X w.

        Each product and sum of a row rounds, and so does its factor's product; the factors themselves are as they are.
        """
        vectors, _, _ = self._prepared(w, None, self.shape[1], 0)
        (vector,) = self._times(vectors, self.column_factors)

        def run(thread: int) -> float:
            return max((self._largest(*one, vector) for one in self._passing(thread)), default=0.0)

        return float(max(self._on_threads(run)))

    def columns(self) -> tuple[Floats, Floats]:
        """The largest |x_ij| of each column, and how many entries it has; both (p,), local. One pass on one thread."""
        largest, counts = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        for thread in range(len(self.runs)):
            for part, entries in self._passing(thread):
                self._describe(part, entries, largest, counts)
        if len(self.column_factors):
            largest *= self.column_factors
        return largest, counts

    def second_moments(self) -> Floats:
        """sum_i x_ij^2, (p,), to be summed over ranks. One pass on one thread."""
        squares = np.zeros(self.shape[1])
        for thread in range(len(self.runs)):
            for part, entries in self._passing(thread):
                self._square(part, entries, squares)
        if len(self.column_factors):
            with np.errstate(over="ignore"):
                squares *= self.column_factors
                squares *= self.column_factors
        return squares

    @abstractmethod
    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None: ...

    @abstractmethod
    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None: ...

    @abstractmethod
    def _largest(self, part: Part, entries: Entries, w: Floats) -> float: ...

    @abstractmethod
    def _describe(self, part: Part, entries: Entries, largest: Floats, counts: Floats) -> None: ...

    @abstractmethod
    def _square(self, part: Part, entries: Entries, squares: Floats) -> None: ...

    @abstractmethod
    def _length(self, part: Part, entries: Entries, out: Floats) -> None: ...

    def _passing(self, thread: int, backward: bool = False) -> Iterator[tuple[Part, Entries]]:
        """Each part of a thread's run, and the arrays that hold it."""
        if self.source is not None:
            return self.source.passing(thread, backward)
        return ((part, self._entries) for part in self.runs[thread])

    def _on_threads(self, run: Callable[[int], T]) -> Iterable[T]:
        """run(thread) for each thread."""
        if self._pool is None:
            return [run(0)]
        return list(self._pool.map(run, range(len(self.runs))))

    def _times(self, vectors: list[Floats], factors: Floats) -> list[Floats]:
        """The k vectors times the factors, until the next call; they themselves if all factors are 1."""
        if not len(factors):
            return vectors
        if self._weighted.shape != (shape := (len(vectors), len(factors))):
            self._weighted = np.empty(shape)
        return [np.multiply(one, factors, out=room) for one, room in zip(vectors, self._weighted, strict=True)]

    @staticmethod
    def _prepared(
        given: Vectors, out: Floats | None, length: int, result: int
    ) -> tuple[list[Floats], Floats, list[Floats]]:
        """The k vectors as the kernels want them, the result, and its rows; kernels check nothing, so this does."""
        single = isinstance(given, np.ndarray) and given.ndim == 1
        vectors = [np.ascontiguousarray(one, np.float64) for one in ([given] if single else given)]
        shape = (result,) if single else (len(vectors), result)
        out = np.empty(shape) if out is None else out
        if any(one.shape != (length,) for one in vectors):
            raise ValueError(f"vectors of shape {vectors[0].shape} where ({length},) is wanted")
        if out.shape != shape or out.dtype != np.float64 or not out.flags.c_contiguous:
            raise ValueError(f"the result is C-contiguous float64 of shape {shape}, not {out.dtype} {out.shape}")
        return vectors, out, [out] if single else list(out)
