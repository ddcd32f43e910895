"""Read and check one shard file in HDF5; `distsms.data.shards.writer` writes it.

A file holds a run of rows. Its arrays are stored as they are, or all compressed (`distsms.data.shards.storage`);
columns count from zero:

    X           a group in the convention of AnnData and SciPy: attributes encoding-type = "csr_matrix",
                encoding-version = "0.1.0", shape = [rows, p]; datasets indices (int32, or int64 if it must), indptr
                (int64) and data (float32 or float64), the last absent if every stored value is 1;
                or, with layout "dense", a dataset (rows, p) of float32 or float64
    y           int8, +1 or -1
    weights     float64, finite, >= 0; optional, in all shards or in none
    groups      uint64, a hash of each row's group (`distsms.data.row_metadata`); optional, in all shards or in none
    times       float64, finite; optional, in all shards or in none
    ids         names of the rows, UTF-8 of fixed length, filled up with zero bytes; optional, in all shards or in none
    attributes  format, version, and complete = 1, which is the last thing written

Files are opened without HDF5's locks, which shared file systems often refuse: a file has one writer, and its readers
come when it has a manifest. Nothing here communicates.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.shards import storage
from distsms.data.shards.manifest import FORMAT, VERSION, Manifest, Shard
from distsms.errors import InputError
from distsms.matrix.local import PART_ENTRIES
from distsms.utils import hdf5

# Of fixed length: other strings lie in a heap of the file, where HDF5 can search for ever if one byte is wrong.
MARK = np.bytes_(FORMAT)


class ShardRange(NamedTuple):
    """Rows start..stop of one shard, whose first row is number `offset` of the data set."""

    shard: Shard
    offset: int
    start: int
    stop: int

    def parts(self, rows: int) -> Iterator[ShardRange]:
        """The same rows in pieces of at most so many."""
        for start in range(self.start, self.stop, rows):
            yield self._replace(start=start, stop=min(start + rows, self.stop))


class OpenShard:
    """One shard while it is open, compared with the manifest; counts the bytes that are read from it."""

    def __init__(
        self, file: h5py.File, raw: io.FileIO, path: Path, manifest: Manifest, shard: Shard, offset: int
    ) -> None:
        self.file, self.path, self.shard, self.offset = file, path, shard, offset
        self.bytes_read, self._manifest = 0, manifest
        self._raw, self._compression, self._arrays = raw, manifest.compression, dict[str, storage.Elements]()
        if hdf5.attribute(file, "format") != MARK or hdf5.attribute(file, "version") != VERSION:
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
        if manifest.group:
            self.expect("groups", (shard.rows,), "uint64")
        if manifest.time:
            self.expect("times", (shard.rows,), "float64")
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
        """Entries start..stop into `out`, contiguous, of any type for as many."""
        array = self._array(name)
        array.read(start, stop, out)
        self.bytes_read += array.n_bytes(start, stop)

    def read_dense(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Rows start..stop of a dense X into `out` (rows, any number of columns), as many columns as both have."""
        p, columns = self.file["X"].shape[1], min(self.file["X"].shape[1], out.shape[1])
        if p == out.shape[1]:
            self.read("X", start, stop, out)
            return
        step = max(1, PART_ENTRIES // p)
        for first in range(start, stop, step):
            rows = np.empty((min(step, stop - first), p), out.dtype)
            self.read("X", first, first + len(rows), rows)
            out[first - start : first - start + len(rows), :columns] = rows[:, :columns]

    def _array(self, name: str) -> storage.Elements:
        if name not in self._arrays:
            self._arrays[name] = storage.elements(self.file[name], self._raw, self._compression)
        return self._arrays[name]

    def stored(self, *names: str | None) -> tuple[storage.Elements | None, ...]:
        """The entries of datasets, to be read when this shard is closed; None stays None."""
        try:
            # The very file that was looked at; it stays open as long as somebody reads it.
            file = open(os.dup(self._raw.fileno()), "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise InputError(
                f"{self.path}: {error.strerror}. Shards that are streamed stay open: allow more files (ulimit -n), or "
                "convert with fewer --shards."
            ) from error
        return tuple(
            None if name is None else storage.elements(self.file[name], file, self._compression) for name in names
        )

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

    def read_indptr(self, piece: ShardRange) -> NDArray[np.int64]:
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

    def read_labels(self, piece: ShardRange, out: NDArray[np.int8]) -> None:
        """The piece's labels, each +1 or -1."""
        self.read("y", piece.start, piece.stop, out)
        self._refuse(np.abs(out) != 1, out, piece, "label", "must be +1 or -1")

    def read_weights(self, piece: ShardRange, out: NDArray[np.float64]) -> None:
        """The piece's weights, finite and not negative."""
        self.read("weights", piece.start, piece.stop, out)
        self._refuse(~(np.isfinite(out) & (out >= 0)), out, piece, "weight", "must be finite and not negative")

    def read_ids(self, piece: ShardRange) -> list[str]:
        """The names of the piece's rows."""
        return [name.decode("utf-8", "replace") for name in self._array("ids").take(piece.start, piece.stop).tolist()]

    def read_groups(self, piece: ShardRange) -> NDArray[np.uint64]:
        """The groups of the piece's rows."""
        found = np.empty(piece.stop - piece.start, np.uint64)
        self.read("groups", piece.start, piece.stop, found)
        return found

    def read_times(self, piece: ShardRange) -> NDArray[np.float64]:
        """The times of the piece's rows, finite."""
        found = np.empty(piece.stop - piece.start)
        self.read("times", piece.start, piece.stop, found)
        self._refuse(~np.isfinite(found), found, piece, "time", "must be finite")
        return found

    def read_rows(self, piece: ShardRange) -> sparse.csr_matrix | NDArray[Any]:
        """The piece's rows as they are in the file, (rows, p), checked."""
        n, p, dtype = piece.stop - piece.start, self._manifest.p, self._manifest.dtype
        if self._manifest.layout == "dense":
            rows = np.empty((n, p), dtype)
            self.read_dense(piece.start, piece.stop, rows)
            self.check_finite(piece, None, rows)
            return rows
        indptr = self.read_indptr(piece)
        start, stop = int(indptr[0]), int(indptr[-1])
        indices, data = self.read_indices(piece, indptr - start, start), np.ones(stop - start, dtype)
        if piece.shard.values:
            self.read("X/data", start, stop, data)
            self.check_finite(piece, indptr - start, data)
        return sparse.csr_matrix((data, indices, indptr - start), (n, p))

    def check_finite(self, piece: ShardRange, indptr: NDArray[np.int64] | None, values: NDArray[Any]) -> None:
        """values: of CSR with the piece's own indptr, or a dense array."""
        self._refuse(~np.isfinite(values), values, piece, "value", "must be finite", indptr)

    def read_indices(self, piece: ShardRange, indptr: NDArray[np.int64], start: int) -> NDArray[Any]:
        """The piece's columns, in the file's type; indptr is the piece's own, its first entry is `start` in the shard.

        They are as `check_indices` wants them.
        """
        indices = np.empty(int(indptr[-1]), self.file["X/indices"].dtype)
        self.read("X/indices", start, start + len(indices), indices)
        self.check_indices(piece, indptr, indices)
        return indices

    def check_indices(self, piece: ShardRange, indptr: NDArray[np.int64], indices: NDArray[Any]) -> None:
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
        piece: ShardRange,
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
    with hdf5.open_file(path, "an HDF5 shard") as file, open(path, "rb", buffering=0) as raw:
        yield OpenShard(file, raw, path, manifest, shard, offset)
