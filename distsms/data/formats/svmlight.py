"""Svmlight text -> CSR, by byte range, so that every rank reads its own share of the files; errors name file:line.

A line is `label index:value index:value ... # comment`: fields separated by spaces or tabs, indices whole numbers in
ascending order (from 1, or from 0 on request), values decimal numbers. Blank lines and comments are skipped; CRLF and a
UTF-8 byte order mark are accepted, and so are files compressed by gzip, bzip2, xz or Zstandard, known by their first
bytes. Explicit zeros (`3:0`) are checked and counted as columns, but not stored. A query id after the label (`qid:7`)
is left out and counted, since all rows are ranked together here, unless it is asked for as the row's group or time.

Every number equals Python's `float` of its text, bit for bit. On its own share, rank r of P does

    rows = concatenate(read(plan(paths, P)[r]))

or, where the share is larger than memory, takes the blocks of `read` one by one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.data import row_metadata
from distsms.data.formats.base import ReadOptions
from distsms.data.formats.rows import Rows, concatenate, index_dtype
from distsms.data.formats.svmlight_kernels import BASE, LARGE, MAX_INDEX, ORDER, count_lines, scan
from distsms.data.formats.text_files import BYTE_ORDER_MARK, ByteRange, Where, blocks, line_number, plan
from distsms.data.labels import signs
from distsms.data.row_metadata import Beside
from distsms.errors import InputError

BLOCK_BYTES = 2**24
"""Text parsed at a time: large against the cost of a call, small against memory."""
_EXCERPT = 40
QUERY = "qid"
QUERIES = "query ids (qid:), left out: all rows are ranked together (shard --group qid keeps them)"

__all__ = ["ByteRange", "Rows", "Where", "concatenate", "parse", "plan", "read"]


class TextReader:
    """Svmlight text."""

    table = None
    n_columns = None
    compressed = named = False

    def __init__(self, paths: Sequence[str], reading: ReadOptions) -> None:
        self.paths, self.reading, self.notes = paths, reading, Counter[str]()
        self.label_map = reading.label_map

    def plan(self, n_shares: int) -> list[list[ByteRange]]:
        """As `textfiles.plan`."""
        return plan(self.paths, n_shares)

    def read(self, share: Iterable[ByteRange]) -> Iterator[Rows]:
        """As `svmlight.read`; with a label map, labels are +1 and -1."""
        asked = self.reading.group is not None, self.reading.time is not None
        for rows in read(share, self.reading.zero_based, None, self.notes, *asked):
            if not self.reading.labelled:
                yield rows._replace(labels=rows.labels * 0)
            elif self.label_map is None:
                yield rows
            else:
                y = signs(rows.labels, self.label_map, ", ".join(self.paths))
                yield rows._replace(labels=y.astype(float))


def read(
    share: Iterable[ByteRange],
    zero_based: bool = False,
    block_bytes: int | None = None,
    notes: Counter[str] | None = None,
    grouped: bool = False,
    timed: bool = False,
) -> Iterator[Rows]:
    """Yield the rows of a share, in order, in blocks of about `block_bytes` (BLOCK_BYTES) of text; none for no text.

    `n_columns` is each block's own. InputError names file and line (parse), or the file that cannot be read, ends in
    the middle of its compressed data or has shrunk since the plan. Memory: one block of text and its rows.
    notes : counts what was left out, under `QUERIES`.  grouped, timed : the query id is the row's group, or time.
    """
    for piece in share:
        for offset, text in blocks(piece, block_bytes or BLOCK_BYTES):
            yield parse(text, zero_based, Where(piece.path, offset), notes, grouped, timed)


def parse(
    text: bytes,
    zero_based: bool = False,
    where: Where | None = None,
    notes: Counter[str] | None = None,
    grouped: bool = False,
    timed: bool = False,
) -> Rows:
    """Parse whole lines (the last may lack its newline); `where` is the place of the first byte, for messages.

    Raises InputError "path:line: what was found, what was expected" at the first fault of the text. One pass, O(bytes);
    the line number is counted from the beginning of the file, but only when there is a fault to report.
    """
    where = where or Where()
    first = len(BYTE_ORDER_MARK) if where.offset == 0 and text.startswith(BYTE_ORDER_MARK) else 0
    if not text.endswith(b"\n"):
        text += b"\n"  # the kernel relies on it: no loop over a token has to look for the end of the text
    buffer = np.frombuffer(text, np.uint8)
    max_rows, max_entries = count_lines(buffer)
    labels, indptr, queries = np.empty(max_rows), np.zeros(max_rows + 1, np.int64), np.empty(max_rows, np.int64)
    indices, data = np.empty(max_entries, np.int64), np.empty(max_entries)
    hard = np.empty((max_rows + max_entries, 2), np.int64)  # pages that are not written cost nothing
    fault, at, n, nnz, n_hard, n_columns, n_queries = scan(
        buffer, first, 0 if zero_based else 1, labels, indptr, indices, data, hard, queries
    )
    # Every number left to Python lies before the fault of the kernel, if any: the first fault of the text comes first.
    for position, slot in hard[:n_hard].tolist():
        value = _number(text, position, slot < 0, where)
        if slot < 0:
            labels[-1 - slot] = value
        else:
            data[slot] = value
    if fault:
        _refuse(fault, text, at, where)
    if n_queries and notes is not None and not (grouped or timed):
        notes[QUERIES] += n_queries
    indices = indices[:nnz].astype(index_dtype(n_columns), copy=False)
    found = _beside(queries[:n], text, first, where, grouped, timed) if grouped or timed else Beside()
    rows = Rows(labels[:n], indptr[: n + 1], indices, data[:nnz], n_columns, beside=found)
    return _without_zeros(rows) if n_hard else rows


def _without_zeros(rows: Rows) -> Rows:
    """The kernel leaves out the zeros that it reads itself; this does it for those that Python has read."""
    kept = rows.data != 0
    if kept.all():
        return rows
    n_kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
    return rows._replace(indptr=n_kept[rows.indptr], indices=rows.indices[kept], data=rows.data[kept])


def _beside(queries: NDArray[np.int64], text: bytes, first: int, where: Where, grouped: bool, timed: bool) -> Beside:
    """Query ids (n,) as groups or times; InputError for a row that has none, or one too large."""

    def fail(row: int, problem: str) -> NoReturn:
        lines = re.finditer(rb"^[ \t]*(?=[^ \t\r\n#])", text[first:], re.MULTILINE)
        _fail(text, first + next(islice(lines, row, None)).end(), problem, where)

    wrong = (queries < 0) | (queries > MAX_INDEX)
    if wrong.any():
        row = int(wrong.argmax())
        fail(
            row,
            "the row has no query id after its label (qid:7)"
            if queries[row] < 0
            else f"the query id is above {MAX_INDEX}",
        )
    different, which = np.unique(queries, return_inverse=True)
    groups = row_metadata.groups(row_metadata.texts(different), fail)[which] if grouped else None
    return Beside(groups, queries.astype(float) if timed else None, frozenset([row_metadata.NUMBERS] * timed))


# ---------------------------------------------------------------------------------------------------------------------
# What the kernel leaves to Python: numbers that need care, and messages
# ---------------------------------------------------------------------------------------------------------------------

_FIELD = re.compile(rb"[^ \t\r\n#]*")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def _number(text: bytes, position: int, is_label: bool, where: Where) -> float:
    """The number that is written at a position, or InputError."""
    field = _field(text, position)
    if _DECIMAL.fullmatch(field) and math.isfinite(value := float(field)):
        return value
    what = "label" if is_label else "value"
    if _DECIMAL.fullmatch(field):
        problem = f"the {what} is too large for a double (1.8e308)"
    elif _NOT_FINITE.fullmatch(field):
        problem = f"the {what} is not finite; expected a decimal number"
    elif is_label and b":" in field:
        problem = "the line begins without a label; expected 'label index:value ...' (0 where there is none)"
    elif is_label:
        problem = "expected a decimal number as label, then index:value ..."
    elif not field:
        problem = "the value is missing; expected index:value, without spaces around the colon"
    else:
        problem = "expected a decimal number as value, after the colon"
    _fail(text, position, problem, where)


def _refuse(fault: int, text: bytes, position: int, where: Where) -> NoReturn:
    """Turn a fault of the kernel, found in the field at `position`, into InputError."""
    field = _field(text, position)
    if fault == BASE:
        problem = "indices begin at 1; use --zero-based if those of this file begin at 0"
    elif fault == LARGE:
        problem = f"the index is too large; expected at most 2^62 = {MAX_INDEX}"
    elif fault == ORDER:
        problem = _explain_order(text, position)
    elif text.startswith(b"\r", position):
        problem = "a carriage return within a line; expected lines that end in LF or CR LF"
    elif field.startswith(b"qid:"):
        problem = "expected a query id once, after the label, as a whole number"
    elif re.match(rb"-[0-9]+(:|$)", field):
        problem = "the index is negative; expected indices from 1 (from 0 with --zero-based)"
    elif b":" not in field:
        problem = "the colon is missing; expected index:value"
    else:
        problem = "expected index:value, with a whole number as index"
    _fail(text, position, problem, where)


def _explain_order(text: bytes, position: int) -> str:
    """Why the entry at `position` cannot follow the one before it."""
    index = int(text[position : text.index(b":", position)].lstrip(b"0") or b"0")
    before = text[max(0, position - 4096) : position]  # enough for any sensible entry
    previous = re.findall(rb"([0-9]+):[^ \t]*[ \t]+$", before)
    if previous and int(previous[0]) == index:
        return f"index {index} occurs twice; expected each index once in a row"
    after = f" after {int(previous[0])}" if previous else ""
    return f"index {index} comes{after} out of order; expected ascending indices"


def _fail(text: bytes, position: int, problem: str, where: Where) -> NoReturn:
    """Raise InputError with file, line and an excerpt that is short and printable whatever the file holds."""
    start = position
    while start > max(0, position - _EXCERPT) and text[start - 1] not in b" \t\n":
        start -= 1
    field = _field(text, start) or text[start : start + 1]
    shown = repr(field[:_EXCERPT].decode("utf-8", "backslashreplace"))
    shown = shown.encode("ascii", "backslashreplace").decode().replace("\\\\x", "\\x")
    cut = "..." if len(field) > _EXCERPT else ""
    if b"\0" in field or not field.isascii():
        problem += "; is this a text file, in ASCII or UTF-8?"
    raise InputError(f"{where.path}:{line_number(where, text, position)}: found {shown}{cut}: {problem}")


def _field(text: bytes, position: int) -> bytes:
    match = _FIELD.match(text, position)
    return match.group() if match else b""
