"""The rows of X that a rank holds in memory, sparse or dense: products with w and with one coefficient per row. X keeps
its own precision, and is not copied if it has the right type; sums are float64. Nothing communicates.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.jit import is_compiled
from distsms.base.typing import Floats
from distsms.matrix import kernels as kernel
from distsms.matrix import plain
from distsms.matrix.base import ColumnStatistics, RowEntries
from distsms.matrix.blocks import Entries, EntrySource, LocalRows, Part, thread_count
from distsms.matrix.moments import Moments

PART_ENTRIES = 2**20
"""Entries of a part: few enough to stay in a cache for the next of k vectors, and enough to make calls negligible."""
_SHORT, _FEW, _SAMPLE = 8, 8, 256
"""Constants of `_skips`. If rows have fewer than _SHORT entries on average, no row is skipped. Few coefficients are
nonzero if at most one in _FEW is. About _SAMPLE coefficients are examined.
"""
_SORTED = 2**10
"""Number of blocks that are sorted at a time."""
SMALL, SOON = 2**19, 2**24
"""Up to so many entries, NumPy computes until products have taken so many, unless the kernels are compiled already."""


def index_dtype(nnz: int, p: int) -> Any:
    """Return int32 if it can count the local entries and the columns, else int64. SciPy needs one type for both."""
    return np.int32 if max(nnz, p) <= np.iinfo(np.int32).max else np.int64


def unsigned(largest: int) -> Any:
    """Return the smallest unsigned type for numbers up to `largest`, with at least 16 bits, as for column indices."""
    return np.uint16 if largest < 2**16 else np.uint32 if largest < 2**32 else np.uint64


def length_dtype(longest: int) -> Any:
    """Return the smallest unsigned type for the numbers of entries of rows, which is usually uint8."""
    return np.uint8 if longest < 2**8 else unsigned(longest)


class SparseRows(LocalRows):
    """Local rows in compressed form, with `indices` ascending in each row; all 1 without values.

    With `sort`, rows are stored by their lengths inside blocks of up to 256, and the arrays may be overwritten;
    callers' vectors stay in the original order. Rows of equal length inside a block form a run. A `source` supplies the
    entries, brought into order by `arrange`. Memory: 2, 4 or 8 bytes for the column of an entry, 4 or 8 for its value.
    """

    def __init__(
        self,
        values: NDArray[Any] | None,
        indices: NDArray[Any],
        lengths: NDArray[Any],
        p: int,
        threads: int | None = None,
        sort: bool = False,
        source: EntrySource | None = None,
    ) -> None:
        if lengths.dtype.kind != "u":
            lengths = lengths.astype(length_dtype(int(lengths.max(initial=0))))
        self.nnz = int(np.sum(lengths, dtype=np.int64))
        if source is None and self.nnz != len(indices):
            raise ValueError(f"the row lengths add up to {self.nnz}, but there are {len(indices)} entries")
        if values is not None and values.shape != indices.shape:
            raise ValueError(f"there are {len(values)} values, but {len(indices)} column indices")
        indices = np.ascontiguousarray(indices, unsigned(p - 1))
        if values is not None:
            values = np.ascontiguousarray(values, None if values.dtype == np.float32 else np.float64)
        block = _block(self.nnz, len(lengths))
        order, lengths = _by_length(lengths, block) if sort else (np.empty(0, np.uint8), lengths)
        starts = _starts_of_runs(lengths, block)
        counts = (np.diff(starts, append=len(lengths)) - 1).astype(np.uint8)
        self._runs = kernel.Runs(lengths[starts], counts, order, block)
        self.longest = int(self._runs.lengths.max(initial=0))
        of_dot = indices, values, self._runs, Part(0, 0), np.empty(0), np.empty(0)
        by_numpy = self.nnz <= SMALL and not is_compiled(kernel.dot_rows, of_dot)
        self._loops: Any = plain if by_numpy else kernel
        self._multiplied = 0
        threads = threads or thread_count()
        parts = _parts(lengths, starts, self.nnz, block, threads)
        super().__init__((len(lengths), p), parts, threads, (indices, values), source)
        if sort and source is None:
            for part in _parts(lengths, starts, self.nnz, block, 8 * len(parts)):  # smaller ones, which are copied
                here = slice(part.start, part.stop)
                copied = None if values is None else values[here].copy()
                self.arrange(part, indices[here].copy(), copied, indices, values)

    @classmethod
    def of(cls, X: scipy.sparse.csr_matrix, threads: int | None = None) -> SparseRows:
        return cls(X.data, X.indices.view(f"u{X.indices.itemsize}"), np.diff(X.indptr), X.shape[1], threads)

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(array.nbytes for array in self._runs[:3])

    def arrange(self, part: Part, stored: NDArray[Any], values: NDArray[Any] | None, *into: Any) -> None:
        """Copy a part's columns and values from the rows' original order to start..stop - 1 of the arrays `into`."""
        begin = np.empty(self._runs.block, np.uint64)
        columns, arranged = (None if array is None else array[part.start : part.stop] for array in into)
        self._loops.arrange_rows(stored, values, self._runs, part, begin, columns, arranged)

    def take(self, rows: NDArray[np.bool_]) -> SparseRows:
        # 1) The length and the original index of each row, in the order in which they are stored.
        runs, place = self._runs, np.arange(self.shape[0])
        place = (place & -runs.block) + runs.order if len(runs.order) else place
        lengths = np.repeat(runs.lengths, runs.counts.astype(np.intp) + 1)
        # 2) The entries of the marked rows, part by part; then the rows in their original order.
        taken, columns, values = rows[place], [np.empty(0, int)], [np.empty(0, np.float32)]
        for part, (indices, numbers) in self._all_parts():
            here = slice(part.first, part.last)
            entries = part.start + np.flatnonzero(np.repeat(taken[here], lengths[here]))
            columns.append(indices[entries].astype(int))
            values.append(np.ones(len(entries), np.float32) if numbers is None else numbers[entries])
        indptr = np.append(0, np.cumsum(lengths[taken], dtype=np.int64))
        arrays = np.concatenate(values), np.concatenate(columns), indptr
        X = scipy.sparse.csr_matrix(arrays, (len(indptr) - 1, self.shape[1]))
        return self._normalized(SparseRows.of(X[np.argsort(place[taken])]), rows)

    def _entries_of(self, rows: NDArray[Any] | None, arrays: Entries, shifts: Any) -> RowEntries:
        n, places = self.shape[0], None
        if rows is not None:
            n *= len(rows) > 0  # for no rows, which only show the types, nothing is looked up
            places = np.full(n, -1, np.int32)
            places[rows] = np.arange(len(rows))
        edges = np.zeros((2, n if rows is None else len(rows)), np.int64)
        self._loops.find_rows(self._runs, n, places, edges[0], edges[1])
        edges += shifts
        return RowEntries(arrays[0], arrays[1], edges[0], edges[1])

    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None:
        self._multiplied += part.stop - part.start
        if self._multiplied > SOON:
            self._loops = kernel
        self._loops.dot_rows(*entries, self._runs, part, w, out)

    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None:
        self._loops.add_rows(*entries, self._runs, part, self._skips(c), c, out)

    def _largest(self, part: Part, entries: Entries, w: Floats) -> float:
        return float(self._loops.largest_row(*entries, self._runs, part, w, self.row_factors))

    def _describe(self, part: Part, entries: Entries, statistics: ColumnStatistics) -> None:
        self._loops.describe_columns(*entries, self._runs, part, self.row_factors, statistics)

    def _described(self) -> ColumnStatistics:
        statistics = super()._described()
        if self.arrays[1] is None and not len(self.row_factors):  # the kernel has only counted the ones
            statistics.squares[:] = statistics.counts
            np.minimum(statistics.counts, 1.0, out=statistics.largest)
        return statistics

    def _length(self, part: Part, entries: Entries, out: Floats) -> None:
        self._loops.row_lengths(*entries, self._runs, part, out)

    def _gather(self, group: NDArray[np.int16], weights: Floats, moments: Moments) -> None:
        sums, products = moments.mean, moments.scatter
        for part, entries in self._all_parts():
            kernel.add_products(*entries, self._runs, part, self.row_factors, group, weights, sums, products)
        counted = group >= 0
        of_rows = weights[counted] if len(weights) else None
        moments.count[:] = np.bincount(group[counted], minlength=len(moments.count))
        moments.mass[:] = np.bincount(group[counted], of_rows, len(moments.mass))
        for mass, mean, scatter in zip(moments.mass, moments.mean, moments.scatter, strict=True):
            scatter += np.tril(scatter, -1).T
            mean /= mass or 1.0
            scatter -= mass * np.outer(mean, mean)

    def _skips(self, c: Floats) -> bool:
        """Return whether skipping rows with c_i = 0 is worth a branch: if rows are expensive, or few c_i are not 0."""
        if self.nnz < _SHORT * len(c):
            return False
        sample = c[:: 1 + len(c) // _SAMPLE]
        return self.arrays[0].itemsize > 2 or _FEW * int(np.count_nonzero(sample)) <= len(sample)


class DenseRows(LocalRows):
    """Local rows as one C-contiguous array of float32 or float64; a source supplies them instead, `rows` of them."""

    def __init__(
        self,
        array: NDArray[Any],
        threads: int | None = None,
        source: EntrySource | None = None,
        rows: int | None = None,
    ) -> None:
        array = np.ascontiguousarray(array, None if array.dtype == np.float32 else np.float64)
        n_local, p = len(array) if rows is None else rows, array.shape[1]
        self.nnz, self.longest = n_local * p, p
        threads = threads or thread_count()
        count = threads * max(1, -(-n_local * p // (threads * PART_ENTRIES)))
        parts = [Part(a, b, a, b) for a, b in pairwise(n_local * t // count for t in range(count + 1))]
        super().__init__((n_local, p), parts, threads, (array,), source)

    def take(self, rows: NDArray[np.bool_]) -> DenseRows:
        taken = [np.empty((0, self.shape[1]), self.arrays[0].dtype)]
        for part, (array,) in self._all_parts():
            taken.append(array[part.start : part.stop][rows[part.first : part.last]])
        return self._normalized(DenseRows(np.concatenate(taken)), rows)

    def _entries_of(self, rows: NDArray[Any] | None, arrays: Entries, shifts: Any) -> RowEntries:
        n, p = self.shape
        begins = p * ((np.arange(n) if rows is None else rows) + shifts)
        return RowEntries(None, arrays[0].ravel(), begins, begins + p)

    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None:
        kernel.dot_dense(entries[0][part.start : part.stop], w, out[part.first : part.last])

    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None:
        kernel.add_dense(entries[0][part.start : part.stop], c[part.first : part.last], out)

    def _largest(self, part: Part, entries: Entries, w: Floats) -> float:
        return kernel.largest_dense(entries[0][part.start : part.stop], w, self._factors(part))

    def _describe(self, part: Part, entries: Entries, statistics: ColumnStatistics) -> None:
        largest, counts, squares = statistics
        kernel.describe_dense(entries[0][part.start : part.stop], self._factors(part), largest, squares)
        counts += part.last - part.first

    def _length(self, part: Part, entries: Entries, out: Floats) -> None:
        kernel.lengths_dense(entries[0][part.start : part.stop], out[part.first : part.last])

    def _gather(self, group: NDArray[np.int16], weights: Floats, moments: Moments) -> None:
        for part, (array,) in self._all_parts():
            here, factors = group[part.first : part.last], self._factors(part)
            for k in range(len(moments.count)):
                rows = np.flatnonzero(here == k)
                x = array[part.start + rows].astype(np.float64) * (factors[rows, None] if len(factors) else 1.0)
                a = weights[part.first + rows] if len(weights) else np.ones(len(rows))
                mass = float(a.sum())
                mean = a @ x / (mass or 1.0)
                x -= mean
                x *= np.sqrt(a)[:, None]
                of_rows = np.array([len(rows)]), np.array([mass]), mean[None], (x.T @ x)[None]
                moments.include(k, Moments(*of_rows))

    def _factors(self, part: Part) -> Floats:
        return self.row_factors[part.first : part.last]


def _block(nnz: int, n_local: int) -> int:
    """Return the rows of a block, a power of 2: 256 short rows, or fewer long ones."""
    return int(2 ** np.clip(np.floor(np.log2(PART_ENTRIES / 64 * max(n_local, 1) / max(nnz, 1))), 0, 8))


def _by_length(lengths: NDArray[Any], block: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Sort each block's rows by length: return each row's original place in its block, and the sorted lengths."""
    order, ordered = np.empty(len(lengths), np.uint8), np.empty_like(lengths)
    for start in range(0, len(lengths), _SORTED * block):
        batch = lengths[start : start + _SORTED * block]
        blocks = np.full((-(-len(batch) // block), block), np.iinfo(batch.dtype).max, batch.dtype)
        blocks.ravel()[: len(batch)] = batch
        places = np.argsort(blocks, axis=1, kind="stable")
        order[start : start + len(batch)] = places.ravel()[: len(batch)]
        ordered[start : start + len(batch)] = np.take_along_axis(blocks, places, axis=1).ravel()[: len(batch)]
    return order, ordered


def _starts_of_runs(lengths: NDArray[Any], block: int) -> NDArray[np.int64]:
    begins = np.ones(len(lengths), bool)
    np.not_equal(lengths[1:], lengths[:-1], out=begins[1:])
    begins[::block] = True
    return np.flatnonzero(begins)


def _parts(lengths: NDArray[Any], starts: NDArray[np.int64], nnz: int, block: int, threads: int) -> list[Part]:
    """Divide rows into parts of whole blocks, about PART_ENTRIES rows and entries each, equally many per thread."""
    count = threads * max(1, -(-(nnz + len(lengths)) // (threads * PART_ENTRIES)))
    rows = np.append(np.arange(0, len(lengths), block), len(lengths))
    entries = np.zeros(len(rows), np.int64)
    if len(rows) > 1:
        np.cumsum(np.add.reduceat(lengths, rows[:-1], dtype=np.int64), out=entries[1:])
    cuts = np.searchsorted(rows + entries, (nnz + len(lengths)) * np.arange(count + 1) // count)
    runs = np.searchsorted(starts, rows[cuts])
    places = list(zip(rows[cuts].tolist(), entries[cuts].tolist(), runs.tolist(), strict=True))
    return [Part(first, last, start, stop, run) for (first, start, run), (last, stop, _) in pairwise(places)]
