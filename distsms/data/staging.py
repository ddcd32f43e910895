"""Rows that a conversion has written to shards which still lack their labels: this rank's part of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data import duplicates, row_metadata
from distsms.data.coded_columns import CodedColumns
from distsms.data.formats.base import Meter
from distsms.data.formats.rows import RowBlock, RowRange, concatenate, without_entries
from distsms.data.groupby import group_statistics
from distsms.data.row_metadata import RowMetadata
from distsms.data.shards import dataset, entries_in_memory
from distsms.data.shards.entries_in_memory import EntriesInMemory
from distsms.data.splits import Splitter
from distsms.matrix.code_maps import UNKNOWN
from distsms.matrix.normalization import Entries
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Hashes


class Staged(NamedTuple):
    """A shard on the disk that still lacks its labels +1 and -1, since their meaning is known only at the end."""

    shard: dataset.StagedShard
    values: NDArray[Any]  # the different labels, as the reader gave them: numbers or strings
    codes: NDArray[Any]  # (rows,): the index in `values` of each row's label; of a small type, to save memory
    hashes: Hashes  # (rows,): see `duplicates.hash_rows`
    metadata: RowMetadata
    unknown: NDArray[np.int64]  # (2,): how many letters of sequences are unknown, and how many rows have such letters


def stage(
    blocks: Sequence[RowBlock],
    directory: Path,
    number: int,
    dtype: str,
    compression: str,
    named: bool,
    coded: CodedColumns,
    durable: bool,
    store: EntriesInMemory | None = None,
) -> Staged:
    """Write the rows of consecutive blocks to a shard with this number. Local.

    named : whether the rows have names. coded : what their codes stand for, if they have codes and no entries.
    durable, store : see `dataset.stage_shard`.
    """
    rows = concatenate([without_entries(block) for block in blocks])
    values, label_codes = _numbered(rows.labels)
    how = dtype, (rows.ids or []) if named else None, compression, rows.metadata
    if coded:
        codes = np.empty((0, coded.n_codes), np.uint8) if rows.codes is None else rows.codes
        shard = dataset.stage_shard(directory, number, None, *how, [codes], coded, durable)
        return Staged(shard, values, label_codes, duplicates.hash_codes([codes]), rows.metadata, _unknown(codes))
    X = [
        sparse.csr_matrix((block.data, block.indices, block.indptr), (len(block.labels), block.n_columns), copy=False)
        for block in blocks
    ]
    shard = dataset.stage_shard(directory, number, X, *how, durable=durable, store=store)
    hashes = np.concatenate([duplicates.hash_rows(piece, dtype) for piece in X])
    return Staged(shard, values, label_codes, hashes, rows.metadata, np.zeros(2, np.int64))


def write_out(staged: Staged) -> Staged:
    """Write a shard to its file if its entries are in memory. Local."""
    if entries_in_memory.find(staged.shard.path) is None:
        return staged
    X, ids, _ = dataset.staged_rows(staged.shard)
    entries_in_memory.forget(staged.shard.path)
    how = staged.shard.dtype, ids, staged.shard.compression, staged.metadata
    shard = dataset.stage_shard(staged.shard.path.parent, staged.shard.number, X, *how, durable=staged.shard.durable)
    return staged._replace(shard=shard)


def _numbered(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the different labels, ascending, and the index of each row's label among them, of a small type."""
    values = np.unique(labels[:1000])  # mostly all there are; sorting all labels would take long
    which = np.searchsorted(values, labels)
    if len(values) and not np.array_equal(values[np.minimum(which, len(values) - 1)], labels):
        values, which = np.unique(labels, return_inverse=True)
    return values, which.astype(np.min_scalar_type(len(values)))


