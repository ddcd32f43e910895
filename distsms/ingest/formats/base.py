"""The base classes of all readers of files: of text without columns, and of files that are read by ranges of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.text_files import BYTE_ORDER_MARK, ByteRange, TextPosition
from distsms.ingest.options import ReadOptions
from distsms.matrix.arrays import require_finite
from distsms.matrix.local import index_dtype
from distsms.shards import row_metadata
from distsms.shards import rows as row_blocks
from distsms.shards.column_options import ColumnReport
from distsms.shards.labels import to_signs
from distsms.shards.rows import RowBlock, RowRange
from distsms.shards.sequence_rules import Sequences
from distsms.shards.table_schema import Table

MAX_ENTRIES = 2**24
"""The most entries of a matrix that are read at once, so that a small compressed file cannot take all memory."""
TO_UTF8 = "convert the file first, from Latin-1 for instance by: iconv -f LATIN1 -t UTF-8 OLD > NEW"
"""What is to be done with text that is not UTF-8."""


class Reader(ABC):
    """A reader of files of one format. The rows do not depend on the number of shares that the files are cut into."""

    table: Table | None = None  # the names of the columns and their categories; None where columns have numbers only
    sequences: Sequences | None = None  # how sequences become codes; None where the rows are not sequences
    reports: list[ColumnReport] | None = None  # on each column of a table, if the reader had to survey the columns
    n_columns: int | None = None  # the number of features p if it is known before any row is read
    compressed: bool = False  # whether svmlight text of the same rows would be far longer than the files
    has_ids: bool = False
    kept_bytes: int = 0  # the memory that reading will give back

    def __init__(self, paths: Sequence[str], options: ReadOptions) -> None:
        self.paths, self.options = list(paths), options
        # What the training data did not have, or what is left out, each with the number of rows concerned so far
        self.warnings = Counter[str]()
        # Which original labels became +1 and -1; None if the rows come with their labels as written
        self.label_map: Mapping[str, Any] | None = options.label_map

    def plan(self, n_shares: int) -> list[list[Any]]:
        """Cut the input into `n_shares` consecutive shares. Local; every rank gets the same result."""
        return text_files.plan(self.paths, n_shares)

    @abstractmethod
    def read(self, share: Iterable[Any]) -> Iterator[RowBlock]:
        """Yield the rows of a share in order, in blocks of bounded size. Local. Errors name file and row."""

    def signs(self, labels: NDArray[Any], where: str) -> NDArray[Any]:
        """Return labels (n,) as they are written, or with a label map as +1 and -1; 0 if they are not needed. Local."""
        if not self.options.labelled:
            return np.zeros(len(labels))
        return labels if self.label_map is None else to_signs(labels, self.label_map, where).astype(float)


class TextReader(Reader):
    """Base class of readers of text whose lines have no columns with names."""

    block_bytes = text_files.BLOCK_BYTES
    """Bytes of text that are parsed at a time."""

    def read(self, share: Iterable[ByteRange]) -> Iterator[RowBlock]:
        """Yield the rows of a share, in order. With a label map, labels are +1 and -1."""
        for byte_range in share:
            for offset, text in self.blocks(byte_range, self.block_bytes):
                rows = self.parse(text, TextPosition(byte_range.path, offset))
                yield rows._replace(labels=self.signs(rows.labels, byte_range.path))
                self.options.meter.add(len(text))

    def blocks(self, byte_range: ByteRange, block_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines, or records of several lines, with their offsets in the text, as `parse` takes them."""
        return text_files.read_blocks(byte_range, block_bytes)

    @abstractmethod
    def parse(self, text: bytes, origin: TextPosition) -> RowBlock:
        """Return the rows of a block of text, whose last line may lack its newline. Local. An error names file:line."""


def whole_lines(text: bytes, origin: TextPosition) -> tuple[bytes, int]:
    """Return a text that ends in a newline, so that no loop of a kernel over a field has to look for its end,
    and where its first line begins: behind a byte order mark, if there is one."""
    first = len(BYTE_ORDER_MARK) if origin.offset == 0 and text.startswith(BYTE_ORDER_MARK) else 0
    return text if text.endswith(b"\n") else text + b"\n", first


def place_in(text: bytes, at: int, origin: TextPosition) -> str:
    """Return "file:line" of a byte in a piece of text that begins at `origin`. Reads the file up to there."""
    return f"{origin.path}:{text_files.line_number(origin, text, at)}"


class MatrixSize(NamedTuple):
    """The numbers of rows, of columns and of stored entries of a file."""

    n: int
    p: int
    nnz: int


class RowRangeReader(Reader):
    """Base class of readers that read ranges of rows, with labels and ids as columns beside X. Making one is
    collective."""

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        super().__init__(paths, options)
        self.has_ids = options.id is not None
        with comm.fail_together():
            self.sizes = {path: self.read_size(path) for path in paths}
            widths = {path: size.p for path, size in self.sizes.items()}
            if len(set(widths.values())) > 1:
                raise InputError(f"the files differ in their columns: {widths}")
        self.n_columns = self.sizes[paths[0]].p

    def plan(self, n_shares: int) -> list[list[RowRange]]:
        return row_blocks.plan([(path, self.sizes[path].n) for path in self.paths], n_shares)

    def read(self, share: Iterable[RowRange]) -> Iterator[RowBlock]:
        for row_range in share:
            size = self.sizes[row_range.path]
            for part in row_range.parts(max(1, row_blocks.BLOCK_ENTRIES * size.n // max(size.nnz, size.n))):
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
        """Yield these rows of X, as float64 matrices that the caller may change, of at most `MAX_ENTRIES` entries."""

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
    if not sparse:
        if p > MAX_ENTRIES:
            raise InputError(f"{part.path}: X has {p} dense columns; up to {MAX_ENTRIES} are read. Save it as sparse")
        yield part, scipy.sparse.csr_matrix(as_float(read("X", part.start, part.stop), part.path))
        return
    indptr = read("indptr", part.start, part.stop + 1).astype(np.int64)
    misfit = InputError(f"{part.path}: near row {part.start} indptr does not fit the entries; is the file whole?")
    if indptr[0] < 0 or (np.diff(indptr) < 0).any():
        raise misfit
    start, last = 0, len(indptr) - 1
    while start < last:
        # As many rows together as have at most MAX_ENTRIES entries.
        stop = int(np.searchsorted(indptr[start:], indptr[start] + MAX_ENTRIES, side="right")) + start - 1
        if stop <= start:
            n_entries, row = indptr[start + 1] - indptr[start], f"row {part.start + start} (counted from 0)"
            raise InputError(f"{part.path}: {row} has {n_entries} nonzeros; rows of up to {MAX_ENTRIES} are read")
        starts = indptr[start : stop + 1]
        indices, data = (read(name, int(starts[0]), int(starts[-1])) for name in ("indices", "data"))
        if not len(indices) == len(data) == starts[-1] - starts[0]:
            raise misfit
        if indices.min(initial=0) < 0 or indices.max(initial=-1) >= p:
            raise InputError(f"{part.path}: near row {part.start + start} a column is not from 0 to {p - 1}")
        X = scipy.sparse.csr_matrix((as_float(data, part.path), indices, starts - starts[0]), (stop - start, p))
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
