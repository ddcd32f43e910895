"""Rows that a conversion has written to shards which still lack their labels: this rank's part of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.typing import Hashes
from distsms.ingest.options import Meter
from distsms.matrix.code_maps import UNKNOWN
from distsms.matrix.normalization import Entries
from distsms.shards import row_metadata, row_statistics
from distsms.shards.entries_in_memory import EntriesInMemory, ShardEntries
from distsms.shards.labels import to_signs
from distsms.shards.row_metadata import RowMetadata
from distsms.shards.row_statistics import group_statistics
from distsms.shards.rows import RowBlock, RowRange, concatenate, without_entries
from distsms.shards.splits import Splitter
from distsms.shards.writer import (
    ShardForm,
    StagedRows,
    StagedShard,
    finite,
    replace_groups,
    stage_shard,
    staged_entries,
    staged_rows,
)


class Staged(NamedTuple):
    """A shard on the disk that still lacks its labels +1 and -1, since their meaning is known only at the end."""

    shard: StagedShard
    values: NDArray[Any]  # the different labels, as the reader gave them: numbers or strings
    codes: NDArray[Any]  # (rows,): the index in `values` of each row's label; of a small type, to save memory
    hashes: Hashes  # (rows,): see `row_statistics.hash_rows`
    metadata: RowMetadata
    unknown: NDArray[np.int64]  # (2,): how many letters of sequences are unknown, and how many rows have such letters

    def signs(self, label_map: Mapping[str, Any], ready: bool) -> NDArray[np.int8]:
        """Return the labels as +1 and -1, which they are already if they are `ready`."""
        return (self.values.astype(np.int8) if ready else to_signs(self.values, label_map, "the text"))[self.codes]


def stage(
    blocks: Iterable[RowBlock],
    directory: Path,
    number: int,
    form: ShardForm,
    named: bool,
    store: EntriesInMemory | None,
    in_memory: bool,
) -> Staged:
    """Write the rows of consecutive blocks to a shard with this number, with their names if they are `named`. Local.
    Entries are gathered in the store as far as it has room, and stay there if they are to be `in_memory`."""
    parts, hashes = list[RowBlock](), [np.empty(0, np.uint64)]
    entries, pieces = list[ShardEntries](), list[Any]()
    n_entries = 0
    for block in blocks:
        parts.append(without_entries(block))
        if form.coded:
            continue
        X = _matrix(block)
        hashes.append(row_statistics.hash_rows(X, form.dtype, n_entries))
        n_entries += X.nnz
        values = finite(X.data, form.dtype, directory)
        added = None if store is None or pieces else store.add(X, values)
        if added is not None:
            entries.append(added)
            continue
        pieces += [ShardEntries.joined(entries).matrix()] if entries else []
        entries = []
        pieces.append(X)
    rows = concatenate(parts)
    values, label_codes = _numbered(rows.labels)
    ids = (rows.ids or []) if named else None
    if form.coded:
        codes = [np.empty((0, form.coded.n_codes), np.uint8) if rows.codes is None else rows.codes]
        shard = stage_shard(directory, number, None, form, ids, rows.metadata, codes)
        return Staged(shard, values, label_codes, row_statistics.hash_codes(codes), rows.metadata, _unknown(codes[0]))
    X = ShardEntries.joined(entries) if entries else pieces
    shard = stage_shard(directory, number, X, form, ids, rows.metadata, in_memory=in_memory and bool(entries))
    return Staged(shard, values, label_codes, np.concatenate(hashes), rows.metadata, np.zeros(2, np.int64))


def _matrix(block: RowBlock) -> sparse.csr_matrix:
    shape = len(block.labels), block.n_columns
    X = sparse.csr_matrix((block.data, block.indices, block.indptr), shape, copy=False)
    X.has_canonical_format = True
    return X


def write_out(staged: Staged) -> Staged:
    """Write a shard to its file if its entries are in memory. Local."""
    if staged.shard.in_memory is None:
        return staged
    rows = staged_rows(staged.shard)
    return staged._replace(shard=_stage_again(staged.shard, staged.shard.path.parent, rows, staged.metadata))


def _stage_again(
    shard: StagedShard,
    folder: Path,
    rows: StagedRows,
    metadata: RowMetadata,
    store: EntriesInMemory | None = None,
) -> StagedShard:
    """Write rows of a staged shard to another one, of the same kind and number, in a folder. Local."""
    entries = None if store is None or rows.X is None else store.add(rows.X, rows.X.data)
    X, in_memory = (rows.X, False) if entries is None else (entries, True)
    return stage_shard(folder, shard.number, X, shard.form, rows.ids, metadata, rows.codes, in_memory)


def _numbered(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the different labels, ascending, and the index of each row's label among them, of a small type."""
    values = np.unique(labels[:1000])  # mostly all there are; sorting all labels would take long
    codes = np.searchsorted(values, labels)
    if len(values) and not np.array_equal(values[np.minimum(codes, len(values) - 1)], labels):
        values, codes = np.unique(labels, return_inverse=True)
    return values, codes.astype(np.min_scalar_type(len(values)))


