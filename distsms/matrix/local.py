"""What a rank holds of X (its local rows): products with w and with the per-row coefficients, and nothing else.

Two classes with one interface, `Sparse` (with or without values) and `Dense`; no other module asks which one it has:

    shape, nnz, nbytes      (n_local, p), stored entries, bytes of memory held
    margins(W)              s = X w      W (p,) or (k, p)              -> (n_local,) or (k, n_local)
    transposed_times(C)     X' c         C (n_local,) or (k, n_local)  -> (p,) or (k, p): this rank's summand
    second_moments()        sum_i x_ij^2                               -> (p,): this rank's summand
    largest_terms(w)        what rounding can do to X w                -> a number
    columns()               max_i |x_ij| and the count of entries      -> (p,) and (p,), of this rank's rows
    normalize(how)          from now on, X is the normalized rows; what is held stays as it is

All vectors are local and float64; k of them lie one below the other, each contiguous, and share one pass over memory.
X is held as narrow as it is, float32 values as float32, and not copied where it is; sums are float64. Nothing
communicates: the caller sums X'c and the second moments over ranks. n_local = 0 is an ordinary case: X'c is then zero.

How rows are cut into parts, and passed over on threads: `distsms.matrix.blocks`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.matrix import kernels as kernel
from distsms.matrix.blocks import Entries, Part, Rows, Source, threads_wanted
from distsms.matrix.normalization import Normalization
from distsms.utils.typing import Floats

PART_ENTRIES = 2**20
"""Entries of a part: few enough to stay in a cache for the next of k vectors, enough to forget what a call costs."""
_SHORT, _FEW, _SAMPLE = 8, 8, 256
"""Rows of fewer entries are never passed over; one in so many is few; coefficients that are looked at to tell."""
_SORTED = 2**10
"""Blocks that are sorted at a time."""


def index_dtype(nnz: int, p: int) -> Any:
    """int32 if local entries and columns can be counted in it, else int64; SciPy wants one type for both."""
    return np.int32 if max(nnz, p) <= np.iinfo(np.int32).max else np.int64


def unsigned(largest: int) -> Any:
    """The smallest unsigned type that holds `largest`, in at least the 16 bits that column indices have."""
    return np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64


def length_dtype(longest: int) -> Any:
    """The smallest unsigned type for the numbers of entries of rows: 8 bits mostly."""
    return np.uint8 if longest < 2**8 else unsigned(longest)


class Sparse(Rows):
    """Local rows in compressed form. Products cost O(nnz k).

    Blocks of up to 256 rows are held in the order of their lengths, where the arrays may be changed; what is given and
    what is returned is in the order of the rows. Consecutive rows of one length, inside a block, make a run.

    Bytes: for each entry 2 (p <= 65,536), 4 (p <= 2^32) or 8 for its column, and 4 or 8 for its value, if it has one;
    for each row 1, if rows differ in length; for each run 2 (no row has more than 255 entries), 3, 5 or 9.
    """

    def __init__(
        self,
        values: NDArray[Any] | None,
        indices: NDArray[Any],
        lengths: NDArray[Any],
        p: int,
        threads: int | None = None,
        sort: bool = False,
        source: Source | None = None,
    ) -> None:
        """values (nnz,), or None: all are 1; indices (nnz,) from 0, ascending in each row; lengths (n_local,) of rows.

        What is of its final type is not copied: values float32 or float64, indices `unsigned(p - 1)`, lengths unsigned.
        sort : the arrays are given away, and rows are sorted inside them.
        source : has the entries, `arrange`d; values and indices are empty then.
        """
        if lengths.dtype.kind != "u":
            lengths = lengths.astype(length_dtype(int(lengths.max(initial=0))))
        self._nnz = int(np.sum(lengths, dtype=np.int64))
        if source is None and self._nnz != len(indices):
            raise ValueError(f"row lengths that do not sum up to {len(indices)} entries")
        if values is not None and values.shape != indices.shape:
            raise ValueError(f"{len(values)} values of {len(indices)} entries")
        indices = np.ascontiguousarray(indices, unsigned(p - 1))
        if values is not None:
            values = np.ascontiguousarray(values, None if values.dtype == np.float32 else np.float64)
        block = _block(self._nnz, len(lengths))
        order, lengths = _by_length(lengths, block) if sort else (None, lengths)
        starts = _starts_of_runs(lengths, block)
        counts = (np.diff(starts, append=len(lengths)) - 1).astype(np.uint8)
        self._runs = kernel.Runs(lengths[starts], counts, order, block)
        threads = threads or threads_wanted()
        parts = _parts(lengths, starts, self._nnz, block, threads)
        super().__init__((len(lengths), p), parts, threads, (indices, values), source)
        if sort and source is None:
            for part in parts:
                here = slice(part.start, part.stop)
                given = None if values is None else values[here].copy()
                self.arrange(part, indices[here].copy(), given, indices, values)

    @classmethod
    def of(cls, X: sparse.csr_matrix, threads: int | None = None) -> Sparse:
        """A SciPy matrix in canonical CSR format."""
        return cls(X.data, X.indices.view(f"u{X.indices.itemsize}"), np.diff(X.indptr), X.shape[1], threads)

    @property
    def nnz(self) -> int:
        return self._nnz

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(array.nbytes for array in self._runs[:3] if array is not None)

    def arrange(self, part: Part, given: NDArray[Any], values: NDArray[Any] | None, *into: Any) -> None:
        """Bring a part's columns and values, given in the order of the rows, into the one that they are held in.

        into : arrays of the final types, where they go to start..stop.
        """
        begin = np.empty(self._runs.block, np.uint64)
        columns, held = (None if one is None else one[part.start : part.stop] for one in into)
        kernel.arrange_rows(given, values, self._runs, part, begin, columns, held)

    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None:
        kernel.dot_rows(*entries, self._runs, part, w, out)

    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None:
        kernel.add_rows(*entries, self._runs, part, self._skips(c), c, out)

    def _largest(self, part: Part, entries: Entries, w: Floats) -> float:
        return kernel.largest_row(*entries, self._runs, part, w, self.row_factors)

    def _describe(self, part: Part, entries: Entries, largest: Floats, counts: Floats) -> None:
        kernel.describe_columns(*entries, self._runs, part, self.row_factors, largest, counts)

    def _square(self, part: Part, entries: Entries, squares: Floats) -> None:
        kernel.add_squares(*entries, self._runs, part, self.row_factors, squares)

    def _length(self, part: Part, entries: Entries, out: Floats) -> None:
        kernel.row_lengths(*entries, self._runs, part, out)

    def _skips(self, c: Floats) -> bool:
        """Whether passing over rows with c_i = 0 is worth a branch: where reading them is dear, or few others are left.

        With short rows in the cache a badly guessed branch costs more than the row.
        """
        if self.nnz < _SHORT * len(c):
            return False
        sample = c[:: 1 + len(c) // _SAMPLE]
        return self._entries[0].itemsize > 2 or _FEW * int(np.count_nonzero(sample)) <= len(sample)


class Pattern(Sparse):
    """Local rows of a 0/1 matrix: only the places of the ones are held."""

    def __init__(
        self, indices: NDArray[Any], lengths: NDArray[Any], p: int, threads: int | None = None, sort: bool = False
    ) -> None:
        """indices (nnz,) and lengths (n_local,) as for `Sparse`."""
        super().__init__(None, indices, lengths, p, threads, sort)


class Dense(Rows):
    """Local rows as one C-contiguous array of float32 or float64. Products cost O(n_local p k)."""

    def __init__(
        self, array: NDArray[Any], threads: int | None = None, source: Source | None = None, rows: int | None = None
    ) -> None:
        """array (n_local, p); not copied if it is C-contiguous float32 or float64.

        source : has the rows, so many; the array is without any then.
        """
        array = np.ascontiguousarray(array, None if array.dtype == np.float32 else np.float64)
        n_local, p = len(array) if rows is None else rows, array.shape[1]
        threads = threads or threads_wanted()
        count = threads * max(1, -(-n_local * p // (threads * PART_ENTRIES)))
        cuts = [n_local * t // count for t in range(count + 1)]
        parts = [Part(first, last, first, last) for first, last in pairwise(cuts)]
        super().__init__((n_local, p), parts, threads, (array,), source)

    @property
    def nnz(self) -> int:
        return self.shape[0] * self.shape[1]

    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None:
        kernel.dot_dense(entries[0][part.start : part.stop], w, out[part.first : part.last])

    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None:
        kernel.add_dense(entries[0][part.start : part.stop], c[part.first : part.last], out)

    def _largest(self, part: Part, entries: Entries, w: Floats) -> float:
        return kernel.largest_dense(entries[0][part.start : part.stop], w, self._factors(part))

    def _describe(self, part: Part, entries: Entries, largest: Floats, counts: Floats) -> None:
        kernel.largest_dense_entries(entries[0][part.start : part.stop], self._factors(part), largest)
        counts += part.last - part.first

    def _square(self, part: Part, entries: Entries, squares: Floats) -> None:
        kernel.add_squares_dense(entries[0][part.start : part.stop], self._factors(part), squares)

    def _length(self, part: Part, entries: Entries, out: Floats) -> None:
        kernel.lengths_dense(entries[0][part.start : part.stop], out[part.first : part.last])

    def _factors(self, part: Part) -> Floats:
        return self.row_factors[part.first : part.last]


def _block(nnz: int, n_local: int) -> int:
    """Rows of a block: a power of 2, 256 of short rows, fewer of long ones, so that a part can be made of blocks."""
    return int(2 ** np.clip(np.floor(np.log2(PART_ENTRIES / 64 * max(n_local, 1) / max(nnz, 1))), 0, 8))


def _by_length(lengths: NDArray[Any], block: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """From which place of its block each row comes where those of each block are sorted by length; and the lengths."""
    order, found = np.empty(len(lengths), np.uint8), np.empty_like(lengths)
    for start in range(0, len(lengths), _SORTED * block):
        some = lengths[start : start + _SORTED * block]
        blocks = np.full((-(-len(some) // block), block), np.iinfo(some.dtype).max, some.dtype)
        blocks.ravel()[: len(some)] = some
        places = np.argsort(blocks, axis=1, kind="stable")
        order[start : start + len(some)] = places.ravel()[: len(some)]
        found[start : start + len(some)] = np.take_along_axis(blocks, places, axis=1).ravel()[: len(some)]
    return order, found


def _starts_of_runs(lengths: NDArray[Any], block: int) -> NDArray[np.int64]:
    """The first row of each run."""
    begins = np.ones(len(lengths), bool)
    np.not_equal(lengths[1:], lengths[:-1], out=begins[1:])
    begins[::block] = True
    return np.flatnonzero(begins)


def _parts(lengths: NDArray[Any], starts: NDArray[np.int64], nnz: int, block: int, threads: int) -> list[Part]:
    """Parts of at most about PART_ENTRIES rows and entries, whole blocks, as many as divide among the threads."""
    count = threads * max(1, -(-(nnz + len(lengths)) // (threads * PART_ENTRIES)))
    rows = np.append(np.arange(0, len(lengths), block), len(lengths))
    entries = np.zeros(len(rows), np.int64)
    if len(rows) > 1:
        np.cumsum(np.add.reduceat(lengths, rows[:-1], dtype=np.int64), out=entries[1:])
    cuts = np.searchsorted(rows + entries, (nnz + len(lengths)) * np.arange(count + 1) // count)
    runs = np.searchsorted(starts, rows[cuts])
    places = list(zip(rows[cuts].tolist(), entries[cuts].tolist(), runs.tolist(), strict=True))
    return [Part(first, last, start, stop, run) for (first, start, run), (last, stop, _) in pairwise(places)]


Features = Sparse | Dense


def as_features(X: Any) -> Features:
    """The rows of X, a SciPy sparse matrix or array-like (n_local, p), copied only where their type is another."""
    if not sparse.issparse(X):
        return Dense(np.asarray(X))
    X = sparse.csr_matrix(X)
    if not X.has_canonical_format:  # sorted, nothing twice; not in the caller's own arrays
        X = X.copy()
        X.sum_duplicates()
    return Sparse.of(X)


def normalize_matrix(X: Any, how: Normalization) -> None:
    """Multiply the values of a float64 matrix of SciPy (CSR) or NumPy, in place. Local."""
    rows = as_features(X)
    rows.normalize(how)
    for factors, axis in ((rows.column_factors, 1), (rows.row_factors, 0)):
        if len(factors) and not sparse.issparse(X):
            X *= np.expand_dims(factors, 1 - axis)
        elif len(factors):
            X.data *= factors[X.indices] if axis else np.repeat(factors, np.diff(X.indptr))
