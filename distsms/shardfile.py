"""One shard file in HDF5: how it is written, and how its parts are read and checked.

A file holds a run of rows. Nothing is compressed, every dataset is contiguous, columns count from zero:

    X           a group in the convention of AnnData and SciPy: attributes encoding-type = "csr_matrix",
                encoding-version = "0.1.0", shape = [rows, p]; datasets indices (int32, or int64 if it must), indptr
                (int64) and data (float32 or float64), the last absent if every stored value is 1;
                or, with layout "dense", a dataset (rows, p) of float32 or float64
    y           int8, +1 or -1
    weights     float64, finite, >= 0; optional, in all shards or in none
    ids         names of the rows, UTF-8 of fixed length, filled up with zero bytes; optional, in all shards or in none
    attributes  format, version, and complete = 1, which is the last thing written

Files are opened without HDF5's locks, which shared file systems often refuse: a file has one writer, and its readers
come when it has a manifest. Nothing here communicates.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from distsms import hdf5
from distsms.errors import InputError
from distsms.features import PART_ENTRIES, index_dtype
from distsms.files import require_space, sync
from distsms.manifest import FORMAT, PARTIAL, VERSION, Manifest, Shard, file_sha256, shard_name

# Of fixed length: other strings lie in a heap of the file, where HDF5 can search for ever if one byte is wrong.
_FORMAT = np.bytes_(FORMAT)


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


def stage_shard(
    directory: str | os.PathLike[str],
    number: int,
    X: sparse.spmatrix | NDArray[Any],
    dtype: str = "float64",
    ids: Sequence[str] | None = None,
) -> StagedShard:
    """Write X of a shard, sparse or dense 2-D, as a `.partial` file. Local; one write of the rows.

    number : of the file until it is published; any that no other one has.
    ids : (rows,) their names, if they have some.

    Sparse rows in no canonical order are sorted and duplicates summed, in a copy; stored zeros stay. Raises InputError
    for values that are not finite (in `dtype`) and for negative columns.
    """
    path = Path(directory) / (shard_name(number) + PARTIAL)
    layout = "csr" if sparse.issparse(X) else "dense"
    rows: Any = _canonical(X) if layout == "csr" else np.ascontiguousarray(X)
    values = _finite(rows.data if layout == "csr" else rows, dtype, path)
    named = None if ids is None else np.array([name.encode() for name in ids] or [b""], np.bytes_)[: len(ids)]
    n_bytes = values.nbytes + (12 * rows.nnz + 8 * rows.shape[0] if layout == "csr" else 0)
    require_space(path.parent, n_bytes + (0 if named is None else named.nbytes))
    with hdf5.opened(path, "an HDF5 shard", "w") as target:
        target.attrs["format"] = _FORMAT
        target.attrs["version"] = VERSION
        if named is not None:
            target["ids"] = named
        if layout == "dense":
            target["X"] = values
            used = np.flatnonzero(values.any(axis=0))
            columns, stored = (int(used[-1]) + 1 if len(used) else 0), True
        else:
            columns, stored = _write_csr(target.create_group("X"), rows, values, path)
    return StagedShard(path, number, layout, dtype, rows.shape[0], values.size, columns, stored, ids is not None)


def staged_entries(staged: StagedShard) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Columns and values of a staged CSR shard, a bounded part at a time. Local."""
    with hdf5.opened(staged.path, "an HDF5 shard") as file:
        X = file["X"]
        for start in range(0, staged.nnz, PART_ENTRIES):
            indices = X["indices"][start : start + PART_ENTRIES]
            yield indices, X["data"][start : start + PART_ENTRIES] if staged.values else np.ones(len(indices))


def staged_rows(staged: StagedShard) -> tuple[sparse.csr_matrix, list[str] | None]:
    """All rows of a staged CSR shard, and their names if they have some. Local."""
    with hdf5.opened(staged.path, "an HDF5 shard") as file:
        X = file["X"]
        data = X["data"][:] if staged.values else np.ones(staged.nnz, staged.dtype)
        rows = sparse.csr_matrix((data, X["indices"][:], X["indptr"][:]), shape=(staged.rows, max(1, staged.columns)))
        return rows, [name.decode() for name in file["ids"][:].tolist()] if staged.ids else None


