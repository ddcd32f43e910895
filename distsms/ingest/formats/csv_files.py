"""Read CSV files with pyarrow, in batches of whole rows.

The first line of each file names its columns, unless the user does. It shows, together with the lines below, what
separates the fields: tabs in .tsv, else commas, semicolons, tabs or bars, unless Excel's first line `sep=;` says it.
Columns have no type: every field is text (`columns.clean`), with decimal commas where semicolons separate the fields.
Since columns of numbers take most of the time, those that had nothing else in the first rows are parsed as numbers; if
a later batch has something else, its text is kept.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import memory, text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.text_files import ByteRange
from distsms.base.wording import option
from distsms.ingest.formats import columns
from distsms.ingest.formats.arrow import Batch, BatchPosition, Selection, TableFiles, distinct, values_of
from distsms.ingest.formats.base import TO_UTF8, place_in
from distsms.ingest.formats.columns import Columns, narrow
from distsms.ingest.formats.csv_kernels import NUMBER, TEXT, UNUSED, read_plain
from distsms.ingest.formats.csv_text import CsvText, follow_quotes, rows_of, with_quotes_first
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
ROOM = 4
"""Batches are written to the file only where the disk has room for so many times their bytes, since shards follow."""
GIVE_BACK = 2**28
"""The bytes of batches that are taken before their memory is given back to the system."""
_ENCODED = pa.dictionary(pa.int32(), pa.string())


class CsvFiles(TableFiles):
    """CSV files."""

    def __init__(
        self,
        paths: Sequence[str],
        cells: Cells = USUAL,
        known_names: Collection[str] = (),
        folder: Path | None = None,
        alone: bool = True,
        label: str | None = None,
    ) -> None:
        """Read the first lines. Known names help to find out what separates the fields. Files without names may lack
        the column `label`."""
        self._known_names, self._label = set(known_names).difference(*map(values_of, paths)), label
        self.text = CsvText(alone)
        self._separators = dict[str, str]()
        self._hints = dict[str, str]()  # "; ..." if the names may be missing, or something else may separate them
        self._kept = KeptBatches(folder)
        self._words: frozenset[str] | None = None  # columns that do not only hold numbers, as far as text was read
        in_file = {path: self._header(path, cells) for path in paths}
        self.header_hint = self._hints.get(paths[0], "")
        if cells.names is not None:
            cells = replace(cells, names=tuple(in_file[paths[0]]))
        super().__init__(paths, cells, in_file)

    @property
    def kept_bytes(self) -> int:  # type: ignore[override]
        """The memory of batches that wait for another reading."""
        return self._kept.nbytes

    def plan(self, n_shares: int) -> list[list[ByteRange]]:
        return text_files.plan(self.paths, n_shares)

    def batches_of(self, part: ByteRange, selection: Selection) -> Iterator[Batch]:
        """Yield the rows of a range. What was kept of them from another reading, in the form needed, is not parsed."""
        may_be_numeric = [name for name in selection.names if name not in self.writings]

        def numeric() -> set[str]:
            return set(filter(selection.as_numbers, may_be_numeric))

        def absent(position: BatchPosition) -> list[str]:
            if (kept := self._kept.find(position)) is None:
                return list(selection.names)
            there = kept.texts | (numeric() & set(kept.numbers))
            return [name for name in selection.names if name not in there]

        def skip(offset: int) -> int:
            position = BatchPosition(part.path, offset)
            kept = self._kept.find(position)
            return 0 if kept is None or absent(position) else kept.batch.n_bytes or 0

        for offset, text in self.text.blocks(part, skip):
            if text and not text.strip(b"\r\n") and len(self.in_file[part.path]) > 1:
                continue
            position = BatchPosition(part.path, offset)
            to_parse, batch = absent(position), self._kept.take(position)
            if to_parse:
                parsed = self._parse(text, position, to_parse, numeric())
                batch = parsed if batch is None else parsed.beside(batch)
            assert batch is not None
            if selection.keep_bytes:
                self._kept.add(batch, selection.keep_bytes)
            n_bytes = (batch.n_bytes or 0) + (offset if offset == self.text.start(part.path) else 0)  # with the names
            yield batch._replace(n_bytes=n_bytes)

    def read_as(self, writings: Mapping[str, Writing]) -> None:
        super().read_as(writings)
        self._kept.forget(writings.keys())

    def forget_cleaned(self, names: Collection[str]) -> None:
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
        """Return a field as it is in the file. Reads the file up to that row."""
        fields = _fields(self._line(position, row)[1].decode(), self._separators[position.path])
        return dict(zip(self.in_file[position.path], fields, strict=False)).get(name)

    def _line(self, position: BatchPosition, row: int) -> tuple[int, bytes]:
        return self.text.line_of(position.path, position.at, position.row(row), len(self.in_file[position.path]) > 1)

    def _header(self, path: str, cells: Cells) -> list[str]:
        """Return the names of the columns. Find out what separates the fields, and where the rows begin."""
        beginning = _beginning(path, cells.separator)
        try:
            sample = self._cut(path, beginning)
            by, names = sample.mark, sample.names
            next(csv.reader([sample.first], delimiter=by, strict=True), [])
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{path}:1", error) from error
        except csv.Error as error:
            unclosed = "a quote opens among the names of the columns, and none closes it"
            problem = unclosed if "end of data" in str(error) else f"the first line must name the columns: {error}"
            raise InputError(f"{path}:1: {problem}") from error
        self._separators[path] = by
        self.text.several_lines |= follow_quotes(beginning.text, by).n_inner > 0
        behind_names = beginning.start + len(rows_of(beginning.text, by)[0]) + 1
        if cells.names is not None:
            named = self._named(path, cells.names, names or [field.strip() for row in sample.rows[:1] for field in row])
            self.text.add(path, by, behind_names if named == names else beginning.start)
            return named
        if not any(names):
            raise InputError(f"{path}:1: the first line must name the columns, and is empty")
        self.text.add(path, by, behind_names)
        if {*map(len, sample.rows)} == {len(names) + 1} and not beginning.separator and path not in self._hints:
            hint = "probably the row's name at the beginning, as R writes it: put a name for it before the other names"
            if all(not row[-1].strip() for row in sample.rows):
                hint = "an empty one at the end: remove the mark there, or put one behind the last name"
            raise InputError(f"{path}: every row has one field more than the first line has names, {hint}")
        if sample.has_no_names():
            no_names = "the first line must name the columns, and seems to be missing; if it is a row"
            self._hints[path] = f"; {no_names}: {option('no_header')}, or {option('names', text='A,B,...')}"
        return distinct(names, f"{path}:1", self._hints.get(path, ""))

    def _cut(self, path: str, beginning: Beginning) -> Sample:
        """Return the first rows, cut by what separates the fields; note a hint if that may be another mark."""
        separator = beginning.separator
        samples = {mark: _sample(beginning, mark) for mark in [*SEPARATORS, *OTHER_SEPARATORS, *separator]}
        fits_user = bool(separator) and len(samples[separator].names) > 1
        by = separator if fits_user else self._separator(path, samples)
        several = len(samples[by].names) > 1
        best = max(samples, key=lambda mark: samples[mark].fit if mark != by else (-1,))
        if samples[best].fit[0] and (best in SEPARATORS or not several):
            assumption = f"the fields are taken to be separated by {by!r}; " if several else ""
            other = f"if {best!r} separates them: {option('separator', best, text=repr(best))}"
            self._hints[path] = f"; {assumption}{other}"
        return samples[by]

    def _named(self, path: str, usual: Sequence[str], first: Sequence[str]) -> list[str]:
        """Return the names of the columns of a file without a line for them, by its first row. If all fields there are
        among these names, the file has such a line nevertheless, and what it says is returned."""
        names = list(usual or (f"column_{k}" for k in range(1, len(first) + 1)))
        if set(first) <= set(names) and len(set(first)) == len(first) and any(map(_is_word, first)):
            return list(first)
        if self._label in names and len(names) == len(first) + 1:
            names.remove(self._label)
        if len(names) != len(first):
            problem = f"the first row has {len(first)} fields, and there are {len(names)} names of columns"
            training = "give all columns of the training data, with or without the label"
            remedy = f"put a line with names before the rows, or {training if self._label else 'name them all'}"
            raise InputError(f"{path}:1: {problem} ({format_names(names)}): {remedy}")
        return distinct(names, option("names"))

    def _separator(self, path: str, samples: Mapping[str, Sample]) -> str:
        """Return what separates the fields of the first line and of those below, so that the known names are there."""
        usual = "\t" if text_files.ending(path) == ".tsv" else SEPARATORS
        for marks in (usual, SEPARATORS, OTHER_SEPARATORS) if self._known_names else ():
            matching = [mark for mark in marks if samples[mark].fit[0] and self._known_names <= {*samples[mark].names}]
            if matching:
                return max(matching, key=lambda mark: samples[mark].fit)
        return max(usual, key=lambda mark: samples[mark].fit)

    def _parse(self, text: bytes, position: BatchPosition, names: Sequence[str], numeric: Collection[str]) -> Batch:
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError as error:
                where = place_in(text, error.start, text_files.TextPosition(position.path, position.at))
                raise _not_utf8(where, error) from error
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
            plain = PlainLines(self._read(text, position, names))
        # 3) Put missing values and numbers into one form. What should be numbers may be, in other spellings.
        array, gaps, written = plain.columns.array, plain.columns.gaps, plain.columns.others
        if self.cells.numbers:
            array[np.isin(array, self.cells.numbers)] = np.nan
            gaps = np.isnan(array).sum(axis=1)
        others = {
            name: columns.clean(text, self.cells, decimal, self.writings.get(name)) for name, text in written.items()
        }
        cleaned = Columns(plain.columns.names, array, gaps, others)
        if plain.words:
            numbers = cleaned.numbers(sorted(plain.words)).names
            self._words = (self._words or frozenset()) | plain.words.difference(numbers)
        return Batch(position, cleaned, n_bytes, written if decimal == "," else {}, plain.padded)

    def _read_plain(
        self, text: bytes, position: BatchPosition, names: Sequence[str], numeric: Collection[str]
    ) -> PlainLines | None:
        """Return the columns of lines, of which some may be numeric; None if the lines are not plain."""
        header, separator = self.in_file[position.path], self._separators[position.path]
        n_inner = follow_quotes(text, separator).n_inner if self.text.several_lines else 0
        return read_plain_lines(text, ord(separator), header, names, numeric, self.cells.marks, n_inner)

    def _read(self, text: bytes, position: BatchPosition, names: Sequence[str]) -> Columns:
        """Parse lines of any kind as encoded strings, by pyarrow."""
        header, delimiter, bad = self.in_file[position.path], self._separators[position.path], list[Any]()
        if b' "' in text or b'\t"' in text:
            text = with_quotes_first(text, delimiter)
        # Lines may be empty if there is only one column.
        quotes = follow_quotes(text, delimiter)
        lines = quotes.flat.split(b"\n")
        n = len(lines) - 1 if len(header) == 1 else sum(1 for line in lines if line.rstrip(b"\r"))
        # If a quote is still open at the end, the empty row that is appended becomes part of the quoted field.
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
            where, n_fields = self.where(position, bad[0].number - 1), bad[0].actual_columns
            shown = bad[0].text.split("\n")[0].rstrip("\r")
            if len(shown) > LONGEST_QUOTED:  # both ends, since what is missing is at the end
                shown = f"{shown[: LONGEST_QUOTED // 2]} ... {shown[-LONGEST_QUOTED // 2 :]}"
            many = f"a field that contains {delimiter!r} must be in quotes"
            cause = many if n_fields > len(header) else "the line may be cut off"
            expected = f"expected {bad[0].expected_columns} as in the first line"
            raise InputError(f"{where}: found {n_fields} fields, {expected}; {cause}: {shown!r}")
        if table.num_rows != n + 1:
            text_files.refuse_return(text, position.path)
            where = self.where(position, 0)
            raise InputError(f"{where}: in or after this line, a field has quotes where none may be; is it CSV?")
        table = table.combine_chunks().slice(0, n)
        return Columns.of({name: table[name].chunk(0) for name in names}, n)

    def _decimal_of(self, delimiter: str) -> str:
        return "," if delimiter == ";" and self.cells.thousands != "," else self.cells.decimal


class KeptBatch(NamedTuple):
    """A batch, and the names of its columns; if it is in the file, at the bytes start..stop - 1, it has no columns."""

    batch: Batch
    texts: frozenset[str]
    numbers: list[str]
    start: int = 0
    stop: int = 0


class KeptBatches:
    """The batches that the survey has parsed, so that the text is read once: in memory, or in a temporary file."""

    def __init__(self, folder: Path | None) -> None:
        """Take the folder of the file; without it, only as many batches are kept as fit into memory."""
        self.folder, self._end, self._taken = folder, 0, 0
        self.nbytes = 0  # of batches in memory
        self._file: IO[bytes] | None = None
        self._batches = dict[BatchPosition, KeptBatch]()

    def find(self, position: BatchPosition) -> KeptBatch | None:
        return self._batches.get(position)

    def add(self, batch: Batch, most_bytes: float) -> None:
        """Keep a batch, in memory if all batches there then take at most so many bytes."""
        others = {name: narrow(column) for name, column in batch.columns.others.items()}
        columns = Columns(batch.columns.names, batch.columns.array, batch.columns.gaps, others)
        kept = KeptBatch(batch._replace(columns=columns, written={}), frozenset(others), columns.names)
        if self.nbytes + columns.nbytes <= most_bytes:
            self._batches[batch.position] = kept
            self.nbytes += columns.nbytes
        elif self.folder is not None and shutil.disk_usage(self.folder).free >= ROOM * (self._end + columns.nbytes):
            with contextlib.suppress(OSError):  # then the text is read again
                self._file = self._file or tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - as long as this
                start = self._file.seek(self._end)
                columns.write(self._file)
                self._file.flush()
                self._end = self._file.tell()
                empty = Columns([], np.empty((0, columns.n)), columns.gaps, {})
                in_file = kept.batch._replace(columns=empty)
                self._batches[batch.position] = kept._replace(batch=in_file, start=start, stop=self._end)

    def forget(self, names: Collection[str]) -> None:
        """Take texts of columns for missing from now on."""
        for position, kept in self._batches.items():
            self._batches[position] = kept._replace(texts=kept.texts - set(names))

    def take(self, position: BatchPosition) -> Batch | None:
        """Return what was kept of a block, and keep it no more."""
        if (kept := self._batches.pop(position, None)) is None:
            return None
        columns = kept.batch.columns
        if kept.start == kept.stop:
            self.nbytes -= columns.nbytes
            self._taken += columns.nbytes
            if self._taken > GIVE_BACK:  # else the memory of batches would still be held beside that of rows
                memory.give_back()
                self._taken = 0
            return kept.batch
        assert self._file is not None
        content = os.pread(self._file.fileno(), kept.stop - kept.start, kept.start)
        return kept.batch._replace(columns=Columns.read(content, kept.numbers, columns.gaps, columns.n))


class PlainLines(NamedTuple):
    """Rows of plain lines."""

    columns: Columns
    padded: frozenset[str] = frozenset()  # columns of numbers that have a whole one with a leading zero
    words: frozenset[str] = frozenset()  # columns that should be numbers, and hold something else


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
    # 1) What becomes of each column, and which texts are missing values.
    numbers, strings = [name for name in names if name in numeric], [name for name in names if name not in numeric]
    place_of = {name: place for place, name in enumerate(header)}
    kinds, places = np.full(len(header), UNUSED), np.zeros(len(header), np.int64)
    for kind, group in ((NUMBER, numbers), (TEXT, strings)):
        for k, name in enumerate(group):
            kinds[place_of[name]], places[place_of[name]] = kind, k
    marks = [encoded.ljust(8, b"\0") for one in missing if len(encoded := one.encode()) <= 7]
    missing_words = np.frombuffer(b"".join(marks), "<u8")
    # 2) Read all rows.
    buffer = np.frombuffer(text, np.uint8)
    n = sum(int(np.count_nonzero(buffer[k : k + 2**17] == ord("\n"))) for k in range(0, len(buffer), 2**17)) - n_inner
    m, c = len(numbers), len(strings)
    values, counts = np.empty((m, n)), np.zeros((m, 2), np.int64)  # counts of missing values, and of leading zeros
    odd = np.empty((m * n, 4), np.int64)  # memory pages that are never written cost nothing
    codes, spans, sizes = np.empty((c, n), np.int32), np.empty((c, n, 2), np.int32), np.zeros(c, np.int64)
    table = np.zeros((c, 2 << n.bit_length()), np.int32)
    with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT
        n_odd = read_plain(buffer, mark, missing_words, kinds, places, values, counts, odd, codes, table, spans, sizes)
    if n_odd < 0:
        return None
    odd, gaps = odd[:n_odd], counts[:, 0]
    texts = {
        name: columns.numbered(of_rows, _strings(text, where[:size]))
        for name, of_rows, where, size in zip(strings, codes, spans, sizes.tolist(), strict=True)
    }
    # 3) Columns that hold something else than numbers are read again, as texts.
    wrong = [k for k in np.unique(odd[:, 0]).tolist() if not _add_odd(text, odd[odd[:, 0] == k], values)]
    words = frozenset(numbers[k] for k in wrong)
    if wrong:
        again = read_plain_lines(text, mark, header, [numbers[k] for k in wrong], (), missing, n_inner)
        if again is None:
            return None
        texts |= again.columns.others
        values, gaps = np.delete(values, wrong, axis=0), np.delete(gaps, wrong)
    with_zeros = frozenset(numbers[k] for k in counts[:, 1].nonzero()[0])
    rest = [name for name in numbers if name not in words]
    return PlainLines(Columns(rest, values, gaps, texts), with_zeros - words, words)


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
        if declaration := re.fullmatch(rb'(?:\xef\xbb\xbf)?"?sep=([^\w"\r\n\x80-\xff])"?\s*', line):
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

    @cached_property
    def fit(self) -> tuple[int, ...]:
        """How many rows have as many fields as the first, how many these are, and how many are numbers."""
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


def _is_word(field: str) -> bool:
    return re.fullmatch(r"\s*[+-]?[0-9]+(?:[.,][0-9]+)?(?:[eE][+-]?[0-9]+)?\s*", field) is None


def _not_utf8(where: str, error: UnicodeDecodeError) -> InputError:
    return InputError(f"{where}: is not UTF-8 ({error.reason}); {TO_UTF8} (Excel: save as CSV UTF-8)")
