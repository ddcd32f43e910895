"""A data set as shards: written once, read by any number of ranks, each its own rows.

`distsms.data.shards.reader` describes one file, `distsms.data.shards.manifest` what holds them together. Writing takes
four steps, since p
and the meaning of the labels are known only when all the text was read; several ranks may write, each file is one's:

    root:  prepare(directory)             a directory without leftovers
    any:   stage_shard(directory, k, X)   X of shard k, as soon as it is parsed
    same:  finish_shard(staged, y, p)     labels and p; gives the shard's entry in the manifest
    root:  publish(directory, entries)    final names, by the order of entries, then the manifest: only now a data set

`write_data` does them all for arrays in memory; `load` reads.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.shards import storage
from distsms.data.shards.from_arrays import write_data
from distsms.data.shards.manifest import Manifest, prepare, publish, read_manifest, verify, withdraw
from distsms.data.shards.reader import OpenShard, ShardRange, open_shard
from distsms.data.shards.streaming import DenseStream, MemoryBudget, SparseStream, Stream, entry_bytes, span
from distsms.data.shards.writer import StagedShard, finish_shard, stage_shard, staged_entries, staged_rows
from distsms.errors import InputError
from distsms.matrix.local import (
    PART_ENTRIES,
    DenseRows,
    Features,
    PatternRows,
    SparseRows,
    index_dtype,
    length_dtype,
    normalize_matrix,
    unsigned,
)
from distsms.matrix.normalization import Normalization
from distsms.parallel.communicator import Communicator

PART_ROWS = 2**16
"""Rows, and by PART_ENTRIES entries, that are read and checked at a time."""

__all__ = [
    "Block",
    "Manifest",
    "StagedShard",
    "finish_shard",
    "load",
    "opened",
    "prepare",
    "publish",
    "read_ids",
    "read_manifest",
    "stage_shard",
    "staged_entries",
    "staged_rows",
    "verify",
    "withdraw",
    "write_data",
]


@dataclass(frozen=True)
class Block:
    """This rank's rows: consecutive ones of the data set, from `first_row` on."""

    features: Features  # local, (n_local, columns)
    labels: NDArray[np.int8]  # local, (n_local,)
    weights: NDArray[np.float64] | None  # local, (n_local,); None on every rank or on none
    first_row: int  # global number of the first local row
    n: int  # global number of rows
    p: int  # columns of `features`: those of the data set, or as many as asked for
    bytes_read: int  # size of what this rank read, without HDF5's own overhead

    def judged(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """The scores, of all local rows (n_local,), and the labels of those that count; copied only if not all do."""
        if self.weights is None:
            return scores, self.labels
        return scores[self.counted], self.labels[self.counted]

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(n_local,): the rows that count, all but those of weight 0."""
        return np.ones(len(self.labels), bool) if self.weights is None else self.weights != 0


def load(
    data: str | os.PathLike[str] | Manifest,
    comm: Communicator,
    n_columns: int | None = None,
    ignore_new_features: bool = False,
    normalization: Normalization | None = None,
    part: tuple[int, int] | None = None,
    room: MemoryBudget | None = None,
) -> Block:
    """Read this rank's share of the rows, and nothing else. Collective.

    A row weighs 1 + its stored entries; with W the sum, rank r of P starts at the first row that has r W / P or more
    before it. So a rank holds at most W / P plus one row; it may hold none. Cost per rank: its share of the bytes, and
    2 log2(rows of a shard) single reads to find the two boundaries. Memory: the block, and some MB for the part of a
    shard that is being read and checked (a part has at least one row).

    n_columns: as many columns as a model has, instead of p; the ones that the data lack are zero. Columns beyond are
    refused, or left out with `ignore_new_features` (their place in memory is claimed, but never touched).
    normalization: of the rows; None means that of the data set, with which its models are trained.
    part: (k, m) reads what rank k of m would, no rows if k = m; None: by the ranks there are.

    room: what this rank may hold of its rows, which then have all their columns; what does not fit is streamed, with
    the same results. None: all of it.

    Raises InputError on every rank, with file and row, if any rank finds a file that is missing, cut, incomplete or
    different from the manifest, or rows that are not what the format says.
    """
    with comm.fail_together():
        manifest = data if isinstance(data, Manifest) else read_manifest(data)
        width = manifest.p if n_columns is None else n_columns
        if not ignore_new_features:
            check_columns(manifest, width)
        how = manifest.normalization if normalization is None else normalization
        k, m = part or (comm.rank, comm.size)
        ends = _boundary(manifest, k, m), _boundary(manifest, min(k + 1, m), m)
        read = _read_rows(manifest, *ends, width, room)
    longest, shortest = comm.maximum(np.array(read.rows.lengths_span()))  # so that all ranks need the same kernels
    features = comm.root_first(lambda: read.rows.features(int(longest), longest != -shortest))
    bytes_read = read.bytes_read
    with comm.fail_together():
        if room is not None and isinstance(read.rows, Stream):
            read.rows.load(features, room.entries(len(read.labels)))
        features.normalize(how)
        if isinstance(read.rows, Stream):
            bytes_read += read.rows.bytes_read
    return Block(features, read.labels, read.weights, read.first_row, manifest.n, width, bytes_read)


def matrix(manifest: Manifest) -> tuple[Any, NDArray[np.int8], NDArray[np.bool_]]:
    """All rows that count as training sees them, X (n, p) in float64 as SciPy (CSR) or NumPy has it, and their labels
    (n,); and of all rows, which ones count. Local; for other libraries: 12 bytes a nonzero. Raises InputError as `load`
    does.
    """
    first, last = (_boundary(manifest, k, 1) for k in (0, 1))
    read = _read_rows(manifest, first, last, manifest.p, None)
    assert not isinstance(read.rows, Stream)
    X = read.rows.matrix()
    if manifest.normalization.kind != "none":
        normalize_matrix(X, manifest.normalization)
    if read.weights is None:
        return X, read.labels, np.ones(len(read.labels), bool)
    return X[counted := read.weights != 0], read.labels[counted], counted


class _Boundary(NamedTuple):
    """A place between two rows: how many rows and stored entries of the data set come before it."""

    row: int
    nnz: int
    bytes_read: int  # to find it


def read_ids(manifest: Manifest, first: int, last: int) -> list[str] | None:
    """The names of the global rows first..last, or None if they have none. Local."""
    if not manifest.ids:
        return None
    return [name for shard, piece in opened(manifest, first, last) for name in shard.read_ids(piece)]


def opened(manifest: Manifest, first: int, last: int) -> Iterator[tuple[OpenShard, ShardRange]]:
    """Each shard of the global rows first..last while it is open, and its part of them. Local."""
    for piece in _pieces(manifest, first, last):
        with open_shard(manifest, piece.shard, piece.offset) as shard:
            yield shard, piece


def check_readable(manifest: Manifest) -> None:
    """InputError if shards are compressed and the library for that is missing. Local."""
    if manifest.compression != "none":
        storage.require(manifest.directory)


def check_columns(manifest: Manifest, width: int) -> None:
    """InputError, naming the shard and its last column, if the data use more than `width` columns. Local."""
    for shard in manifest.shards:
        if shard.columns > width:
            raise InputError(
                f"{manifest.directory / shard.file}: uses column {manifest.column_name(shard.columns - 1)}, but the "
                f"model has {width} columns. Were both made with the same features? "
                "--ignore-new-features leaves new ones out."
            )


class _Read(NamedTuple):
    """A rank's rows as they come from the files; see `Block`."""

    rows: _DenseRows | _SparseRows | Stream
    labels: NDArray[np.int8]
    weights: NDArray[np.float64] | None
    first_row: int
    bytes_read: int


def _read_rows(manifest: Manifest, first: _Boundary, last: _Boundary, width: int, room: MemoryBudget | None) -> _Read:
    pieces = list(_pieces(manifest, first.row, last.row))
    for piece in pieces:
        manifest.checked_path(piece.shard)  # before memory is claimed on the manifest's word
    n_local = last.row - first.row
    streamed = room is not None and entry_bytes(manifest)[0] * (last.nnz - first.nnz) > room.entries(n_local)
    rows: _DenseRows | _SparseRows | Stream
    if manifest.layout == "dense":
        make = DenseStream if streamed else _DenseRows
        rows = make(n_local, width, manifest.dtype)
    elif streamed:
        rows = SparseStream(pieces, n_local, width, manifest.dtype)
    else:
        rows = _SparseRows(pieces, n_local, last.nnz - first.nnz, width, manifest.dtype)
    labels = np.empty(n_local, np.int8)
    weights = np.empty(n_local) if manifest.weights else None
    bytes_read = first.bytes_read + last.bytes_read
    for piece in pieces:
        with open_shard(manifest, piece.shard, piece.offset) as shard:
            for part in piece.parts(PART_ROWS):
                at = part.offset + part.start - first.row
                local = slice(at, at + part.stop - part.start)
                shard.read_labels(part, labels[local])
                if weights is not None:
                    shard.read_weights(part, weights[local])
                rows.add(shard, part, local)
            bytes_read += shard.bytes_read
    return _Read(rows, labels, weights, first.row, bytes_read)


def _pieces(manifest: Manifest, first: int, last: int) -> Iterator[ShardRange]:
    """The parts of shards that make up the global rows first..last."""
    offset = 0
    for shard in manifest.shards:
        start, stop = max(first - offset, 0), min(last - offset, shard.rows)
        if start < stop:
            yield ShardRange(shard, offset, start, stop)
        offset += shard.rows


def _boundary(manifest: Manifest, rank: int, size: int) -> _Boundary:
    """Where rank's rows start (rank = size: the end). Depends on the files alone, so that neighbours agree."""
    rows = [0, *accumulate(shard.rows for shard in manifest.shards)]
    nnz = [0, *accumulate(shard.nnz for shard in manifest.shards)]
    before = [r + z for r, z in zip(rows, nnz, strict=True)]
    target = -(-rank * before[-1] // size)
    k = bisect_left(before, target)
    if before[k] == target:
        return _Boundary(rows[k], nnz[k], 0)
    shard, missing = manifest.shards[k - 1], target - before[k - 1]
    if manifest.layout == "dense":
        row = -(-missing // (manifest.p + 1))
        return _Boundary(rows[k - 1] + row, nnz[k - 1] + row * manifest.p, 0)
    with open_shard(manifest, shard, rows[k - 1]) as file:
        row, entries = file.search(missing)
        return _Boundary(rows[k - 1] + row, nnz[k - 1] + entries, file.bytes_read)


class _SparseRows:
    """The local rows of CSR shards, put together in arrays of their final size and type, a bounded part at a time."""

    def __init__(self, pieces: list[ShardRange], n_local: int, nnz: int, width: int, dtype: str) -> None:
        nnz = max(nnz, 0)  # negative only if indptr descends, which `add` will report
        self.lengths = np.zeros(n_local, length_dtype(0))
        self.indices = np.empty(nnz, unsigned(width - 1))
        valued = any(piece.shard.values for piece in pieces)
        self.values = np.empty(nnz, dtype) if valued else None
        self.filled, self.width = 0, width

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        indptr = shard.read_indptr(part)
        self._count(np.diff(indptr), local)
        cut = 0
        while cut < len(indptr) - 1:
            end = max(cut + 1, int(np.searchsorted(indptr, indptr[cut] + PART_ENTRIES, side="right")) - 1)
            some = part._replace(start=part.start + cut, stop=part.start + end)
            self._add_entries(shard, some, indptr[cut : end + 1], slice(local.start + cut, local.start + end))
            cut = end

    def _count(self, lengths: NDArray[np.int64], local: slice) -> None:
        """Note the entries of each row, in a wider type if they need one."""
        wanted = length_dtype(int(lengths.max(initial=0)))
        self.lengths = self.lengths.astype(np.promote_types(self.lengths.dtype, wanted), copy=False)
        self.lengths[local] = lengths

    def _add_entries(self, shard: OpenShard, piece: ShardRange, indptr: NDArray[np.int64], local: slice) -> None:
        start, stop = int(indptr[0]), int(indptr[-1])
        indptr = indptr - start
        indices = shard.read_indices(piece, indptr, start)
        new = indices >= self.width  # unwanted columns: there are none unless they are to be ignored
        entries = slice(self.filled, self.filled + stop - start)
        if self.values is not None and piece.shard.values:
            shard.read("X/data", start, stop, self.values[entries])
            shard.check_finite(piece, indptr, self.values[entries])
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

    def lengths_span(self) -> tuple[int, int]:
        return span(self.lengths)

    def features(self, longest: int, differ: bool) -> SparseRows:
        """longest : the entries of the longest row of all ranks; differ : whether there are rows with fewer."""
        indices, lengths = self.indices[: self.filled], self.lengths.astype(length_dtype(longest), copy=False)
        if self.values is None:
            return PatternRows(indices, lengths, self.width, sort=differ)
        return SparseRows(self.values[: self.filled], indices, lengths, self.width, sort=differ)

    def matrix(self) -> sparse.csr_matrix:
        """All rows and entries as SciPy has them."""
        kind, nnz = index_dtype(self.filled, self.width), self.filled
        values = np.ones(nnz) if self.values is None else self.values[:nnz].astype(float)
        indptr = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64))).astype(kind)
        return sparse.csr_matrix((values, self.indices[:nnz].astype(kind), indptr), (len(self.lengths), self.width))


class _DenseRows:
    """The local rows of dense shards. Columns beyond `width` are not kept."""

    def __init__(self, n_local: int, width: int, dtype: str) -> None:
        self.array = np.zeros((n_local, width), dtype)

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        for some in part.parts(max(1, PART_ENTRIES // self.array.shape[1])):
            rows = self.array[local.start + some.start - part.start : local.start + some.stop - part.start]
            shard.read_dense(some.start, some.stop, rows)
            shard.check_finite(some, None, rows)

    def lengths_span(self) -> tuple[int, int]:
        return self.array.shape[1], -self.array.shape[1]

    def features(self, longest: int, differ: bool) -> DenseRows:
        return DenseRows(self.array)

    def matrix(self) -> NDArray[np.float64]:
        return self.array.astype(float, copy=False)
