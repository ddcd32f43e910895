"""What a rank holds of X (its local rows): products with w and with the per-row coefficients, and nothing else.

Two classes with one interface, `Sparse` (with or without values) and `Dense`; no other module asks which one it has:

    shape, nnz, nbytes      (n_local, p), stored entries, bytes of memory held
    margins(W)              s = X w      W (p,) or (k, p)              -> (n_local,) or (k, n_local)
    transposed_times(C)     X' c         C (n_local,) or (k, n_local)  -> (p,) or (k, p): this rank's summand
    second_moments()        sum_i x_ij^2                               -> (p,): this rank's summand
    largest_terms(w)        what rounding can do to X w                -> a number
    columns()               max_i |x_ij| and the count of entries      -> (p,) and (p,), of this rank's rows

All vectors are local and float64; k of them lie one below the other, each contiguous, and share one pass over memory.
X is held as narrow as it is, float32 values as float32, and never copied; sums are float64. Nothing communicates: the
caller sums X'c and the second moments over ranks. n_local = 0 is an ordinary case: X'c is then zero.

The rows are cut into parts of nearly equal work. Each thread takes a run of parts, and all but the first need a vector
of length p of their own for X'c, summed in a fixed order: results depend on the number of threads in the last digits,
and not on chance. Threads are OMP_NUM_THREADS, or 1.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms import features_kernel as kernel

Floats = NDArray[np.float64]
Vectors = Floats | Sequence[Floats]
T = TypeVar("T")

PART_ENTRIES = 2**20
"""Entries of a part: few enough to stay in a cache for the next of k vectors, enough to forget what a call costs."""
_SHORT, _FEW, _SAMPLE = 8, 8, 256
"""Rows of fewer entries are never passed over; one in so many is few; coefficients that are looked at to tell."""


def index_dtype(nnz: int, p: int) -> Any:
    """int32 if local entries and columns can be counted in it, else int64; SciPy wants one type for both."""
    return np.int32 if max(nnz, p) <= np.iinfo(np.int32).max else np.int64


def unsigned(largest: int) -> Any:
    """The smallest unsigned type that holds `largest`, in at least the 16 bits that column indices have."""
    return np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64


def length_dtype(longest: int) -> Any:
    """The smallest unsigned type for the numbers of entries of rows: 8 bits mostly."""
    return np.uint8 if longest < 2**8 else unsigned(longest)


def threads_wanted() -> int:
    """OMP_NUM_THREADS (its first number, if several are given), or 1."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else 1


class Part(NamedTuple):
    """Local rows first..last; the entries of sparse ones begin at `start`."""

    first: int
    last: int
    start: int


