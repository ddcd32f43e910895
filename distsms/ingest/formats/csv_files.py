"""Read CSV files with pyarrow, in batches of whole rows.

The first line of each file names its columns, unless the user does. It shows, together with the lines below, what
separates the fields: tabs in .tsv, else commas, semicolons, tabs or bars. Excel's first line `sep=;` says so, and is no
row. Fields may be quoted, and then hold newlines (`csv_text`). Columns have no type: every field is text
(`columns.clean`). Where semicolons separate the fields, numbers may have decimal commas.

Most of the time goes into columns of numbers. So pyarrow converts them while it parses the text, where the reader of
the batch agrees and the first rows had nothing but numbers. If a later batch has something else, its text is kept.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.ingest.formats import columns
from distsms.ingest.formats.arrow import Batch, BatchPosition, Selection, distinct
from distsms.ingest.formats.columns import Columns
from distsms.ingest.formats.csv_kernels import NUMBER, TEXT, UNUSED, read_plain
from distsms.ingest.formats.csv_text import CsvText, follow_quotes, rows_of, with_quotes_first
from distsms.ingest.formats.kept_batches import KeptBatches, Place
from distsms.shards.table_schema import USUAL, Cells, Writing, format_names

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

    def __init__(
        self,
        paths: Sequence[str],
        cells: Cells = USUAL,
        known_names: Collection[str] = (),
        folder: Path | None = None,
        alone: bool = True,
        label: str | None = None,
    ) -> None:
        """Read the first lines. Known names help to find out what separates the fields; `folder` is for `_kept`, and
        `alone` for `text`. Files without names may lack the column `label`."""
        self.paths, self.cells, self._known_names = list(paths), cells, set(known_names)
        self._label = label
        self.text = CsvText(alone)
        self._separators = dict[str, str]()
        self._hints = dict[str, str]()  # that the names may be missing, or that something else separates them
        self.writings = dict[str, Writing]()  # how the numbers of columns are written
        self._kept = KeptBatches(folder)
        self._words: frozenset[str] | None = None  # columns that do not only hold numbers, as far as text was read
        self.headers = {path: self._header(path) for path in paths}
        self.names = self.headers[self.paths[0]]
        if cells.names is not None:
            self.cells = replace(cells, names=tuple(self.names))

    @property
    def kept_bytes(self) -> int:
        """The memory of batches that wait for another reading."""
        return self._kept.nbytes

    def plan(self, n_shares: int) -> list[list[text_files.ByteRange]]:
        return text_files.plan(self.paths, n_shares)

    def batches(self, share: Iterable[text_files.ByteRange], selection: Selection) -> Iterator[Batch]:
        """Yield the rows of a share, in order. Only columns are parsed that were not kept from another reading, or were
        kept as numbers and are needed as texts."""
        may_be_numeric = [name for name in selection.names if name not in self.writings]

        def numeric() -> set[str]:
            return set(filter(selection.as_numbers, may_be_numeric))

        def absent(place: Place) -> list[str]:
            if (kept := self._kept.find(place)) is None:
                return list(selection.names)
            there = kept.texts | (numeric() & set(kept.numbers))
            return [name for name in selection.names if name not in there]

        def skip(path: str, offset: int) -> int:
            kept = self._kept.find((path, offset))
            return 0 if kept is None or absent((path, offset)) else kept.batch.n_bytes or 0

        for byte_range in share:
            path = byte_range.path
            for offset, text in self.text.blocks(byte_range, partial(skip, path)):
                if text and text.isspace() and len(self.headers[path]) > 1:
                    continue
                place = path, offset
                to_parse, batch = absent(place), self._kept.take(place)
                if to_parse:
                    parsed = self._parse(text, BatchPosition(path, offset), to_parse, numeric())
                    if batch is not None:
                        beside, padded = parsed.columns.beside(batch.columns), parsed.padded | batch.padded
                        parsed = parsed._replace(columns=beside, padded=padded)
                    batch = parsed
                assert batch is not None
                if selection.keep_bytes:
                    self._kept.add(place, batch, selection.keep_bytes)
                n_bytes = (batch.n_bytes or 0) + (offset if offset == self.text.start(path) else 0)  # with the names
                yield batch._replace(n_bytes=n_bytes)

    def read_as(self, writings: Mapping[str, Writing]) -> None:
        """Read the numbers of columns as they are written from now on."""
        self.writings |= writings
        self._kept.forget(writings.keys())

    def forget_cleaned(self, names: Collection[str]) -> None:
        """Parse these columns again if what is kept of them may not show how their numbers were written."""
        if any(self._decimal_of(mark) == "," for mark in self._separators.values()):
            self._kept.forget(names)

    def is_text(self, name: str) -> bool:
        return True

    def find_rows(self, comm: Communicator) -> None:
        """Find out where rows begin, so that they may have several lines. **Collective.**"""
        self._kept = KeptBatches(self._kept.folder)
        self.text.find_rows(self.paths, comm)

    def where(self, position: BatchPosition, row: int) -> str:
        """Return the file and line of a row of the batch at `position`, for messages. Reads the file up to that row."""
        return f"{position.path}:{self._line(position, row)[0]}"

    def written(self, position: BatchPosition, row: int, name: str) -> str | None:
        """Return a field as it is in the file, for messages. Reads the file up to that row."""
        fields = _fields(self._line(position, row)[1].decode(), self._separators[position.path])
        return dict(zip(self.headers[position.path], fields, strict=False)).get(name)

    def _line(self, position: BatchPosition, row: int) -> tuple[int, bytes]:
        return self.text.line_of(position.path, position.at, position.row(row), len(self.headers[position.path]) > 1)

    def _header(self, path: str) -> list[str]:
        """Return the names of the columns. Find out what separates the fields, and where the rows begin."""
        beginning = _beginning(path, self.cells.separator)
        try:
            sample = self._cut(path, beginning)
            by, names = sample.mark, sample.names
            next(csv.reader([sample.first], delimiter=by, strict=True), [])
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{path}:1", error) from error
        except csv.Error as error:
            if "end of data" in str(error):
                problem = "a quote opens among the names of the columns, and none closes it"
                raise InputError(f"{path}:1: {problem}") from error
            raise InputError(f"{path}:1: the first line must name the columns: {error}") from error
        self._separators[path] = by
        self.text.several_lines |= follow_quotes(beginning.text, by).n_inner > 0
        behind_names = beginning.start + len(rows_of(beginning.text, by)[0]) + 1
        if self.cells.names is not None:
            named = self._named(path, names or [field.strip() for row in sample.rows[:1] for field in row])
            self.text.add(path, by, behind_names if named == names else beginning.start)
            return named
        if not any(names):
            raise InputError(f"{path}:1: the first line must name the columns, and is empty")
        self.text.add(path, by, behind_names)
        if {*map(len, sample.rows)} == {len(names) + 1} and not beginning.separator and path not in self._hints:
            hint = "probably the row's name at the beginning, as R writes it: put a name for it before the other names"
            if all(line.rstrip().endswith(by) for line in sample.lines):
                hint = "an empty one at the end: remove the mark there, or put one behind the last name"
            raise InputError(f"{path}: every row has one field more than the first line has names, {hint}")
        if sample.has_no_names():
            self._hints[path] = f"; {MISSING_HEADER}: {option('no_header')}, or {option('names', text='A,B,...')}"
        return distinct(names, f"{path}:1", self._hints.get(path, ""))

    def _cut(self, path: str, beginning: Beginning) -> Sample:
        """Return the first rows, cut by what separates the fields; note a hint if that may be another mark."""
        separator = beginning.separator
        samples = {mark: _sample(beginning, mark) for mark in [*SEPARATORS, *OTHER_SEPARATORS, *separator]}
        fits = {mark: sample.fit() for mark, sample in samples.items()}
        fits_user = bool(separator) and len(samples[separator].names) > 1
        by = separator if fits_user else self._separator(path, samples, fits)
        n = len(samples[by].names)
        best = max(fits, key=lambda mark: fits[mark] if mark != by else (-1,))
        if fits[best][0] and (n == 1 or best in SEPARATORS):
            assumption = f"the fields are taken to be separated by {by!r}; " if n > 1 else ""
            self._hints[path] = (
                f"; {assumption}if {best!r} separates them: {option('separator', best, text=repr(best))}"
            )
        return samples[by]

    def _named(self, path: str, first: Sequence[str]) -> list[str]:
        """Return the names of the columns of a file without a line for them, by its first row. If all fields there are
        among these names, the file has such a line nevertheless, and what it says is returned."""
        names = list(self.cells.names or (f"column_{k}" for k in range(1, len(first) + 1)))
        if set(first) <= set(names) and len(set(first)) == len(first) and any(map(_is_word, first)):
            return list(first)
        if self._label in names and len(names) == len(first) + 1:
            names.remove(self._label)
        if len(names) != len(first):
            remedy = (
                "give all columns of the training data, with or without the label" if self._label else "name them all"
            )
            raise InputError(
                f"{path}:1: the first row has {len(first)} fields, and there are {len(names)} names of columns "
                f"({format_names(names)}): put a line with the names of its columns before the rows, or {remedy}"
            )
        return distinct(names, option("names"))

    def _separator(self, path: str, samples: Mapping[str, Sample], fits: Mapping[str, tuple[int, ...]]) -> str:
        """Return what separates the fields of the first line and of those below, so that the known names are there."""
        usual = "\t" if text_files.ending(path) == ".tsv" else SEPARATORS
        for marks in (usual, SEPARATORS, OTHER_SEPARATORS) if self._known_names else ():
            matching = [mark for mark in marks if fits[mark][0] and self._known_names <= {*samples[mark].names}]
            if matching:
                return max(matching, key=fits.__getitem__)
        return max(usual, key=fits.__getitem__)

    @property
    def header_hint(self) -> str:
        """Return a hint, with a semicolon before it, if the first line may not be names, or not be cut rightly."""
        return self._hints.get(self.paths[0], "")

    def _parse(self, text: bytes, position: BatchPosition, names: Sequence[str], numeric: Collection[str]) -> Batch:
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError as error:
                line = text_files.line_number(text_files.TextPosition(position.path, position.at), text, error.start)
                raise _not_utf8(f"{position.path}:{line}", error) from error
        delimiter, n_bytes = self._separators[position.path], len(text)
        decimal = self._decimal_of(delimiter)
        if decimal == "," or self.cells.thousands:
            numeric = ()
        text += b"" if text.endswith(b"\n") else b"\n"
        # 1) The first rows show which columns do not only hold numbers.
        begin = text[: text.find(b"\n", SAMPLE_BYTES) + 1]
        if self.text.several_lines and follow_quotes(begin, delimiter).opens >= 0:
            begin = b""
        if self._words is None and numeric and begin and (sample := self._read_plain(begin, position, names, numeric)):
            self._words = sample.words
        # 2) Read plain lines, and others by pyarrow, without numbers.
        plain = self._read_plain(text, position, names, set(numeric).difference(self._words or ()))
        if plain is None:
            strings = self._read(text, position, names)
            no_numbers = np.empty((0, len(strings[names[0]])))
            plain = PlainLines([], no_numbers, np.empty(0, np.int64), frozenset(), strings, frozenset())
        # 3) Put missing values and numbers into one form. What should be numbers may be, in other spellings.
        values, gaps = plain.values, plain.gaps
        if self.cells.numbers:
            values[np.isin(values, self.cells.numbers)] = np.nan
            gaps = np.isnan(values).sum(axis=1)
        texts = {
            name: columns.clean(column, self.cells, decimal, self.writings.get(name))
            for name, column in plain.texts.items()
        }
        if plain.words:
            numbers = Columns.of(texts, values.shape[1]).numbers(sorted(plain.words)).names
            self._words = (self._words or frozenset()) | plain.words.difference(numbers)
        written = plain.texts if decimal == "," else {}
        return Batch(position, Columns(plain.names, values, gaps, texts), n_bytes, written, plain.padded)

    def _read_plain(
        self, text: bytes, position: BatchPosition, names: Sequence[str], numeric: Collection[str]
    ) -> PlainLines | None:
        """Return the columns of lines, of which some may be numeric; None if the lines are not plain."""
        header, separator = self.headers[position.path], self._separators[position.path]
        n_inner = follow_quotes(text, separator).n_inner if self.text.several_lines else 0
        return read_plain_lines(text, ord(separator), header, names, numeric, self.cells.marks, n_inner)

    def _read(self, text: bytes, position: BatchPosition, names: Sequence[str]) -> dict[str, Any]:
        """Parse lines of any kind as encoded strings, by pyarrow."""
        header, delimiter, bad = self.headers[position.path], self._separators[position.path], list[Any]()
        if b' "' in text or b'\t"' in text:
            text = with_quotes_first(text, delimiter)
        # Lines may be empty if there is only one column.
        quotes = follow_quotes(text, delimiter)
        lines = quotes.flat.split(b"\n")
        n = len(lines) - 1 if len(header) == 1 else sum(1 for line in lines if line.rstrip(b"\r"))
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
                    delimiter=delimiter,
                    invalid_row_handler=skip,
                    ignore_empty_lines=len(header) > 1,
                    newlines_in_values=quotes.n_inner > 0,
                ),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, _ENCODED),
                    include_columns=list(names),
                    null_values=self.cells.marks,
                    strings_can_be_null=True,
                ),
                memory_pool=pa.system_memory_pool(),  # pyarrow's own gives memory back that the next batch needs
            )
        except pa.ArrowInvalid as error:
            raise InputError(f"{self.where(position, 0)}: in or after this line: {error}; is it CSV?") from error
        if bad:
            line = self._line(position, bad[0].number - 1)[0]
            text_of_line = bad[0].text.split("\n")[0].rstrip("\r")
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
                f"{self.where(position, 0)}: in or after this line, a field has quotes where none may be; is it CSV?"
            )
        table = table.combine_chunks().slice(0, n)
        return {name: table[name].chunk(0) for name in names}

    def _decimal_of(self, delimiter: str) -> str:
        return "," if delimiter == ";" and self.cells.thousands != "," else self.cells.decimal


class PlainLines(NamedTuple):
    """The columns of plain lines."""

    names: list[str]  # of the columns of numbers
    values: NDArray[np.float64]  # (m, n), these columns; NaN for missing values
    gaps: NDArray[np.int64]  # (m,), how many are missing
    padded: frozenset[str]  # those that have a whole number with a leading zero
    texts: dict[str, Any]  # the other columns, encoded; see `columns`
    words: frozenset[str]  # those that should be numbers, and hold something else


def read_plain_lines(
    text: bytes,
    mark: int,
    header: Sequence[str],
    names: Sequence[str],
    numeric: Collection[str],
    missing: Sequence[str] = ("",),
    n_inner: int = 0,
) -> PlainLines | None:
    """Read rows, whose fields the byte `mark` separates, faster than pyarrow; return None if they are not plain.
    Between quotes there are `n_inner` newlines."""
    if text.startswith(text_files.BYTE_ORDER_MARK):  # which pyarrow leaves out
        return None
    place_of = {name: place for place, name in enumerate(header)}
    buffer = np.frombuffer(text, np.uint8)
    n = sum(int(np.count_nonzero(buffer[k : k + 2**17] == ord("\n"))) for k in range(0, len(buffer), 2**17)) - n_inner
    marks = [encoded.ljust(8, b"\0") for one in missing if len(encoded := one.encode()) <= 7]
    missing_words = np.frombuffer(b"".join(marks), "<u8")

    def read(numbers: list[str], strings: list[str]) -> tuple[PlainLines, NDArray[np.int64]] | None:
        kinds, places = np.full(len(header), UNUSED), np.zeros(len(header), np.int64)
        for kind, group in ((NUMBER, numbers), (TEXT, strings)):
            for k, name in enumerate(group):
                kinds[place_of[name]], places[place_of[name]] = kind, k
        m, c = len(numbers), len(strings)
        values, gaps, padded = np.empty((m, n)), np.zeros(m, np.int64), np.zeros(m, bool)
        odd = np.empty((m * n, 4), np.int64)  # memory pages that are never written cost nothing
        codes, spans, sizes = np.empty((c, n), np.int32), np.empty((c, n, 2), np.int32), np.zeros(c, np.int64)
        table = np.zeros((c, 2 << n.bit_length()), np.int32)
        with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT
            n_odd = read_plain(
                buffer, mark, missing_words, kinds, places, values, gaps, padded, odd, codes, table, spans, sizes
            )
        if n_odd < 0:
            return None
        texts = {
            name: columns.numbered(of_rows, _strings(text, where[:size]))
            for name, of_rows, where, size in zip(strings, codes, spans, sizes.tolist(), strict=True)
        }
        with_zeros = frozenset(numbers[k] for k in padded.nonzero()[0])
        return PlainLines(numbers, values, gaps, with_zeros, texts, frozenset()), odd[:n_odd]

    numbers = [name for name in names if name in numeric]
    if (lines := read(numbers, [name for name in names if name not in numeric])) is None:
        return None
    plain, odd = lines
    wrong = [k for k in np.unique(odd[:, 0]).tolist() if not _add_odd(text, odd[odd[:, 0] == k], plain.values)]
    if not wrong:
        return plain
    words = [numbers[k] for k in wrong]  # these columns alone are read again, as texts
    if (again := read([], words)) is None:
        return None
    return PlainLines(
        [name for name in numbers if name not in words],
        np.delete(plain.values, wrong, axis=0),
        np.delete(plain.gaps, wrong),
        plain.padded.difference(words),
        plain.texts | again[0].texts,
        frozenset(words),
    )


_DECIMAL = re.compile(rb"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def _add_odd(text: bytes, odd: NDArray[np.int64], values: NDArray[np.float64]) -> bool:
    """Add those numbers of a column to `values` that `read_plain` cannot read; return whether all are finite."""
    for place, row, start, end in odd.tolist():
        field = text[start:end]
        if not _DECIMAL.fullmatch(field) or not math.isfinite(value := float(field)):
            return False
        values[place, row] = value
    return True


def _strings(text: bytes, spans: NDArray[np.int32]) -> list[str]:
    """Return the parts of a text at these places, (m, 2), with single quotes for double ones."""
    return [text[start:end].decode().replace('""', '"') for start, end in spans.tolist()]


def _fields(line: str, delimiter: str) -> list[str]:
    """Return the fields of a row; none if csv refuses it."""
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


class Beginning(NamedTuple):
    """The beginning of a file."""

    text: bytes  # the first line, and what follows it, without a byte order mark and Excel's line
    start: int  # where that begins in the file
    separator: str  # what separates the fields, as Excel's line or the user says; "" if nothing is said
    is_cut: bool  # whether more may follow


def _beginning(path: str, separator: str) -> Beginning:
    with text_files.open_text(path) as stream:
        line, start = text_files.read_line(stream, path, text_files.LONGEST_HEADER), 0
        if declaration := re.fullmatch(rb'(?:\xef\xbb\xbf)?"?sep=([^\w"\r\n])"?\s*', line):
            separator, start = declaration[1].decode(), len(line)
            line = text_files.read_line(stream, path, text_files.LONGEST_HEADER)
        below = stream.read(SAMPLE_BYTES)
    text_files.refuse_return(line, path)
    if not line:
        raise InputError(f"{path}: the file is empty")
    text = line.removeprefix(text_files.BYTE_ORDER_MARK) + below
    is_cut = len(below) == SAMPLE_BYTES
    return Beginning(text, start + len(line) + len(below) - len(text), separator, is_cut)


@dataclass
class Sample:
    """The first rows of a file, as a mark between fields cuts it."""

    mark: str
    first: str  # the row with the names
    lines: list[str]  # the rows below it

    @cached_property
    def names(self) -> list[str]:
        return [name.strip() for name in _fields(self.first, self.mark)]

    @cached_property
    def rows(self) -> list[list[str]]:
        return [_fields(line, self.mark) for line in self.lines]

    @cached_property
    def complete(self) -> list[list[str]]:
        """The rows below that have as many fields as the first."""
        return [row for row in self.rows if len(row) == len(self.names)]

    def fit(self) -> tuple[int, int, int]:
        """Return how many rows have as many fields as the first, how many these are, and how many are numbers."""
        if len(self.names) < 2:
            return 0, 0, 0
        n_numbers = sum(not _is_word(field) for row in self.complete for field in row)
        return len(self.complete) + (len(self.complete) > 0 or not self.lines), len(self.names), n_numbers

    def has_no_names(self) -> bool:
        """Return whether the first line may be a row: most of its fields are numbers, or those are in whose columns the
        rows below have nothing but numbers."""
        below = ([field for field in column if field.strip()] for column in zip(*self.complete, strict=True))
        numeric = [bool(fields) and not any(map(_is_word, fields)) for fields in below]
        numbers = [not _is_word(name) for name in self.names]
        of_numbers = [number for number, is_numeric in zip(numbers, numeric, strict=False) if is_numeric]
        return 2 * sum(numbers) > len(numbers) or (bool(of_numbers) and all(of_numbers))


def _sample(beginning: Beginning, mark: str) -> Sample:
    """Return at most `SAMPLE_LINES` rows below the names; if more follow, the last one may not be whole."""
    first, *rows = rows_of(beginning.text, mark)
    if beginning.is_cut and len(rows) <= SAMPLE_LINES:
        del rows[-1:]
    lines = [row.decode("utf-8", "replace").rstrip("\r") for row in rows[:SAMPLE_LINES]]
    return Sample(mark, first.decode(), [line for line in lines if line.strip()])


MISSING_HEADER = "the first line must name the columns, and seems to be missing; if it is a row"


def _is_word(field: str) -> bool:
    return re.fullmatch(r"\s*[+-]?[0-9]+(?:[.,][0-9]+)?(?:[eE][+-]?[0-9]+)?\s*", field) is None


def _not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    return InputError(
        f"{where}: is not UTF-8 ({error.reason}); convert the file first, from Latin-1 for instance by: "
        "iconv -f LATIN1 -t UTF-8 OLD > NEW (Excel: save as CSV UTF-8)"
    )
