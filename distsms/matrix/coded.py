"""Rows that are stored as codes: `CodedRows`, and conversions from and to arrays and matrices of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix import local
from distsms.matrix.base import ColumnStatistics
from distsms.matrix.blocks import Entries, EntrySource, LocalRows, Part, T, thread_count
from distsms.matrix.code_maps import CategoryBlocks, CodeMap, Codes, Crosses, Products, Strings, betas

_ROWS = 2**12
"""Rows that `to_csr` makes explicit at a time."""


class CodedRows(LocalRows):
    """Local rows as codes (n_local * B,), whose columns a code map computes.

    Those of the rows cuts[t]..cuts[t + 1] - 1 lie at cuts[t] * B..cuts[t + 1] * B - 1, first the first code of each
    row, then the second; none if there is a source. A code not below its limit is missing. A part of `runs` lies in one
    of `cuts`: `start` is the place of its first code, `run` the distance to a row's next, `stop - start` their number.
    """

    stored = "codes"

    def __init__(
        self,
        code_map: CodeMap,
        codes: NDArray[Any],
        cuts: Sequence[int] | NDArray[Any],
        threads: int | None = None,
        source: EntrySource | None = None,
    ) -> None:
        cuts = [int(cut) for cut in cuts]
        if cuts[0] != 0 or any(stop < start for start, stop in pairwise(cuts)):
            raise ValueError("the cuts between the parts must begin with 0 and ascend")
        if codes.dtype != code_map.dtype or codes.ndim != 1:
            raise ValueError(f"the codes must be one array of {code_map.dtype}, not {codes.dtype} of {codes.shape}")
        n_local = cuts[-1]
        if source is None and len(codes) != n_local * code_map.n_codes:
            raise ValueError(f"{n_local} rows of {code_map.n_codes} codes were announced, but there are {len(codes)}")
        from distsms.matrix.coded_products import products_of  # with many kernels, which other rows do not need

        self.code_map, self.cuts, self._products = code_map, cuts, products_of(code_map)
        if source is None and isinstance(code_map, CategoryBlocks) and n_local * code_map.entries <= local.SMALL:
            self._products = ExplicitProducts(code_map, self._products.roundings)
        self._scales = np.empty((self._products.n_scales, 0))  # see `_scaled`
        self.nnz, self.longest = n_local * code_map.n_codes, self._products.roundings
        threads = threads or thread_count()
        parts = _parts(cuts, code_map.n_codes, threads)
        super().__init__((n_local, code_map.p), parts, threads, (np.ascontiguousarray(codes),), source)

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._scales.nbytes

    def rows_in_memory(self) -> NDArray[np.bool_]:
        return np.zeros(self.shape[0], bool)  # they are codes, and not entries

    def row_entries(self, rows: NDArray[Any] | None = None) -> None:
        return None

    def take(self, rows: NDArray[np.bool_]) -> CodedRows:
        taken, cuts = [np.empty(0, self.code_map.dtype)], [0]
        for part, (codes,) in self._all_parts():
            of_part = _table_of(part, codes, self.code_map.n_codes)[:, rows[part.first : part.last]]
            taken.append(of_part.ravel())
            cuts.append(cuts[-1] + of_part.shape[1])
        return self._normalized(CodedRows(self.code_map, np.concatenate(taken), cuts), rows)

    def _scaled(self) -> None:
        """Compute the numbers that the map wants for each row, unless that was done. One pass over the rows."""
        if self._scales.shape[1] == self.shape[0] or not len(self._scales):
            return
        scales = np.empty((self._products.n_scales, self.shape[0]))

        def run(thread: int) -> None:
            for part, (codes,) in self._passing(thread):
                self._products.scale(_alone(part), codes, scales[:, part.first : part.last])

        super()._on_threads(run)
        self._scales = scales

    def _on_threads(self, run: Callable[[int], T]) -> Iterable[T]:
        self._scaled()
        return super()._on_threads(run)

    def columns(self, weights: Floats | None = None) -> ColumnStatistics:
        self._scaled()
        return super().columns(weights)

    def _dot(self, part: Part, entries: Entries, w: Floats, out: Floats) -> None:
        here = slice(part.first, part.last)
        self._products.dot(_alone(part), entries[0], self._scales[:, here], w, False, out[here])

    def _add(self, part: Part, entries: Entries, c: Floats, out: Floats) -> None:
        here = slice(part.first, part.last)
        self._products.add(_alone(part), entries[0], self._scales[:, here], c[here], out)

    def _largest(self, part: Part, entries: Entries, w: Floats) -> float:
        here, sums = slice(part.first, part.last), np.empty(part.last - part.first)
        self._products.dot(_alone(part), entries[0], self._scales[:, here], w, True, sums)
        if len(self.row_factors):
            sums *= self.row_factors[here]
        return (self._products.roundings + 2.0) * float(sums.max(initial=0.0))

    def _describe(self, part: Part, entries: Entries, statistics: ColumnStatistics) -> None:
        here = slice(part.first, part.last)
        factors = self.row_factors[here] if len(self.row_factors) else np.ones(part.last - part.first)
        self._products.describe(_alone(part), entries[0], self._scales[:, here], factors, statistics)

    def _length(self, part: Part, entries: Entries, out: Floats) -> None:
        here = slice(part.first, part.last)
        self._products.length(_alone(part), entries[0], self._scales[:, here], out[here])


class ExplicitProducts(Products):
    """Those of few rows, by SciPy, which needs no compiling: the rows of a part are made explicit once."""

    def __init__(self, code_map: CodeMap, roundings: int) -> None:
        self._code_map, self.roundings = code_map, roundings
        self._parts = dict[Part, scipy.sparse.csr_matrix]()

    def _rows(self, part: Part, codes: Codes) -> scipy.sparse.csr_matrix:
        if part not in self._parts:
            self._parts[part] = to_csr(self._code_map, _table_of(part, codes, self._code_map.n_codes).T)
        return self._parts[part]

    def dot(self, part: Part, codes: Codes, scales: Floats, w: Floats, absolute: bool, out: Floats) -> None:
        if len(out):  # an empty part may come with an empty w
            X = self._rows(part, codes)
            out[:] = abs(X) @ np.abs(w) if absolute else X @ w

    def add(self, part: Part, codes: Codes, scales: Floats, c: Floats, out: Floats) -> None:
        if len(c):
            out += self._rows(part, codes).T @ c

    def describe(self, part: Part, codes: Codes, scales: Floats, factors: Floats, statistics: ColumnStatistics) -> None:
        X, (largest, counts, squares) = self._rows(part, codes), statistics
        sizes = np.abs(X.data) * np.repeat(factors, np.diff(X.indptr))
        counts += np.bincount(X.indices, minlength=len(counts))
        np.maximum.at(largest, X.indices, sizes)
        squares += np.bincount(X.indices, sizes**2, len(squares))

    def length(self, part: Part, codes: Codes, scales: Floats, out: Floats) -> None:
        X = self._rows(part, codes)
        most = np.abs(X.data).max(initial=0.0) or 1.0  # no square overflows
        out[:] = most * np.sqrt((X / most).power(2).sum(axis=1)).A1


def _table_of(part: Part, codes: Codes, n_codes: int) -> NDArray[Any]:
    """Return the codes of a part as a view (n_codes, rows)."""
    shape, size = (n_codes, part.last - part.first), codes.itemsize
    return np.lib.stride_tricks.as_strided(codes[part.start :], shape, (part.run * size, size), writeable=False)


def _alone(part: Part) -> Part:
    return part._replace(first=0, last=part.last - part.first)


def _parts(cuts: list[int], n_codes: int, threads: int) -> list[Part]:
    """Divide the rows equally among the threads, in as many parts each (some may be empty), cut where the codes are."""
    ends, shares = [cuts[-1] * thread // threads for thread in range(threads + 1)], []
    for low, high in pairwise(ends):
        parts = []
        for start, stop in pairwise(cuts):
            first, last = max(start, low), min(stop, high)
            if first < last:
                at = start * n_codes + first - start
                parts.append(Part(first, last, at, at + (last - first) * n_codes, stop - start))
        shares.append(parts)
    count = max(1, *map(len, shares))
    padded = (parts + [Part(end, end)] * (count - len(parts)) for parts, end in zip(shares, ends[1:], strict=True))
    return list(chain.from_iterable(padded))


def code_rows(rows: Any, code_map: CodeMap, cuts: Sequence[int] | None = None) -> NDArray[Any]:
    """Return codes (n, B) as `CodedRows`, by default as one part; ValueError for a wrong shape, type or code."""
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.shape[1] != code_map.n_codes or rows.dtype != code_map.dtype:
        raise ValueError(f"codes must be (n, {code_map.n_codes}) of {code_map.dtype}, not {rows.dtype} {rows.shape}")
    limits = code_map.limits()
    for b in np.flatnonzero(rows.max(axis=0, initial=0) >= limits):
        wrong = np.flatnonzero((rows[:, b] >= limits[b]) & (rows[:, b] != np.iinfo(rows.dtype).max))
        if len(wrong):
            code = rows[wrong[0], b]
            raise ValueError(f"row {wrong[0]}: code {b} is {code}, but must be below {limits[b]}, or missing")
    cuts = [0, len(rows)] if cuts is None else cuts
    return np.concatenate([np.empty(0, rows.dtype), *(rows[a:b].T.ravel() for a, b in pairwise(cuts))])


def to_csr(code_map: CodeMap, rows: NDArray[Any]) -> scipy.sparse.csr_matrix:
    """Return coded rows (n, B) as a matrix of float64; codes that are too large are missing."""
    blocks = [_block(code_map, rows[first : first + _ROWS]) for first in range(0, max(len(rows), 1), _ROWS)]
    return scipy.sparse.csr_matrix(scipy.sparse.vstack(blocks, "csr")) if len(blocks) > 1 else blocks[0]


Entry = tuple[NDArray[Any], NDArray[Any], Any]
"""Rows and columns of some entries, and the value of each, or that of all."""


def _block(code_map: CodeMap, rows: NDArray[Any]) -> scipy.sparse.csr_matrix:
    entries = _kmers_of(code_map, rows) if isinstance(code_map, Strings) else _categories_of(code_map, rows)
    return _assemble(entries, (len(rows), code_map.p))


def _categories_of(code_map: Any, rows: NDArray[Any]) -> Iterator[Entry]:
    blocks = code_map.blocks
    for b, size in enumerate(blocks.sizes):
        here = np.flatnonzero(rows[:, b] < size)
        yield here, blocks.offsets[b] + rows[here, b].astype(np.int64), blocks.factors[b]
    crosses = zip(code_map.offsets, code_map.pairs, strict=False) if isinstance(code_map, Crosses) else ()
    for offset, (a, b) in crosses:
        here = np.flatnonzero((rows[:, a] < blocks.sizes[a]) & (rows[:, b] < blocks.sizes[b]))
        yield here, offset + rows[here, a].astype(np.int64) * blocks.sizes[b] + rows[here, b], 1.0


def _kmers_of(code_map: Strings, rows: NDArray[Any]) -> Iterator[Entry]:
    size = len(code_map.letters)
    for i in range(code_map.length):
        degree = min(code_map.degree, code_map.length - i)
        for here, number, k in _kmers(rows[:, i : i + degree], size):
            yield here, code_map.starts[i] + number, code_map.degree_values[k - 1]
    for spectrum, start, share in zip(code_map.spectra, code_map.spectrum_starts, code_map.shares[1:], strict=True):
        values = np.sqrt(betas(spectrum.degree))
        parts = (
            (here, number, values[k - 1])
            for i in range(spectrum.first - 1, spectrum.last)
            for here, number, k in _kmers(rows[:, i : min(i + spectrum.degree, spectrum.last)], size)
        )
        X = _assemble(parts, (len(rows), code_map.block_size(spectrum.degree)))
        lengths, counts = np.sqrt(np.asarray(X.power(2).sum(axis=1)).ravel()), np.diff(X.indptr)
        X.data *= np.repeat(share / np.where(lengths > 0, lengths, 1.0), counts)
        yield np.repeat(np.arange(len(rows)), counts), start + X.indices.astype(np.int64), X.data


def _assemble(entries: Iterable[Entry], shape: tuple[int, int]) -> scipy.sparse.csr_matrix:
    whole = ((rows, columns, np.broadcast_to(value, len(rows))) for rows, columns, value in entries)
    rows, columns, values = (np.concatenate(arrays) for arrays in zip(*whole, strict=True))
    X = scipy.sparse.coo_matrix((values, (rows, columns)), shape).tocsr()
    X.sum_duplicates()
    return X


def _kmers(letters: NDArray[Any], size: int) -> Iterator[tuple[NDArray[Any], NDArray[Any], int]]:
    """Yield for k = 1, 2, ... the rows whose first k letters are known, and the column of this k-mer in its block."""
    complete, number, before = np.ones(len(letters), bool), np.zeros(len(letters), np.int64), 0
    for k in range(1, letters.shape[1] + 1):
        complete &= letters[:, k - 1] < size
        number = size * number + letters[:, k - 1]
        here = np.flatnonzero(complete)
        yield here, before + number[here], k
        before += size**k
