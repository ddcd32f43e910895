"""The base class of readers of files with numbered rows (arrays, AnnData), which read ranges of rows in blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.ingest.formats.base import Reader
from distsms.ingest.options import ReadOptions
from distsms.matrix.arrays import require_finite
from distsms.matrix.local import index_dtype
from distsms.shards import row_metadata, rows
from distsms.shards.column_options import ColumnOptions
from distsms.shards.rows import RowBlock, RowRange
from distsms.shards.table_schema import USUAL

MAX_ENTRIES = 2**24
"""The most entries of a matrix that are read at once, so that a small compressed file cannot take all memory."""


class MatrixSize(NamedTuple):
    """The numbers of rows, of columns and of stored entries of a file."""

    n: int
    p: int
    nnz: int


class RowRangeReader(Reader):
    """Base class of readers that read ranges of rows, with labels and ids as columns beside X."""

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        super().__init__(paths, options)
        self.has_ids = options.id is not None
        with comm.fail_together():
            cells = options.table is None and options.cells != USUAL
            if options.drop or options.keep or options.columns != ColumnOptions() or cells:
                raise InputError(f"{paths[0]}: {option('drop')} and the options for columns are for CSV and Parquet")
            self.sizes = {path: self.read_size(path) for path in paths}
            widths = {path: size.p for path, size in self.sizes.items()}
            if len(set(widths.values())) > 1:
                raise InputError(f"the files differ in their columns: {widths}")
        self.n_columns = self.sizes[paths[0]].p

    def plan(self, n_shares: int) -> list[list[RowRange]]:
        return rows.plan([(path, self.sizes[path].n) for path in self.paths], n_shares)

    def read(self, share: Iterable[RowRange]) -> Iterator[RowBlock]:
        for row_range in share:
            size = self.sizes[row_range.path]
            for part in row_range.parts(max(1, rows.BLOCK_ENTRIES * size.n // max(size.nnz, size.n))):
                for piece, X in self.read_blocks(part):
                    require_finite(X, f"{piece.path}: ", piece.start)
                    X.eliminate_zeros()
                    yield self._rows(X, piece)
                    self.options.meter.add(piece.size)

    @abstractmethod
    def read_size(self, path: str) -> MatrixSize:
        """Return the size of the matrix in a file. Local."""

    @abstractmethod
    def read_blocks(self, part: RowRange) -> Iterator[tuple[RowRange, scipy.sparse.csr_matrix]]:
        """Yield these rows of X in order, as float64 matrices of their own, which the caller may change, each with at
        most `MAX_ENTRIES` entries."""

    @abstractmethod
    def read_column(self, part: RowRange, name: str | None) -> NDArray[Any]:
        """Return these rows of the column `name`, by default that of the labels, as numbers or strings. Local."""

    def _rows(self, X: scipy.sparse.csr_matrix, part: RowRange) -> RowBlock:
        options, (n, p) = self.options, X.shape
        values = self._labels(part) if options.labelled else np.zeros(n)
        signs = self.signs(values, f"{part.path}: from row {part.start} on")
        ids = None if options.id is None else [_text(value) for value in self.read_column(part, options.id).tolist()]
        indices = X.indices.astype(index_dtype(0, p), copy=False)

        def fail(name: str, row: int, problem: str) -> NoReturn:
            raise InputError(f"{part.path}: row {part.start + row} (counted from 0): {name!r}: {problem}")

        def strings(name: str) -> list[str]:
            return row_metadata.as_strings(self.read_column(part, name))

        metadata = row_metadata.read(options.row_columns, strings, fail)
        return RowBlock(signs, X.indptr.astype(np.int64), indices, X.data, p, ids, metadata)

    def _labels(self, part: RowRange) -> NDArray[Any]:
        values = self.read_column(part, self.options.label)
        if values.dtype.kind == "b":
            values = np.where(values, "true", "false")
        if values.dtype.kind in "iuf":
            values = values.astype(np.float64)
            bad = ~np.isfinite(values)
        else:
            values = np.array([_text(value) for value in values.tolist()], dtype=str)
            bad = values == ""
        if bad.any():
            row = part.start + int(bad.argmax())
            raise InputError(f"{part.path}: row {row} (counted from 0): the label is missing or not finite")
        return values


def blocks_of(
    part: RowRange, p: int, sparse: bool, read: Callable[[str, int, int], NDArray[Any]]
) -> Iterator[tuple[RowRange, scipy.sparse.csr_matrix]]:
    """Yield rows of a matrix with p columns as `read_blocks` does. `read` returns the entries start..stop of the array
    X, or if it is `sparse` of indptr, indices and data. Raises InputError if these are not CSR."""
    if not sparse and p > MAX_ENTRIES:
        raise InputError(f"{part.path}: X has {p} dense columns; up to {MAX_ENTRIES} are read. Save it as sparse")
    if not sparse:
        yield part, scipy.sparse.csr_matrix(as_float(read("X", part.start, part.stop), part.path))
        return
    indptr = read("indptr", part.start, part.stop + 1).astype(np.int64)
    misfit = InputError(f"{part.path}: near row {part.start} indptr does not fit the entries; is the file whole?")
    if (np.diff(indptr) < 0).any():
        raise misfit
    start, last = 0, len(indptr) - 1
    while start < last:
        # As many rows together as have at most MAX_ENTRIES entries.
        stop = int(np.searchsorted(indptr[start:], indptr[start] + MAX_ENTRIES, side="right")) + start - 1
        if stop <= start:
            raise InputError(
                f"{part.path}: row {part.start + start} (counted from 0) has {indptr[start + 1] - indptr[start]} "
                f"nonzeros; rows of up to {MAX_ENTRIES} are read"
            )
        starts = indptr[start : stop + 1]
        indices, data = (read(name, int(starts[0]), int(starts[-1])) for name in ("indices", "data"))
        if not len(indices) == len(data) == starts[-1] - starts[0]:
            raise misfit
        if indices.min(initial=0) < 0 or indices.max(initial=-1) >= p:
            raise InputError(f"{part.path}: near row {part.start + start} a column is not from 0 to {p - 1}")
        arrays = as_float(data, part.path), indices, starts - starts[0]
        X = scipy.sparse.csr_matrix(arrays, shape=(stop - start, p))
        X.sum_duplicates()
        yield part._replace(start=part.start + start, stop=part.start + stop), X
        start = stop


def as_float(values: NDArray[Any], path: str) -> NDArray[np.float64]:
    """Return numbers of any type as float64. Raises InputError if they are not numbers."""
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: X holds {values.dtype}; expected numbers")
    return values.astype(np.float64)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