def finish_shard(staged: StagedShard, y: ArrayLike, p: int, weights: ArrayLike | None = None) -> dict[str, Any]:
    """Add labels y (rows,) of +1 and -1, the global p and weights (rows,) to a staged shard, and give its entry.

    The file is complete and on the disk then, but keeps its `.partial` name until `publish`, which wants the entry.
    Local; reads the file once for its checksum. Raises InputError for labels, weights or p that do not fit.
    """
    labels = _signs(y, staged)
    if p < staged.columns:
        raise InputError(f"{staged.path}: uses {staged.columns} columns, but p = {p}.")
    require_space(staged.path.parent, 9 * staged.rows)
    with hdf5.opened(staged.path, "an HDF5 shard", "r+") as target:
        if staged.layout == "csr":
            target["X"].attrs["shape"] = np.array([staged.rows, p], np.int64)
        elif target["X"].shape[1] != p:
            raise InputError(f"{staged.path}: has {target['X'].shape[1]} dense columns, but p = {p}.")
        target["y"] = labels
        if weights is not None:
            target["weights"] = _weights(weights, staged)
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
    common["ids"] = staged.ids
    return entry | {"values": staged.values} | common


def _write_csr(group: h5py.Group, X: sparse.csr_matrix, values: NDArray[Any], path: Path) -> tuple[int, bool]:
    """The number of columns used and whether values were stored. The attribute `shape` waits for p."""
    columns = int(X.indices.max(initial=-1)) + 1
    if X.indices.min(initial=0) < 0:
        raise InputError(f"{path}: a column index is negative.")
    stored = not bool(np.all(values == 1))
    group.attrs["encoding-type"] = "csr_matrix"
    group.attrs["encoding-version"] = "0.1.0"
    group["indptr"] = X.indptr.astype(np.int64)
    group["indices"] = X.indices.astype(index_dtype(0, columns), copy=False)
    if stored:
        group["data"] = values
    return columns, stored


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


class Piece(NamedTuple):
    """Rows start..stop of one shard, whose first row is number `offset` of the data set."""

    shard: Shard
    offset: int
    start: int
    stop: int

    def parts(self, rows: int) -> Iterator[Piece]:
        """The same rows in pieces of at most so many."""
        for start in range(self.start, self.stop, rows):
            yield self._replace(start=start, stop=min(start + rows, self.stop))


class Stored(NamedTuple):
    """The elements of a dataset in a file that stays open, whatever becomes of its name; read beside HDF5 and Python.

    An entry has `width` elements: a row's of dense rows, or one.
    """

    file: io.FileIO
    dtype: np.dtype[Any]
    offset: int
    width: int

    def expect(self, start: int, stop: int) -> None:
        """Ask the system for the entries start..stop, which will be read soon."""
        at, size = self.offset + start * self._step, (stop - start) * self._step
        os.posix_fadvise(self.file.fileno(), at, size, os.POSIX_FADV_WILLNEED)

    def read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """The entries start..stop into `out`, contiguous, of any type for as many. Raises OSError, EOFError."""
        if out.dtype != self.dtype:
            mine = np.empty(out.shape, self.dtype)
            self.read(start, stop, mine)
            out[:] = mine
            return
        rest, at = out.reshape(-1).view(np.uint8).data, self.offset + start * self._step
        while len(rest):
            count = os.preadv(self.file.fileno(), [rest], at)
            if not count:
                raise EOFError
            rest, at = rest[count:], at + count

    @property
    def _step(self) -> int:
        return self.dtype.itemsize * self.width


