"""Load the local rows of shards into memory, a bounded part at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.matrix.code_maps import CodeMap
from distsms.matrix.coded import CodedRows, to_csr
from distsms.matrix.local import PART_ENTRIES, DenseRows, SparseRows, index_dtype, length_dtype, unsigned
from distsms.shards.entries_in_memory import EntriesInMemory
from distsms.shards.reader import OpenShard, ShardRange


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
        self.lengths, self._taken_over = np.zeros(n_local, length_dtype(0)), store is not None
        if store is not None:
            self.indices, self.values = store.columns, store.values
            self.filled, self.width = nnz, width
            return
        self.indices = np.empty(nnz, unsigned(width - 1))
        valued = any(part.shard.values for part in ranges)
        self.values = np.empty(nnz, dtype) if valued else None
        self.filled, self.width = 0, width

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        indptr = shard.read_indptr(part)
        self._count(np.diff(indptr), local)
        if self._taken_over:
            return
        cut = 0
        while cut < len(indptr) - 1:
            end = max(cut + 1, int(np.searchsorted(indptr, indptr[cut] + PART_ENTRIES, side="right")) - 1)
            piece = part._replace(start=part.start + cut, stop=part.start + end)
            self._add_entries(shard, piece, indptr[cut : end + 1], slice(local.start + cut, local.start + end))
            cut = end

    def _count(self, lengths: NDArray[np.int64], local: slice) -> None:
        """Store the number of entries of each row. If they need a wider type, all lengths are converted to it."""
        dtype = length_dtype(int(lengths.max(initial=0)))
        self.lengths = self.lengths.astype(np.promote_types(self.lengths.dtype, dtype), copy=False)
        self.lengths[local] = lengths

    def _add_entries(
        self, shard: OpenShard, rows_of_shard: ShardRange, indptr: NDArray[np.int64], local: slice
    ) -> None:
        start, stop = int(indptr[0]), int(indptr[-1])
        indptr = indptr - start
        indices = shard.read_indices(rows_of_shard, indptr, start)
        new = indices >= self.width  # columns to leave out; without ignore_new_features, `load` has refused them
        entries = slice(self.filled, self.filled + stop - start)
        if self.values is not None and rows_of_shard.shard.values:
            shard.read("X/data", start, stop, self.values[entries])
            shard.check_finite(rows_of_shard, indptr, self.values[entries])
        elif self.values is not None:
            self.values[entries] = 1
        if new.any():
            old = ~new
            indptr = np.concatenate(([0], np.cumsum(old)))[indptr]
            self._count(np.diff(indptr), local)
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

    def matrix(self) -> scipy.sparse.csr_matrix:
        kind, nnz = index_dtype(self.filled, self.width), self.filled
        values = np.ones(nnz) if self.values is None else self.values[:nnz].astype(float)
        indptr = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64))).astype(kind)
        return scipy.sparse.csr_matrix(
            (values, self.indices[:nnz].astype(kind), indptr), (len(self.lengths), self.width)
        )


class DenseLoader:
    """The local rows of dense shards. Columns beyond `width` are left out."""

    lengths = None

    def __init__(self, n_local: int, width: int, dtype: str) -> None:
        self.array = np.zeros((n_local, width), dtype)

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        for piece in part.parts(max(1, PART_ENTRIES // self.array.shape[1])):
            rows = self.array[local.start + piece.start - part.start : local.start + piece.stop - part.start]
            shard.read_dense(piece.start, piece.stop, rows)
            shard.check_finite(piece, None, rows)

    def features(self, longest: int, differ: bool) -> DenseRows:
        """Return the rows. The parameters are for sparse rows."""
        return DenseRows(self.array)

    def matrix(self) -> NDArray[np.float64]:
        return self.array.astype(float, copy=False)


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

    def matrix(self) -> scipy.sparse.csr_matrix:
        n_codes = self.code_map.n_codes
        pieces = (self.codes[a * n_codes : b * n_codes].reshape(n_codes, -1).T for a, b in pairwise(self.cuts))
        empty = scipy.sparse.csr_matrix((0, self.code_map.p))
        return scipy.sparse.vstack([empty, *(to_csr(self.code_map, piece) for piece in pieces)], "csr")
