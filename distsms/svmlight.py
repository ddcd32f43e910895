"""Svmlight text -> CSR, by byte range, so that every rank reads its own share of the files; errors name file:line.

A line is `label index:value index:value ... # comment`: fields separated by spaces or tabs, indices whole numbers in
ascending order (from 1, or from 0 on request), values decimal numbers. Blank lines and comments are skipped; CRLF and a
UTF-8 byte order mark are accepted, and so are files compressed by gzip, bzip2 or xz, which are known by their first
bytes. Explicit zeros (`3:0`) are checked and counted as columns, but not stored. `qid:` is refused.

Every number equals Python's `float` of its text, bit for bit. On its own share, rank r of P does

    rows = concatenate(read(plan(paths, P)[r]))

or, where the share is larger than memory, takes the blocks of `read` one by one.
"""

from __future__ import annotations

import bisect
import contextlib
import importlib
import io
import itertools
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.svmlight_kernel import BASE, LARGE, MAX_INDEX, ORDER, count_lines, scan

BLOCK_BYTES = 2**24
"""Text parsed at a time: large against the cost of a call, small against memory."""
EXPANSION = 4
"""Text bytes per compressed byte, assumed where files are balanced over ranks; only the balance depends on it."""

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EXCERPT = 40


class Rows(NamedTuple):
    """Consecutive rows in CSR form, zero-based, without explicit zeros."""

    labels: NDArray[np.float64]
    """(n,) as written."""
    indptr: NDArray[np.int64]
    """(n + 1,), from 0."""
    indices: NDArray[Any]
    """(nnz,) ascending in each row; int32, or int64 where n_columns is above 2^31 - 1."""
    data: NDArray[np.float64]
    """(nnz,) finite, none of them zero."""
    n_columns: int
    """Largest index + 1, entries written as zero included; 0 if no row has an entry."""


class Piece(NamedTuple):
    """The lines of a plain file whose first byte lies in [start, end); or, if end is None, a whole compressed file."""

    path: str
    start: int = 0
    end: int | None = None


class Where(NamedTuple):
    """Where a text begins: a file, and an offset in it in bytes of (decompressed) text."""

    path: str = "<text>"
    offset: int = 0


