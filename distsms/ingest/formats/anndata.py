"""AnnData's HDF5 files (.h5ad): X, dense or CSR, holds the rows; var names the columns; obs has labels and row ids.

Columns are matched by name with those of the training data, in whatever order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base import hdf5
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.ingest.formats.base import MatrixSize, RowRangeReader, blocks_of
from distsms.ingest.options import ReadOptions
from distsms.matrix.arrays import subtract
from distsms.shards.rows import RowRange
from distsms.shards.table_schema import NUMBER, Column, Table, check_columns, format_names, repeated

LONGEST = 1024
"""The most characters of a string, where so many rows have one that the longest counts."""


class AnnDataReader(RowRangeReader):
    """Reader of .h5ad files; see `distsms.ingest.formats.base.Reader`."""

    table: Table

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        self._longest = comm.of_root(lambda: {path: hdf5.check_heaps(path) for path in paths})
        if (training_table := options.table) is not None:
            options = replace(options, label=options.label or training_table.label)
            with comm.fail_together():
                if options.id is None and all(_has(path, training_table.id) for path in paths):
                    options = replace(options, id=training_table.id)
        if options.labelled and options.label is None:
            raise InputError(f"{paths[0]}: which column of obs is the label? {option('label', text='COLUMN')}", True)
        super().__init__(paths, options, comm)
        with comm.fail_together():
            names = {path: self._names(path) for path in paths}
            for path in paths:
                if len(names[path]) != self.sizes[path].p:
                    raise InputError(f"{path}: var names {len(names[path])} columns, X has {self.sizes[path].p}")
            table = options.table or Table(tuple(map(Column, names[paths[0]])))
            if others := [column.name for column in table.columns if column.kind != NUMBER]:
                raise InputError(f"{paths[0]}: has numbers only, and lacks {format_names(others)}; give a table")
            expected, first_path = [column.name for column in table.columns], None if training_table else paths[0]
            for path in paths:
                check_columns(expected, names[path], table.dropped, path, options.ignore_new, first_path)
            features = {column.name: start for column, start in table.placed}
            same = table.p == len(expected)
            self._order = {
                path: None if same and columns == expected else _selection(columns, features, table.p)
                for path, columns in names.items()
            }
        self.table = replace(table, label=options.label, id=options.id)
        self.n_columns = table.p

    def read_size(self, path: str) -> MatrixSize:
        with _open(path) as file:
            names = set(file)  # what links lead to is not opened
            X = hdf5.member(file, "X") if "X" in names else None
            if X is None or (isinstance(X, h5py.Dataset) and X.shape is None):
                layers = format_names(sorted(hdf5.member(file, "layers"))) if "layers" in names else "none"
                raise InputError(f"{path}: has no X; write it again: adata.X = adata.layers[NAME]; layers: {layers}")
            if isinstance(X, h5py.Dataset):
                if (dense := hdf5.dataset(file, "X")).ndim != 2:
                    raise InputError(f"{path}: X has the shape {dense.shape}; expected rows and columns")
                return MatrixSize(dense.shape[0], dense.shape[1], dense.size)
            kind = _attribute(X, "encoding-type", "h5sparse_format") or "csr"
            if kind not in ("csr_matrix", "csr"):
                raise InputError(f"{path}: X is a {kind}; expected CSR or dense rows (adata.X = adata.X.tocsr())")
            n, p = map(int, _attribute(X, "shape", "h5sparse_shape"))
            if min(n, p) < 0 or hdf5.dataset(file, "X/indptr").shape != (n + 1,):
                raise InputError(f"{path}: X claims to be {n} x {p}, which its indptr is not; copy the file again")
            hdf5.dataset(file, "X/indices")
            return MatrixSize(n, p, len(hdf5.dataset(file, "X/data")))

    def read_blocks(self, part: RowRange) -> Iterator[tuple[RowRange, sparse.csr_matrix]]:
        with _open(part.path) as file:
            is_sparse = not isinstance(hdf5.member(file, "X"), h5py.Dataset)

            def read(name: str, start: int, stop: int) -> NDArray[Any]:
                return hdf5.dataset(file, f"X/{name}" if is_sparse else "X")[start:stop]

            for piece, rows in blocks_of(part, self.sizes[part.path].p, is_sparse, read):
                if (order := self._order[part.path]) is not None:
                    rows = rows @ order
                    rows.sort_indices()
                yield piece, sparse.csr_matrix(subtract(rows, self.table.offsets))

    def read_column(self, part: RowRange, name: str | None) -> NDArray[Any]:
        with _open(part.path) as file:
            obs, older = hdf5.member(file, "obs"), "obs/__categories"
            if name not in set(obs):
                raise InputError(f"{part.path}: obs has no column {name!r}; it has {format_names(sorted(obs))}")
            is_older = "__categories" in set(obs) and name in set(hdf5.member(file, older))
            rows, categories = slice(part.start, part.stop), f"{older}/{name}" if is_older else ""
            return _values(file, f"obs/{name}", rows, self._longest[part.path], categories)

    def _names(self, path: str) -> list[str]:
        with _open(path) as file:
            index = _attribute(hdf5.member(file, "var"), "_index") or "_index"
            names = [str(name) for name in _values(file, f"var/{index}", slice(None), self._longest[path]).tolist()]
            if (twice := repeated(names)) is not None:
                raise InputError(f"{path}: the name {twice!r} occurs twice in var (adata.var_names_make_unique())")
            return names


def _selection(columns: Sequence[str], features: Mapping[str, int], p: int) -> sparse.csr_matrix:
    """Return the matrix (columns, p) whose product with rows has the features of the training data."""
    pairs = [(k, features[name]) for k, name in enumerate(columns) if name in features]
    places = np.array(pairs, np.int64).reshape(-1, 2).T
    return sparse.csr_matrix((np.ones(len(pairs)), (places[0], places[1])), (len(columns), p))


def _attribute(item: h5py.Group, *names: str) -> Any:
    """Return the first of these attributes that the item has, or None."""
    return next((value for name in names if (value := hdf5.attribute(item, name, text=True)) is not None), None)


def _has(path: str, name: str | None) -> bool:
    with _open(path) as file:
        return name is not None and name in set(hdf5.member(file, "obs"))


@contextlib.contextmanager
def _open(path: str) -> Iterator[h5py.File]:
    """Open a file. Raises InputError if its tables have the layout of AnnData before 0.7."""
    with hdf5.open_file(path, "AnnData") as file:
        if any(isinstance(hdf5.member(file, name), h5py.Dataset) for name in {"obs", "var"} & set(file)):
            raise InputError(f"{path}: was written by anndata before 0.7; read and write it with a newer one")
        yield file


def _values(file: h5py.File, name: str, rows: slice, longest: int, older: str = "") -> NDArray[Any]:
    """Return rows of a column: numbers and truth values as they are, strings as str; "" or NaN where one is missing.
    Before AnnData 0.8, the categories of codes are elsewhere, at `older`."""
    item, path = hdf5.member(file, name), file.filename
    if isinstance(item, h5py.Dataset) and not older:
        column = hdf5.dataset(file, name, strings=True)
        if h5py.check_string_dtype(column.dtype) is None:
            return column[rows]
        texts = hdf5.texts(column, rows, longest)
        _require_short(np.array([max(texts, key=len, default="")]), len(texts), path)
        return np.array(texts, dtype=str)
    if older or "categories" in set(item):
        codes = hdf5.dataset(file, name if older else f"{name}/codes")[rows]
        values, missing = _values(file, older or f"{name}/categories", slice(None), longest), codes < 0
        _require_short(values, len(codes), path)
        values = np.append(values, values.dtype.type())[codes]
    elif "mask" in set(item):  # the values may be missing
        values = _values(file, f"{name}/values", rows, longest)
        missing = hdf5.dataset(file, f"{name}/mask")[rows]
    else:
        raise InputError(f"{path}: column {name!r} has an encoding that distsms does not know")
    if values.dtype.kind == "b":
        values = np.where(values, "true", "false")
    return np.where(missing, np.nan if values.dtype.kind in "iuf" else "", values)


def _require_short(texts: NDArray[Any], n: int, path: str) -> None:
    """Raise InputError if n strings take too much memory, because each takes as much as the longest one, `texts`."""
    if texts.dtype.kind == "U" and texts.itemsize > 4 * LONGEST and n * texts.itemsize > hdf5.TEXT_BYTES:
        raise InputError(f"{path}: a label or name has {texts.itemsize // 4} characters; at most {LONGEST} are read")