def _unknown(codes: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many letters of sequences (rows, letters) are unknown, and how many rows have such letters."""
    unknown = np.zeros(2, np.int64)
    for first in range(0, len(codes), 2**14):  # needs no memory for all rows at once
        counts = np.count_nonzero(codes[first : first + 2**14] == UNKNOWN, axis=1)
        unknown += counts.sum(), np.count_nonzero(counts)
    return unknown


def weigh(staged: Sequence[Staged], path: str | os.PathLike[str], first: int, n_rows: int) -> list[Staged]:
    """Give this rank's rows, which are those from row `first` on of the input, the weights in a file. Local."""
    sizes = [block.shard.rows for block in staged]
    weights = np.split(row_metadata.read_weight_file(path, first, sum(sizes), n_rows), np.cumsum(sizes)[:-1])
    return [
        block._replace(metadata=block.metadata._replace(weights=part))
        for block, part in zip(staged, weights, strict=False)
    ]


def number_groups(staged: Sequence[Staged], first: int) -> list[Staged]:
    """Give each row without a group one of its own, by its number; the first of these rows is row `first`. Local."""
    blocks = list[Staged]()
    for block in staged:
        groups, metadata = block.metadata.groups, block.metadata
        if groups is not None and (groups == row_metadata.OWN_GROUP).any():
            groups = row_metadata.own_groups(groups, first)
            replace_groups(block.shard, groups)
            metadata = metadata._replace(groups=groups)
        blocks.append(block._replace(metadata=metadata))
        first += block.shard.rows
    return blocks


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
    parts = split.in_time(keys, comm) if split.by == "time" else split.by_hash(keys)
    return np.split(parts, np.cumsum([block.shard.rows for block in staged])[:-1]) if staged else []


def divide(
    staged: Sequence[Staged],
    part_of: Sequence[NDArray[np.uint8]],
    folders: Sequence[Path],
    meter: Meter,
    store: EntriesInMemory | None = None,
) -> list[list[Staged]]:
    """Write the staged rows again, each to a shard in the folder of its part; the first part stays in the store."""
    if store is not None:
        store.rewind()
    parts: list[list[Staged]] = [[] for _ in folders]
    meter.begin("dealing out the rows", [RowRange("", 0, block.shard.rows, 0) for block in staged])
    for block, part in zip(staged, part_of, strict=True):
        rows = staged_rows(block.shard)
        for k, folder in enumerate(folders):
            places = np.flatnonzero(part == k)
            if len(places):
                of_part, metadata = rows.take(places), block.metadata.take(places)
                shard = _stage_again(block.shard, folder, of_part, metadata, store if k == 0 else None)
                unknown = _unknown(of_part.codes[0] if of_part.codes else np.empty((0, 0)))
                labels, hashes = block.codes[places], block.hashes[places]
                parts[k].append(Staged(shard, block.values, labels, hashes, metadata, unknown))
        block.shard.path.unlink()
        meter.add(block.shard.rows)
    return parts


def statistics(
    part: Sequence[Staged],
    labels: Sequence[NDArray[np.int8]],
    columns: row_metadata.MetadataColumns,
    sequences: bool,
    comm: Communicator,
) -> dict[str, Any]:
    """Return what the manifest says about groups, times, weights, equal rows and letters of a part. Collective."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(block.hashes for block in part)])
    y = np.concatenate([np.empty(0, np.int8), *labels])
    record = group_statistics(hashes, y, row_metadata.concatenate([block.metadata for block in part]), columns, comm)
    if sequences:
        letters, rows = comm.sum(np.sum([np.zeros(2, np.int64), *(block.unknown for block in part)], axis=0)).tolist()
        record["unknown"] = {"letters": letters, "rows": rows}
    return record


def entries(staged: Sequence[Staged]) -> Iterator[Entries]:
    """Yield the entries of all rows, as `normalization.fit` wants them. Local."""
    for block in staged:
        yield from staged_entries(block.shard, block.metadata.weights)


def present(staged: Sequence[Staged], n: int, comm: Communicator) -> tuple[int, float | None]:
    """Return how many of n rows have a weight that is not 0, and the sum of the weights; None without. Collective."""
    weights = row_metadata.concatenate([block.metadata for block in staged]).weights
    if not any(comm.allgather(weights is not None)):
        return n, None
    weights = np.empty(0) if weights is None else weights
    present, total = comm.sum(np.array([np.count_nonzero(weights), np.sum(weights)])).tolist()
    return int(present), total