def plan(paths: Sequence[str | os.PathLike[str]], n_shares: int) -> list[list[Piece]]:
    """Cut the files into `n_shares` shares of about as many bytes each: share r, then share r + 1, is input order.

    A plain file is cut at any byte. A compressed one cannot be entered in the middle and falls into one share whole.
    Shares may be empty. The result depends on the names and sizes of the files alone: every rank can compute it.
    InputError names the file that is missing, unreadable or no regular file. Cost: one stat and one open per file.
    """
    if n_shares < 1:
        raise ValueError(f"n_shares is {n_shares}, must be 1 or more")
    names = [os.fspath(path) for path in paths]
    sizes, compressions = zip(*map(_inspect, names), strict=True) if names else ((), ())
    # Bytes of text before and after each file, in the order of the input, and where the shares begin on that axis.
    weights = [size * (EXPANSION if compression else 1) for size, compression in zip(sizes, compressions, strict=True)]
    ends = list(itertools.accumulate(weights, initial=0))
    cuts = [ends[-1] * share // n_shares for share in range(n_shares + 1)]
    shares: list[list[Piece]] = [[] for _ in range(n_shares)]
    for name, compression, first, last in zip(names, compressions, ends, ends[1:], strict=False):
        if compression:  # whole, where its middle lies: that keeps the order
            shares[bisect.bisect_right(cuts, (first + last) // 2) - 1].append(Piece(name))
            continue
        share = bisect.bisect_right(cuts, first) - 1
        while share < n_shares and cuts[share] < last:
            start, end = max(cuts[share], first), min(cuts[share + 1], last)
            if start < end:
                shares[share].append(Piece(name, start - first, end - first))
            share += 1
    return shares


def read(share: Iterable[Piece], zero_based: bool = False, block_bytes: int | None = None) -> Iterator[Rows]:
    """Yield the rows of a share, in order, in blocks of about `block_bytes` (BLOCK_BYTES) of text; none for no text.

    `n_columns` is each block's own. InputError names file and line (parse), or the file that cannot be read, ends in
    the middle of its compressed data or has shrunk since the plan. Memory: one block of text and its rows.
    """
    for piece in share:
        for offset, text in _blocks(piece, block_bytes or BLOCK_BYTES):
            yield parse(text, zero_based, Where(piece.path, offset))


def concatenate(blocks: Iterable[Rows]) -> Rows:
    """All rows of some blocks, in order; n = 0 and nnz = 0 for no block at all. O(n + nnz) time and memory."""
    blocks = list(blocks)
    if len(blocks) == 1:
        return blocks[0]
    n_columns = max((block.n_columns for block in blocks), default=0)
    starts = itertools.accumulate((len(block.data) for block in blocks), initial=0)
    return Rows(
        np.concatenate([np.empty(0), *(block.labels for block in blocks)]),
        np.concatenate(
            [np.zeros(1, np.int64), *(block.indptr[1:] + start for block, start in zip(blocks, starts, strict=False))]
        ),
        np.concatenate([np.empty(0, _index_dtype(n_columns)), *(block.indices for block in blocks)]),
        np.concatenate([np.empty(0), *(block.data for block in blocks)]),
        n_columns,
    )


def parse(text: bytes, zero_based: bool = False, where: Where | None = None) -> Rows:
    """Parse whole lines (the last may lack its newline); `where` is the place of the first byte, for messages.

    Raises InputError "path:line: what was found, what was expected" at the first fault of the text. One pass, O(bytes);
    the line number is counted from the beginning of the file, but only when there is a fault to report.
    """
    where = where or Where()
    first = len(_BYTE_ORDER_MARK) if where.offset == 0 and text.startswith(_BYTE_ORDER_MARK) else 0
    if not text.endswith(b"\n"):
        text += b"\n"  # the kernel relies on it: no loop over a token has to look for the end of the text
    buffer = np.frombuffer(text, np.uint8)
    max_rows, max_entries = count_lines(buffer)
    labels, indptr = np.empty(max_rows), np.zeros(max_rows + 1, np.int64)
    indices, data = np.empty(max_entries, np.int64), np.empty(max_entries)
    hard = np.empty((max_rows + max_entries, 2), np.int64)  # pages that are not written cost nothing
    fault, at, n, nnz, n_hard, n_columns = scan(
        buffer, first, 0 if zero_based else 1, labels, indptr, indices, data, hard
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
    indices = indices[:nnz].astype(_index_dtype(n_columns), copy=False)
    rows = Rows(labels[:n], indptr[: n + 1], indices, data[:nnz], n_columns)
    return _without_zeros(rows) if n_hard else rows


def _index_dtype(n_columns: int) -> type:
    return np.int32 if n_columns <= 2**31 - 1 else np.int64


def _without_zeros(rows: Rows) -> Rows:
    """The kernel leaves out the zeros that it reads itself; this does it for those that Python has read."""
    kept = rows.data != 0
    if kept.all():
        return rows
    n_kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])
    return rows._replace(indptr=n_kept[rows.indptr], indices=rows.indices[kept], data=rows.data[kept])


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Let whatever the operating system or a decompressor complains about name the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except EOFError as error:
        raise InputError(f"{path}: the compressed data end too early; copy or download the file again") from error
    except Exception as error:
        # lzma's error goes by its name, since some builds of Python lack lzma.
        if not isinstance(error, zlib.error) and type(error).__name__ != "LZMAError":
            raise
        raise InputError(f"{path}: the compressed data are damaged ({error}); copy the file again") from error


def _inspect(path: str) -> tuple[int, str | None]:
    """Size in bytes as stored, and the module that decompresses the file (None: plain text)."""
    with _named(path):
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path}: is a directory; name the files in it")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is no regular file; every rank must be able to read it at any byte")
        with open(path, "rb") as stream:
            head = stream.read(max(map(len, _MAGIC)))
    return status.st_size, next((module for magic, module in _MAGIC.items() if head.startswith(magic)), None)


@contextlib.contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    """The file's text as a stream of bytes, decompressed on the way."""
    _, compression = _inspect(path)
    with _named(path):
        module = importlib.import_module(compression) if compression else io
        with module.open(path, "rb") as stream:
            yield stream


def _blocks(piece: Piece, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in the text, whole lines) for the lines that begin in the piece."""
    with _open(piece.path) as stream:
        position = piece.start
        if position:
            stream.seek(position - 1)
            position += _skip_line(stream) - 1
        while piece.end is None or position < piece.end:
            text = stream.read(block_bytes if piece.end is None else min(block_bytes, piece.end - position))
            if not text and piece.end is not None:
                raise InputError(f"{piece.path}: ends at byte {position}, had {piece.end}; is it being written to?")
            if not text:
                return
            if not text.endswith(b"\n"):
                text += stream.readline()
            yield position, text
            position += len(text)


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the line, without holding it in memory; return the number of bytes."""
    skipped = 0
    while part := stream.readline(BLOCK_BYTES):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _line(where: Where, text: bytes, position: int) -> int:
    """Number, from 1, of the line that holds `text[position]`: reads the file from its beginning to the text."""
    line = 1 + text.count(b"\n", 0, position)
    if where.offset:
        with _open(where.path) as stream:
            remaining = where.offset
            while remaining and (part := stream.read(min(remaining, BLOCK_BYTES))):
                line += part.count(b"\n")
                remaining -= len(part)
    return line


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
        problem = "query ids are not used by this program; remove them"
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
    raise InputError(f"{where.path}:{_line(where, text, position)}: found {shown}{cut}: {problem}")


def _field(text: bytes, position: int) -> bytes:
    match = _FIELD.match(text, position)
    return match.group() if match else b""
