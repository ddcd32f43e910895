"""How a shard file is written: its rows as soon as they are there, labels and p when all rows were read.

`distsms.data.shards.reader` says what is in it. Nothing here communicates.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from distsms.data.row_metadata import Beside
from distsms.data.shards import storage
from distsms.data.shards.manifest import PARTIAL, VERSION, file_sha256, shard_name
from distsms.data.shards.reader import MARK
from distsms.errors import InputError
from distsms.matrix.local import PART_ENTRIES, index_dtype
from distsms.utils import hdf5
from distsms.utils.files import require_space, sync


@dataclass(frozen=True)
class StagedShard:
    """A shard whose X is on the disk under a `.partial` name, and what the manifest will say of it."""

    path: Path
    number: int  # among those that are staged in the directory
    layout: str
    dtype: str
    rows: int
    nnz: int
    columns: int  # the largest column used, plus one
    values: bool
    ids: bool = False
    compression: str = "none"


def stage_shard(
    directory: str | os.PathLike[str],
    number: int,
    X: sparse.spmatrix | NDArray[Any],
    dtype: str = "float64",
    ids: Sequence[str] | None = None,
    compression: str = "none",
    beside: Beside = Beside(),  # noqa: B008 - it is immutable
) -> StagedShard:
    """Write X of a shard, sparse or dense 2-D, as a `.partial` file. Local; one write of the rows.

    number : of the file until it is published; any that no other one has.
    ids : (rows,) their names, if they have some.
    compression : of all arrays, one of `manifest.COMPRESSIONS`.
    beside : their groups and times, if they have some.

    Sparse rows in no canonical order are sorted and duplicates summed, in a copy; stored zeros stay. Raises InputError
    for values that are not finite (in `dtype`) and for negative columns.
    """
    path = Path(directory) / (shard_name(number) + PARTIAL)
    layout = "csr" if sparse.issparse(X) else "dense"
    rows: Any = _canonical(X) if layout == "csr" else np.ascontiguousarray(X)
    values = _finite(rows.data if layout == "csr" else rows, dtype, path)
    named = None if ids is None else np.array([name.encode() for name in ids] or [b""], np.bytes_)[: len(ids)]
    n_bytes = values.nbytes + (12 * rows.nnz + 8 * rows.shape[0] if layout == "csr" else 0)
    if compression == "none":  # else nobody knows
        more = (one.nbytes for one in (named, beside.groups, beside.times) if one is not None)
        require_space(path.parent, n_bytes + sum(more))
    with hdf5.open_file(path, "an HDF5 shard", "w") as target:
        target.attrs["format"] = MARK
        target.attrs["version"] = VERSION
        for name, array in (("ids", named), ("groups", beside.groups), ("times", beside.times)):
            if array is not None:
                storage.write(target, name, array, compression)
        if layout == "dense":
            storage.write(target, "X", values, compression)
            used = np.flatnonzero(values.any(axis=0))
            columns, valued = (int(used[-1]) + 1 if len(used) else 0), True
        else:
            columns, valued = _write_csr(target.create_group("X"), rows, values, path, compression)
    sizes = rows.shape[0], values.size, columns
    return StagedShard(path, number, layout, dtype, *sizes, valued, ids is not None, compression)


def staged_entries(staged: StagedShard) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Columns and values of a staged CSR shard, a bounded part at a time. Local."""
    with _arrays(staged) as array:
        columns, values = array("X/indices"), array("X/data") if staged.values else None
        for start in range(0, staged.nnz, PART_ENTRIES):
            stop = min(start + PART_ENTRIES, staged.nnz)
            yield columns.take(start, stop), np.ones(stop - start) if values is None else values.take(start, stop)


def staged_rows(staged: StagedShard) -> tuple[sparse.csr_matrix, list[str] | None]:
    """All rows of a staged CSR shard, and their names if they have some. Local."""
    n, nnz, shape = staged.rows, staged.nnz, (staged.rows, max(1, staged.columns))
    with _arrays(staged) as array:
        data = array("X/data").take(0, nnz) if staged.values else np.ones(nnz, staged.dtype)
        rows = sparse.csr_matrix((data, array("X/indices").take(0, nnz), array("X/indptr").take(0, n + 1)), shape)
        return rows, [name.decode() for name in array("ids").take(0, n).tolist()] if staged.ids else None


