"""Write a shard file in two steps: the rows as soon as they are read, labels and p when all rows have been read.

`distsms.shards.reader` describes the file. All functions are local.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.base.files import PARTIAL, require_space
from distsms.base.typing import Floats, Hashes
from distsms.matrix.arrays import without_duplicates
from distsms.matrix.local import PART_ENTRIES, index_dtype
from distsms.matrix.normalization import Entries
from distsms.shards import storage
from distsms.shards.coded_columns import NOT_CODED, CodedColumns, Codes, read_all_codes, write_codes
from distsms.shards.entries_in_memory import ShardEntries
from distsms.shards.manifest import SHARD_VERSION, file_sha256, shard_name
from distsms.shards.reader import MARK
from distsms.shards.row_metadata import RowMetadata


@dataclass(frozen=True)
class ShardForm:
    """How the shards of a data set are written."""

    dtype: str = "float64"  # of the values in the files: "float32" or "float64"
    compression: str = "none"  # one of `manifest.COMPRESSIONS`
    coded: CodedColumns = NOT_CODED  # what the codes of each group stand for
    durable: bool = True  # whether `finish_shard` waits for the disk, so that shards survive a failure of the machine


@dataclass(frozen=True)
class StagedShard:
    """A shard whose codes and X are in a `.partial` file, or X in memory, with its numbers for the manifest."""

    path: Path
    number: int  # the number in the file's name, different for all staged shards of the directory
    layout: str
    form: ShardForm
    rows: int
    nnz: int
    columns: int  # the largest column used, plus one
    values: bool
    ids: bool = False
    in_memory: ShardEntries | None = None  # the entries of X if they are not in the file

    @property
    def entries(self) -> int:
        return self.nnz - self.rows * self.form.coded.n_codes


def stage_shard(
    directory: str | os.PathLike[str],
    number: int,
    X: scipy.sparse.spmatrix | ShardEntries | NDArray[Any] | None,
    form: ShardForm = ShardForm(),
    ids: Sequence[str] | None = None,
    metadata: RowMetadata = RowMetadata(),  # noqa: B008 - it is immutable
    codes: Sequence[Codes] = (),
    in_memory: bool = False,
) -> StagedShard:
    """Write X (sparse, an array, or entries in memory; None if there are codes only), and codes of each group, to a
    `.partial` file of this number. Local. Entries that are to be `in_memory` stay there."""
    path, compression = Path(directory) / (shard_name(number) + PARTIAL), form.compression
    entries = _entries(X, form, path)
    dense = None if X is None or entries else stored_values(np.ascontiguousarray(X), form.dtype, path)
    n = len(codes[0]) if X is None else len(entries.indptr) - 1 if entries else len(X)  # type: ignore[arg-type]
    size = entries.size if entries else 0 if dense is None else dense.size
    columns, valued = (entries.columns, entries.valued) if entries else (0, dense is not None)
    names = None if ids is None else np.array([name.encode() for name in ids] or [b""], np.bytes_)[: len(ids)]
    n_bytes = 0 if in_memory else np.dtype(form.dtype).itemsize * size + (12 * size + 8 * n if entries else 0)
    if compression == "none":  # otherwise the size is not known beforehand
        more = (array.nbytes for array in (names, metadata.groups, metadata.times, *codes) if array is not None)
        require_space(path.parent, n_bytes + sum(more))
    with hdf5.write_file(path, durable=False) as target:  # `finish_shard` adds to it
        target.attrs["format"] = MARK
        target.attrs["version"] = SHARD_VERSION
        for name, array in (("ids", names), ("groups", metadata.groups), ("times", metadata.times)):
            if array is not None:
                storage.write(target, name, array, compression)
        if form.coded:
            write_codes(target, codes, form.coded, compression)
        if dense is not None:
            storage.write(target, "X", dense, compression)
            used = np.flatnonzero(dense.any(axis=0))
            columns = int(used[-1]) + 1 if len(used) else 0
        elif entries and not in_memory:
            _write_csr(target.create_group("X"), entries, form)
    return StagedShard(
        path,
        number,
        "csr" if entries else "coded" if dense is None else "dense",
        form,
        rows=n,
        nnz=size + n * form.coded.n_codes,
        columns=columns,
        values=valued,
        ids=ids is not None,
        in_memory=X if in_memory and isinstance(X, ShardEntries) else None,
    )


def replace_groups(staged: StagedShard, groups: Hashes) -> None:
    """Write other groups to a staged shard. Local."""
    with hdf5.write_file(staged.path, new=False, durable=False) as target:
        storage.remove(target["groups"])
        storage.write(target, "groups", groups, staged.form.compression)


def staged_entries(staged: StagedShard, weights: Floats | None = None) -> Iterator[Entries]:
    """Yield the entries of a staged CSR shard, with their weights, a bounded part at a time. Local."""
    if staged.layout == "coded":
        return
    with _arrays(staged) as array:
        columns, values = array("X/indices"), array("X/data")
        indptr = array("X/indptr").read(0, staged.rows + 1)
        for start in range(0, staged.entries, PART_ENTRIES):
            stop = min(start + PART_ENTRIES, staged.entries)
            entry_weights = None
            if weights is not None:
                entry_weights = weights[np.searchsorted(indptr, np.arange(start, stop), side="right") - 1]
            yield columns.read(start, stop), values.read(start, stop), entry_weights


class StagedRows(NamedTuple):
    """The rows of a staged shard."""

    X: scipy.sparse.csr_matrix | ShardEntries | None  # None if there are codes only
    ids: list[str] | None
    codes: list[Codes]  # of each group, (rows, codes of a row)

    def take(self, rows: NDArray[np.bool_]) -> StagedRows:
        """Return a copy of the rows that are marked, (rows,)."""
        ids = None if self.ids is None else list(compress(self.ids, rows))
        X = self.X.matrix(rows) if isinstance(self.X, ShardEntries) else None if self.X is None else self.X[rows]
        return StagedRows(X, ids, [group[rows] for group in self.codes])


def staged_rows(staged: StagedShard) -> StagedRows:
    """Return all rows of a staged shard of CSR or codes, and their names if they have some. Local."""
    n, nnz, X = staged.rows, staged.entries, staged.in_memory
    with _arrays(staged) as array:
        if staged.layout == "csr" and X is None:
            arrays = array("X/data").read(0, nnz), array("X/indices").read(0, nnz), array("X/indptr").read(0, n + 1)
            X = scipy.sparse.csr_matrix(arrays, (n, max(1, staged.columns)))
        ids = [name.decode() for name in array("ids").read(0, n).tolist()] if staged.ids else None
        codes = [read_all_codes(array(f"codes/{k}"), group) for k, group in enumerate(staged.form.coded.maps)]
        return StagedRows(X, ids, codes)


@contextlib.contextmanager
def _arrays(staged: StagedShard) -> Iterator[Callable[[str], storage.StoredArray]]:
    """Open a staged shard; yields a function that returns its arrays by name."""
    with hdf5.open_file(staged.path, "an HDF5 shard") as file, open(staged.path, "rb", buffering=0) as raw:

        def array(name: str) -> storage.StoredArray:
            if staged.in_memory is not None and name.startswith("X/"):
                return staged.in_memory.array(name)
            if name == "X/data" and not staged.values:
                return storage.MemoryArray.ones(staged.form.dtype, staged.entries)
            return storage.open_array(file[name], raw, staged.form.compression)

        yield array


def finish_shard(
    staged: StagedShard, y: ArrayLike, p: int, weights: ArrayLike | None = None, hashes: Hashes | None = None
) -> dict[str, Any]:
    """Add labels, p (with coded columns) and weights to a staged shard, which keeps its `.partial` name; return its
    entry in the manifest. Local. `hashes` of rows stand for entries in memory in its checksum."""
    labels, p_entries = np.asarray(y, np.int8), p - staged.form.coded.p
    if p_entries < staged.columns:
        raise InputError(f"{staged.path}: uses {staged.columns} columns, but p = {p_entries}.")
    require_space(staged.path.parent, 9 * staged.rows)
    with hdf5.write_file(staged.path, new=False, durable=staged.form.durable) as target:
        if staged.layout == "csr" and "X" in target:
            target["X"].attrs["shape"] = np.array([staged.rows, p_entries], np.int64)
        storage.write(target, "y", labels, staged.form.compression)
        if weights is not None:
            storage.write(target, "weights", np.asarray(weights, np.float64), staged.form.compression)
        target.flush()
        target.attrs["complete"] = 1
    with hdf5.open_file(staged.path, "an HDF5 shard") as file:
        digests = storage.digests(file)
    n_pos = int(np.count_nonzero(labels == 1))
    appended = b"" if staged.in_memory is None or hashes is None else hashes.tobytes()
    entry: dict[str, Any] = {name: getattr(staged, name) for name in ("rows", "nnz", "values", "layout", "ids")}
    entry |= {name: getattr(staged.form, name) for name in ("dtype", "compression")}
    entry |= {"staged": staged.path.name, "n_pos": n_pos, "n_neg": staged.rows - n_pos, "digests": digests}
    entry |= {"columns": p if staged.form.coded else staged.columns, "p": int(p), "weights": weights is not None}
    return entry | {"bytes": staged.path.stat().st_size, "sha256": file_sha256(staged.path, appended)}


class _CsrEntries(NamedTuple):
    """The entries of sparse rows, whose columns may be of another type than in a file."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    data: NDArray[Any]
    columns: int  # the largest column that is used, plus one
    valued: bool  # whether some values are not 1

    @property
    def size(self) -> int:
        return int(self.indptr[-1])


