"""Read and check one shard file in HDF5; `distsms.shards.writer` writes it.

A file holds consecutive rows. Its arrays are stored as they are, or all compressed (`distsms.shards.storage`).
Columns count from zero:

    X           a group in the convention of AnnData and SciPy: attributes encoding-type = "csr_matrix",
                encoding-version = "0.1.0", shape = [rows, p]; datasets indices (int32, or int64 if need be), indptr
                (int64) and data (float32 or float64); data is absent if every stored value is 1.
                With layout "dense": a dataset (rows, p) of float32 or float64
                With layout "coded", or if the entries are in memory (`Manifest.in_memory`): absent
    codes       a group with the codes of coded columns (`distsms.shards.coded_columns`); optional
    y           int8, +1 or -1
    weights     float64, finite, >= 0; optional, in all shards or in none
    groups      uint64, a hash of each row's group (`distsms.shards.row_metadata`); optional, in all shards or in none
    times       float64, finite; optional, in all shards or in none
    ids         names of the rows, UTF-8 of fixed length, padded with zero bytes; optional, in all shards or in none
    checksums   a group with the checksums of the blocks of each array (`distsms.shards.storage`)
    attributes  format, version, and complete = 1, which is written last

Files are opened without HDF5's locks, since shared file systems often do not support them. They are not needed: a file
has one writer, and it is read only after the manifest has been written. All functions are local.
"""

from __future__ import annotations

import contextlib
import io
import os
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base import hashing, hdf5
from distsms.base.errors import InputError
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.wording import option
from distsms.shards import storage
from distsms.shards.coded_columns import Codes, StoredPart, part_rows, read_part, stored_parts, wrong_codes
from distsms.shards.manifest import FORMAT, SHARD_VERSION, Manifest, Shard
from distsms.shards.row_metadata import HEAVIEST
from distsms.shards.rows import split_range
from distsms.shards.storage import COPY_AGAIN

# A string of fixed length. Strings of variable length are stored in a heap of the file, where a single wrong byte can
# put HDF5 into an endless loop.
MARK = np.bytes_(FORMAT)


class ShardRange(NamedTuple):
    """Rows start..stop - 1 of one shard, whose first row is row number `offset` of the data set."""

    shard: Shard
    offset: int
    start: int
    stop: int

    def parts(self, rows: int) -> Iterator[ShardRange]:
        return split_range(self, rows)

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def after(self, first: int) -> slice:
        """Return where these rows are in arrays that begin with row number `first` of the data set."""
        start = self.offset + self.start - first
        return slice(start, start + self.rows)


