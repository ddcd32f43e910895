"""Rows that a conversion has written to shards which still lack their labels: this rank's part of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.typing import Hashes
from distsms.ingest.options import Meter
from distsms.matrix.code_maps import UNKNOWN
from distsms.matrix.normalization import Entries
from distsms.shards import row_metadata, writer
from distsms.shards.entries_in_memory import EntriesInMemory, ShardEntries
from distsms.shards.labels import to_signs
from distsms.shards.row_metadata import MetadataColumns, RowMetadata
from distsms.shards.row_statistics import group_statistics
from distsms.shards.rows import RowBlock, RowRange, concatenate, without_entries
from distsms.shards.splits import Splitter
from distsms.shards.writer import ShardForm, StagedRows, StagedShard, stage_shard


class Staged(NamedTuple):
    """A shard on the disk that still lacks its labels +1 and -1, since their meaning is known only at the end."""

    shard: StagedShard
    values: NDArray[Any]  # the different labels, as the reader gave them: numbers or strings
    codes: NDArray[Any]  # (rows,): the index in `values` of each row's label; of a small type, to save memory
    hashes: Hashes  # (rows,): see `hashing.hash_rows`
    metadata: RowMetadata
    unknown: NDArray[np.int64]  # (2,): how many letters of sequences are unknown, and how many rows have such letters


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
        shape = len(block.labels), block.n_columns
        X = sparse.csr_matrix((block.data, block.indices, block.indptr), shape, copy=False)
        X.has_canonical_format = True
        hashes.append(hashing.hash_rows(X, form.dtype, n_entries))
        n_entries += X.nnz
        values = writer.stored_values(X.data, form.dtype, directory)
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
        return Staged(shard, values, label_codes, hashing.hash_codes(codes), rows.metadata, _unknown(codes[0]))
    X = ShardEntries.joined(entries) if entries else stacked(pieces)
    shard = stage_shard(directory, number, X, form, ids, rows.metadata, in_memory=in_memory and bool(entries))
    return Staged(shard, values, label_codes, np.concatenate(hashes), rows.metadata, np.zeros(2, np.int64))


def stacked(pieces: Sequence[Any]) -> sparse.csr_matrix:
    """Return consecutive rows, which may have different numbers of columns, as one matrix."""
    for piece in pieces:
        piece.resize(piece.shape[0], max(other.shape[1] for other in pieces))
    return pieces[0] if len(pieces) == 1 else sparse.vstack(pieces, "csr")


def _stage_again(
    shard: StagedShard, folder: Path, rows: StagedRows, metadata: RowMetadata, store: EntriesInMemory | None = None
) -> StagedShard:
    """Write rows of a staged shard to another one, of the same kind and number, in a folder. Local."""
    entries = None if store is None or isinstance(rows.X, None | ShardEntries) else store.add(rows.X, rows.X.data)
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


class Part:
    """This rank's rows of a data set that is made, as consecutive shards. Methods are local if they do not say else."""

    def __init__(self) -> None:
        self.blocks = list[Staged]()
        self.store: EntriesInMemory | None = None  # the entries, if they are in memory
        self._labels = list[NDArray[np.int8]]()  # +1 and -1, once the part is finished

    @property
    def n(self) -> int:
        return sum(block.shard.rows for block in self.blocks)

    @property
    def hashes(self) -> Hashes:
        return np.concatenate([np.empty(0, np.uint64), *(block.hashes for block in self.blocks)])

    @property
    def metadata(self) -> RowMetadata:
        return row_metadata.concatenate([block.metadata for block in self.blocks])

    def _cut(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        """Return what an array (n,) has for each of the shards."""
        return np.split(array, np.cumsum([block.shard.rows for block in self.blocks])[:-1])[: len(self.blocks)]

    def write_out(self) -> None:
        """Write shards to their files if their entries are in memory."""
        self.store = None
        for k, block in enumerate(self.blocks):
            if block.shard.in_memory is not None:
                rows, folder = writer.staged_rows(block.shard), block.shard.path.parent
                self.blocks[k] = block._replace(shard=_stage_again(block.shard, folder, rows, block.metadata))

    def weigh(self, path: str | os.PathLike[str], first: int, n_rows: int) -> None:
        """Give the rows, which are those from row `first` on of the input, the weights in a file."""
        weights = self._cut(row_metadata.read_weight_file(path, first, self.n, n_rows))
        self.blocks = [
            block._replace(metadata=block.metadata._replace(weights=of_block))
            for block, of_block in zip(self.blocks, weights, strict=True)
        ]

    def number_groups(self, first: int) -> None:
        """Give each row without a group one of its own, by its number; the first of these rows is row `first`."""
        for k, block in enumerate(self.blocks):
            groups = block.metadata.groups
            if groups is not None and (groups == row_metadata.OWN_GROUP).any():
                groups = row_metadata.own_groups(groups, first)
                writer.replace_groups(block.shard, groups)
                self.blocks[k] = block._replace(metadata=block.metadata._replace(groups=groups))
            first += block.shard.rows

    def split(self, first: int, split: Splitter, comm: Communicator) -> NDArray[np.intp]:
        """Return the part of each row, (n,). Row number `first` of the input is the first of them. Collective."""
        keys: NDArray[Any] | None = None
        if split.by == "doubles":
            keys = self.hashes
        elif split.by in ("groups", "time"):
            keys = self.metadata.groups if split.by == "groups" else self.metadata.times
        if keys is None:
            keys = np.arange(first, first + self.n)
        return split.parts(keys, comm)

    def divide(self, part_of: NDArray[np.intp], folders: Sequence[Path], meter: Meter) -> list[Part]:
        """Write the rows again, each to a shard in the folder of its part; the first part stays in the store."""
        parts = [Part() for _ in folders]
        if (store := self.store) is not None:
            store.rewind()
            parts[0].store = store
        meter.begin("dealing out the rows", [RowRange("", 0, block.shard.rows, 0) for block in self.blocks])
        for block, part_of_row in zip(self.blocks, self._cut(part_of), strict=True):
            rows, marks = writer.staged_rows(block.shard), [part_of_row == k for k in range(len(folders))]
            # In the store, the rows of the first part take the place of these; so those of all parts are copied first.
            taken = [rows.take(marked) if marked.any() else None for marked in marks]
            for part, folder, marked, of_part in zip(parts, folders, marks, taken, strict=True):
                if of_part is not None:
                    metadata = block.metadata.take(marked)
                    shard = _stage_again(block.shard, folder, of_part, metadata, part.store)
                    unknown = _unknown(of_part.codes[0] if of_part.codes else np.empty((0, 0)))
                    labels, hashes = block.codes[marked], block.hashes[marked]
                    part.blocks.append(Staged(shard, block.values, labels, hashes, metadata, unknown))
            block.shard.path.unlink()
            meter.add(block.shard.rows)
        return parts

    def finish(self, label_map: Mapping[str, Any], ready: bool, p: int) -> list[dict[str, Any]]:
        """Add the labels, which are +1 and -1 already if `ready`; return the entries of the shards in the manifest."""
        for block in self.blocks:
            signs = block.values.astype(np.int8) if ready else to_signs(block.values, label_map, "the text")
            self._labels.append(signs[block.codes])
        return [
            writer.finish_shard(block.shard, y, p, block.metadata.weights, block.hashes)
            for block, y in zip(self.blocks, self._labels, strict=True)
        ]

    def statistics(self, columns: MetadataColumns, sequences: bool, comm: Communicator) -> dict[str, Any]:
        """Return what the manifest says about groups, times, weights, equal rows and letters. Collective."""
        y = np.concatenate([np.empty(0, np.int8), *self._labels])
        record: dict[str, Any] = group_statistics(self.hashes, y, self.metadata, columns, comm)
        if sequences:
            unknown = np.sum([np.zeros(2, np.int64), *(block.unknown for block in self.blocks)], axis=0)
            letters, rows = comm.sum(unknown).tolist()
            record["unknown"] = {"letters": letters, "rows": rows}
        return record

    def entries(self) -> Iterator[Entries]:
        """Yield the entries of all rows, as `normalization.fit` wants them."""
        for block in self.blocks:
            yield from writer.staged_entries(block.shard, block.metadata.weights)

    def present(self, n: int, comm: Communicator) -> tuple[int, float | None]:
        """Return how many of n rows have a weight that is not 0, and the sum of weights; None without. Collective."""
        weights = self.metadata.weights
        if not any(comm.allgather(weights is not None)):
            return n, None
        weights = np.empty(0) if weights is None else weights
        present, total = comm.sum(np.array([np.count_nonzero(weights), np.sum(weights)])).tolist()
        return int(present), total
