"""Files of tables as batches of whole rows, and among them Parquet files, whose columns have types."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote

import numpy as np

from distsms.base import addresses, text_files
from distsms.base.errors import InputError
from distsms.base.files import look_at
from distsms.base.wording import option
from distsms.ingest.formats import columns
from distsms.ingest.formats.columns import Columns
from distsms.shards import rows
from distsms.shards.rows import RowRange
from distsms.shards.table_schema import USUAL, Cells, Writing, format_names, repeated

import pyarrow as pa  # isort: skip
import pyarrow.compute as pc  # isort: skip

BATCH_ROWS, BATCH_CELLS = 2**14, 2**24
"""The most rows of a Parquet file, and about the most cells, that are read at a time."""
PIECE_BYTES = 2**26
"""Bytes of strings of a Parquet file that are worked on at a time, unless one row has more."""
INDEX = re.compile(r"__index_level_\d+__")
"""The name of a column in which pandas keeps the index of a DataFrame, which numbers the rows. It is no feature."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of a folder COLUMN=VALUE if the column has none."""


class BatchPosition(NamedTuple):
    """Where a batch begins: `at` is an offset in the text of a CSV file, or a row number in a Parquet file."""

    path: str
    at: int
    rows: Any = None  # (n,), which of the rows from here on the batch has; None: all

    def row(self, row: int) -> int:
        """Return the number of a row of the batch among the rows from here on."""
        return row if self.rows is None else int(self.rows[row])


class Batch(NamedTuple):
    """Consecutive rows of some columns."""

    position: BatchPosition
    columns: Columns  # name -> pyarrow array (n,)
    n_bytes: int | None = None  # of text; None: not a batch of text
    # Strings as they were written, where decimal commas are read; see `columns.marked`
    written: Mapping[str, Any] = MappingProxyType({})
    padded: frozenset[str] = frozenset()  # columns of numbers that were written with leading zeros, as codes are

    @property
    def n(self) -> int:
        return self.columns.n

    @property
    def size(self) -> int:
        """Its part of the size of the range that it is from: bytes of text, or rows."""
        return self.n if self.n_bytes is None else self.n_bytes

    def strings(self, name: str) -> list[str]:
        """Return a column as strings (n,) with all digits, which needs one that was not read as numbers."""
        return columns.as_strings(self.columns[name])

    def beside(self, other: Batch) -> Batch:
        """Return these columns, and those of another batch of the same rows that have other names."""
        return self._replace(columns=self.columns.beside(other.columns), padded=self.padded | other.padded)

    def take(self, rows: Any) -> Batch:
        """Return these rows, (m,)."""
        written = {name: columns.take(column, rows) for name, column in self.written.items()}
        position = self.position._replace(rows=rows)
        return self._replace(position=position, columns=self.columns.take(rows), written=written)


class Selection(NamedTuple):
    """The columns that batches are to have."""

    names: Sequence[str]
    # Says before each batch which columns may come as numbers if they hold nothing else.
    as_numbers: Callable[[str], bool] = lambda name: False
    keep_bytes: float = 0  # of batches that are kept in memory for another reading; 0: none are kept anywhere


class TableFiles(ABC):
    """Files of tables with the same columns, in any order. The folders COLUMN=VALUE of a file are columns, too, unless
    the file itself has a column of this name."""

    compressed, kept_bytes = False, 0
    header_hint = ""  # "; ..." if the names of the columns may be others
    declared = frozenset[str]()  # columns that a file calls categories, also some that it has no longer

    def __init__(self, paths: Sequence[str], cells: Cells, in_file: Mapping[str, list[str]]) -> None:
        """Take how cells are read, and the columns that each file has."""
        self.paths, self.cells, self.in_file = list(paths), cells, in_file
        self.writings = dict[str, Writing]()  # how the numbers of columns are written
        self._values = {path: values_of(path) for path in paths}
        self.headers = {path: list(dict.fromkeys([*in_file[path], *self._values[path]])) for path in paths}
        self.names = self.headers[paths[0]]
        self.from_folders = {name for path in paths for name in {*self._values[path]}.difference(in_file[path])}

    @property
    def constant(self) -> set[str]:
        """The columns from folders with the same value in all files."""
        return {name for name in self.from_folders if len({each.get(name) for each in self._values.values()}) == 1}

    def batches(self, share: Iterable[Any], selection: Selection) -> Iterator[Batch]:
        """Yield the rows of a share, in order."""
        for part in share:
            in_file = set(self.in_file[part.path])
            names = [name for name in selection.names if name in in_file] or self.in_file[part.path][:1]
            others = [name for name in selection.names if name not in in_file]
            for batch in self.batches_of(part, selection._replace(names=names)):
                if others:
                    folders = {name: self._from_folder(part.path, name, batch.n) for name in others}
                    batch = batch._replace(columns=batch.columns.beside(Columns.of(folders, batch.n)))
                yield batch

    @abstractmethod
    def batches_of(self, part: Any, selection: Selection) -> Iterator[Batch]:
        """Yield the rows of a range, with columns that the file itself has."""

    def _from_folder(self, path: str, name: str, n: int) -> Any:
        text = columns.numbered(np.zeros(n, np.int32), [self._values[path][name]])
        return columns.clean(text, self.cells, self.cells.decimal, self.writings.get(name))

    def read_as(self, writings: Mapping[str, Writing]) -> None:
        """Read the numbers of columns as they are written from now on."""
        self.writings |= writings

    def forget_cleaned(self, names: Collection[str]) -> None:  # noqa: B027 - mostly nothing is kept
        """Read these columns again if what is kept of them may not show how their numbers were written."""

    def is_text(self, name: str) -> bool:
        return name in self.from_folders

    def written(self, position: BatchPosition, row: int, name: str) -> str | None:
        """Return a field as it is in the file, for messages; None if nothing else than the value was written."""
        return None


