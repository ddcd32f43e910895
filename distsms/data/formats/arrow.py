"""CSV and Parquet, read by pyarrow in batches of whole rows. No other module imports pyarrow.

CSV: the first line of each file names its columns. Fields are separated by commas (in .tsv: tabs) and may be quoted. A
row is a line, so that ranks can begin at any line. Space around a field is ignored. Columns have no type: every field
is read as text, and as missing if it is empty, NA, NaN, nan, NULL or null.

Parquet: columns have the types that the file gives them.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from distsms.data import row_metadata
from distsms.data.formats import rows, text_files
from distsms.data.formats.table_schema import format_names
from distsms.errors import InputError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as arrow_parquet
except ImportError as absent:
    raise InputError(
        f"CSV and Parquet are read by pyarrow, which cannot be loaded: {absent}. pip install 'distsms[tables]' (or, "
        "where numpy is older than 2: pip install 'pyarrow<24')"
    ) from absent

BATCH_ROWS = 2**14
"""Rows of a Parquet file that are read at a time."""
_MISSING = ["", "NA", "NaN", "nan", "NULL", "null"]
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)$"


class BatchPosition(NamedTuple):
    """Where a batch begins: `at` is an offset in the text of a CSV file, or a row number in a Parquet file."""

    path: str
    at: int


class Batch(NamedTuple):
    """Consecutive rows of some columns."""

    position: BatchPosition
    columns: dict[str, Any]  # name -> pyarrow array (n,)
    n: int
    metadata: Mapping[str, list[str]] = MappingProxyType({})  # name -> (n,) strings with all digits; see `as_strings`


class CsvFiles:
    """CSV files with the same columns, in any order."""

    compressed = False

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.headers = {path: self._header(path) for path in paths}
        self.names = self.headers[self.paths[0]]

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
                    yield found._replace(metadata={name: as_strings(found.columns[name]) for name in metadata})

    def where(self, position: BatchPosition, row: int) -> str:
        """Return the file and line of a row of the batch at `position`, for messages. Reads the file up to that row."""
        return f"{position.path}:{self._line(position, lambda k, line: k == row)}"

    def _header(self, path: str) -> list[str]:
        with text_files.open_text(path) as stream:
            first = stream.readline().removeprefix(text_files.BYTE_ORDER_MARK).decode("utf-8", "replace")
        try:
            names = [name.strip() for name in next(csv.reader([first], delimiter=_delimiter(path)), [])]
        except csv.Error as error:
            raise InputError(f"{path}:1: the first line must name the columns: {error}") from error
        if not any(names):
            raise InputError(f"{path}:1: the first line must name the columns, and is empty")
        return _distinct(names, f"{path}:1")

    def _parse(self, text: bytes, position: BatchPosition, names: Sequence[str]) -> Batch:
        header, bad = self.headers[position.path], []
        try:
            text.decode()
        except UnicodeDecodeError as error:
            line = text_files.line_number(text_files.TextPosition(*position), text, error.start)
            raise InputError(f"{position.path}:{line}: is not UTF-8 ({error.reason}); expected CSV in UTF-8") from error
        delimiter = _delimiter(position.path)
        # A row of empty fields goes after the last one. A quote that is still open there would swallow it.
        guard = delimiter.join(['""'] * len(header)).encode() + b"\n"
        text += b"" if text.endswith(b"\n") else b"\n"

        def skip(row: Any) -> str:
            bad.append(row)
            return "skip"

        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(text + guard),
                arrow_csv.ReadOptions(use_threads=False, block_size=len(text + guard) + 1, column_names=header),
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
                f"{self.where(position, 0)}: in or after this line, a quoted field goes on in the next line; a row "
                "must be one line (Parquet has no such limit)"
            )
        table = table.slice(0, lines)
        return Batch(position, {name: _fields(table[name]) for name in names}, lines)

    def _line(self, position: BatchPosition, wanted: Any) -> int:
        """Return the number, from 1, of the first line from `position` on for which `wanted(row, line)` is true."""
        with text_files.open_text(position.path) as stream:
            number, left = 1, position.at
            while left > 0 and (part := stream.read(min(left, text_files.BLOCK_BYTES))):
                number, left = number + part.count(b"\n"), left - len(part)
            k = 0
            for number, line in enumerate(stream, number):  # noqa: B020 - goes on counting
                if line.strip(b"\r\n"):
                    if wanted(k, line):
                        return number
                    k += 1
        return number


class ParquetFiles:
    """Parquet files with the same columns, in any order."""

    compressed = True

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.counts, self.headers = [], {}
        for path in self.paths:
            with _parquet(path) as file:
                n, groups = file.metadata.num_rows, range(file.num_row_groups)
                found = [file.metadata.row_group(group).num_rows for group in groups]
                if sum(found) != n or min(found, default=0) < 0:
                    raise InputError(
                        f"{path}: is damaged: it claims {n} rows, its row groups {sum(found)}; copy it again"
                    )
                self.counts.append((path, n))
                self.headers[path] = _distinct(file.schema_arrow.names, path)
        self.names = self.headers[self.paths[0]]

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
                        f"{row_range.path}: has {first} rows, but had at least {row_range.stop}; is somebody writing "
                        "to it?"
                    )

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
                typed = {name: _typed(part[name], name, row_range.path) for name in names}
                yield Batch(position, typed, len(part), {name: as_strings(part[name]) for name in metadata})
            first += batch.num_rows
        if first != end:
            raise InputError(
                f"{row_range.path}: is damaged: {end - first} rows are missing in group {group}; copy it again"
            )


def is_frame(data: Any) -> bool:
    """Return whether data are a table in memory: of pandas, polars or pyarrow."""
    return (
        isinstance(data, pa.Table) or hasattr(data, "to_arrow") or (hasattr(data, "columns") and hasattr(data, "iloc"))
    )


def write_frame(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a table in memory as a Parquet file, without the index that a DataFrame of pandas has.

    Raises InputError if a column holds what Parquet has no type for.
    """
    try:
        if hasattr(frame, "to_arrow"):
            frame = frame.to_arrow()
        elif not isinstance(frame, pa.Table):
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        arrow_parquet.write_table(frame, path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"the table cannot be read: {error}; convert the column to numbers or to strings") from error


