"""Read svmlight text into CSR form by byte ranges, so that each rank reads its own share. Errors name file:line.

A line is `label index:value index:value ... # comment`. Fields are separated by spaces or tabs; indices are whole
numbers in ascending order, counted from 1, or from 0 on request; values are decimal numbers, each of which equals
Python's `float` of its text, bit for bit. Explicit zeros (`3:0`) are checked and counted as columns, but not stored. A
query id after the label (`qid:7`) is left out and counted, unless it is asked for as the row's group or time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.text_files import ByteRange, TextPosition
from distsms.base.wording import DECIMAL, Message, marked, option
from distsms.ingest.formats.base import TextReader, place_in, whole_lines
from distsms.ingest.formats.svmlight_kernels import BASE, LARGE, MAX_INDEX, ORDER, WIDE, Scan, scan
from distsms.matrix.local import index_dtype
from distsms.shards import row_metadata
from distsms.shards.row_metadata import RowMetadata
from distsms.shards.rows import RowBlock

_EXCERPT = 40
QUERY_ID = "qid"
ENDINGS = (".svm", ".svmlight", ".libsvm")
"""Files of such names are surely svmlight text."""
NAMES = "the names of CSV files end in .csv or .tsv, those of Parquet files in .parquet"
_KEEPS = f"shard {option('group', 'qid')} keeps them"
QUERY_IDS_LEFT_OUT = Message(f"query ids (qid:), left out: all rows are ranked together ({_KEEPS})")


class SvmlightReader(TextReader):
    """Reader of svmlight text; see `distsms.ingest.formats.base.Reader`."""

    block_bytes = 2**21  # enough to make the cost of a call negligible, and few enough for a cache

    def read(self, share: Iterable[ByteRange]) -> Iterator[RowBlock]:
        """Yield the rows of a share. An error in the first line of a file says that its name made it svmlight text."""
        try:
            yield from super().read(share)
        except InputError as error:
            named = [path for path in self.paths if not path.lower().endswith(ENDINGS)]
            if not str(error).startswith(tuple(f"{path}:1:" for path in named)):
                raise
            problem = f"{marked(error.message)}. Taken for svmlight text because of its name; {NAMES}"
            raise InputError(problem) from error

    def parse(self, text: bytes, origin: TextPosition) -> RowBlock:
        """Parse lines. InputError names the first fault of the text. Lines are counted only then."""
        text, first = whole_lines(text, origin)
        buffer = np.frombuffer(text, np.uint8)
        max_rows, max_entries = (np.count_nonzero(buffer == mark) for mark in b"\n:")
        labels, indptr, queries = np.empty(max_rows), np.zeros(max_rows + 1, np.int64), np.empty(max_rows, np.int64)
        data = np.empty(max_entries)
        hard = np.empty((max_rows + max_entries, 2), np.int64)  # memory pages that are never written cost nothing
        base = 0 if self.options.zero_based else 1
        for kind in (np.int32, np.int64):
            indices, largest = np.empty(max_entries, kind), np.iinfo(kind).max - 1  # p itself is an int32, too
            scanned = Scan._make(scan(buffer, first, base, largest, labels, indptr, indices, data, hard, queries))
            if scanned.fault != WIDE:
                break
        # All numbers left to Python lie before the fault of the kernel, so a fault in one of them comes first.
        for position, slot in hard[: scanned.hard].tolist():
            value = _number(text, position, slot < 0, origin)
            if slot < 0:
                labels[-1 - slot] = value
            else:
                data[slot] = value
        if scanned.fault:
            _refuse(scanned.fault, text, scanned.at, origin)
        n, nnz, n_columns = scanned.rows, scanned.entries, scanned.columns
        metadata = RowMetadata()
        if self.options.group is not None or self.options.time is not None:
            metadata = self._metadata(queries[:n], text, first, origin)
        elif scanned.queries:
            self.warnings[QUERY_IDS_LEFT_OUT] += scanned.queries
        indices = indices[:nnz].astype(index_dtype(0, n_columns), copy=False)
        rows = RowBlock(labels[:n], indptr[: n + 1], indices, data[:nnz], n_columns, metadata=metadata)
        return _without_zeros(rows) if scanned.hard else rows

    def _metadata(self, queries: NDArray[np.int64], text: bytes, first: int, origin: TextPosition) -> RowMetadata:
        """Return query ids (n,) as groups or times. Raises InputError for a row that has none, or a too large one."""

        def fail(row: int, problem: str) -> NoReturn:
            lines = re.finditer(rb"^[ \t]*(?=[^ \t\r\n#])", text[first:], re.MULTILINE)
            _fail(text, first + next(islice(lines, row, None)).end(), problem, origin)

        wrong = (queries < 0) | (queries > MAX_INDEX)
        if wrong.any():
            row = int(wrong.argmax())
            too_large = f"the query id is above {MAX_INDEX}"
            fail(row, too_large if queries[row] > 0 else "the row has no query id after its label (qid:7)")
        groups = times = None
        if self.options.group is not None:
            different, inverse = np.unique(queries, return_inverse=True)
            groups = row_metadata.groups(row_metadata.as_strings(different), fail)[inverse]
        if self.options.time is not None:
            times = queries.astype(float)
            if (rounded := times.astype(np.int64) != queries).any():
                fail(int(rounded.argmax()), row_metadata.TOO_LONG)
        return RowMetadata(groups, times, frozenset() if times is None else frozenset([row_metadata.NUMBERS]))


def _without_zeros(rows: RowBlock) -> RowBlock:
    """Drop the zeros among the numbers that Python has read; the kernel drops those that it reads itself."""
    kept = rows.data != 0
    if kept.all():
        return rows
    n_kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
    return rows._replace(indptr=n_kept[rows.indptr], indices=rows.indices[kept], data=rows.data[kept])


# What the kernel leaves to Python: numbers that it cannot read exactly, and error messages
_FIELD = re.compile(rb"[^ \t\r\n#]*")
_DECIMAL = re.compile(DECIMAL.pattern.encode())
_NOT_FINITE = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def _number(text: bytes, position: int, is_label: bool, origin: TextPosition) -> float:
    field, kind = _field(text, position), "label" if is_label else "value"
    if _DECIMAL.fullmatch(field):
        if math.isfinite(value := float(field)):
            return value
        problem = f"the {kind} is too large for a double (1.8e308)"
    elif _NOT_FINITE.fullmatch(field):
        problem = f"the {kind} is not finite; expected a decimal number"
    elif is_label and b":" in field:
        problem = "the line begins without a label; expected 'label index:value ...' (write 0 for an unknown label)"
    elif is_label:
        problem = "expected a decimal number as label, then index:value ..."
    elif not field:
        problem = "the value is missing; expected index:value, without spaces around the colon"
    else:
        problem = "expected a decimal number as value, after the colon"
    _fail(text, position, problem, origin)


def _refuse(fault: int, text: bytes, position: int, origin: TextPosition) -> NoReturn:
    field = _field(text, position)
    if fault == BASE:
        problem = f"indices begin at 1; use {option('zero_based')} if those of this file begin at 0"
    elif fault == LARGE:
        problem = f"the index is too large; expected at most 2^62 = {MAX_INDEX}"
    elif fault == ORDER:
        before = re.findall(rb"([0-9]+):[^ \t]*[ \t]+$", text[max(0, position - 4096) : position])
        after = f"comes after {int(before[0])}" if before else "is not above the one before it"
        problem = f"the index {after}; expected ascending indices, each once in a row"
    elif text.startswith(b"\r", position):
        problem = "a carriage return within a line; expected lines that end in LF or CR LF"
    elif field.startswith(b"qid:"):
        problem = "expected a query id once, after the label, as a whole number"
    elif re.match(rb"-[0-9]+(:|$)", field):
        problem = f"the index is negative; expected indices from 1 (from 0 with {option('zero_based')})"
    elif b":" not in field:
        problem = "the colon is missing; expected index:value"
        if len(field) > 5 and field.isalpha():
            problem += f" (for sequences of letters give {option('strings')})"
    else:
        problem = "expected index:value, with a whole number as index"
    _fail(text, position, problem, origin)


def _fail(text: bytes, position: int, problem: str, origin: TextPosition) -> NoReturn:
    """Raise InputError with file, line and an excerpt that is short and printable whatever the file holds."""
    start = position
    while start > max(0, position - _EXCERPT) and text[start - 1] not in b" \t\n":
        start -= 1
    field = _field(text, start) or text[start : start + 1]
    shown = ascii(field[:_EXCERPT].decode("utf-8", "backslashreplace")).replace("\\\\x", "\\x")
    cut = "..." if len(field) > _EXCERPT else ""
    if b"\0" in field or not field.isascii():
        problem += "; is this a text file, in ASCII or UTF-8?"
    raise InputError(f"{place_in(text, position, origin)}: found {shown}{cut}: {problem}")


def _field(text: bytes, position: int) -> bytes:
    match = _FIELD.match(text, position)
    return match.group() if match else b""