def values_of(path: str) -> dict[str, str]:
    """Return the columns that the folders of a file hold, each with its value; "" if it is missing."""
    pairs = [part.partition("=") for part in os.path.dirname(addresses.without_query(path)).split(os.sep)]
    return {unquote(name): "" if value == NO_VALUE else unquote(value) for name, mark, value in pairs if name and mark}


class ParquetFiles(TableFiles):
    """Parquet files."""

    compressed = True

    def __init__(self, paths: Sequence[str], cells: Cells = USUAL) -> None:
        self.counts, in_file, self._texts = [], {}, set[str]()
        for path in paths:
            with _parquet(path) as file:
                n, schema = file.metadata.num_rows, file.schema_arrow
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                if sum(sizes) != n or min(sizes, default=0) < 0:
                    raise InputError(f"{path}: it claims {n} rows, but its row groups have {sum(sizes)}; copy it again")
                self.counts.append((path, n))
                in_file[path] = distinct(schema.names, path)
                self._texts |= {field.name for field in schema if columns.is_string(field.type)}
                self.declared |= _declared(schema)
        super().__init__(paths, cells, in_file)

    def plan(self, n_shares: int) -> list[list[RowRange]]:
        """Cut the files into shares by numbers of rows, wherever row groups end."""
        return rows.plan(self.counts, n_shares)

    def batches_of(self, part: RowRange, selection: Selection) -> Iterator[Batch]:
        """Yield the rows of a range. Memory: one batch, and what pyarrow decodes."""
        with _parquet(part.path) as file:
            end = 0
            for group in range(file.num_row_groups):
                first, end = end, end + file.metadata.row_group(group).num_rows
                if first < part.stop and end > part.start:
                    yield from self._group(file, group, first, part, selection)
            if end < part.stop:
                problem = f"has {end} rows, but had at least {part.stop}; is another program writing to it?"
                raise InputError(f"{part.path}: {problem}")

    def is_text(self, name: str) -> bool:
        return name in self._texts or super().is_text(name)

    def where(self, position: BatchPosition, row: int) -> str:
        """Return the file and the number of a row of the batch at `position`, for messages."""
        return f"{position.path}: row {position.at + position.row(row)} (counted from 0)"

    def _group(self, file: Any, group: int, first: int, row_range: RowRange, selection: Selection) -> Iterator[Batch]:
        row_group, names = file.metadata.row_group(group), set(selection.names)
        end = first + row_group.num_rows
        for name in selection.names:  # before anything of a column is read
            columns.require_readable(file.schema_arrow.field(name).type, name, row_range.path)
        with addresses.opened(row_range.path) as raw:
            for column in map(row_group.column, range(row_group.num_columns)):
                if column.path_in_schema in names:
                    require_small_pages(raw, column, row_range.path)
        n_rows = max(1, min(BATCH_ROWS, BATCH_CELLS // len(selection.names)))
        batches = file.iter_batches(n_rows, [group], list(selection.names), use_threads=False)
        for batch in itertools.chain.from_iterable(map(_pieces, batches)):
            start, stop = max(row_range.start - first, 0), min(row_range.stop - first, batch.num_rows)
            if start < stop:
                part = {name: batch[name].slice(start, stop - start) for name in selection.names}
                typed = {
                    name: columns.typed(column, name, row_range.path, self.cells, self.writings.get(name))
                    for name, column in part.items()
                }
                commas = self.cells.decimal == ","
                written = {name: text for name, text in part.items() if commas and columns.is_string(text.type)}
                position = BatchPosition(row_range.path, first + start)
                yield Batch(position, Columns.of(typed, stop - start), written=written)
            first += batch.num_rows
        if first != end:
            raise InputError(f"{row_range.path}: is damaged: group {group} lacks {end - first} rows; copy it again")


def _pieces(batch: Any) -> Iterator[Any]:
    """Divide a batch, since a file has a string once, and its rows would take much memory if each gets its own."""
    size = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if columns.is_string(column.type) and pa.types.is_dictionary(column.type):
            lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy(zero_copy_only=False)
            size += columns.of_rows(lengths.astype(np.int64), column, 0)
    piece = (np.cumsum(size) - size) // PIECE_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), batch.num_rows]
    for start, stop in itertools.pairwise(cuts):
        yield batch.slice(start, stop - start)


def _declared(schema: Any) -> frozenset[str]:
    """Return the columns that were categories in pandas, which Parquet has as plain numbers or strings."""
    try:
        about = schema.pandas_metadata["columns"]
        return frozenset(column["name"] for column in about if column["pandas_type"] == "categorical")
    except (LookupError, TypeError, ValueError):  # there is no such record, or a strange one
        return frozenset()


@contextlib.contextmanager
def _parquet(path: str) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile, read_metadata  # here, since CSV files do not need it

    try:
        look_at(path)
        with text_files.naming_errors(path), contextlib.ExitStack() as opened:
            # pyarrow opens a file of this machine itself.
            source = opened.enter_context(addresses.opened(path)) if addresses.is_address(path) else path
            about = read_metadata(source)
            # Strings stay numbered, as they are in the file: one of a megabyte may stand in a million rows.
            strings = [field.name for field in about.schema.to_arrow_schema() if columns.is_string(field.type)]
            with ParquetFile(source, metadata=about, read_dictionary=strings, buffer_size=2**20) as file:
                yield file
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def distinct(names: list[str], where: str, hint: str = "") -> list[str]:
    """Return the names of columns. Raises InputError, with a hint, if a name occurs twice."""
    if (twice := repeated(names)) is not None:
        raise InputError(f"{where}: the column name {twice!r} occurs twice{hint}; columns: {format_names(names)}")
    return names


MOST_PAGE_BYTES, _MOST_HEADER_BYTES = 2**28, 2**20
"""The largest page that is read, and the largest header of one that is looked at. Writers make pages of about 1 MiB, or
of a thousand texts if these are longer.
"""
_BOOLEANS, _INTEGERS, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), (4, 5, 6), 8, (9, 10), 11, 12
_SIZES = {1: 1, 2: 1, 3: 1, 7: 8}  # of values of other types


def require_small_pages(file: BinaryIO, column: Any, path: str) -> None:
    """Raise InputError if a page of a column, of one row group, is too large; pyarrow judges damaged headers.

    pyarrow allocates whatever a page claims. A column of a row group is a sequence of pages, each with a header before
    it, whose second field is the size of the page in memory, and its third the size in the file."""
    position = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        position = min(position, column.dictionary_page_offset)
    end = position + column.total_compressed_size
    while position < end:
        file.seek(position)
        header = _Header(file)
        try:
            fields = header.struct()
            page_bytes, stored_bytes = fields[2], fields[3]
        except (LookupError, RecursionError):
            return
        if page_bytes > MOST_PAGE_BYTES:
            problem = f"has a page of {page_bytes} bytes, and at most {MOST_PAGE_BYTES} are read; write smaller pages"
            raise InputError(f"{path}: column {column.path_in_schema!r} {problem}, or leave it out: {option('drop')}")
        if stored_bytes < 0:
            return
        position += header.size + stored_bytes


class _Header:
    """The bytes of a file from here on, as values in Thrift's compact protocol; `size` are read. Raises LookupError."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.size = file, 0

    def take(self, n: int) -> bytes:
        self.size += n
        part = self._file.read(n) if self.size <= _MOST_HEADER_BYTES else b""
        if len(part) < n:
            raise LookupError
        return part

    def struct(self) -> dict[int, int]:
        """Return the fields of a struct that are integers, by their numbers."""
        fields, number = dict[int, int](), 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._integer()
            if head & 15 in _INTEGERS:
                fields[number] = self._integer()
            elif head & 15 not in _BOOLEANS:
                self._skip(head & 15)
        return fields

    def _skip(self, kind: int) -> None:
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self.take(self._varint())
        elif kind == _STRUCT:
            self.struct()
        elif kind in _LISTS:
            head = self.take(1)[0]
            for _ in range(self._varint() if head >> 4 == 15 else head >> 4):
                self._skip(head & 15)
        elif kind == _MAP:
            size = self._varint()
            kinds = self.take(1)[0] if size else 0
            for part in range(2 * size):  # keys and values take turns
                self._skip(kinds & 15 if part % 2 else kinds >> 4)
        else:
            self.take(_SIZES[kind])

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self.take(1)[0]) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise LookupError
        return (value | byte << shift) & 0xFFFFFFFF  # as Thrift does with whatever needs 32 bits
