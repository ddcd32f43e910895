"""Which consecutive rows of a data set each rank reads, with about the same work, and how much memory they take."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from distsms.matrix.local import PART_ENTRIES, unsigned
from distsms.shards.codes import rows_of_part
from distsms.shards.manifest import Manifest
from distsms.shards.reader import ShardRange, open_shard
from distsms.shards.storage import CHUNK


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
    """Return where the consecutive rows begin and end whose entries this rank has in memory; None for files. Local."""
    if manifest.in_memory is None:
        return None
    rank_of = manifest.in_memory.rank_of

    def before(rank: int) -> Boundary:
        shards = [shard for shard in manifest.shards if rank_of[shard.file] < rank]
        return Boundary(sum(shard.rows for shard in shards), sum(shard.nnz for shard in shards), 0)

    return before(rank), before(rank + 1)


def boundary(manifest: Manifest, rank: int, size: int) -> Boundary:
    """Return where the rows of a rank start, or with rank = size the data end, from the files alone. Local. Rows of CSR
    are searched in the file: some 2 log2(rows of a shard) single numbers are read."""
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


_WORK = 40
"""Bytes for each row of a part that the products of coded rows take."""


class MemoryBudget(NamedTuple):
    """The memory that a rank may use for its rows: the total, and what each row needs besides its entries, in bytes."""

    bytes: int
    of_row: int = 0

    def entries(self, n_local: int) -> int:
        """Return the bytes that are left for the entries of `n_local` rows."""
        return self.bytes - self.of_row * n_local


def entry_bytes(manifest: Manifest) -> tuple[int, int]:
    """Return the bytes of an entry (a column, and a value if one is not 1) in memory, and in the files (0 if dense)."""
    value, p = 4 if manifest.dtype == "float32" else 8, manifest.p_entries
    if manifest.layout != "csr":
        return value * (manifest.layout == "dense"), 0
    value *= any(shard.values for shard in manifest.shards)
    return unsigned(p - 1)().itemsize + value, (4 if p < 2**31 else 8) + value


def held_bytes(manifest: Manifest, rows: int, nnz: int) -> int:
    """Return the bytes that so many rows, with so many stored entries and codes, take in memory."""
    return entry_bytes(manifest)[0] * manifest.entries(rows, nnz) + manifest.coded.row_bytes * rows


def work_bytes(manifest: Manifest) -> int:
    """Return the bytes that products of coded rows take for a thread: k-mers, their places, and sums, for each row."""
    return _WORK * max((min(manifest.n, rows_of_part(group)) for group in manifest.coded.maps), default=0)


def buffer_bytes(manifest: Manifest, threads: int) -> int:
    """Return the bytes that streaming takes: for each thread two parts as in memory, one as in the files, and a copy;
    more if a sparse row is longer than a sixteenth of a part."""
    in_memory, stored = entry_bytes(manifest)
    coded = 0
    for group in manifest.coded.maps:
        coded += threads * 2 * group.n_codes * group.dtype.itemsize * rows_of_part(group)
    if manifest.layout == "coded":
        return coded
    # Parts consist of whole blocks of rows.
    more = max(PART_ENTRIES // 16, manifest.p_entries * (manifest.layout == "dense"))
    chunks = 0 if manifest.compression == "none" else 2 * 8 * max(CHUNK, more)  # a compressed and an expanded chunk
    return coded + threads * ((PART_ENTRIES + more) * (2 * in_memory + stored + 12) + chunks)
