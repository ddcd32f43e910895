"""A data set of shards: written once, read by any number of ranks, each of which reads its own rows by `load`.

Writing takes four steps (`publish`, `writer`), since p and the meaning of the labels are known last: the root calls
`prepare`; any rank `stage_shard` with the X of a shard, and later `finish_shard` with its labels and p; and the root
`publish`, which makes the directory a data set. `from_arrays.write_data` does all of this for arrays in memory.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base import memory
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.scored import Scored
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.wording import option
from distsms.matrix.arrays import normalize_matrix
from distsms.matrix.blocks import LocalRows
from distsms.matrix.coded import to_csr
from distsms.matrix.local import PART_ENTRIES, unsigned
from distsms.matrix.normalization import Normalization
from distsms.matrix.side_by_side import SideBySide
from distsms.shards import row_metadata
from distsms.shards.coded_columns import rows_of_part
from distsms.shards.local_rows import (
    CodedLoader,
    CodedStream,
    ColumnGroup,
    DenseLoader,
    DenseStream,
    SparseLoader,
    SparseStream,
    Stream,
)
from distsms.shards.manifest import Manifest, read_manifest
from distsms.shards.reader import OpenShard, ShardRange, open_shard
from distsms.shards.storage import CHUNK
from distsms.shards.table_schema import Table

_MATRIX_BYTES = 24
"""Bytes for each entry of a matrix that is made of codes, in its final form and before."""
PART_ROWS = 2**16
"""The largest number of rows that are read and checked at a time. `PART_ENTRIES` limits the number of entries."""


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


def ends_in_memory(manifest: Manifest, rank: int) -> tuple[Boundary, Boundary] | None:
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


class WeighedRows:
    """Rows of this rank, of which those of weight 0 do not count."""

    labels: NDArray[np.int8]
    weights: NDArray[np.float64] | None
    weighted: bool
    groups: Hashes | None

    def counted_scores(self, scores: Floats, comm: Communicator) -> Scored:
        """Return the rows that have not weight 0, with scores of all rows (n_local,); without weights of 1 alone."""
        rows = Scored(scores, self.labels, comm, self.weights if self.weighted else None, self.groups)
        return rows if self.weights is None else rows.of(self.counted)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which rows count, (n_local,): all but those of weight 0."""
        return np.ones(len(self.labels), bool) if self.weights is None else self.weights != 0


@dataclass(frozen=True)
class DataBlock(WeighedRows):
    """This rank's rows: consecutive rows of the data set, from `first_row` on."""

    features: LocalRows | SideBySide  # local, (n_local, columns)
    labels: NDArray[np.int8]  # local, (n_local,)
    weights: NDArray[np.float64] | None  # local, (n_local,); None on every rank or on none
    first_row: int  # global number of the first local row
    n: int  # number of rows of all ranks
    p: int  # number of columns of `features`: `n_columns` of `load`, by default that of the data set
    bytes_read: int  # bytes of arrays that this rank read from files
    label_map: Mapping[str, Any] | None = None  # of rows in memory; see `Manifest`
    weighted: bool = False  # whether a weight of any rank is neither 0 nor 1; the same on every rank
    groups: Hashes | None = None  # local, (n_local,); None on every rank or on none
    table: Table | None = None  # of rows in memory whose columns have names