@contextlib.contextmanager
def _arrays(staged: StagedShard) -> Iterator[Callable[[str], storage.Elements]]:
    """The arrays of a staged shard, by their names."""
    with hdf5.open_file(staged.path, "an HDF5 shard") as file, open(staged.path, "rb", buffering=0) as raw:
        yield lambda name: storage.elements(file[name], raw, staged.compression)


def finish_shard(staged: StagedShard, y: ArrayLike, p: int, weights: ArrayLike | None = None) -> dict[str, Any]:
    """Add labels y (rows,) of +1 and -1, the global p and weights (rows,) to a staged shard, and give its entry.

    The file is complete and on the disk then, but keeps its `.partial` name until `publish`, which wants the entry.
    Local; reads the file once for its checksum. Raises InputError for labels, weights or p that do not fit.
    """
    labels = _signs(y, staged)
    if p < staged.columns:
        raise InputError(f"{staged.path}: uses {staged.columns} columns, but p = {p}.")
    require_space(staged.path.parent, 9 * staged.rows)
    with hdf5.open_file(staged.path, "an HDF5 shard", "r+") as target:
        if staged.layout == "csr":
            target["X"].attrs["shape"] = np.array([staged.rows, p], np.int64)
        elif target["X"].shape[1] != p:
            raise InputError(f"{staged.path}: has {target['X'].shape[1]} dense columns, but p = {p}.")
        storage.write(target, "y", labels, staged.compression)
        if weights is not None:
            storage.write(target, "weights", _weights(weights, staged), staged.compression)
        target.flush()
        target.attrs["complete"] = 1
    sync(staged.path)
    n_pos = int(np.count_nonzero(labels == 1))
    entry = {
        "staged": staged.path.name,
        "rows": staged.rows,
        "nnz": staged.nnz,
        "n_pos": n_pos,
        "n_neg": staged.rows - n_pos,
    }
    entry |= {"columns": staged.columns, "bytes": staged.path.stat().st_size, "sha256": file_sha256(staged.path)}
    common = {"p": int(p), "layout": staged.layout, "dtype": staged.dtype, "weights": weights is not None}
    common |= {"ids": staged.ids, "compression": staged.compression}
    return entry | {"values": staged.values} | common


def _write_csr(
    group: h5py.Group, X: sparse.csr_matrix, values: NDArray[Any], path: Path, compression: str
) -> tuple[int, bool]:
    """The number of columns used and whether values were stored. The attribute `shape` waits for p."""
    columns = int(X.indices.max(initial=-1)) + 1
    if X.indices.min(initial=0) < 0:
        raise InputError(f"{path}: a column index is negative.")
    valued = not bool(np.all(values == 1))
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["encoding-version"] = "0.1.0"
    storage.write(group, "indptr", X.indptr.astype(np.int64), compression)
    storage.write(group, "indices", X.indices.astype(index_dtype(0, columns), copy=False), compression)
    if valued:
        storage.write(group, "data", values, compression)
    return columns, valued


def _canonical(X: sparse.spmatrix) -> sparse.csr_matrix:
    """CSR with ascending columns in each row; the caller's matrix is not changed."""
    rows = X.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


def _finite(values: NDArray[Any], dtype: str, path: Path) -> NDArray[Any]:
    if dtype not in ("float32", "float64"):
        raise InputError(f"{path}: dtype '{dtype}' is neither float32 nor float64.")
    with np.errstate(over="ignore"):
        values = values.astype(dtype, copy=False)
    if not np.isfinite(values).all():
        raise InputError(f"{path}: X has values that are NaN, infinite, or too large for {dtype}.")
    return values


def _signs(y: ArrayLike, staged: StagedShard) -> NDArray[np.int8]:
    y = np.asarray(y)
    if y.shape != (staged.rows,):
        raise InputError(f"{staged.path}: {staged.rows} rows, but labels of shape {y.shape}.")
    if not np.isin(y, (-1, 1)).all():
        raise InputError(f"{staged.path}: labels must be +1 or -1.")
    return y.astype(np.int8)


def _weights(weights: ArrayLike, staged: StagedShard) -> NDArray[np.float64]:
    weights = np.asarray(weights, np.float64)
    if weights.shape != (staged.rows,) or not (np.isfinite(weights) & (weights >= 0)).all():
        raise InputError(f"{staged.path}: {staged.rows} weights are required, finite and not negative.")
    return weights