class OpenShard:
    """One shard while it is open, compared with the manifest; counts the bytes that are read from it."""

    def __init__(self, file: h5py.File, path: Path, manifest: Manifest, shard: Shard, offset: int) -> None:
        self.file, self.path, self.shard, self.offset = file, path, shard, offset
        self.bytes_read = 0
        if hdf5.attribute(file, "format") != _FORMAT or hdf5.attribute(file, "version") != VERSION:
            raise InputError(f"{path}: is not a shard of format {FORMAT}, version {VERSION}.")
        if hdf5.attribute(file, "complete") != 1:
            raise InputError(
                f"{path}: was not written to its end (its attribute 'complete' is missing). Convert again."
            )
        self.expect("y", (shard.rows,), "int8")
        if manifest.weights:
            self.expect("weights", (shard.rows,), "float64")
        if manifest.ids and ((ids := hdf5.dataset(file, "ids")).dtype.kind != "S" or ids.shape != (shard.rows,)):
            raise InputError(f"{path}: has no names of its {shard.rows} rows, which the manifest promises.")
        if manifest.layout == "dense":
            self.expect("X", (shard.rows, manifest.p), manifest.dtype)
            return
        self.expect("X/indptr", (shard.rows + 1,), "int64")
        self.expect("X/indices", (shard.nnz,), "int32", "int64")
        if shard.values:
            self.expect("X/data", (shard.nnz,), manifest.dtype)
        elif "X/data" in file:
            raise InputError(f"{path}: has values where {manifest.path.name} says that all are 1. Convert again.")
        shape = hdf5.attribute(file["X"], "shape")
        if not np.array_equal(shape, [shard.rows, manifest.p]):
            raise InputError(f"{path}: X has shape {shape}, the manifest says [{shard.rows}, {manifest.p}].")

    def expect(self, name: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """InputError unless the dataset is as the manifest says, and inside this file (not a link to another)."""
        dataset = hdf5.dataset(self.file, name)
        if dataset.shape != shape or dataset.dtype not in [np.dtype(one) for one in dtypes]:
            raise InputError(
                f"{self.path}: '{name}' is {dataset.dtype} of shape {dataset.shape}; the manifest and the format ask "
                f"for {' or '.join(dtypes)} of shape {shape}."
            )

    def read(self, name: str, start: int, stop: int, out: NDArray[Any]) -> None:
        """Rows start..stop into `out`, converted by HDF5; of a dense X as many columns as both have."""
        dataset = self.file[name]
        columns = [slice(0, min(dataset.shape[1], out.shape[1]))] if dataset.ndim == 2 else []
        count = (stop - start) * (columns[0].stop if columns else 1)
        if count:
            dataset.read_direct(out, (slice(start, stop), *columns), (slice(0, stop - start), *columns))
            self.bytes_read += count * dataset.dtype.itemsize

    def stored(self, *names: str | None) -> tuple[Stored | None, ...]:
        """The elements of datasets, to be read when this shard is closed; None stays None."""
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - as long as somebody reads it
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}. Shards that are streamed stay open: allow more files (ulimit -n), or "
                "convert with fewer --shards."
            ) from error
        return tuple(None if name is None else self._stored(file, name) for name in names)

    def _stored(self, file: io.FileIO, name: str) -> Stored:
        dataset = self.file[name]
        offset = dataset.id.get_offset()
        if offset is None and dataset.size:
            raise InputError(f"{self.path}: '{name}' is in pieces, and cannot be streamed. Convert again.")
        return Stored(file, dataset.dtype, offset or 0, dataset.shape[1] if dataset.ndim == 2 else 1)

    def search(self, missing: int) -> tuple[int, int]:
        """The first row of the shard with `missing` (>= 1) or more of rows and entries before it, and those entries."""
        low, high, entries = 0, self.shard.rows, self.shard.nnz
        one = np.empty(1, np.int64)
        while high - low > 1:
            middle = (low + high) // 2
            self.read("X/indptr", middle, middle + 1, one)
            if middle + int(one[0]) >= missing:
                high, entries = middle, int(one[0])
            else:
                low = middle
        if not 0 <= entries <= self.shard.nnz:
            raise InputError(f"{self.path}: indptr leads out of the file at {self.row_name(high)}.")
        return high, entries

    def read_indptr(self, piece: Piece) -> NDArray[np.int64]:
        """The piece's (rows + 1,) pointers, counted from the start of the shard."""
        indptr = np.empty(piece.stop - piece.start + 1, np.int64)
        self.read("X/indptr", piece.start, piece.stop + 1, indptr)
        wrong = np.concatenate(([indptr[0] < 0], indptr[1:] < indptr[:-1], [indptr[-1] > self.shard.nnz]))
        wrong[0] |= piece.start == 0 and indptr[0] != 0
        wrong[-1] |= piece.stop == self.shard.rows and indptr[-1] != self.shard.nnz
        if wrong.any():
            row = piece.start + max(int(wrong.argmax()) - 1, 0)
            raise InputError(f"{self.path}: indptr descends or leads out of the file near {self.row_name(row)}.")
        return indptr

    def read_labels(self, piece: Piece, out: NDArray[np.int8]) -> None:
        """The piece's labels, each +1 or -1."""
        self.read("y", piece.start, piece.stop, out)
        self._refuse(np.abs(out) != 1, out, piece, "label", "must be +1 or -1")

    def read_weights(self, piece: Piece, out: NDArray[np.float64]) -> None:
        """The piece's weights, finite and not negative."""
        self.read("weights", piece.start, piece.stop, out)
        self._refuse(~(np.isfinite(out) & (out >= 0)), out, piece, "weight", "must be finite and not negative")

    def read_ids(self, piece: Piece) -> list[str]:
        """The names of the piece's rows."""
        return [name.decode("utf-8", "replace") for name in self.file["ids"][piece.start : piece.stop].tolist()]

    def check_finite(self, piece: Piece, indptr: NDArray[np.int64] | None, values: NDArray[Any]) -> None:
        """values: of CSR with the piece's own indptr, or a dense array."""
        self._refuse(~np.isfinite(values), values, piece, "value", "must be finite", indptr)

    def read_indices(self, piece: Piece, indptr: NDArray[np.int64], start: int) -> NDArray[Any]:
        """The piece's columns, in the file's type; indptr is the piece's own, its first entry is `start` in the shard.

        They are as `check_indices` wants them.
        """
        indices = np.empty(int(indptr[-1]), self.file["X/indices"].dtype)
        self.read("X/indices", start, start + len(indices), indices)
        self.check_indices(piece, indptr, indices)
        return indices

    def check_indices(self, piece: Piece, indptr: NDArray[np.int64], indices: NDArray[Any]) -> None:
        """Columns between 0 and those that the manifest gives this shard, strictly ascending inside each row.

        indptr : the piece's own.
        """
        limit = self.shard.columns
        if indices.min(initial=0) < 0 or indices.max(initial=-1) >= limit:
            wrong = (indices < 0) | (indices >= limit)
            self._refuse(wrong, indices, piece, "column", f"must be from 0 to {limit - 1}", indptr)
        wrong = np.zeros(len(indices), np.bool_)
        np.less_equal(indices[1:], indices[:-1], out=wrong[1:])
        wrong[indptr[:-1][indptr[:-1] < len(indices)]] = False  # the first entry of a row follows none
        self._refuse(wrong, indices, piece, "column", "must be greater than the one before it in its row", indptr)

    def _refuse(
        self,
        wrong: NDArray[np.bool_],
        values: NDArray[Any],
        piece: Piece,
        noun: str,
        demand: str,
        indptr: NDArray[np.int64] | None = None,
    ) -> None:
        """InputError for the first wrong value, if any; indptr tells its row, else it is the first axis."""
        if not wrong.any():
            return
        at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        row = int(at[0]) if indptr is None else int(np.searchsorted(indptr, at[0], side="right")) - 1
        raise InputError(f"{self.path}: {noun} {values[at]} at {self.row_name(piece.start + row)} {demand}.")

    def row_name(self, row: int) -> str:
        """A row of this shard, as messages call it."""
        return f"row {row} of the shard (row {self.offset + row} of the data, counted from 0)"


@contextlib.contextmanager
def open_shard(manifest: Manifest, shard: Shard, offset: int) -> Iterator[OpenShard]:
    """A shard of the data set for reading; `offset` is the global number of its first row."""
    path = manifest.checked_path(shard)
    with hdf5.opened(path, "an HDF5 shard") as file:
        yield OpenShard(file, path, manifest, shard, offset)