class OpenShard:
    """An open shard. The constructor compares it with the manifest. `bytes_read` counts the bytes read from it."""

    def __init__(
        self, file: h5py.File, raw: io.FileIO, path: Path, manifest: Manifest, shard: Shard, offset: int
    ) -> None:
        self.file, self.path, self.bytes_read = file, path, 0
        self.shard, self.offset, self._manifest = shard, offset, manifest
        self._raw, self._compression, self._arrays = raw, manifest.compression, dict[str, storage.StoredArray]()
        self._in_memory = None if manifest.in_memory is None else manifest.in_memory.shards.get(shard.file)
        self._limit = min(shard.columns, manifest.p_entries)  # of columns, and of the entries of a row
        if hdf5.attribute(file, "format") != MARK or hdf5.attribute(file, "version") != SHARD_VERSION:
            raise InputError(f"{path}: is not a shard of format {FORMAT}, version {SHARD_VERSION}.")
        if hdf5.attribute(file, "complete") != 1:
            raise InputError(f"{path}: was not written to its end (it lacks 'complete'). Convert again.")
        for name, exists, dtype in (
            ("y", True, "int8"),
            ("weights", manifest.weights, "float64"),
            ("groups", manifest.group, "uint64"),
            ("times", manifest.time, "float64"),
        ):
            if exists:
                self.expect(name, (shard.rows,), dtype)
        if manifest.ids and ((ids := hdf5.dataset(file, "ids")).dtype.kind != "S" or ids.shape != (shard.rows,)):
            raise InputError(f"{path}: lacks the names of its {shard.rows} rows. Convert again.")
        for number, code_map in enumerate(manifest.coded.maps):
            self.expect(f"codes/{number}", (shard.rows * code_map.n_codes,), code_map.dtype.name)
            part_rows(file[f"codes/{number}"])
        if manifest.layout == "coded":
            return
        if manifest.layout == "dense":
            self.expect("X", (shard.rows, manifest.p_entries), manifest.dtype)
            return
        self.n_entries = manifest.entries(shard.rows, shard.nnz)
        if self._in_memory is not None:
            return
        self.expect("X/indptr", (shard.rows + 1,), "int64")
        self.expect("X/indices", (self.n_entries,), "int32", "int64")
        if shard.values:
            self.expect("X/data", (self.n_entries,), manifest.dtype)
        elif "X/data" in file:
            raise InputError(f"{path}: has values, but {manifest.path.name} says that all are 1. Convert again.")
        shape = hdf5.attribute(file["X"], "shape")
        if not np.array_equal(shape, [shard.rows, manifest.p_entries]):
            raise InputError(f"{path}: X has shape {shape}, the manifest says [{shard.rows}, {manifest.p_entries}].")

    def expect(self, name: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raise InputError unless the dataset has this shape and one of these dtypes, and is stored in this file."""
        dataset = hdf5.dataset(self.file, name)
        if dataset.shape != shape or dataset.dtype not in [np.dtype(name) for name in dtypes]:
            required = f"the manifest and the format require {' or '.join(dtypes)} of shape {shape}"
            problem = f"'{name}' is {dataset.dtype} of shape {dataset.shape}; {required}"
            raise InputError(f"{self.path}: {problem}. {COPY_AGAIN}")

    def read(self, name: str, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the entries start..stop - 1 of a dataset, in `out` if there is one; see `StoredArray.read`."""
        array = self._array(name)
        with self._naming_failures():
            out = array.read(start, stop, out)
        self.bytes_read += array.n_bytes(start, stop)
        return out

    @contextlib.contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Turn failures of reading into InputError, also for those who read while `open_shards` waits for them."""
        try:
            yield
        except (OSError, EOFError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(f"{self.path}: {why}. {COPY_AGAIN}") from error

    def read_dense(self, part: ShardRange, out: NDArray[Any]) -> None:
        """Read a part of a dense X into `out` (rows, columns): the columns that both have; others are not changed."""
        p, width = self.file["X"].shape[1], out.shape[1]
        if p == width:
            self.read("X", part.start, part.stop, out)
        else:
            out[:, :p] = self.read("X", part.start, part.stop)[:, :width]

    def _array(self, name: str) -> storage.StoredArray:
        if name not in self._arrays:
            self._arrays[name] = self._open(name, self._raw)
        return self._arrays[name]

    def _open(self, name: str, raw: io.FileIO) -> storage.StoredArray:
        if self._in_memory is not None and name.startswith("X/"):
            return self._in_memory.array(name)
        if name == "X/data" and not self.shard.values:
            return storage.MemoryArray.ones(self._manifest.dtype, self.n_entries)
        digest = None if self.shard.digests is None else self.shard.digests.get(name, "")
        return storage.open_array(self.file[name], raw, self._compression, digest)

    def stored(self, *names: str) -> tuple[storage.StoredArray, ...]:
        """Return arrays that can be read after this shard is closed."""
        try:
            # A duplicate of the descriptor, so that it is the file that was checked, even if its name now belongs to
            # another file. It stays open as long as the arrays exist.
            file = open(os.dup(self._raw.fileno()), "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            remedy = f"allow more files (ulimit -n), or convert with fewer {option('n_shards')}"
            raise InputError(f"{self.path}: {error.strerror}. Streamed shards stay open: {remedy}.") from error
        return tuple(self._open(name, file) for name in names)

    def search(self, missing: int) -> tuple[int, int]:
        """Return the first row with `missing` or more rows, codes and entries before it, and these entries."""
        entries_before = {self.shard.rows: self.n_entries}

        def size_before(row: int) -> int:
            entries_before[row] = int(self.read("X/indptr", row, row + 1)[0])
            return row * (1 + self._manifest.coded.n_codes) + entries_before[row]

        row = 1 + bisect_left(range(1, self.shard.rows), missing, key=size_before)
        if not 0 <= entries_before[row] <= self.n_entries:
            problem = f"indptr is not between 0 and {self.n_entries} at {self.row_name(row)}"
            raise InputError(f"{self.path}: {problem}. {COPY_AGAIN}")
        return row, entries_before[row]

    def read_indptr(self, part: ShardRange) -> NDArray[np.int64]:
        """Return the (rows + 1,) row pointers of a part, counted from the start of the shard. No row has more entries
        than there are columns, so that it fits into arrays of a number for each."""
        indptr = self.read("X/indptr", part.start, part.stop + 1)
        misfit = (indptr[1:] < indptr[:-1]) | (np.diff(indptr) > self._limit)
        wrong = np.concatenate(([indptr[0] < 0], misfit, [indptr[-1] > self.n_entries]))
        wrong[0] |= part.start == 0 and indptr[0] != 0
        wrong[-1] |= part.stop == self.shard.rows and indptr[-1] != self.n_entries
        if wrong.any():
            row = part.start + max(int(wrong.argmax()) - 1, 0)
            problem = f"indptr descends, leads out of the file or makes too long a row near {self.row_name(row)}"
            raise InputError(f"{self.path}: {problem}. {COPY_AGAIN}")
        return indptr

    def read_labels(self, part: ShardRange) -> Labels:
        """Return the labels of a part, (rows,). Raises InputError unless each is +1 or -1."""
        labels = self.read("y", part.start, part.stop)
        self._refuse(np.abs(labels) != 1, labels, part, "label", "must be +1 or -1")
        return labels

    def read_weights(self, part: ShardRange) -> Floats | None:
        """Return the weights of a part, (rows,), each a number from 0 to 1e250, else InputError; None without any."""
        if not self._manifest.weights:
            return None
        weights = self.read("weights", part.start, part.stop)
        wrong = ~((weights >= 0) & (weights <= HEAVIEST))
        self._refuse(wrong, weights, part, "weight", "must be a number from 0 to 1e250")
        return weights

    def read_ids(self, part: ShardRange) -> list[str]:
        return [name.decode("utf-8", "replace") for name in self.read("ids", part.start, part.stop).tolist()]

    def read_groups(self, part: ShardRange) -> Hashes:
        return self.read("groups", part.start, part.stop)

    def read_times(self, part: ShardRange) -> Floats:
        times = self.read("times", part.start, part.stop)
        self._refuse(~np.isfinite(times), times, part, "time", "must be finite")
        return times

    def read_rows(self, part: ShardRange) -> scipy.sparse.csr_matrix | NDArray[Any]:
        """Return the rows of a part as they are in the file, (rows, p), checked; without the coded columns."""
        if self._manifest.layout == "coded":
            return scipy.sparse.csr_matrix((part.rows, 0))
        if self._manifest.layout == "dense":
            rows = self.read("X", part.start, part.stop)
            self.check_finite(part, None, rows)
            return rows
        indptr = self.read_indptr(part)
        start, stop = int(indptr[0]), int(indptr[-1])
        indptr -= start
        indices = self.read_indices(part, indptr, start)
        data = self.read("X/data", start, stop)
        self.check_finite(part, indptr, data)
        return scipy.sparse.csr_matrix((data, indices, indptr), (part.rows, self._manifest.p_entries))

    def coded_parts(self, number: int, part: ShardRange) -> Iterator[StoredPart]:
        """Yield the places of the codes of a part's rows in group `number`, by the parts of the dataset."""
        code_map = self._manifest.coded.maps[number]
        distance = part_rows(self.file[f"codes/{number}"])
        return stored_parts(part.start, part.stop, self.shard.rows, distance, code_map.n_codes)

    def read_codes(self, number: int, part: ShardRange, out: Codes) -> list[int]:
        """Read the codes of a part's rows in a group into `out`, as `CodedRows` has them; return where parts end."""
        array, n_codes, ends = self._array(f"codes/{number}"), self._manifest.coded.maps[number].n_codes, list[int]()
        for stored in self.coded_parts(number, part):
            here = slice(stored.first - part.start, stored.last - part.start)
            table = out[here.start * n_codes : here.stop * n_codes].reshape(n_codes, here.stop - here.start)
            with self._naming_failures():
                read_part(array, stored, table)
            self.check_codes(number, part._replace(start=stored.first, stop=stored.last), table)
            ends.append(here.stop)
        self.bytes_read += out.nbytes
        return ends

    def check_codes(self, number: int, part: ShardRange, table: Codes) -> None:
        """Raise InputError unless the codes of a part, (codes of a row, rows), are below their limits or missing."""
        code_map = self._manifest.coded.maps[number]
        wrong = wrong_codes(table, code_map)
        if wrong.any():
            _, block = np.unravel_index(int(wrong.argmax()), wrong.shape)
            demand = f"must be below {code_map.limits()[block]}, or {np.iinfo(table.dtype).max} if it is missing"
            self._refuse(wrong, table.T, part, f"code {block} of group {number}:", demand)

    def read_code_rows(self, part: ShardRange) -> list[Codes]:
        """Return the codes of a part's rows, checked: an array (rows, codes of a row) for each group."""
        groups = []
        for number, code_map in enumerate(self._manifest.coded.maps):
            flat = np.empty(part.rows * code_map.n_codes, code_map.dtype)
            ends, n_codes = [0, *self.read_codes(number, part, flat)], code_map.n_codes
            pieces = (flat[a * n_codes : b * n_codes].reshape(n_codes, -1).T for a, b in pairwise(ends))
            groups.append(np.concatenate([flat[:0].reshape(0, n_codes), *pieces]))
        return groups

    def hash_rows(self, part: ShardRange) -> Hashes:
        """Return a hash of each row of a part, (rows,), which is equal for equal rows; see `distsms.base.hashing`."""
        hashes = None if self._manifest.layout == "coded" else hashing.hash_rows(self.read_rows(part))
        return hashing.hash_codes(self.read_code_rows(part), hashes)

    def check_finite(self, part: ShardRange, indptr: NDArray[np.int64] | None, values: NDArray[Any]) -> None:
        """Raise InputError unless all values of a part, (rows, p) or (entries,) with an indptr from 0, are finite."""
        if self.shard.digests is None:  # else the values are those that were written, and were checked then
            self._refuse(~np.isfinite(values), values, part, "value", "must be finite", indptr)

    def read_indices(self, part: ShardRange, indptr: NDArray[np.int64], start: int) -> NDArray[Any]:
        """Return the checked columns of a part, whose `indptr` begins with 0, from entry `start` on."""
        indices = self.read("X/indices", start, start + int(indptr[-1]))
        self.check_indices(part, indptr, indices)
        return indices

    def check_indices(self, part: ShardRange, indptr: NDArray[np.int64], indices: NDArray[Any]) -> None:
        """Raise InputError unless columns are in the shard's range and ascend in each row; see `read_indices`."""
        if len(indices) and indices.view(f"u{indices.itemsize}").max() >= self._limit:  # negative ones are large then
            wrong = (indices < 0) | (indices >= self._limit)
            self._refuse(wrong, indices, part, "column", f"must be from 0 to {self._limit - 1}", indptr)
        if self.shard.digests is not None:  # then the columns are those that were written
            return
        wrong = np.empty(len(indices), np.bool_)
        wrong[:1] = False
        np.less_equal(indices[1:], indices[:-1], out=wrong[1:])
        wrong[indptr[:-1][indptr[:-1] < len(indices)]] = False  # the first entry of a row follows no other
        self._refuse(wrong, indices, part, "column", "must be greater than the one before it in its row", indptr)

    def _refuse(
        self,
        wrong: NDArray[np.bool_],
        values: NDArray[Any],
        part: ShardRange,
        noun: str,
        demand: str,
        indptr: NDArray[np.int64] | None = None,
    ) -> None:
        """Raise InputError for the first wrong value, if any, with its row, by `indptr` or the first axis."""
        if not wrong.any():
            return
        at = np.unravel_index(int(wrong.argmax()), wrong.shape)
        row = int(at[0]) if indptr is None else int(np.searchsorted(indptr, at[0], side="right")) - 1
        raise InputError(f"{self.path}: {noun} {values[at]} at {self.row_name(part.start + row)} {demand}.")

    def row_name(self, row: int) -> str:
        return f"row {row} of the shard (row {self.offset + row} of the data, counted from 0)"


@contextlib.contextmanager
def open_shard(manifest: Manifest, shard: Shard, offset: int) -> Iterator[OpenShard]:
    """Open a shard of the data set for reading. `offset` is the global number of its first row."""
    path = manifest.checked_path(shard)
    with hdf5.open_file(path, "an HDF5 shard") as file, open(path, "rb", buffering=0) as raw:
        yield OpenShard(file, raw, path, manifest, shard, offset)
