"""CSV and Parquet, read by pyarrow in batches of whole rows. No other module imports pyarrow.

CSV: the first line of each file names its columns; fields are separated by commas (in .tsv: tabs) and may be quoted; a
row is a line, so that ranks can begin at any of them. Space around a field is left out. Columns have no type: every
field comes as text, and none at all where it is empty, NA, NaN, nan, NULL or null.
Parquet: columns have the types of the file.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from distsms.data import row_metadata as marks
from distsms.data.formats import rows, text_files
from distsms.data.formats.table_schema import shown
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


class Place(NamedTuple):
    """Where a batch begins: `at` is an offset in text for CSV, a row for Parquet; and how many rows come before it."""

    path: str
    at: int


class Batch(NamedTuple):
    """Consecutive rows of some columns."""

    place: Place
    columns: dict[str, Any]  # name -> pyarrow array (n,)
    n: int
    beside: Mapping[str, list[str]] = MappingProxyType(
        {}
    )  # name -> (n,), as `beside.texts` has it: all digits are kept


class CsvFiles:
    """CSV files of the same columns, in any order."""

    compressed = False

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.headers = {path: self._header(path) for path in paths}
        self.names = self.headers[self.paths[0]]

    def plan(self, n_shares: int) -> list[list[text_files.ByteRange]]:
        """As `textfiles.plan`."""
        return text_files.plan(self.paths, n_shares)

    def batches(
        self, share: Iterable[text_files.ByteRange], names: Sequence[str], beside: Sequence[str] = ()
    ) -> Iterator[Batch]:
        """The rows of a share, in order. InputError names file and line of what is no row.  beside : see `Batch`."""
        for piece in share:
            for offset, text in text_files.blocks(piece):
                body = text.partition(b"\n")[2] if offset == 0 else text
                if body.strip():
                    place = Place(piece.path, offset + len(text) - len(body))
                    found = self._parse(body, place, list(dict.fromkeys([*names, *beside])))
                    yield found._replace(beside={name: texts(found.columns[name]) for name in beside})

    def where(self, place: Place, row: int) -> str:
        """The file and line of a row of the batch at `place`; reads the file up to it."""
        return f"{place.path}:{self._line(place, lambda k, line: k == row)}"

    def _header(self, path: str) -> list[str]:
        with text_files.opened(path) as stream:
            first = stream.readline().removeprefix(text_files.BYTE_ORDER_MARK).decode("utf-8", "replace")
        try:
            names = [name.strip() for name in next(csv.reader([first], delimiter=_delimiter(path)), [])]
        except csv.Error as error:
            raise InputError(f"{path}:1: the first line must name the columns: {error}") from error
        if not any(names):
            raise InputError(f"{path}:1: the first line must name the columns, and is empty")
        return _distinct(names, f"{path}:1")

    def _parse(self, text: bytes, place: Place, names: Sequence[str]) -> Batch:
        header, bad = self.headers[place.path], []
        try:
            text.decode()
        except UnicodeDecodeError as error:
            line = text_files.line_number(text_files.Where(*place), text, error.start)
            raise InputError(f"{place.path}:{line}: is not UTF-8 ({error.reason}); expected CSV in UTF-8") from error
        delimiter = _delimiter(place.path)
        # A row of empty fields after the last one: a quote that is still open there would take it in.
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
                f"{self.where(place, 0)}: in or after this line: {error}; expected CSV in UTF-8"
            ) from error
        if bad:
            start = bad[0].text.encode().split(b"\n")[0].rstrip(b"\r")
            line = self._line(place, lambda _, one: one.rstrip(b"\r\n") == start)
            raise InputError(
                f"{place.path}:{line}: found {bad[0].actual_columns} fields, expected {bad[0].expected_columns} as in "
                f"the first line: {start[:60].decode('utf-8', 'replace')!r}"
            )
        lines = sum(1 for line in text.split(b"\n") if line.rstrip(b"\r"))
        if table.num_rows != lines + 1:
            raise InputError(
                f"{self.where(place, 0)}: in or after this line a quoted field goes on in the next one; a row must be "
                "one line (Parquet has no such limit)"
            )
        table = table.slice(0, lines)
        return Batch(place, {name: _fields(table[name]) for name in names}, lines)

    def _line(self, place: Place, wanted: Any) -> int:
        """The number, from 1, of the first line from `place` on that is wanted, of those that are not blank."""
        with text_files.opened(place.path) as stream:
            number, left = 1, place.at
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
    """Parquet files of the same columns, in any order."""

    compressed = True

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self.counts, self.headers = [], {}
        for path in self.paths:
            with _parquet(path) as file:
                n, groups = file.metadata.num_rows, range(file.num_row_groups)
                found = [file.metadata.row_group(group).num_rows for group in groups]
                if sum(found) != n or min(found, default=0) < 0:
                    raise InputError(f"{path}: is damaged: it claims {n} rows, its groups {sum(found)}; copy it again")
                self.counts.append((path, n))
                self.headers[path] = _distinct(file.schema_arrow.names, path)
        self.names = self.headers[self.paths[0]]

    def plan(self, n_shares: int) -> list[list[rows.RowRange]]:
        """By numbers of rows, wherever row groups end."""
        return rows.plan(self.counts, n_shares)

    def batches(
        self, share: Iterable[rows.RowRange], names: Sequence[str], beside: Sequence[str] = ()
    ) -> Iterator[Batch]:
        """As of CSV. Memory: one batch, and what pyarrow decodes at a time."""
        for span in share:
            with _parquet(span.path) as file:
                first = 0
                for group in range(file.num_row_groups):
                    end = first + file.metadata.row_group(group).num_rows
                    if first < span.stop and end > span.start:
                        yield from self._group(file, group, first, span, names, beside)
                    first = end
                if first < span.stop:
                    raise InputError(
                        f"{span.path}: has {first} rows, had at least {span.stop}; is it being written to?"
                    )

    def where(self, place: Place, row: int) -> str:
        """The file and number of a row of the batch at `place`."""
        return f"{place.path}: row {place.at + row} (counted from 0)"

    def _group(
        self, file: Any, group: int, first: int, span: rows.RowRange, names: Sequence[str], beside: Sequence[str]
    ) -> Iterator[Batch]:
        end, wanted = first + file.metadata.row_group(group).num_rows, list(dict.fromkeys([*names, *beside]))
        for batch in file.iter_batches(BATCH_ROWS, [group], wanted, use_threads=False):
            start, stop = max(span.start - first, 0), min(span.stop - first, batch.num_rows)
            if start < stop:
                part = batch.slice(start, stop - start)
                place = Place(span.path, first + start)
                typed = {name: _typed(part[name], name, span.path) for name in names}
                yield Batch(place, typed, len(part), {name: texts(part[name]) for name in beside})
            first += batch.num_rows
        if first != end:
            raise InputError(f"{span.path}: is damaged: {end - first} rows are missing in group {group}; copy it again")


def open_files(paths: Sequence[str]) -> CsvFiles | ParquetFiles:
    """The reader for the format of the first file's name."""
    return ParquetFiles(paths) if paths[0].endswith((".parquet", ".pq")) else CsvFiles(paths)


