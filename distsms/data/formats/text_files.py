"""Files of text that ranks share out by byte range: plain ones cut at any byte, compressed ones whole.

A share's text comes in blocks of whole lines; an offset in it leads back to the line's number, for messages.
"""

from __future__ import annotations

import bisect
import contextlib
import importlib
import io
import itertools
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from distsms.errors import InputError

BLOCK_BYTES = 2**24
"""Text parsed at a time: large against the cost of a call, small against memory."""
LONGEST_LINE = 2**31
"""What a line may have: more are not rows, but a file of another kind."""
EXPANSION = 4
"""Text bytes per compressed byte, assumed where files are balanced over ranks; only the balance depends on it."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma", b"\x28\xb5\x2f\xfd": "distsms.data.formats.zst"}


class ByteRange(NamedTuple):
    """The lines of a plain file whose first byte lies in [start, end); or, if end is None, a whole compressed file."""

    path: str
    start: int = 0
    end: int | None = None


class Where(NamedTuple):
    """Where a text begins: a file, and an offset in it in bytes of (decompressed) text."""

    path: str = "<text>"
    offset: int = 0


def plan(paths: Sequence[str | os.PathLike[str]], n_shares: int) -> list[list[ByteRange]]:
    """Cut the files into `n_shares` shares of about as many bytes each: share r, then share r + 1, is input order.

    A plain file is cut at any byte. A compressed one cannot be entered in the middle and falls into one share whole.
    Shares may be empty. The result depends on the names and sizes of the files alone: every rank can compute it.
    InputError names the file that is missing, unreadable or no regular file. Cost: one stat and one open per file.
    """
    if n_shares < 1:
        raise ValueError(f"n_shares is {n_shares}, must be 1 or more")
    names = [os.fspath(path) for path in paths]
    sizes, compressions = zip(*map(inspect, names), strict=True) if names else ((), ())
    # Bytes of text before and after each file, in the order of the input, and where the shares begin on that axis.
    weights = [size * (EXPANSION if compression else 1) for size, compression in zip(sizes, compressions, strict=True)]
    ends = list(itertools.accumulate(weights, initial=0))
    cuts = [ends[-1] * share // n_shares for share in range(n_shares + 1)]
    shares: list[list[ByteRange]] = [[] for _ in range(n_shares)]
    for name, compression, first, last in zip(names, compressions, ends, ends[1:], strict=False):
        if compression:  # whole, where its middle lies: that keeps the order
            shares[bisect.bisect_right(cuts, (first + last) // 2) - 1].append(ByteRange(name))
            continue
        share = bisect.bisect_right(cuts, first) - 1
        while share < n_shares and cuts[share] < last:
            start, end = max(cuts[share], first), min(cuts[share + 1], last)
            if start < end:
                shares[share].append(ByteRange(name, start - first, end - first))
            share += 1
    return shares


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Let whatever the operating system or a decompressor complains about name the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except EOFError as error:
        raise InputError(f"{path}: the compressed data end too early; copy or download the file again") from error
    except Exception as error:
        # By name: some builds of Python lack lzma, and zstandard is loaded only where it is needed.
        if not isinstance(error, zlib.error) and type(error).__name__ not in ("LZMAError", "ZstdError"):
            raise
        raise InputError(f"{path}: the compressed data are damaged ({error}); copy the file again") from error


def inspect(path: str) -> tuple[int, str | None]:
    """Size in bytes as stored, and the module that decompresses the file (None: plain text)."""
    with named(path):
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{path}: is a directory; name the files in it")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is no regular file; every rank must be able to read it at any byte")
        with open(path, "rb") as stream:
            head = stream.read(max(map(len, _MAGIC)))
    return status.st_size, next((module for magic, module in _MAGIC.items() if head.startswith(magic)), None)


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file's text as a stream of bytes, decompressed on the way."""
    _, compression = inspect(path)
    with named(path):
        module = importlib.import_module(compression) if compression else io
        with module.open(path, "rb") as stream:
            yield stream


def blocks(piece: ByteRange, block_bytes: int = BLOCK_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in the text, whole lines) for the lines that begin in the piece."""
    with opened(piece.path) as stream:
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
                text += (rest := stream.readline(LONGEST_LINE))
                if len(rest) == LONGEST_LINE:
                    raise InputError(f"{piece.path}: a line has more than {LONGEST_LINE} bytes; is this a text file?")
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


def line_number(where: Where, text: bytes, position: int) -> int:
    """Number, from 1, of the line that holds `text[position]`: reads the file from its beginning to the text."""
    line = 1 + text.count(b"\n", 0, position)
    if where.offset:
        with opened(where.path) as stream:
            remaining = where.offset
            while remaining and (part := stream.read(min(remaining, BLOCK_BYTES))):
                line += part.count(b"\n")
                remaining -= len(part)
    return line
