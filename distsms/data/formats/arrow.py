"""Read CSV and Parquet files with pyarrow, in batches of whole rows; `frame` reads tables in memory in the same way.

CSV: the first line of each file names its columns. It also shows what separates the fields: tabs in .tsv, else commas,
or semicolons, tabs or bars if it has no comma. Fields may be quoted. A row is a line, so that ranks can begin at any
line. Columns have no type: every field is read as text (`columns.clean`). Where semicolons separate the fields, numbers
may have decimal commas.

Parquet: columns have the types that the file gives them.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from distsms.data.formats import columns, rows, text_files
from distsms.data.formats.table_schema import VERSION, format_names
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator

import pyarrow as pa  # isort: skip
import pyarrow.csv as arrow_csv  # isort: skip
import pyarrow.parquet as arrow_parquet  # isort: skip

BATCH_ROWS = 2**14
"""Rows of a Parquet file that are read at a time."""
WIDE = 1000
"""If a CSV file has at least this many columns, all fields are parsed as one column, since each column costs time."""
SEPARATORS = ",;\t|"


class BatchPosition(NamedTuple):
    """Where a batch begins: `at` is an offset in the text of a CSV file, or a row number in a Parquet file."""

    path: str
    at: int


class Batch(NamedTuple):
    """Consecutive rows of some columns."""

    position: BatchPosition
    columns: Mapping[str, Any]  # name -> pyarrow array (n,); see `distsms.data.formats.columns`
    n: int
    # name -> (n,) strings with all digits; see `columns.as_strings`
    metadata: Mapping[str, list[str]] = MappingProxyType({})
    n_bytes: int | None = None  # of text; None: not a batch of text
    # Strings as they were written, where decimal commas are read; see `columns.marked`
    written: Mapping[str, Any] = MappingProxyType({})

    @property
    def size(self) -> int:
        """Its part of the size of the range that it is from: bytes of text, or rows."""
        return self.n if self.n_bytes is None else self.n_bytes


class CsvFiles:
    """CSV files with the same columns, in any order."""

    compressed = False
    declared = frozenset[str]()

    def __init__(self, paths: Sequence[str], version: int = VERSION, decimal: str = ".", thousands: str = "") -> None:
        self.paths, self._version, self._decimal, self.thousands = list(paths), version, decimal, thousands
        self._separators = dict[str, str]()
        self.headers = {path: self._header(path) for path in paths}
        self.names = self.headers[self.paths[0]]
        self._places = {path: {name: k for k, name in enumerate(names)} for path, names in self.headers.items()}

    def mine(self, comm: Communicator) -> list[text_files.ByteRange]:
        """Return this rank's share of the rows."""
        return self.plan(comm.size)[comm.rank]

    def plan(self, n_shares: int) -> list[list[text_files.ByteRange]]:
        """Cut the files into shares; see `text_files.plan`."""
        return text_files.plan(self.paths, n_shares)

    def batches(
        self, share: Iterable[text_files.ByteRange], names: Sequence[str], metadata: Sequence[str] = ()
    ) -> Iterator[Batch]:
        """Yield the rows of a share, in order. Errors name the file and the line that is not a row.

        Parameters
        ----------
        share : iterable of ByteRange
            From `plan`.
        names : sequence of str
            The columns of `Batch.columns`.
        metadata : sequence of str
            The columns of `Batch.metadata`.
        """
        for byte_range in share:
            for offset, text in text_files.read_blocks(byte_range):
                body = text.partition(b"\n")[2] if offset == 0 else text
                if body.strip():
                    position = BatchPosition(byte_range.path, offset + len(text) - len(body))
                    found = self._parse(body, position, list(dict.fromkeys([*names, *metadata])))
                    strings = {name: columns.as_strings(found.columns[name]) for name in metadata}
                    yield found._replace(metadata=strings, n_bytes=len(text))

    def is_text(self, name: str) -> bool:
        """Whether a column holds strings."""
        return True

    def where(self, position: BatchPosition, row: int) -> str:
        """Return the file and line of a row of the batch at `position`, for messages. Reads the file up to that row."""
        return f"{position.path}:{self._line(position, lambda k, line: k == row)}"

    def _header(self, path: str) -> list[str]:
        with text_files.open_text(path) as stream:
            line = text_files.read_line(stream, path, text_files.LONGEST_HEADER)
        try:
            first = line.removeprefix(text_files.BYTE_ORDER_MARK).decode()
            by = (
                "\t"
                if _ending(path) == ".tsv"
                else next((mark for mark in SEPARATORS if _n_fields(first, mark) > 1), ",")
            )
            names = [name.strip() for name in next(csv.reader([first], delimiter=by), [])]
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{path}:1", error) from error
        except csv.Error as error:
            raise InputError(f"{path}:1: the first line must name the columns: {error}") from error
        if not any(names):
            raise InputError(f"{path}:1: the first line must name the columns, and is empty")
        self._separators[path] = by
        return distinct(names, f"{path}:1")

    def _parse(self, text: bytes, position: BatchPosition, names: Sequence[str]) -> Batch:
        header, bad = self.headers[position.path], []
        try:
            text.decode()
        except UnicodeDecodeError as error:
            line = text_files.line_number(text_files.TextPosition(*position), text, error.start)
            raise _not_utf8(f"{position.path}:{line}", error) from error
        delimiter = self._separators[position.path]
        if len(header) >= WIDE and (wide := self._parse_wide(text, position, delimiter)):
            return wide
        # A row of empty fields is appended. If a quote is still open at the end, this row becomes part of the quoted
        # field.
        guard = delimiter.join(['""'] * len(header)).encode() + b"\n"
        text += b"" if text.endswith(b"\n") else b"\n"
        guarded = text + guard

        def skip(row: Any) -> str:
            bad.append(row)
            return "skip"

        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(guarded),
                arrow_csv.ReadOptions(use_threads=False, block_size=len(guarded) + 1, column_names=header),
                arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
                arrow_csv.ConvertOptions(
                    column_types={name: pa.string() for name in header},
                    include_columns=list(names),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise InputError(
                f"{self.where(position, 0)}: in or after this line: {error}; expected CSV in UTF-8"
            ) from error
        if bad:
            start = bad[0].text.encode().split(b"\n")[0].rstrip(b"\r")
            line = self._line(position, lambda _, line: line.rstrip(b"\r\n") == start)
            raise InputError(
                f"{position.path}:{line}: found {bad[0].actual_columns} fields, expected {bad[0].expected_columns} as "
                f"in the first line: {start[:60].decode('utf-8', 'replace')!r}"
            )
        lines = sum(1 for line in text.split(b"\n") if line.rstrip(b"\r"))
        if table.num_rows != lines + 1:
            raise InputError(
                f"{self.where(position, 0)}: in or after this line, a quoted field continues in the next line; a row "
                "must be one line (Parquet has no such limit)"
            )
        table = table.slice(0, lines)
        strings = {name: _whole(table[name]) for name in names}
        found = {name: self._clean(text, delimiter) for name, text in strings.items()}
        return Batch(position, found, lines, written=self._written(strings, delimiter))

    def _parse_wide(self, text: bytes, position: BatchPosition, delimiter: str) -> Batch | None:
        """Parse lines of many fields without quotes; None for lines that are not of this kind."""
        mark, header = delimiter.encode(), self.headers[position.path]
        body = text.replace(b"\r\n", b"\n").strip(b"\n")
        if b'"' in body or b"\r" in body or b"\n\n" in body:
            return None
        lines = body.split(b"\n")
        if any(line.count(mark) + 1 != len(header) for line in lines):
            return None
        cells = body.replace(mark, b"\n") + b"\n"
        flat = arrow_csv.read_csv(
            pa.py_buffer(cells),
            arrow_csv.ReadOptions(use_threads=False, block_size=len(cells) + 1, column_names=["cells"]),
            arrow_csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(column_types={"cells": pa.string()}, strings_can_be_null=False),
        )["cells"]
        strings, places = _whole(flat), self._places[position.path]
        found = columns.WideColumns(self._clean(strings, delimiter), header, places)
        written = self._written(columns.WideColumns(strings, header, places), delimiter)
        return Batch(position, found, len(lines), written=written)

    def _clean(self, text: Any, delimiter: str) -> Any:
        return columns.clean(text, self._version, self._decimal_of(delimiter), self.thousands)

    def _decimal_of(self, delimiter: str) -> str:
        return "," if delimiter == ";" and self.thousands != "," else self._decimal

    def _written(self, strings: Mapping[str, Any], delimiter: str) -> Mapping[str, Any]:
        return strings if self._decimal_of(delimiter) == "," else {}

    def _line(self, position: BatchPosition, wanted: Any) -> int:
        """Return the number, from 1, of the first line from `position` on for which `wanted(row, line)` is true."""
        with text_files.open_text(position.path) as stream:
            number, left = 1, position.at
            while left > 0 and (part := stream.read(min(left, text_files.BLOCK_BYTES))):
                number, left = number + part.count(b"\n"), left - len(part)
            k = 0
            for number, line in enumerate(stream, number):  # noqa: B020 - continues counting
                if line.strip(b"\r\n"):
                    if wanted(k, line):
                        return number
                    k += 1
        return number


class ParquetFiles:
    """Parquet files with the same columns, in any order. `declared` are columns that the file calls categories."""

    compressed = True

    def __init__(self, paths: Sequence[str], version: int = VERSION, decimal: str = ".", thousands: str = "") -> None:
        self.paths, self.thousands, self._rules = list(paths), thousands, (version, decimal, thousands)
        self.counts, self.headers = [], {}
        for path in self.paths:
            with _parquet(path) as file:
                n, groups = file.metadata.num_rows, range(file.num_row_groups)
                found = [file.metadata.row_group(group).num_rows for group in groups]
                if sum(found) != n or min(found, default=0) < 0:
                    raise InputError(
                        f"{path}: is damaged: it claims {n} rows, but its row groups have {sum(found)}; copy it again"
                    )
                self.counts.append((path, n))
                schema = file.schema_arrow
                self.headers[path] = distinct(schema.names, path)
                self._texts = {field.name for field in schema if is_string(field.type)}
                self.declared = _declared(schema)
        self.names = self.headers[self.paths[0]]

    def mine(self, comm: Communicator) -> list[rows.RowRange]:
        """Return this rank's share of the rows."""
        return self.plan(comm.size)[comm.rank]

    def plan(self, n_shares: int) -> list[list[rows.RowRange]]:
        """Cut the files into shares by numbers of rows, wherever row groups end."""
        return rows.plan(self.counts, n_shares)

    def batches(
        self, share: Iterable[rows.RowRange], names: Sequence[str], metadata: Sequence[str] = ()
    ) -> Iterator[Batch]:
        """Yield the rows of a share, as `CsvFiles.batches` does. Memory: one batch, and what pyarrow decodes."""
        for row_range in share:
            with _parquet(row_range.path) as file:
                first = 0
                for group in range(file.num_row_groups):
                    end = first + file.metadata.row_group(group).num_rows
                    if first < row_range.stop and end > row_range.start:
                        yield from self._group(file, group, first, row_range, names, metadata)
                    first = end
                if first < row_range.stop:
                    raise InputError(
                        f"{row_range.path}: has {first} rows, but had at least {row_range.stop}; is "
                        "another program writing to it?"
                    )

    def is_text(self, name: str) -> bool:
        """Whether a column holds strings."""
        return name in self._texts

    def where(self, position: BatchPosition, row: int) -> str:
        """Return the file and the number of a row of the batch at `position`, for messages."""
        return f"{position.path}: row {position.at + row} (counted from 0)"

    def _group(
        self, file: Any, group: int, first: int, row_range: rows.RowRange, names: Sequence[str], metadata: Sequence[str]
    ) -> Iterator[Batch]:
        end, wanted = first + file.metadata.row_group(group).num_rows, list(dict.fromkeys([*names, *metadata]))
        for batch in file.iter_batches(BATCH_ROWS, [group], wanted, use_threads=False):
            start, stop = max(row_range.start - first, 0), min(row_range.stop - first, batch.num_rows)
            if start < stop:
                part = batch.slice(start, stop - start)
                position = BatchPosition(row_range.path, first + start)
                yield batch_of(part, position, names, metadata, *self._rules)
            first += batch.num_rows
        if first != end:
            raise InputError(
                f"{row_range.path}: is damaged: {end - first} rows are missing in group {group}; copy it again"
            )


def open_files(
    paths: Sequence[str], version: int = VERSION, decimal: str = ".", thousands: str = ""
) -> CsvFiles | ParquetFiles:
    """Return the files, by the format that follows from the first file's name."""
    kind = ParquetFiles if paths[0].endswith((".parquet", ".pq")) else CsvFiles
    return kind(paths, version, decimal, thousands)


def batch_of(
    part: Any,
    position: BatchPosition,
    names: Sequence[str],
    metadata: Sequence[str],
    version: int,
    decimal: str = ".",
    thousands: str = "",
) -> Batch:
    """Return rows that have types as a batch."""
    typed = {name: columns.typed(part[name], name, position.path, version, decimal, thousands) for name in names}
    written = {name: part[name] for name in names if decimal == "," and is_string(part[name].type)}
    strings = {name: columns.as_strings(part[name]) for name in metadata}
    return Batch(position, typed, len(part), strings, written=written)


def _declared(schema: Any) -> set[str]:
    """Return the columns that were categories in pandas, which Parquet has as plain numbers or strings."""
    try:
        return {
            column["name"] for column in schema.pandas_metadata["columns"] if column["pandas_type"] == "categorical"
        }
    except (LookupError, TypeError, ValueError):  # there is no such record, or a strange one
        return set()


def is_string(kind: Any) -> bool:
    """Whether a type is that of strings, also where they are numbered."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _whole(column: Any) -> Any:
    """Return the chunks of a column as one array."""
    text = column.combine_chunks()
    return text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text


@contextlib.contextmanager
def _parquet(path: str) -> Iterator[Any]:
    try:
        with text_files.naming_errors(path), arrow_parquet.ParquetFile(path, buffer_size=2**20) as file:
            yield file
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def _not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    return InputError(
        f"{where}: is not UTF-8 ({error.reason}); convert the file first, from Latin-1 for instance by: "
        "iconv -f LATIN1 -t UTF-8 OLD > NEW (Excel: save as CSV UTF-8)"
    )


def distinct(names: list[str], where: str) -> list[str]:
    """Return the names of columns. Raises InputError if a name occurs twice."""
    if len(set(names)) < len(names):
        seen = set[str]()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"{where}: the column name {twice!r} occurs twice; columns: {format_names(names)}")
    return names


def _ending(path: str) -> str:
    """Return the ending of the file's name; for a compressed file, the ending before .gz, .bz2, .xz or .zst."""
    base, ending = os.path.splitext(path)
    return os.path.splitext(base)[1] if ending in text_files.COMPRESSED else ending


def _n_fields(line: str, delimiter: str) -> int:
    return len(next(csv.reader([line], delimiter=delimiter), []))