def is_text(column: Any) -> bool:
    """Whether a column of a batch holds words rather than numbers."""
    return pa.types.is_string(column.type)


def is_word(column: Any) -> Any:
    """Where a column of text holds something that is no number, (n,) bool."""
    return pc.fill_null(pc.invert(pc.match_substring_regex(column, _NUMBER)), False).to_numpy(zero_copy_only=False)


def different(column: Any, where: Any = None) -> set[Any]:
    """The different values of a column, in the rows where a (n,) bool says so."""
    some = column if where is None else column.filter(pa.array(where))
    return set(pc.unique(some).drop_null().to_pylist())


def encoded(column: Any) -> tuple[Any, Any]:
    """The different values of a column without missing ones, as an array, and which of them each row has, (n,)."""
    found = pc.dictionary_encode(column)
    return found.dictionary, found.indices.to_numpy(zero_copy_only=False)


def as_float(column: Any) -> Any:
    """A column of numbers, or of text that is numbers, as (n,) float64; NaN where it is missing."""
    return pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)


def texts(column: Any) -> list[str]:
    """Each value of a column as it was read (see `batches`) as text, as `beside.texts` has it of arrays."""
    if pa.types.is_floating(column.type):
        return marks.texts(column.to_numpy(zero_copy_only=False))
    return [(one or "").strip() for one in as_text(column).to_pylist()]


def as_text(column: Any) -> Any:
    """A column as text, whatever its type."""
    return pc.cast(column, pa.string())


def codes(column: Any, categories: Sequence[str]) -> Any:
    """The place of each value of a column of text among the categories, (n,) int64; -1 where it is none of them."""
    found = pc.index_in(column, value_set=pa.array(categories, pa.string()), skip_nulls=True)
    return pc.fill_null(pc.cast(found, pa.int64()), -1).to_numpy(zero_copy_only=False)


def missing(column: Any) -> Any:
    """(n,) bool."""
    return pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)


def _fields(column: Any) -> Any:
    """A column of a CSV file as one array of text, with nulls where a field stands for nothing."""
    text = pc.utf8_trim_whitespace(column.combine_chunks())
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    return pc.if_else(pc.is_in(text, value_set=pa.array(_MISSING)), pa.scalar(None, pa.string()), text)


def _typed(column: Any, name: str, path: str) -> Any:
    """A column of a Parquet file as text or float64."""
    kind = column.type
    column.validate(full=True)  # text may be anything but UTF-8
    if pa.types.is_dictionary(kind):
        return as_text(column.dictionary_decode())
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean)):
        return as_text(column)
    if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)):
        return pc.cast(column, pa.float64(), safe=False)
    raise InputError(
        f"{path}: column {name!r} is of type {kind}, neither numbers nor words: convert it, or leave it out with --drop"
    )


@contextlib.contextmanager
def _parquet(path: str) -> Iterator[Any]:
    try:
        with text_files.named(path), arrow_parquet.ParquetFile(path, buffer_size=2**20) as file:
            yield file
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error


def _distinct(names: list[str], where: str) -> list[str]:
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise InputError(f"{where}: the column name {twice[0]!r} occurs twice; columns: {shown(names)}")
    return names


def _delimiter(path: str) -> str:
    base, ending = os.path.splitext(path)
    return "\t" if (os.path.splitext(base)[1] if ending in text_files.COMPRESSED else ending) == ".tsv" else ","