def _entries(X: Any, form: ShardForm, path: Path) -> _CsrEntries | None:
    """Return the entries of rows in any sparse form; None for other rows."""
    if isinstance(X, ShardEntries):
        return _CsrEntries(X.indptr, X.array("X/indices").array, X.array("X/data").array, X.n_columns, X.valued)
    if not scipy.sparse.issparse(X):
        return None
    X = X.tocsr()
    if not X.has_canonical_format:
        X = without_duplicates(X)
    if X.indices.min(initial=0) < 0:
        raise InputError(f"{path}: a column index is negative.")
    values = stored_values(X.data, form.dtype, path)
    columns = int(X.indices.max(initial=-1)) + 1
    return _CsrEntries(X.indptr.astype(np.int64), X.indices, values, columns, not bool(np.all(values == 1)))


def _write_csr(group: h5py.Group, entries: _CsrEntries, form: ShardForm) -> None:
    """Write CSR arrays. `finish_shard` adds the attribute `shape`, since p is not known yet."""
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["encoding-version"] = "0.1.0"
    storage.write(group, "indptr", entries.indptr, form.compression)
    storage.write(group, "indices", entries.indices, form.compression, index_dtype(0, entries.columns))
    if entries.valued:
        storage.write(group, "data", entries.data, form.compression, form.dtype)


def stored_values(values: NDArray[Any], dtype: str, path: Path) -> NDArray[Any]:
    """Return values in the type of the file. Raises InputError unless all are finite."""
    if dtype not in ("float32", "float64"):
        raise InputError(f"{path}: dtype '{dtype}' is neither float32 nor float64.")
    with np.errstate(over="ignore"):
        values = values.astype(dtype, copy=False)
    if not np.isfinite(values).all():
        raise InputError(f"{path}: X has values that are NaN, infinite, or too large for {dtype}.")
    return values
