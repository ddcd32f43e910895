"""Blocks of rows as every reader yields them, and shares of files whose rows have numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.matrix.local import index_dtype
from distsms.shards import row_metadata
from distsms.shards.labels import in_one_type
from distsms.shards.row_metadata import RowMetadata

BLOCK_ENTRIES = 2**20
"""The number of entries that are read at a time: they make the cost of a call negligible, and take little memory."""


class RowBlock(NamedTuple):
    """Consecutive rows in CSR form. Columns count from 0, and no explicit zero is stored."""

    # (n,), as they are written: numbers, or for sequences also strings; of a table, +1 and -1; 0 if they are not needed
    labels: NDArray[Any]
    indptr: NDArray[np.int64]  # (n + 1,), starting at 0
    indices: NDArray[Any]  # (nnz,), ascending in each row; int32, or int64 if n_columns is above 2^31 - 1
    data: NDArray[np.float64]  # (nnz,), finite and not zero
    # The largest index + 1, explicit zeros of the file included; 0 if no row has an entry; of a table, all features
    n_columns: int
    ids: list[str] | None = None  # (n,), the names of the rows, or None if they have none
    metadata: RowMetadata = RowMetadata()  # the groups, times and weights of the rows, if they are needed
    codes: NDArray[Any] | None = None  # (n, codes of a row), of sequences; the other arrays then have no entries


def concatenate(blocks: Iterable[RowBlock]) -> RowBlock:
    """Return the rows of all blocks, in order, as one block; a single block is returned as it is."""
    blocks = list(blocks)
    if len(blocks) == 1:
        return blocks[0]
    named = bool(blocks) and all(block.ids is not None for block in blocks)
    n_columns = max((block.n_columns for block in blocks), default=0)
    labels = [block.labels for block in blocks]
    if any(values.dtype.kind == "U" for values in labels):
        labels = [in_one_type([label for values in labels for label in values.tolist()])]
    starts = itertools.accumulate((len(block.data) for block in blocks), initial=0)
    return RowBlock(
        np.concatenate(labels or [np.empty(0)]),
        np.concatenate(
            [np.zeros(1, np.int64), *(block.indptr[1:] + start for block, start in zip(blocks, starts, strict=False))]
        ),
        np.concatenate([np.empty(0, index_dtype(0, n_columns)), *(block.indices for block in blocks)]),
        np.concatenate([np.empty(0), *(block.data for block in blocks)]),
        n_columns,
        [name for block in blocks for name in block.ids or ()] if named else None,
        row_metadata.concatenate([block.metadata for block in blocks]),
        np.concatenate([block.codes for block in blocks]) if blocks and blocks[0].codes is not None else None,
    )


def batches(blocks: Iterator[RowBlock], n_bytes: int) -> Iterator[Iterator[RowBlock]]:
    """Yield the blocks in groups, to be used up in turn: as many as fit in `n_bytes` of memory, and at least one."""
    waiting = next(blocks, None)

    def group() -> Iterator[RowBlock]:
        nonlocal waiting
        size = 0
        while waiting is not None and (not size or size + _nbytes(waiting) <= n_bytes):
            block, waiting = waiting, None
            size += _nbytes(block)
            yield block
            del block  # before the next one is read
            waiting = next(blocks, None)

    while waiting is not None:
        yield group()


def without_entries(rows: RowBlock) -> RowBlock:
    """Return what is known of the rows besides their entries, whose memory is not held."""
    return rows._replace(indptr=rows.indptr[:1].copy(), indices=rows.indices[:0].copy(), data=rows.data[:0].copy())


def _nbytes(rows: RowBlock) -> int:
    about = rows.metadata
    arrays = rows.labels, rows.indptr, rows.indices, rows.data, rows.codes, about.groups, about.times, about.weights
    return sum(array.nbytes for array in arrays if array is not None) + sum(64 + len(name) for name in rows.ids or ())


def split_range(whole: Any, rows: int) -> Iterator[Any]:
    """Cut a named tuple with the fields `start` and `stop` into consecutive ones of at most `rows` rows each."""
    for start in range(whole.start, whole.stop, rows):
        yield whole._replace(start=start, stop=min(start + rows, whole.stop))


class RowRange(NamedTuple):
    """Rows start..stop of a file whose first row is row number `first` of the whole input."""

    path: str
    start: int
    stop: int
    first: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def parts(self, rows: int) -> Iterator[RowRange]:
        return split_range(self, rows)


def plan(counts: Sequence[tuple[str, int]], n_shares: int) -> list[list[RowRange]]:
    """Cut files, each with its number of rows, into consecutive shares of (nearly) as many rows; some may be empty."""
    ends = list(itertools.accumulate((count for _, count in counts), initial=0))
    cuts = [ends[-1] * share // n_shares for share in range(n_shares + 1)]
    return [
        [
            RowRange(path, max(start - first, 0), min(stop - first, count), first)
            for (path, count), first in zip(counts, ends, strict=False)
            if max(start, first) < min(stop, first + count)
        ]
        for start, stop in itertools.pairwise(cuts)
    ]


def of_rank(n_shares: int, comm: Communicator) -> range:
    """Return the numbers of the shares that this rank reads."""
    return range(n_shares * comm.rank // comm.size, n_shares * (comm.rank + 1) // comm.size)
