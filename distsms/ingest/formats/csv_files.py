"""Read CSV files with pyarrow, in batches of whole rows.

The first line of each file names its columns. It shows, together with the lines below, what separates the fields: tabs
in .tsv, else commas, semicolons, tabs or bars. Excel's first line `sep=;` says so, and is no row. Fields may be quoted.
A row is a line, so that ranks can begin at any line. Columns have no type: every field is text (`columns.clean`). Where
semicolons separate the fields, numbers may have decimal commas.

Most of the time goes into columns of numbers. So pyarrow converts them while it parses the text, where the reader of
the batch agrees and the first rows had nothing but numbers. If a later batch has something else, its text is kept.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.ingest.formats import columns
from distsms.ingest.formats.arrow import WIDE, Batch, BatchPosition, distinct, whole
from distsms.ingest.formats.csv_kernels import (
    NUMBER,
    TEXT,
    UNUSED,
    count_lines,
    find_padded,
    read_plain,
    without_space_before_quotes,
)
from distsms.shards.table_schema import USUAL, Cells

import pyarrow as pa  # isort: skip
import pyarrow.csv as arrow_csv  # isort: skip

SEPARATORS = ",;\t|"
OTHER_SEPARATORS = " ~^:#!&/\x01"
"""If these separate the fields, a message says so."""
SAMPLE_BYTES, SAMPLE_LINES = 2**16, 100
"""So much text shows which columns hold numbers, and so many lines what separates the fields."""
LONGEST_QUOTED = 60
"""A message quotes at most so many characters of a line."""
_ENCODED = pa.dictionary(pa.int32(), pa.string())


class CsvFiles:
    """CSV files with the same columns, in any order."""

    compressed = False
    declared = frozenset[str]()

    def __init__(self, paths: Sequence[str], cells: Cells = USUAL, known_names: Collection[str] = ()) -> None:
        """Read the first lines. Known names help to find out what separates the fields."""
        self.paths, self.cells, self._known_names = list(paths), cells, set(known_names)
        self._separators, self._starts = dict[str, str](), dict[str, int]()  # of the first row, in bytes
        self._hints = dict[str, str]()  # of another separator
        self._kept, self._kept_bytes = dict[tuple[str, int], tuple[Batch, int]](), 0  # by the places of their blocks
        self._words: set[str] | None = None  # columns that do not only hold numbers, as far as text was read
        self.headers = {path: self._header(path) for path in paths}
        self.names = self.headers[self.paths[0]]
        self._places = {path: {name: k for k, name in enumerate(names)} for path, names in self.headers.items()}

    def plan(self, n_shares: int) -> list[list[text_files.ByteRange]]:
        return text_files.plan(self.paths, n_shares)

    def batches(
        self,
        share: Iterable[text_files.ByteRange],
        names: Sequence[str],
        metadata: Sequence[str] = (),
        as_numbers: Callable[[str], bool] = lambda name: False,
        keep_bytes: float = 0,
    ) -> Iterator[Batch]:
        """Yield the rows of a share, in order. `as_numbers` says before each batch which columns may come as numbers if
        they hold nothing else; `keep_bytes` of columns may be kept for a second reading of the same share."""
        required = list(dict.fromkeys([*names, *metadata]))

        def numeric() -> set[str]:
            return {name for name in names if name not in metadata and as_numbers(name)}

        for byte_range in share:
            path = byte_range.path
            skip = partial(self._kept_length, path, required, numeric)
            for offset, text in text_files.read_blocks(byte_range, skip=skip):
                if not text:
                    batch, size = self._kept.pop((path, offset))
                    self._kept_bytes -= size
                else:
                    body = text[max(0, self._starts[path] - offset) :]
                    if not body or (body.isspace() and len(self.headers[path]) > 1):
                        continue
                    position = BatchPosition(path, offset + len(text) - len(body))
                    batch = self._parse(body, position, required, numeric())._replace(n_bytes=len(text))
                if keep_bytes:
                    self._keep(batch, (path, offset), keep_bytes)
                yield batch._replace(metadata={name: columns.as_strings(batch.columns[name]) for name in metadata})

    def _keep(self, batch: Batch, place: tuple[str, int], keep_bytes: float) -> None:
        if not isinstance(batch.columns, columns.WideColumns):
            size = sum(column.nbytes for part in (batch.columns, batch.written) for column in part.values())
            if self._kept_bytes + size <= keep_bytes:
                self._kept_bytes += size
                self._kept[place] = batch, size

    def _kept_length(self, path: str, names: Sequence[str], numeric: Callable[[], set[str]], offset: int) -> int:
        """Return the length of the block at `offset` if its batch was kept and has these columns as wanted, else 0."""
        batch, size = self._kept.get((path, offset), (None, 0))
        if batch is None:
            return 0
        texts = set(names) - numeric()
        if batch.columns.keys() >= set(names) and all(columns.is_text(batch.columns[name]) for name in texts):
            return batch.n_bytes or 0
        del self._kept[path, offset]
        self._kept_bytes -= size
        return 0

    def is_text(self, name: str) -> bool:
        return True

    def where(self, position: BatchPosition, row: int) -> str:
        """Return the file and line of a row of the batch at `position`, for messages. Reads the file up to that row."""
        return f"{position.path}:{self._line(position, lambda k, line: k == row)}"

    def written(self, position: BatchPosition, row: int, name: str) -> str | None:
        """Return a field as it is in the file, for messages. Reads the file up to that row."""
        lines = list[bytes]()
        self._line(position, lambda k, line: k == row and not lines.append(line))  # type: ignore[func-returns-value]
        fields, header = _fields(lines[0].decode(), self._separators[position.path]), self.headers[position.path]
        return fields[header.index(name)] if name in header else None

    def _header(self, path: str) -> list[str]:
        """Return the names of the columns. Find out what separates the fields, and where the rows begin."""
        with text_files.open_text(path) as stream:
            line = text_files.read_line(stream, path, text_files.LONGEST_HEADER)
            start, separator = len(line), self.cells.separator
            if declaration := re.fullmatch(rb'(?:\xef\xbb\xbf)?"?sep=([^\w"\r\n])"?\s*', line):
                separator, line = declaration[1].decode(), text_files.read_line(stream, path, text_files.LONGEST_HEADER)
                start += len(line)
            below = stream.read(SAMPLE_BYTES)
        self._starts[path] = start
        text_files.refuse_return(line, path)
        try:
            first = line.removeprefix(text_files.BYTE_ORDER_MARK).decode()
            lines = below.decode("utf-8", "replace").split("\n")[:SAMPLE_LINES]
            if len(below) == SAMPLE_BYTES and len(lines) < SAMPLE_LINES:
                del lines[-1]  # which may be cut off
            lines = [line.rstrip("\r") for line in lines if line.strip()]
            fits = {mark: _fit(mark, first, lines) for mark in (*SEPARATORS, *OTHER_SEPARATORS)}
            by = separator if separator and len(_fields(first, separator)) > 1 else self._separator(path, first, fits)
            names = _names(first, by)
            next(csv.reader([first], delimiter=by, strict=True), [])
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{path}:1", error) from error
        except csv.Error as error:
            if "end of data" in str(error):
                raise InputError(f"{path}:1: a name in quotes continues in the next line; a row is one line") from error
            raise InputError(f"{path}:1: the first line must name the columns: {error}") from error
        if not line:
            raise InputError(f"{path}: the file is empty")
        if not any(names):
            raise InputError(f"{path}:1: the first line must name the columns, and is empty")
        best = max(fits, key=lambda mark: fits[mark] if mark != by else (-1,))
        if fits[best][0] and (len(names) == 1 or best in SEPARATORS):
            assumption = f"the fields are taken to be separated by {by!r}; " if len(names) > 1 else ""
            separator = option("separator", best, text=repr(best))
            self._hints[path] = f"; {assumption}if {best!r} separates them: {separator}"
        self._separators[path] = by
        widths = {_n_fields(line, by) for line in lines}
        if widths == {len(names) + 1} and not separator:
            hint = "probably the row's name at the beginning, as R writes it: put a name for it before the other names"
            if all(line.rstrip().endswith(by) for line in lines):
                hint = "an empty one at the end: remove the mark there, or put one behind the last name"
            raise InputError(f"{path}: every row has one field more than the first line has names, {hint}")
        return distinct(names, f"{path}:1", self._missing_header(names))

    def _separator(self, path: str, first: str, fits: Mapping[str, tuple[int, ...]]) -> str:
        """Return what separates the fields of the first line and of those below, so that the known names are there."""
        usual = "\t" if text_files.ending(path) == ".tsv" else SEPARATORS
        for marks in (usual, SEPARATORS, OTHER_SEPARATORS) if self._known_names else ():
            matching = [mark for mark in marks if fits[mark][0] and self._known_names <= {*_names(first, mark)}]
            if matching:
                return max(matching, key=fits.__getitem__)
        return max(usual, key=fits.__getitem__)

    def header_hint(self, names: Sequence[str]) -> str:
        """Return a hint, with a semicolon before it, if the first line may not be names, or not be cut rightly."""
        return self._missing_header(names) or self._hints.get(self.paths[0], "")

    @staticmethod
    def _missing_header(names: Sequence[str]) -> str:
        if 2 * np.count_nonzero(~columns.is_not_number(columns.as_strings_column(names))) <= len(names):
            return ""
        return "; the first line must name the columns, and seems to be missing, since most of its fields are numbers"

    def _parse(self, text: bytes, position: BatchPosition, names: Sequence[str], numeric: Collection[str]) -> Batch:
        header = self.headers[position.path]
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError as error:
                line = text_files.line_number(text_files.TextPosition(position.path, position.at), text, error.start)
                raise _not_utf8(f"{position.path}:{line}", error) from error
        delimiter = self._separators[position.path]
        if len(header) >= WIDE and (wide := self._parse_wide(text, position, delimiter)):
            return wide
        text += b"" if text.endswith(b"\n") else b"\n"
        if b' "' in text or b'\t"' in text:
            text = without_space_before_quotes(text, delimiter)
        n = self._n_lines(text, position.path)
        if self._decimal_of(delimiter) == "," or self.cells.thousands:
            numeric = ()
        elif self._words is None and numeric:
            self._words = self._with_words(text[: text.find(b"\n", SAMPLE_BYTES) + 1] or text, position, numeric)
        # Columns of numbers: first as plain lines, then by pyarrow; if it finds words, as text like all others.
        if numeric := [name for name in names if name in numeric and name not in (self._words or ())]:
            if plain := read_plain_lines(text, n, ord(delimiter), header, names, numeric):
                values, gaps = plain.values, plain.gaps
                if self.cells.numbers:
                    values[np.isin(values, self.cells.numbers)] = np.nan
                    gaps = np.isnan(values).sum(axis=1)
                others = {name: self._clean(column, ".") for name, column in plain.texts.items()}
                plain_columns = columns.PlainColumns(numeric, values, gaps, others)
                return Batch(position, plain_columns, n, padded=plain.padded)
            cells = self._read(text, n, position, names, numeric)
            if cells is not None and all(_is_finite(cells[name]) for name in numeric):
                padded = self._padded(text, position) & set(numeric)
                cells = {
                    name: columns.without_numbers(column, self.cells) if name in numeric else self._clean(column, ".")
                    for name, column in cells.items()
                }
                return Batch(position, cells, n, padded=padded)
            self._words = (self._words or set()) | self._with_words(text, position, numeric)
        strings = self._read(text, n, position, names)
        assert strings is not None
        cells = {name: self._clean(text, delimiter) for name, text in strings.items()}
        return Batch(position, cells, n, written=self._written(strings, delimiter))

    def _read(
        self, text: bytes, n: int, position: BatchPosition, names: Sequence[str], numeric: Collection[str] = ()
    ) -> dict[str, Any] | None:
        """Parse n lines: columns of `numeric` as numbers (None if that fails), others as encoded strings."""
        header, delimiter, bad = self.headers[position.path], self._separators[position.path], list[Any]()
        # A row of empty fields is appended. If a quote is still open at the end, this row becomes part of the quoted
        # field.
        guarded = text + delimiter.join(['""'] * len(header)).encode() + b"\n"

        def skip(row: Any) -> str:
            bad.append(row)
            return "skip"

        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(guarded),
                arrow_csv.ReadOptions(use_threads=False, block_size=len(guarded) + 1, column_names=header),
                arrow_csv.ParseOptions(
                    delimiter=delimiter, invalid_row_handler=skip, ignore_empty_lines=len(header) > 1
                ),
                arrow_csv.ConvertOptions(
                    column_types={name: pa.float64() if name in numeric else _ENCODED for name in names},
                    include_columns=list(names),
                    null_values=self.cells.marks,
                    strings_can_be_null=True,
                ),
                memory_pool=pa.system_memory_pool(),  # pyarrow's own gives memory back that the next batch needs
            )
        except pa.ArrowInvalid as error:
            if numeric:
                return None
            raise InputError(f"{self.where(position, 0)}: in or after this line: {error}; is it CSV?") from error
        if numeric and (bad or table.num_rows != n + 1):
            return None
        if bad:
            number = bad[0].number - 1
            line, text_of_line = (
                self._line(position, lambda k, line: k == number),
                bad[0].text.split("\n")[0].rstrip("\r"),
            )
            many = bad[0].actual_columns > len(header)
            if len(text_of_line) > LONGEST_QUOTED:  # both ends, since what is missing is at the end
                half = LONGEST_QUOTED // 2
                text_of_line = f"{text_of_line[:half]} ... {text_of_line[-half:]}"
            cause = f"a field that contains {delimiter!r} must be in quotes" if many else "the line may be cut off"
            raise InputError(
                f"{position.path}:{line}: found {bad[0].actual_columns} fields, expected {bad[0].expected_columns} as "
                f"in the first line; {cause}: {text_of_line!r}"
            )
        if table.num_rows != n + 1:
            text_files.refuse_return(text, position.path)
            raise InputError(
                f"{self.where(position, 0)}: in or after this line, a quoted field continues in the next line; a row "
                "must be one line (Parquet has no such limit)"
            )
        table = table.slice(0, n)
        return {name: whole(table[name]) for name in names}

    def _n_lines(self, text: bytes, path: str) -> int:
        """Return the number of rows; lines may be empty if there is only one column."""
        lines, empty = count_lines(np.frombuffer(text, np.uint8))
        if not empty or len(self.headers[path]) == 1:
            return int(lines)
        return sum(1 for line in text.split(b"\n") if line.rstrip(b"\r"))

    def _with_words(self, text: bytes, position: BatchPosition, names: Collection[str]) -> set[str]:
        """Return which of the columns have something else than numbers in these lines."""
        strings = self._read(text, self._n_lines(text, position.path), position, list(names))
        assert strings is not None
        cells = {name: self._clean(column, ".") for name, column in strings.items()}
        numbers = {list(names)[k] for k in columns.numbers(cells, list(names)).positions}
        return set(names) - numbers

    def _padded(self, text: bytes, position: BatchPosition) -> frozenset[str]:
        header = self.headers[position.path]
        padded = np.zeros(len(header), bool)
        find_padded(np.frombuffer(text, np.uint8), ord(self._separators[position.path]), padded)
        return frozenset(header[k] for k in np.flatnonzero(padded))

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
        strings, places = whole(flat), self._places[position.path]
        wide = columns.WideColumns(self._clean(strings, delimiter), header, places)
        written = self._written(columns.WideColumns(strings, header, places), delimiter)
        return Batch(position, wide, len(lines), written=written)

    def _clean(self, text: Any, delimiter: str) -> Any:
        return columns.clean(text, self.cells, self._decimal_of(delimiter))

    def _decimal_of(self, delimiter: str) -> str:
        return "," if delimiter == ";" and self.cells.thousands != "," else self.cells.decimal

    def _written(self, strings: Mapping[str, Any], delimiter: str) -> Mapping[str, Any]:
        return strings if self._decimal_of(delimiter) == "," else {}

    def _line(self, position: BatchPosition, matches: Any) -> int:
        """Return the number, from 1, of the first line from `position` on for which `matches(row, line)` is true."""
        with text_files.open_text(position.path) as stream:
            number, left = 1, position.at
            while left > 0 and (part := stream.read(min(left, text_files.BLOCK_BYTES))):
                number, left = number + part.count(b"\n"), left - len(part)
            k = 0
            for number, line in enumerate(stream, number):  # noqa: B020 - continues counting
                if line.strip(b"\r\n") or len(self.headers[position.path]) == 1:
                    if matches(k, line):
                        return number
                    k += 1
        return number


class PlainLines(NamedTuple):
    """The columns of plain lines."""

    values: NDArray[np.float64]  # (m, n), the columns of numbers; NaN for empty fields
    gaps: NDArray[np.int64]  # (m,), how many fields are empty
    padded: frozenset[str]  # columns of numbers that have a whole number with a leading zero
    texts: dict[str, Any]  # the other columns, encoded; see `columns`


def read_plain_lines(
    text: bytes, n: int, mark: int, header: Sequence[str], names: Sequence[str], numeric: Collection[str]
) -> PlainLines | None:
    """Read n lines, whose fields the byte `mark` separates, faster than pyarrow; return None if they are not plain."""
    if text.startswith(text_files.BYTE_ORDER_MARK):  # which pyarrow leaves out
        return None
    words = [name for name in names if name not in numeric]
    kinds, places = np.full(len(header), UNUSED), np.zeros(len(header), np.int64)
    place_of = {name: place for place, name in enumerate(header)}
    for kind, group in ((NUMBER, numeric), (TEXT, words)):
        for k, name in enumerate(group):
            kinds[place_of[name]], places[place_of[name]] = kind, k
    values, gaps, padded = np.empty((len(numeric), n)), np.zeros(len(numeric), np.int64), np.zeros(len(numeric), bool)
    codes, ends = np.empty((len(words), n), np.int32), np.empty((len(words), n, 2), np.int32)
    table, sizes = np.zeros((len(words), 2 << n.bit_length()), np.int32), np.zeros(len(words), np.int64)
    with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT
        plain = read_plain(
            np.frombuffer(text, np.uint8), mark, kinds, places, values, gaps, padded, codes, table, ends, sizes
        )
    if not plain:
        return None
    texts = {
        name: columns.numbered(row_codes, [text[start:end].decode() for start, end in spans[:size].tolist()])
        for name, row_codes, spans, size in zip(words, codes, ends, sizes.tolist(), strict=True)
    }
    return PlainLines(
        values, gaps, frozenset(name for name, is_padded in zip(numeric, padded, strict=True) if is_padded), texts
    )


def _is_finite(column: Any) -> bool:
    return bool(np.isfinite(column.to_numpy(zero_copy_only=False)).sum() == len(column) - column.null_count)


def _fields(line: str, delimiter: str) -> list[str]:
    return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])


def _names(line: str, delimiter: str) -> list[str]:
    return [name.strip() for name in _fields(line, delimiter)]


def _n_fields(line: str, delimiter: str) -> int:
    """Return the number of fields; 0 if csv refuses the line."""
    try:
        return len(_fields(line, delimiter))
    except csv.Error:
        return 0


def _fit(mark: str, first: str, lines: Sequence[str]) -> tuple[int, int, int]:
    """Return how many lines a mark cuts into as many fields as the first, how many these are, and how many are
    numbers."""
    n = _n_fields(first, mark)
    if n < 2:
        return 0, 0, 0
    rows = [_fields(line, mark) for line in lines if _n_fields(line, mark) == n]
    numbers = sum(re.fullmatch(r"\s*[+-]?[0-9]+(?:[.,][0-9]+)?\s*", field) is not None for row in rows for field in row)
    return len(rows) + (len(rows) > 0 or not lines), n, numbers


def _not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    return InputError(
        f"{where}: is not UTF-8 ({error.reason}); convert the file first, from Latin-1 for instance by: "
        "iconv -f LATIN1 -t UTF-8 OLD > NEW (Excel: save as CSV UTF-8)"
    )