def load(
    data: str | os.PathLike[str] | Manifest,
    comm: Communicator,
    n_columns: int | None = None,
    ignore_new_features: bool = False,
    normalization: Normalization | None = None,
    share: tuple[int, int] | None = None,
    budget: MemoryBudget | None = None,
    with_groups: bool = False,
    temporary: bool = False,
) -> DataBlock:
    """Read this rank's share of the rows of a data set. **Collective.** With a model, `n_columns` is used in place of
    p; columns beyond it are refused, or with `ignore_new_features` left out. With share (k, m), this rank reads what
    rank k of m would. Rows that do not fit into the `budget`, with which no column may be left out, are streamed,
    with the same results. `temporary` shards are removed when they have been read, and entries in memory are taken
    over. InputError, on every rank, names file and row. A row has the size of its entries and codes plus 1, and ranks
    get about equal sizes; finding where they begin takes 2 log2(rows of a shard) single numbers."""
    # 1) Find where this rank's rows begin and end.
    with comm.fail_together():
        manifest = data if isinstance(data, Manifest) else read_manifest(data)
        width = manifest.p if n_columns is None else n_columns
        if manifest.coded or not ignore_new_features:
            check_width(manifest, width)
        k, m = share or (comm.rank, comm.size)
        in_memory = ends_in_memory(manifest, comm.rank) if share is None else None
        first, last = in_memory or (boundary(manifest, k, m), boundary(manifest, min(k + 1, m), m))
        groups = read_groups(manifest, first.row, last.row) if with_groups else None
    # 2) Read them.
    with comm.fail_together():  # no rank looks for its boundary any more, so shards may be removed
        loaded = _read_rows(manifest, first, last, width, budget, temporary)
    if loaded.weights is not None and share in (None, (0, 1)):  # parts of a data set keep a common factor
        loaded = loaded._replace(weights=row_metadata.in_range(loaded.weights, comm))
    weighted = bool(comm.maximum(np.array([1.0 * other_weights(loaded.weights)]))[0])
    # 3) Bring the columns into the form of the products; those that do not fit into memory are streamed.
    parts: list[LocalRows] = []  # of the columns: those of X, then the coded ones
    for group in loaded.groups:
        # All ranks use the extremes over all ranks, so that they choose the same types and need the same kernels.
        lengths = np.zeros(1, np.int64) if group.lengths is None else group.lengths.astype(np.int64)
        longest, shortest = comm.maximum(np.array([lengths.max(initial=0), (-lengths).max(initial=-(2**62))]))
        parts.append(comm.root_first(partial(group.features, int(longest), bool(longest != -shortest))))
    features = parts[0] if len(parts) == 1 else SideBySide(parts)
    with comm.fail_together():
        streams = [(group, rows) for group, rows in zip(loaded.groups, parts, strict=True) if isinstance(group, Stream)]
        if budget is not None and streams:
            _start(streams, budget.entries(len(loaded.labels)))
        features.normalize(manifest.normalization if normalization is None else normalization)
    return DataBlock(
        features,
        loaded.labels,
        loaded.weights,
        first_row=first.row,
        n=manifest.n,
        p=width,
        bytes_read=loaded.bytes_read + sum(stream.bytes_read for stream, _ in streams),
        weighted=weighted,
        groups=groups,
    )


def other_weights(weights: Floats | None) -> bool:
    """Return whether some of these weights (n_local,) are neither 0 nor 1. Local."""
    return weights is not None and bool(((weights != 0) & (weights != 1)).any())