def _unknown(codes: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many letters of sequences (rows, letters) are unknown, and how many rows have such letters."""
    found = np.zeros(2, np.int64)
    for first in range(0, len(codes), 2**14):  # needs no memory for all rows at once
        counts = np.count_nonzero(codes[first : first + 2**14] == UNKNOWN, axis=1)
        found += counts.sum(), np.count_nonzero(counts)
    return found


def weigh(staged: Sequence[Staged], path: str | os.PathLike[str], first: int, whole: int) -> list[Staged]:
    """Give this rank's rows, which are those from row `first` on of the `whole` input, the weights in a file. Local."""
    sizes = [block.shard.rows for block in staged]
    found = np.split(row_metadata.read_weight_file(path, first, sum(sizes), whole), np.cumsum(sizes)[:-1])
    return [
        block._replace(metadata=block.metadata._replace(weights=own)) for block, own in zip(staged, found, strict=False)
    ]


def part_of(staged: Sequence[Staged], first: int, split: Splitter, comm: Communicator) -> list[NDArray[np.uint8]]:
    """Return the part of each staged row. Row number `first` of the input is the first of them. Collective."""
    numbers = np.arange(first, first + sum(block.shard.rows for block in staged))
    keys: NDArray[Any] = numbers
    if split.by == "doubles":
        keys = np.concatenate([np.empty(0, np.uint64), *(block.hashes for block in staged)])
    elif split.by == "groups":
        keys = np.concatenate([np.empty(0, np.uint64), *(block.metadata.groups for block in staged)])
    elif split.by == "time" and staged and staged[0].metadata.times is not None:
        keys = np.concatenate([np.empty(0), *(block.metadata.times for block in staged)])
    found = split.in_time(keys, comm) if split.by == "time" else split.by_hash(keys)
    return np.split(found, np.cumsum([block.shard.rows for block in staged])[:-1]) if staged else []


def divide(
    staged: Sequence[Staged],
    part_of: Sequence[NDArray[np.uint8]],
    folders: Sequence[Path],
    meter: Meter,
    store: EntriesInMemory | None = None,
) -> list[list[Staged]]:
    """Write the staged rows again, each to a staged shard in the folder of its part, and remove the old shards.

    If the entries are in a store, those of the first part stay there.
    """
    if store is not None:
        store.rewind()
    parts: list[list[Staged]] = [[] for _ in folders]
    meter.begin("dealing out the rows", [RowRange("", 0, block.shard.rows, 0) for block in staged])
    for block, part in zip(staged, part_of, strict=True):
        X, ids, codes = dataset.staged_rows(block.shard)
        for k, folder in enumerate(folders):
            rows = np.flatnonzero(part == k)
            if len(rows):
                names, metadata = None if ids is None else [ids[row] for row in rows], block.metadata.take(rows)
                how = block.shard.dtype, names, block.shard.compression, metadata
                own, taken = None if X is None else X[rows], [group[rows] for group in codes]
                of_codes = taken, block.shard.coded, block.shard.durable
                shard = dataset.stage_shard(folder, block.shard.number, own, *how, *of_codes, store if k == 0 else None)
                found = (
                    block.codes[rows],
                    block.hashes[rows],
                    metadata,
                    _unknown(taken[0] if taken else np.empty((0, 0))),
                )
                parts[k].append(Staged(shard, block.values, *found))
        block.shard.path.unlink()
        entries_in_memory.forget(block.shard.path)
        meter.add(block.shard.rows)
    return parts


def statistics(
    part: Sequence[Staged],
    labels: Sequence[NDArray[np.int8]],
    columns: tuple[str | None, str | None, str | None],
    sequences: bool,
    comm: Communicator,
) -> dict[str, Any]:
    """Return what the manifest says about groups, times, weights, equal rows and letters of a part. Collective."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(block.hashes for block in part)])
    y = np.concatenate([np.empty(0, np.int8), *labels])
    found = group_statistics(hashes, y, row_metadata.concatenate([block.metadata for block in part]), columns, comm)
    if sequences:
        letters, rows = comm.sum(np.sum([np.zeros(2, np.int64), *(block.unknown for block in part)], axis=0)).tolist()
        found["unknown"] = {"letters": letters, "rows": rows}
    return found


def entries(staged: Sequence[Staged]) -> Iterator[Entries]:
    """Yield the entries of all rows, as `normalization.fit` wants them. Local."""
    for block in staged:
        yield from dataset.staged_entries(block.shard, block.metadata.weights)


def present(staged: Sequence[Staged], n: int, comm: Communicator) -> tuple[int, float | None]:
    """Return how many of n rows have a weight that is not 0, and the sum of the weights; None without. Collective."""
    weights = row_metadata.concatenate([block.metadata for block in staged]).weights
    if not any(comm.allgather(weights is not None)):
        return n, None
    weights = np.empty(0) if weights is None else weights
    present, total = comm.sum(np.array([np.count_nonzero(weights), np.sum(weights)])).tolist()
    return int(present), total
