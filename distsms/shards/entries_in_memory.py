"""The entries of temporary shards that stay in memory, in the form in which a training holds them.

The file of such a shard has everything but X, whose entries the manifest holds (`Manifest.in_memory`). `dataset.load`
takes them over without a copy: then each rank trains on the rows that it has converted. All functions are local.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base import memory
from distsms.matrix.local import index_dtype, unsigned
from distsms.shards.storage import MemoryArray

_SHARE, _SHARE_OF_ADDRESSES, _ENTRIES_OF_BYTE = 0.75, 0.25, 4
"""Entries take at most these shares of the available memory and of a limit of the address space (`ulimit -v`). Room is
reserved for so many entries of each byte of the files.
"""


class EntriesInMemory:
    """The columns and values of consecutive shards, `filled` entries; address space is reserved, and then filled."""

    def __init__(self, n_bytes: int, dtype: str) -> None:
        capacity = n_bytes // (4 + np.dtype(dtype).itemsize)
        self._columns, self._values = np.empty(capacity, np.uint32), np.empty(capacity, dtype)
        self._wide, self._valued, self.filled = False, False, 0  # wide: whether a column needs more than 16 bits

    @staticmethod
    def reserve(n_bytes: int, dtype: str) -> EntriesInMemory | None:
        """Return room for so many bytes of entries; None if the operating system refuses it."""
        try:
            return EntriesInMemory(n_bytes, dtype)
        except MemoryError:
            return None

    @property
    def raw(self) -> tuple[NDArray[np.unsignedinteger], NDArray[np.floating]]:
        """All memory for columns and values, of which entries that are not valid any more may still be read."""
        return self._columns if self._wide else self._columns.view(np.uint16), self._values

    @property
    def columns(self) -> NDArray[np.unsignedinteger]:
        """The column of each entry, (filled,), of 16 bits if that is enough, else of 32."""
        return self.raw[0][: self.filled]

    @property
    def values(self) -> NDArray[np.floating] | None:
        """The value of each entry, (filled,); None if all are 1."""
        return self._values[: self.filled] if self._valued else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the entries take."""
        return sum(array.nbytes for array in (self.columns, self.values) if array is not None)

    def add(self, X: scipy.sparse.csr_matrix, values: NDArray[Any]) -> ShardEntries | None:
        """Add a copy of the entries of rows, with their values; return None if there is no room."""
        n_columns, start, stop = int(X.indices.max(initial=-1)) + 1, self.filled, self.filled + X.nnz
        if stop > len(self._columns) or n_columns > 2**32:
            return None
        if unsigned(n_columns - 1) is np.uint32 and not self._wide:
            self._columns[:start], self._wide = self.columns.copy(), True
        valued = bool((values != 1).any())
        if valued and not self._valued:
            self._values[:start], self._valued = 1.0, True
        self.filled, self.raw[0][start:stop] = stop, X.indices
        if self._valued:
            self._values[start:stop] = values
        return ShardEntries(self, start, X.indptr.astype(np.int64), n_columns, valued)

    def trim(self) -> None:
        """Give back the memory that is not filled. No array of the entries may be in use."""
        self._columns.resize(self.filled if self._wide else (self.filled + 1) // 2, refcheck=False)
        self._values.resize(self.filled if self._valued else 0, refcheck=False)

    def rewind(self) -> None:
        """Begin again. The entries of a shard stay readable until as many have been added as there were before it."""
        self.filled, self._valued = 0, False


class ShardEntries(NamedTuple):
    """The entries of a shard in memory, or of some of its rows."""

    store: EntriesInMemory  # the entries of this shard and others
    start: int  # the number of the shard's first entry among them
    indptr: NDArray[np.int64]  # (rows + 1,), from 0
    n_columns: int  # the largest column that is used, plus one
    valued: bool  # whether some values are not 1

    @staticmethod
    def joined(parts: Sequence[ShardEntries]) -> ShardEntries:
        """Return the entries of rows that were added one after the other."""
        first = parts[0].start
        ends = [part.indptr[1:] + (part.start - first) for part in parts]
        return parts[0]._replace(
            indptr=np.concatenate([np.zeros(1, np.int64), *ends]),
            n_columns=max(part.n_columns for part in parts),
            valued=any(part.valued for part in parts),
        )

    def matrix(self, rows: NDArray[np.bool_] | None = None) -> scipy.sparse.csr_matrix:
        """Return a copy of the rows, or of those that are marked, (rows,)."""
        lengths, (data, indices) = np.diff(self.indptr), map(self.array, ("X/data", "X/indices"))
        taken: Any = ... if rows is None else np.repeat(rows, lengths)
        lengths = lengths if rows is None else lengths[rows]
        arrays = (stored.array[taken].astype(stored.dtype, copy=rows is None) for stored in (data, indices))
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return scipy.sparse.csr_matrix((*arrays, indptr), (len(lengths), max(1, self.n_columns)))

    def array(self, name: str) -> MemoryArray:
        """Return an array of the shard's X by its name in a file: "X/indptr", "X/indices" or "X/data"."""
        if name == "X/indptr":
            return MemoryArray(self.indptr.dtype, self.indptr.shape, self.indptr)
        (columns, values), n = self.store.raw, int(self.indptr[-1])
        entries = slice(self.start, self.start + n)
        if name == "X/indices":
            return MemoryArray(np.dtype(index_dtype(0, self.n_columns)), (n,), columns[entries])
        return MemoryArray(values.dtype, (n,), values[entries]) if self.valued else MemoryArray.ones(values.dtype, n)


def room(n_bytes: int, neighbours: int, held: int = 0) -> int:
    """Return the bytes that entries of temporary shards may take on a rank with so many `neighbours` on its node, each
    of which holds bytes that it will give back."""
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    available = memory.available(held=neighbours * held)
    limits = [_SHARE * available, 12 * _ENTRIES_OF_BYTE * max(n_bytes, 2**20)]
    limits += [] if addresses == resource.RLIM_INFINITY else [_SHARE_OF_ADDRESSES * addresses]
    return int(min(limits) / neighbours)


class RowsInMemory(NamedTuple):
    """The rows of a temporary data set whose entries are in memory: `Manifest.in_memory`."""

    rank_of: dict[str, int]  # which rank has each shard, by its file
    shards: dict[str, ShardEntries]  # this rank's, all in one store; none once a training has taken them over

    @property
    def nbytes(self) -> int:
        """Bytes that the entries take in this rank's memory."""
        return next((entries.store.nbytes for entries in self.shards.values()), 0)

    def whole(self, files: Sequence[str]) -> EntriesInMemory | None:
        """Return this rank's entries if those of exactly these shards are there, in this order; else None."""
        return self.shards[files[0]].store if files and list(self.shards) == list(files) else None