def _start(streams: Sequence[tuple[Stream, LocalRows]], available: int) -> None:
    """Begin to stream groups of columns of the same rows, which share so many bytes of memory."""
    for stream, rows in streams:
        stream.prepare(rows)
    free, sizes = available - sum(stream.nbytes for stream, _ in streams), [rows.nnz for _, rows in streams]
    for (stream, _), size in zip(streams, sizes, strict=True):
        stream.load(stream.nbytes + (free * size // max(1, sum(sizes)) if free > 0 else free))


def load_matrix(manifest: Manifest) -> tuple[Any, Labels, NDArray[np.bool_]]:
    """Read all rows that count, normalized as for training, as a matrix (CSR, or an array) for other libraries. Local.
    Returns X (n, p) float64, the labels (n,), and which rows of the data set count. Memory: 24 bytes for each entry."""
    if manifest.coded and (needed := _MATRIX_BYTES * manifest.explicit) > (available := memory.available()):
        problem = f"its codes would take {format_bytes(needed)} as a matrix for other programs"
        no_matrix = "`distsms train` and `distsms path` compute from the codes, without such a matrix"
        there = f"only {format_bytes(available)} are available"
        raise InputError(f"{manifest.directory}: {problem}, but {there}. {no_matrix}")
    parts, labels, counted = list[Any](), list[Labels](), list[NDArray[np.bool_]]()
    for shard, rows in open_shards(manifest, 0, manifest.n):
        for part in rows.parts(PART_ROWS):
            rows_of_X, weights = shard.read_rows(part), shard.read_weights(part)
            if manifest.coded:
                codes = map(to_csr, manifest.coded.maps, shard.read_code_rows(part))
                rows_of_X = scipy.sparse.hstack([scipy.sparse.csr_matrix(rows_of_X), *codes], "csr")
            parts.append(rows_of_X.astype(float, copy=False))
            labels.append(shard.read_labels(part))
            counted.append(np.ones(part.rows, bool) if weights is None else weights != 0)
    X: Any = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else scipy.sparse.vstack(parts, "csr")
    if manifest.normalization.kind != "none":
        normalize_matrix(X, manifest.normalization)
    y, count = np.concatenate(labels), np.concatenate(counted)
    return (X, y, count) if count.all() else (X[count], y[count], count)


def read_weights(manifest: Manifest) -> Floats | None:
    """Read the weights of all rows, (n,); None if they are all 0 or 1. Local."""
    if not manifest.weights:
        return None
    weights = np.concatenate([shard.read_weights(part) for shard, part in open_shards(manifest, 0, manifest.n)])
    return row_metadata.in_range(weights, Communicator()) if other_weights(weights) else None


def read_groups(manifest: Manifest, first: int, last: int) -> Hashes:
    """Return the groups of the global rows first..last - 1. Local."""
    if manifest.group is None:
        remedy = f"make it with distsms shard {option('group', text='COLUMN')}"
        raise InputError(f"{manifest.directory}: its rows have no groups; {remedy}")
    groups = [shard.read_groups(part) for shard, part in open_shards(manifest, first, last)]
    return np.concatenate([np.empty(0, np.uint64), *groups])


def read_ids(manifest: Manifest, first: int, last: int) -> list[str] | None:
    """Return the names of the global rows first..last - 1, or None if the rows have no names. Local."""
    if not manifest.ids:
        return None
    return [name for shard, part in open_shards(manifest, first, last) for name in shard.read_ids(part)]


def open_shards(manifest: Manifest, first: int, last: int) -> Iterator[tuple[OpenShard, ShardRange]]:
    """Open each shard that has some of the global rows first..last - 1; yield it and the range of its rows. Local."""
    for part in shard_ranges(manifest, first, last):
        with open_shard(manifest, part.shard, part.offset) as shard:
            yield shard, part


def check_width(manifest: Manifest, width: int) -> None:
    """Raise InputError if the data use more than `width` columns; it names the shard and its last column. Local."""
    if manifest.coded and width != manifest.p:
        raise InputError(f"{manifest.directory}: has coded columns, {manifest.p}, and cannot be read with {width}")
    for shard in manifest.shards:
        if shard.columns > width:
            name = manifest.column_name(shard.columns - 1)
            problem = f"uses column {name}, but the model has {width} columns. Were both made with the same features?"
            remedy = f"With {option('ignore_new_features')}, columns that the model does not have are left out."
            raise InputError(f"{manifest.directory / shard.file}: {problem} {remedy}")


class _LoadedRows(NamedTuple):
    """A rank's rows as they come from the files; see `DataBlock`."""

    groups: list[ColumnGroup]  # of columns: those of X, then the coded ones
    labels: Labels
    weights: Floats | None
    bytes_read: int


def _read_rows(
    manifest: Manifest, first: Boundary, last: Boundary, width: int, budget: MemoryBudget | None, temporary: bool
) -> _LoadedRows:
    ranges = list(shard_ranges(manifest, first.row, last.row))
    for rows in ranges:
        manifest.checked_path(rows.shard)  # refuses wrong sizes before memory is allocated for them
    n_local, nnz = last.row - first.row, last.nnz - first.nnz
    # 1) Decide where the columns of X and the coded ones go: into memory, or to streams.
    streamed = budget is not None and held_bytes(manifest, n_local, nnz) > budget.entries(n_local)
    of_X, store, dtype = list[ColumnGroup](), None, manifest.dtype
    p_entries = width - manifest.coded.p  # columns of X
    if manifest.layout == "dense":
        of_X.append((DenseStream if streamed else DenseLoader)(n_local, p_entries, dtype))
    elif manifest.layout == "csr" and streamed:
        of_X.append(SparseStream(ranges, n_local, p_entries, dtype))
    elif manifest.layout == "csr":
        if temporary and manifest.in_memory is not None and all(part.rows == part.shard.rows for part in ranges):
            store = manifest.in_memory.whole([part.shard.file for part in ranges])
        of_X.append(SparseLoader(ranges, n_local, manifest.entries(n_local, nnz), p_entries, dtype, store))
    coded: list[ColumnGroup] = [
        CodedStream(number, code_map) if streamed else CodedLoader(number, code_map, n_local)
        for number, code_map in enumerate(manifest.coded.maps)
    ]
    # 2) Read shard after shard, a part of its rows at a time.
    labels, weights = np.empty(n_local, np.int8), np.empty(n_local) if manifest.weights else None
    bytes_read = first.bytes_read + last.bytes_read
    for rows in ranges:
        with open_shard(manifest, rows.shard, rows.offset) as shard:
            for part in rows.parts(PART_ROWS):
                local = part.after(first.row)
                labels[local] = shard.read_labels(part)
                if weights is not None:
                    weights[local] = shard.read_weights(part)
                for group in of_X:
                    group.add(shard, part, local)
            for group in coded:
                group.add(shard, rows, rows.after(first.row))
            bytes_read += shard.bytes_read
        if temporary and not streamed and rows.rows == rows.shard.rows:
            manifest.checked_path(rows.shard).unlink()
    if store is not None and manifest.in_memory is not None:
        manifest.in_memory.shards.clear()
    return _LoadedRows([*of_X, *coded], labels, weights, bytes_read)
