"""AnnData's HDF5 files (.h5ad): X, dense or CSR, holds the rows; var names the columns; obs has labels and row ids.

Both layouts of obs are read, categories included: a group with a dataset for each column, and one with a group for each
column (AnnData 0.7 and newer). Columns are matched by name with those of the training data, in whatever order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.formats.base import ReadOptions
from distsms.data.formats.row_ranges import MatrixSize, RowRangeReader, as_float, checked_csr, pieces, require_narrow
from distsms.data.formats.rows import RowRange
from distsms.data.formats.table_schema import Column, Table, check_columns, format_names
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils import hdf5

LONGEST = 1024
"""The most characters of a string, where so many rows have one that the longest counts."""


class AnnDataReader(RowRangeReader):
    """Reader of .h5ad files; see `distsms.data.formats.base.Reader`."""

    compressed = False

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        """Check the files, find out what the labels mean, and match the columns. **Collective.**"""
        with comm.fail_together():
            longest = {path: hdf5.check_heaps(path) for path in paths if comm.is_root}
        self._longest: dict[str, int] = comm.bcast(longest)
        if (given := options.table) is not None:
            options = replace(options, label=options.label or given.label)
            with comm.fail_together():
                if options.id is None and all(_has(path, given.id) for path in paths):
                    options = replace(options, id=given.id)
        if options.labelled and options.label is None:
            raise InputError(f"{paths[0]}: which column of obs is the label? --label COLUMN", everywhere=True)
        super().__init__(paths, options, comm)
        with comm.fail_together():
            names = {path: self._names(path) for path in paths}
            for path in paths:
                if len(names[path]) != self.sizes[path].p:
                    raise InputError(f"{path}: var names {len(names[path])} columns, X has {self.sizes[path].p}")
            first = names[paths[0]]
            table = options.table or Table(tuple(map(Column, first)))
            wanted = [column.name for column in table.columns]
            for path in paths:
                check_columns(wanted, names[path], table.dropped, path, options.ignore_new, None if given else paths[0])
            numbers = {name: k for k, name in enumerate(wanted)}
            self._place = {
                path: None if there == wanted else np.array([numbers.get(name, -1) for name in there])
                for path, there in names.items()
            }
        self.table = replace(table, label=options.label, id=options.id)
        self.n_columns = len(wanted)

    def read_size(self, path: str) -> MatrixSize:
        """Return the size of X, as the file states it."""
        with hdf5.open_file(path, "AnnData") as file:
            X = hdf5.member(file, "X")
            if isinstance(X, h5py.Dataset):
                if (dense := hdf5.dataset(file, "X")).ndim != 2:
                    raise InputError(f"{path}: X has the shape {dense.shape}; expected rows and columns")
                return MatrixSize(dense.shape[0], dense.shape[1], dense.size)
            kind = _attribute(X, "encoding-type", "h5sparse_format") or "csr"
            if kind not in ("csr_matrix", "csr"):
                raise InputError(f"{path}: X is a {kind}; expected CSR or dense rows (adata.X = adata.X.tocsr())")
            n, p = map(int, _attribute(X, "shape", "h5sparse_shape"))
            if hdf5.dataset(file, "X/indptr").shape != (n + 1,):
                raise InputError(f"{path}: X claims {n} rows, but its indptr has another length; copy the file again")
            hdf5.dataset(file, "X/indices")
            return MatrixSize(n, p, len(hdf5.dataset(file, "X/data")))

    def read_blocks(self, part: RowRange) -> Iterator[tuple[RowRange, sparse.csr_matrix]]:
        """Read these rows, and bring their columns into the order of the training data."""
        p = self.sizes[part.path].p
        with hdf5.open_file(part.path, "AnnData") as file:
            X = hdf5.member(file, "X")
            if isinstance(X, h5py.Dataset):
                require_narrow(p, part.path)
                yield part, self._in_order(sparse.csr_matrix(as_float(X[part.start : part.stop], part.path)), part.path)
                return
            indptr = hdf5.dataset(file, "X/indptr")[part.start : part.stop + 1].astype(np.int64)
            for piece, starts in pieces(indptr, part):
                entries = slice(int(starts[0]), int(starts[-1]))
                indices, data = (hdf5.dataset(file, f"X/{name}")[entries] for name in ("indices", "data"))
                rows = checked_csr(starts, indices, data, p, piece)
                yield piece, self._in_order(rows, part.path)

    def _in_order(self, rows: sparse.csr_matrix, path: str) -> sparse.csr_matrix:
        """Return the rows with their columns in the order of the training data."""
        place = self._place[path]
        if place is None:
            return rows
        assert self.n_columns is not None
        known = np.flatnonzero(place >= 0)
        order = known[np.argsort(place[known])]
        picked = sparse.csr_matrix(rows[:, order])
        picked.sort_indices()
        return picked

    def read_column(self, part: RowRange, name: str | None) -> NDArray[Any]:
        """Read these rows of a column of obs."""
        with hdf5.open_file(part.path, "AnnData") as file:
            obs = hdf5.member(file, "obs")
            if name not in obs:
                raise InputError(f"{part.path}: obs has no column {name!r}; it has {format_names(sorted(obs))}")
            column, rows, all_rows = f"obs/{name}", slice(part.start, part.stop), slice(None)
            read = partial(_values, file, longest=self._longest[part.path])
            item = hdf5.member(file, column)
            if isinstance(item, h5py.Dataset):
                older = "obs/__categories"
                if "__categories" not in obs or name not in hdf5.member(file, older):
                    return read(column, rows)
                categories, codes = read(f"{older}/{name}", all_rows), read(column, rows)
            elif "categories" in item:
                categories, codes = read(f"{column}/categories", all_rows), read(f"{column}/codes", rows)
            elif "mask" in item:  # numbers or truth values that may be missing
                found, mask = read(f"{column}/values", rows), read(f"{column}/mask", rows)
                if found.dtype.kind == "b":
                    found = np.where(found, "true", "false")
                return np.where(mask, np.nan if found.dtype.kind in "iuf" else "", found)
            else:
                raise InputError(f"{part.path}: column {name!r} of obs has an encoding that distsms does not know")
            if categories.dtype.kind == "b":
                categories = np.where(categories, "true", "false")
            _require_short(categories, part.stop - part.start, part.path)
            # A missing value has the code -1, which picks the value that is appended at the end.
            return np.append(categories, np.nan if categories.dtype.kind in "iuf" else "")[codes]

    def _names(self, path: str) -> list[str]:
        with hdf5.open_file(path, "AnnData") as file:
            index = _attribute(hdf5.member(file, "var"), "_index") or "_index"
            names = [str(name) for name in _values(file, f"var/{index}", slice(None), self._longest[path]).tolist()]
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(f"{path}: the name {twice!r} occurs twice in var (adata.var_names_make_unique())")
            return names


def _attribute(item: h5py.Group, *names: str) -> Any:
    """Return the first of these attributes that the item has, or None."""
    return next((found for name in names if (found := hdf5.attribute(item, name, text=True)) is not None), None)


def _has(path: str, name: str | None) -> bool:
    """Whether obs has this column."""
    with hdf5.open_file(path, "AnnData") as file:
        return name is not None and name in hdf5.member(file, "obs")


def _values(file: h5py.File, name: str, rows: slice, longest: int) -> NDArray[Any]:
    """Read numbers or truth values as they are, and strings as str."""
    found = hdf5.dataset(file, name, strings=True)
    if h5py.check_string_dtype(found.dtype) is None:
        return found[rows]
    texts = hdf5.texts(found, rows, longest)
    _require_short(np.array([max(texts, key=len, default="")]), len(texts), file.filename)
    return np.array(texts, dtype=str)


def _require_short(texts: NDArray[Any], n: int, path: str) -> None:
    """Raise InputError if n strings take too much memory, because each takes as much as the longest one, `texts`."""
    if texts.dtype.kind == "U" and texts.itemsize > 4 * LONGEST and n * texts.itemsize > hdf5.TEXT_BYTES:
        raise InputError(f"{path}: a label or name has {texts.itemsize // 4} characters; at most {LONGEST} are read")
