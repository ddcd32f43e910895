"""Blocks of whole rows of CSV text. A field in quotes may hold newlines, so that a row may have several lines.

A rank begins to read anywhere in a file. Whether a line there begins a row follows from all the text before it. As long
as no row has several lines, every line is a row. The first row that has several is always noticed, since the rank that
reads it has begun at the beginning of a row. Then the ranks follow the quotes through the whole text (`find_rows`),
each through its part and from both possible states: one more reading, at 1 to 2 GB/s of each core where there are
quotes.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.jit import UNCOUNTED, njit
from distsms.base.text_files import ByteRange, TextPosition
from distsms.ingest.formats.base import place_in
from distsms.ingest.formats.svmlight_kernels import byte_at
from distsms.shards.rows import of_rank

CELL = 2**24
"""The ranks follow the quotes through parts of so many bytes. A rank that begins inside of one reads it again."""
_TAB, _NEWLINE, _RETURN, _SPACE, _QUOTE = 9, 10, 13, 32, 34


class Quotes(NamedTuple):
    """What the fields in quotes of some lines hold."""

    flat: bytes  # the lines, with spaces in the place of newlines between quotes, so that each row is a line
    n_inner: int  # how many such newlines there are
    opens: int  # where the quote opens that is not closed; -1: all are closed
    spoiled: int  # where a field of several lines opens, behind whose closing quote something else follows; -1: none


def follow_quotes(text: bytes, mark: str, inside: bool = False) -> Quotes:
    """Follow the quotes of lines whose fields are separated by `mark`, and which begin inside a field or outside."""
    if b'"' not in text:
        return Quotes(text, text.count(b"\n") if inside else 0, 0 if inside else -1, -1)
    flat = np.frombuffer(text, np.uint8).copy()
    n_inner, opens, spoiled = _follow(flat, ord(mark), inside, _SPACE)
    return Quotes(flat.tobytes() if n_inner else text, n_inner, opens, spoiled)


def with_quotes_first(text: bytes, mark: str) -> bytes:
    """Return lines in which space before a quoted field is behind its first quote, which pyarrow needs."""
    out = np.frombuffer(text, np.uint8).copy()
    _follow(out, ord(mark), False, _NEWLINE)
    return out.tobytes()


def rows_of(text: bytes, mark: str) -> list[bytes]:
    """Return the rows of a text, without the newlines at their ends."""
    rows, at = list[bytes](), 0
    for line in follow_quotes(text, mark).flat.split(b"\n"):
        rows.append(text[at : at + len(line)])
        at += len(line) + 1
    return rows


@njit(**UNCOUNTED)
def _follow(text, mark, inside, newline):  # type: ignore[no-untyped-def]
    """Put a byte in the place of newlines in quoted fields of `text`, (bytes,) uint8; return what `Quotes` says. A
    quote opens at the beginning of a field, or behind space there, which it changes places with, and a doubled one
    closes nothing."""
    n_inner = lines = i = 0
    opens, spoiled = 0 if inside else -1, -1
    while True:
        while i < text.size and byte_at(text, i) != _QUOTE:
            if inside and byte_at(text, i) == _NEWLINE:
                text[i] = newline
                lines += 1
            i += 1
        if i == text.size:
            break
        if not inside:
            k = i - 1
            while k >= 0 and byte_at(text, k) != mark and (byte_at(text, k) == _SPACE or byte_at(text, k) == _TAB):
                k -= 1
            if k < 0 or byte_at(text, k) == mark or byte_at(text, k) == _NEWLINE:
                text[i], text[k + 1] = text[k + 1], _QUOTE
                inside, opens, lines = True, i, 0
        elif i + 1 < text.size and byte_at(text, i + 1) == _QUOTE:
            i += 1
        else:
            n_inner += lines
            if lines > 0 and spoiled < 0 and i + 1 < text.size:
                after = byte_at(text, i + 1)
                if after != mark and after != _NEWLINE and after != _RETURN and after != _SPACE and after != _TAB:
                    spoiled = opens
            inside, opens = False, -1
        i += 1
    return n_inner + (lines if inside else 0), opens, spoiled


class _Cell(NamedTuple):
    """A part of a file, through which a rank has followed the quotes."""

    path: str
    start: int
    line: int | None  # where the first line begins; None if none does
    after: tuple[bool, ...]  # whether a field is open at the end, if none was at `line`, and if one was


class CsvText:
    """The text of CSV files."""

    def __init__(self, alone: bool = True) -> None:
        """Take whether this rank reads alone, and so from the beginning."""
        self.knows_rows = alone  # where rows begin; if not, every line is taken for a row, until one has several lines
        self.several_lines = False  # whether a row was met that has several lines
        self._marks = dict[str, str]()
        self._rows = dict[str, list[tuple[int, int]]]()  # ascending: a byte, and the first row there or behind it

    def add(self, path: str, mark: str, start: int) -> None:
        """Take a file whose fields are separated by `mark`, and whose first row begins at the byte `start`."""
        self._marks[path], self._rows[path] = mark, [(0, start)]

    def start(self, path: str) -> int:
        """Return where the first row of a file begins."""
        return self._rows[path][0][1]

    def blocks(
        self, byte_range: ByteRange, skip: Callable[[int], int] = lambda position: 0
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the rows that begin in a range, as `text_files.read_blocks` does."""
        path, end = byte_range.path, byte_range.end
        position = first = self._first_row(byte_range)
        rest = partial(self._rest_of_row, path)
        for offset, text in text_files.read_blocks(byte_range, first=first, skip=skip, rest=rest):
            position = offset + (len(text) or skip(offset))
            yield offset, text
        if self.knows_rows and end is not None and position is not None:
            bisect.insort(self._rows[path], (end, position))

    def find_rows(self, paths: Sequence[str], comm: Communicator) -> None:
        """Find out where rows begin, so that they may have several lines, by reading all once. **Collective.**"""
        with comm.fail_together():
            n_bytes = sum(part.size for share in text_files.plan(paths, 1) for part in share)
            cells = text_files.plan(paths, comm.size * -(-max(n_bytes, 1) // (CELL * comm.size)))
            cells_of_rank = [self._follow_cell(part) for k in of_rank(len(cells), comm) for part in cells[k]]
        is_open = dict.fromkeys(paths, False)
        for cell in chain.from_iterable(comm.allgather(cells_of_rank)):
            if cell.line is not None and not is_open[cell.path]:
                self._rows[cell.path].append((cell.start, cell.line))
            is_open[cell.path] = cell.after[is_open[cell.path]]
        self.knows_rows = True

    def line_of(self, path: str, at: int, row: int, skips_empty: bool) -> tuple[int, bytes]:
        """Return the number of the line, from 1, in which a row begins that is the `row`-th from the byte `at` on, and
        its text. Empty lines may be no rows. Reads the file up to there."""
        with text_files.open_text(path) as stream:
            number, left = 1, at
            while left > 0 and (part := stream.read(min(left, text_files.BLOCK_BYTES))):
                number, left = number + part.count(b"\n"), left - len(part)
            k = -1
            for first in iter(stream.readline, b""):
                line, is_open = first, follow_quotes(first, self._marks[path]).opens >= 0
                while is_open and (more := stream.readline()):
                    line, is_open = line + more, follow_quotes(more, self._marks[path], inside=True).opens >= 0
                if line.strip(b"\r\n") or not skips_empty:
                    k += 1
                    if k == row:
                        return number, line
                number += line.count(b"\n")
        return number - 1, b""

    def _first_row(self, byte_range: ByteRange) -> int | None:
        """Return where the first row of a range begins; None: with the first line, as far as is known."""
        rows, start = self._rows[byte_range.path], byte_range.start
        row = rows[bisect.bisect_right(rows, (start, np.inf)) - 1][1]
        if row >= start or byte_range.end is None:
            return row
        if not self.knows_rows:
            return None
        for _ in self.blocks(ByteRange(byte_range.path, row, start)):  # from the last row that is known
            pass
        return self._first_row(byte_range)

    def _rest_of_row(self, path: str, offset: int, text: bytes, stream: BinaryIO) -> bytes:
        """Return what follows some lines in a stream and belongs to the row that their last line begins."""
        mark = self._marks[path]
        quotes = follow_quotes(text, mark)
        if quotes.n_inner == 0 and quotes.opens < 0:
            return b""
        self.several_lines = True
        if not self.knows_rows:
            raise InputError(f"{path}: a field in quotes has several lines")  # `find_rows` follows
        rest, n_bytes, is_open = list[bytes](), 0, quotes.opens >= 0
        while is_open:
            line = text_files.read_line(stream, path, text_files.LONGEST_LINE)
            n_bytes += len(line)
            if not line or n_bytes > text_files.LONGEST_LINE:
                within = f" within {text_files.LONGEST_LINE} bytes" if line else ""
                _fail(path, offset, text, quotes.opens, f"a quote opens in this line, and none closes it{within}")
            rest.append(line)
            is_open = follow_quotes(line, mark, inside=True).opens >= 0
        whole = text + b"".join(rest)
        if (spoiled := follow_quotes(whole, mark).spoiled if rest else quotes.spoiled) >= 0:
            problem = "a quote opens in this line, and the next one is in another line, not at the end of a field"
            _fail(path, offset, whole, spoiled, f"{problem}; is one missing?")
        return b"".join(rest)

    def _follow_cell(self, part: ByteRange) -> _Cell:
        header_end, line = self.start(part.path), None
        after: tuple[bool, ...] = (False, True)
        first = header_end if part.start <= header_end or part.end is None else None
        for offset, text in text_files.read_blocks(part, first=first) if part.end is not None else ():
            line = offset if line is None else line
            if b'"' in text:
                after = tuple(follow_quotes(text, self._marks[part.path], state).opens >= 0 for state in after)
        return _Cell(part.path, part.start, line, after)


def _fail(path: str, offset: int, text: bytes, at: int, problem: str) -> NoReturn:
    raise InputError(f"{place_in(text, at, TextPosition(path, offset))}: {problem}")
