"""Which rows of a data set each rank reads: consecutive ones, with about the same work for all ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from distsms.shards.manifest import Manifest
from distsms.shards.reader import ShardRange, open_shard


class Boundary(NamedTuple):
    """A boundary between the rows of two ranks: the numbers of rows, and of stored entries and codes, before it."""

    row: int
    nnz: int
    bytes_read: int  # bytes that were read to find the boundary


def shard_ranges(manifest: Manifest, first: int, last: int) -> Iterator[ShardRange]:
    """Yield the range of each shard that has some of the global rows first..last - 1. Local; reads no file."""
    offset = 0
    for shard in manifest.shards:
        start, stop = max(first - offset, 0), min(last - offset, shard.rows)
        if start < stop:
            yield ShardRange(shard, offset, start, stop)
        offset += shard.rows


def rows_in_memory(manifest: Manifest, rank: int) -> tuple[Boundary, Boundary] | None:
    """Return where the rows begin and end whose entries this rank has in memory; None if entries are in files. Local.

    The ranks then have consecutive rows, in their order, and all rows together.
    """
    if manifest.in_memory is None:
        return None
    rank_of = manifest.in_memory.rank_of

    def before(rank: int) -> Boundary:
        shards = [shard for shard in manifest.shards if rank_of[shard.file] < rank]
        return Boundary(sum(shard.rows for shard in shards), sum(shard.nnz for shard in shards), 0)

    return before(rank), before(rank + 1)


def boundary(manifest: Manifest, rank: int, size: int) -> Boundary:
    """Return where the rows of a rank start; with rank = size, where the data end. Local.

    The result depends only on the files, so two neighbouring ranks compute the same boundary. Rows of CSR are searched
    in the file: some 2 log2(rows of a shard) single numbers are read. Raises InputError if the shard cannot be read.
    """
    rows = [0, *accumulate(shard.rows for shard in manifest.shards)]
    nnz = [0, *accumulate(shard.nnz for shard in manifest.shards)]
    before = [r + z for r, z in zip(rows, nnz, strict=True)]
    target = -(-rank * before[-1] // size)
    k = bisect_left(before, target)
    if before[k] == target:
        return Boundary(rows[k], nnz[k], 0)
    shard, missing = manifest.shards[k - 1], target - before[k - 1]
    n_codes = manifest.coded.n_codes
    if manifest.layout != "csr":
        of_row = n_codes + (manifest.p_entries if manifest.layout == "dense" else 0)
        row = -(-missing // (of_row + 1))
        return Boundary(rows[k - 1] + row, nnz[k - 1] + row * of_row, 0)
    with open_shard(manifest, shard, rows[k - 1]) as file:
        row, entries = file.search(missing)
        return Boundary(rows[k - 1] + row, nnz[k - 1] + entries + row * n_codes, file.bytes_read)