class Rows(ABC):
    """Local rows cut into parts; what sparse and dense ones have in common."""

    def __init__(self, shape: tuple[int, int], parts: list[Part], threads: int) -> None:
        self.shape = shape  # (n_local, p)
        share = -(-len(parts) // threads)
        self._runs = [parts[i : i + share] for i in range(0, len(parts), share)]
        self._pool = ThreadPoolExecutor(threads) if len(self._runs) > 1 else None
        self._sums = np.empty((len(self._runs) - 1, 1, shape[1]))  # X'c of all threads but the first
        # Compiles the kernels, or loads them from their cache, now and not in the first evaluation.
        no_rows, nothing = Part(0, 0, 0), np.empty(0)
        self._dot(no_rows, nothing, nothing)
        self._add(no_rows, nothing, nothing)
        self._largest(no_rows, nothing)

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Stored entries."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory held."""

    def margins(self, W: Vectors, out: Floats | None = None) -> Floats:
        """X W, into `out` if given (C-contiguous, of the shape of the result)."""
        vectors, out, rows = self._prepared(W, out, self.shape[1], self.shape[0])

        def run(parts: list[Part], _: int) -> None:
            for part in parts:
                for w, s in zip(vectors, rows, strict=True):
                    self._dot(part, w, s)

        self._on_threads(run)
        return out

    def transposed_times(self, C: Vectors, out: Floats | None = None) -> Floats:
        """X' C, to be summed over ranks; into `out` if given. C may also be a sequence of k arrays (n_local,)."""
        vectors, out, first = self._prepared(C, out, self.shape[0], self.shape[1])
        if self._sums.shape[1] != len(vectors):
            self._sums = np.empty((len(self._sums), len(vectors), self.shape[1]))

        def run(parts: list[Part], thread: int) -> None:
            sums = self._sums[thread - 1] if thread else first
            for total in sums:
                total[:] = 0
            for part in parts:
                for c, total in zip(vectors, sums, strict=True):
                    self._add(part, c, total)

        self._on_threads(run)
        for others in self._sums:
            for total, other in zip(first, others, strict=True):
                total += other
        return out

    def largest_terms(self, w: Floats) -> float:
        """The largest over rows of (entries + 2) sum_j |x_ij w_j|: eps/2 of it bounds what rounding does to X w."""
        (vector,), _, _ = self._prepared(w, None, self.shape[1], 0)
        found = self._on_threads(lambda parts, _: max(self._largest(part, vector) for part in parts))
        return float(max(found))

    @abstractmethod
    def columns(self) -> tuple[Floats, Floats]:
        """The largest |x_ij| of each column, and how many entries it has; both (p,), local. One pass on one thread."""

    @abstractmethod
    def second_moments(self) -> Floats:
        """sum_i x_ij^2, (p,), to be summed over ranks. One pass on one thread."""

    @abstractmethod
    def _dot(self, part: Part, w: Floats, out: Floats) -> None: ...

    @abstractmethod
    def _add(self, part: Part, c: Floats, out: Floats) -> None: ...

    @abstractmethod
    def _largest(self, part: Part, w: Floats) -> float: ...

    def _on_threads(self, run: Callable[[list[Part], int], T]) -> Iterable[T]:
        """run(parts, thread) for each thread's run of parts."""
        if self._pool is None:
            return [run(self._runs[0], 0)]
        return list(self._pool.map(run, self._runs, range(len(self._runs))))

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


class Sparse(Rows):
    """Local rows in compressed form. Products cost O(nnz k).

    Bytes: for each entry 2 (p <= 65,536), 4 (p <= 2^32) or 8 for its column, and 4 or 8 for its value, if it has one;
    for each row 1 (no row has more than 255 entries), 2, 4 or 8.
    """

    def __init__(
        self,
        values: NDArray[Any] | None,
        indices: NDArray[Any],
        lengths: NDArray[Any],
        p: int,
        threads: int | None = None,
    ) -> None:
        """values (nnz,), or None: all are 1; indices (nnz,) from 0, ascending in each row; lengths (n_local,) of rows.

        What is of its final type is not copied: values float32 or float64, indices `unsigned(p - 1)`, lengths unsigned.
        """
        indices = np.ascontiguousarray(indices, unsigned(p - 1))
        if values is not None:
            values = np.ascontiguousarray(values, None if values.dtype == np.float32 else np.float64)
        if lengths.dtype.kind != "u":
            lengths = lengths.astype(length_dtype(int(lengths.max(initial=0))))
        self._arrays = indices, values, lengths
        self._alike = kernel.rows_alike(lengths)
        threads = threads or threads_wanted()
        super().__init__((len(lengths), p), _parts(lengths, len(indices), threads), threads)
        nothing, none = (indices[:0], None if values is None else values[:0]), np.zeros(0)
        kernel.describe_columns(*nothing, none, none)
        kernel.add_squares(*nothing, none)

    @classmethod
    def of(cls, X: sparse.csr_matrix, threads: int | None = None) -> Sparse:
        """A SciPy matrix in canonical CSR format."""
        return cls(X.data, X.indices.view(f"u{X.indices.itemsize}"), np.diff(X.indptr), X.shape[1], threads)

    @property
    def nnz(self) -> int:
        return len(self._arrays[0])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays if array is not None)

    def columns(self) -> tuple[Floats, Floats]:
        largest, counts = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        kernel.describe_columns(*self._arrays[:2], largest, counts)
        return largest, counts

    def second_moments(self) -> Floats:
        squares = np.zeros(self.shape[1])
        kernel.add_squares(*self._arrays[:2], squares)
        return squares

    def _dot(self, part: Part, w: Floats, out: Floats) -> None:
        kernel.dot_rows(*self._arrays, *part, self._alike, w, out)

    def _add(self, part: Part, c: Floats, out: Floats) -> None:
        kernel.add_rows(*self._arrays, *part, self._alike, self._skips(c), c, out)

    def _largest(self, part: Part, w: Floats) -> float:
        return kernel.largest_row(*self._arrays, *part, w)

    def _skips(self, c: Floats) -> bool:
        """Whether passing over rows with c_i = 0 is worth a branch: where reading them is dear, or few others are left.

        With short rows in the cache a badly guessed branch costs more than the row.
        """
        if self.nnz < _SHORT * len(c):
            return False
        sample = c[:: 1 + len(c) // _SAMPLE]
        return self._arrays[0].itemsize > 2 or _FEW * np.count_nonzero(sample) <= len(sample)


class Pattern(Sparse):
    """Local rows of a 0/1 matrix: only the places of the ones are held."""

    def __init__(self, indices: NDArray[Any], lengths: NDArray[Any], p: int, threads: int | None = None) -> None:
        """indices (nnz,) and lengths (n_local,) as for `Sparse`."""
        super().__init__(None, indices, lengths, p, threads)


class Dense(Rows):
    """Local rows as one C-contiguous array of float32 or float64. Products cost O(n_local p k)."""

    def __init__(self, array: NDArray[Any], threads: int | None = None) -> None:
        """array (n_local, p); not copied if it is C-contiguous float32 or float64."""
        self._array = np.ascontiguousarray(array, None if array.dtype == np.float32 else np.float64)
        n_local, p = array.shape
        threads = threads or threads_wanted()
        count = threads * max(1, -(-array.size // (threads * PART_ENTRIES)))
        cuts = [n_local * t // count for t in range(count + 1)]
        super().__init__((n_local, p), [Part(*two, 0) for two in pairwise(cuts)], threads)
        kernel.largest_dense_entries(self._array[:0], np.zeros(0))
        kernel.add_squares_dense(self._array[:0], np.zeros(0))

    @property
    def nnz(self) -> int:
        return self._array.size

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def columns(self) -> tuple[Floats, Floats]:
        largest = np.zeros(self.shape[1])
        kernel.largest_dense_entries(self._array, largest)
        return largest, np.full(self.shape[1], float(self.shape[0]))

    def second_moments(self) -> Floats:
        squares = np.zeros(self.shape[1])
        kernel.add_squares_dense(self._array, squares)
        return squares

    def _dot(self, part: Part, w: Floats, out: Floats) -> None:
        kernel.dot_dense(self._array, part.first, part.last, w, out)

    def _add(self, part: Part, c: Floats, out: Floats) -> None:
        kernel.add_dense(self._array, part.first, part.last, c, out)

    def _largest(self, part: Part, w: Floats) -> float:
        return kernel.largest_dense(self._array, part.first, part.last, w)


def _parts(lengths: NDArray[Any], nnz: int, threads: int) -> list[Part]:
    """Parts of at most about PART_ENTRIES rows and entries, as many as divide among the threads."""
    count = threads * max(1, -(-(nnz + len(lengths)) // (threads * PART_ENTRIES)))
    rows, entries = np.zeros((2, count + 1), np.int64)
    rows[-1], entries[-1] = len(lengths), nnz
    kernel.split_rows(lengths, rows, entries)
    cuts = list(zip(rows.tolist(), entries.tolist(), strict=True))
    if int(np.sum(lengths, dtype=np.int64)) != nnz:
        raise ValueError(f"row lengths that do not sum up to {nnz} entries")
    return [Part(first, last, start) for (first, start), (last, _) in pairwise(cuts)]


Features = Sparse | Dense


def rows_of(X: Any) -> Features:
    """The rows of X, a SciPy sparse matrix or array-like (n_local, p), copied only where their type is another."""
    if not sparse.issparse(X):
        return Dense(np.asarray(X))
    X = sparse.csr_matrix(X)
    if not X.has_canonical_format:  # sorted, nothing twice; not in the caller's own arrays
        X = X.copy()
        X.sum_duplicates()
    return Sparse.of(X)