class ParquetWriter:
    """A Parquet file of columns of strings and of float64, which is written part by part; a context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._file = path, contextlib.ExitStack()
        self._writer: Any = None

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, columns: Mapping[str, Any]) -> None:
        """Write rows: name -> strings as a list, or numbers as an array (n,). All parts have the same columns."""
        types = {name: pa.string() if isinstance(values, list) else pa.float64() for name, values in columns.items()}
        table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
        self._writer = self._writer or self._file.enter_context(arrow_parquet.ParquetWriter(self._path, table.schema))
        self._writer.write_table(table)


def open_files(paths: Sequence[str]) -> CsvFiles | ParquetFiles:
    """Return the files, by the format that the first file's name tells."""
    return ParquetFiles(paths) if paths[0].endswith((".parquet", ".pq")) else CsvFiles(paths)


def is_text(column: Any) -> bool:
    """Whether a column of a batch holds strings rather than numbers."""
    return pa.types.is_string(column.type)


def is_not_number(column: Any) -> Any:
    """Return where a column of strings holds something that is not a number, (n,) bool."""
    return pc.fill_null(pc.invert(pc.match_substring_regex(column, _NUMBER)), False).to_numpy(zero_copy_only=False)


def unique_values(column: Any, where: Any = None) -> set[Any]:
    """Return the different values of a column, missing ones left out; with `where` (n,) bool, of those rows only."""
    some = column if where is None else column.filter(pa.array(where))
    return set(pc.unique(some).drop_null().to_pylist())


def dictionary_encode(column: Any) -> tuple[Any, Any]:
    """Return the different values of a column as an array, without missing ones, and the number of each row's, (n,)."""
    found = pc.dictionary_encode(column)
    return found.dictionary, found.indices.to_numpy(zero_copy_only=False)


def as_float(column: Any) -> Any:
    """Return a column of numbers, or of strings that are numbers, as (n,) float64; NaN where it is missing."""
    return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)


def as_strings(column: Any) -> list[str]:
    """Return each value of a column as it was read, "" where it is missing; as `row_metadata.as_strings`."""
    if pa.types.is_floating(column.type):
        return row_metadata.as_strings(column.to_numpy(zero_copy_only=False))
    return [(text or "").strip() for text in as_text(column).to_pylist()]


def as_text(column: Any) -> Any:
    """Return a column as strings, whatever its type."""
    return pc.cast(column, pa.string())


def codes(column: Any, categories: Sequence[str]) -> Any:
    """Return the number of each row's category, (n,) int64; -1 if it is none of the categories."""
    found = pc.index_in(column, value_set=pa.array(categories, pa.string()), skip_nulls=True)
    return pc.fill_null(pc.cast(found, pa.int64()), -1).to_numpy(zero_copy_only=False)


def is_missing(column: Any) -> Any:
    """Return where a column has no value, (n,) bool."""
    return pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)


def _fields(column: Any) -> Any:
    """Return a column of a CSV file as one array of strings, with nulls for missing values."""
    text = pc.utf8_trim_whitespace(column.combine_chunks())
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    return pc.if_else(pc.is_in(text, value_set=pa.array(_MISSING)), pa.scalar(None, pa.string()), text)


def _typed(column: Any, name: str, path: str) -> Any:
    """Return a column of a Parquet file as strings or float64."""
    kind = column.type
    column.validate(full=True)  # otherwise strings need not be UTF-8
    if pa.types.is_dictionary(kind):
        return as_text(column.dictionary_decode())
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean)):
        return as_text(column)
    if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)):
        return pc.cast(column, pa.float64(), safe=False)
    raise InputError(
        f"{path}: column {name!r} has the type {kind}, which is neither numbers nor strings: convert it, or leave it "
        "out with --drop"
    )


@contextlib.contextmanager
def _parquet(path: str) -> Iterator[Any]:
    try:
        with text_files.naming_errors(path), arrow_parquet.ParquetFile(path, buffer_size=2**20) as file:
            yield file
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def _distinct(names: list[str], where: str) -> list[str]:
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise InputError(f"{where}: the column name {twice[0]!r} occurs twice; columns: {format_names(names)}")
    return names


def _delimiter(path: str) -> str:
    base, ending = os.path.splitext(path)
    return "\t" if (os.path.splitext(base)[1] if ending in text_files.COMPRESSED else ending) == ".tsv" else ","
