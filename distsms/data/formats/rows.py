"""Rows as they are read, whatever the format of the files, and how files whose rows are numbered are shared out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.row_metadata import Beside, together

BLOCK_ENTRIES = 2**20
"""Entries of a block that is read from files whose rows are numbered: large against a call, small against memory."""


class Rows(NamedTuple):
    """Consecutive rows in CSR form, zero-based, without explicit zeros."""

    labels: NDArray[np.float64]
    """(n,) as written; of a table +1 or -1, or 0 where labels are not wanted."""
    indptr: NDArray[np.int64]
    """(n + 1,), from 0."""
    indices: NDArray[Any]
    """(nnz,) ascending in each row; int32, or int64 where n_columns is above 2^31 - 1."""
    data: NDArray[np.float64]
    """(nnz,) finite, none of them zero."""
    n_columns: int
    """Largest index + 1, entries written as zero included; 0 if no row has an entry. Of a table: all its features."""
    ids: list[str] | None = None
    """(n,) names of the rows, where they have some."""
    beside: Beside = Beside()
    """Groups and times of the rows, where they are asked for."""


def concatenate(blocks: Iterable[Rows]) -> Rows:
    """All rows of some blocks, in order; n = 0 and nnz = 0 for no block at all. O(n + nnz) time and memory."""
    blocks = list(blocks)
    if len(blocks) == 1:
        return blocks[0]
    named = bool(blocks) and all(block.ids is not None for block in blocks)
    n_columns = max((block.n_columns for block in blocks), default=0)
    starts = itertools.accumulate((len(block.data) for block in blocks), initial=0)
    return Rows(
        np.concatenate([np.empty(0), *(block.labels for block in blocks)]),
        np.concatenate(
            [np.zeros(1, np.int64), *(block.indptr[1:] + start for block, start in zip(blocks, starts, strict=False))]
        ),
        np.concatenate([np.empty(0, index_dtype(n_columns)), *(block.indices for block in blocks)]),
        np.concatenate([np.empty(0), *(block.data for block in blocks)]),
        n_columns,
        [name for block in blocks for name in block.ids or ()] if named else None,
        together([block.beside for block in blocks]),
    )


def gathered(blocks: Iterable[Rows], n_bytes: int) -> Iterator[Rows]:
    """The same rows, of as many blocks together as take up to n_bytes in memory, and of one at least.

    Memory: twice that, and a block.
    """
    held, size = list[Rows](), 0
    for block in blocks:
        if held and size + _nbytes(block) > n_bytes:
            whole = concatenate(held)
            held, size = [], 0
            yield whole
            del whole
        held.append(block)
        size += _nbytes(block)
    if held:
        yield concatenate(held)


def _nbytes(rows: Rows) -> int:
    arrays = rows.labels, rows.indptr, rows.indices, rows.data, rows.beside.groups, rows.beside.times
    return sum(array.nbytes for array in arrays if array is not None) + sum(64 + len(name) for name in rows.ids or ())


class RowRange(NamedTuple):
    """Rows start..stop of a file; its first row is number `first` of the input."""

    path: str
    start: int
    stop: int
    first: int

    def parts(self, rows: int) -> Iterable[RowRange]:
        """The same rows in pieces of at most so many."""
        for start in range(self.start, self.stop, rows):
            yield self._replace(start=start, stop=min(start + rows, self.stop))


def plan(counts: Sequence[tuple[str, int]], n_shares: int) -> list[list[RowRange]]:
    """Cut files, each with its number of rows, into shares of as many rows each, in the order of the input."""
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


def index_dtype(n_columns: int) -> type:
    """Of column numbers."""
    return np.int32 if n_columns <= 2**31 - 1 else np.int64
