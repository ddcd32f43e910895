"""Divide text files among ranks by byte ranges, and read them in blocks of whole lines. Compressed files stay whole;
the memory of their decompression does not depend on what they expand to."""

from __future__ import annotations

import bisect
import contextlib
import importlib
import io
import itertools
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from distsms.base import addresses
from distsms.base.errors import InputError
from distsms.base.files import look_at

BLOCK_BYTES = 2**23
"""So many bytes are parsed at a time: large enough to make the cost of a call negligible, small enough for a cache."""
LONGEST_LINE, LONGEST_HEADER = 2**27, 2**25
"""The longest line, and the longest header of a table, that are accepted, in bytes; a small compressed file can hold
lines of any length.
"""
XZ_MEMORY, CHUNK = 2**28, 512
"""Bytes that decompression of xz may take (`xz -9` needs a quarter of that; a header may ask for 4 GiB), and compressed
bytes that are read at a time: few, because 4 of them can stand for 128 KiB.
"""
EXPANSION = 4
"""Bytes of text assumed for each compressed byte when files are balanced over ranks. Only the balance depends on it."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma", b"\x28\xb5\x2f\xfd": "zstandard"}
_MAGIC |= {bytes([0x50 + k]) + b"\x2a\x4d\x18": "zstandard" for k in range(16)}  # a frame to be skipped
"""How a file begins -> the module that decompresses it; imported only if it is needed."""
_WIDE = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks of encodings that are refused; UTF-32 comes first, since its mark begins like that of UTF-16."""


class ByteRange(NamedTuple):
    """The lines of a plain file whose first byte lies in [start, end). If `end` is None: a whole file."""

    path: str
    start: int = 0
    end: int | None = None

    @property
    def size(self) -> int:
        """Bytes of text; an estimate for a compressed file."""
        return addresses.status(self.path).st_size * EXPANSION if self.end is None else self.end - self.start


class TextPosition(NamedTuple):
    """Where a piece of text begins: a file, and an offset in its (decompressed) text in bytes."""

    path: str = "<text>"
    offset: int = 0


def plan(paths: Sequence[str | os.PathLike[str]], n_shares: int) -> list[list[ByteRange]]:
    """Cut files into `n_shares` consecutive shares of about equal bytes, some perhaps empty, by names and sizes alone;
    compressed ones cannot be entered. A stat and an open for each; InputError if one cannot be read. Local.
    """
    if n_shares < 1:
        raise ValueError(f"n_shares is {n_shares}, must be 1 or more")
    names = [os.fspath(path) for path in paths]
    states = [inspect(name) for name in names]
    # Bytes of text before and after each file, in the order of the input, and where the shares begin on that axis.
    ends = list(itertools.accumulate((size * (EXPANSION if packed else 1) for size, packed in states), initial=0))
    cuts = [ends[-1] * share // n_shares for share in range(n_shares + 1)]
    shares: list[list[ByteRange]] = [[] for _ in range(n_shares)]
    for name, (_, packed), first, last in zip(names, states, ends, ends[1:], strict=False):
        if packed:  # the share in which its middle lies gets all of it, which keeps the order
            shares[bisect.bisect_right(cuts, (first + last) // 2) - 1].append(ByteRange(name))
            continue
        for share in range(bisect.bisect_right(cuts, first) - 1, bisect.bisect_left(cuts, last)):
            start, end = max(cuts[share], first), min(cuts[share + 1], last)
            if start < end:
                shares[share].append(ByteRange(name, start - first, end - first))
    return shares


@contextlib.contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Turn errors of the operating system and of decompressors into InputError that names the file."""
    try:
        yield
    except OSError as error:
        damaged = f"the compressed data are damaged ({error}); copy the file again"  # bz2's OSError has no number
        raise InputError(f"{path}: {error.strerror or damaged}") from error
    except EOFError as error:
        raise InputError(f"{path}: the compressed data end too early; copy or download the file again") from error
    except Exception as error:
        # Compared by name, because some builds of Python lack lzma, and zstandard is loaded only where it is needed.
        if not isinstance(error, zlib.error) and type(error).__name__ not in ("LZMAError", "ZstdError"):
            raise
        if "memory" in str(error).lower():
            remedy = "compress it again with a smaller window (zstd without --long and --ultra, xz -9 or less)"
            raise InputError(f"{path}: decompression needs more memory than is allowed ({error}); {remedy}") from error
        raise InputError(f"{path}: the compressed data are damaged ({error}); copy the file again") from error


def ending(path: str) -> str:
    """Return the ending of a file's name, in small letters, without that of its compression."""
    base, last = os.path.splitext(addresses.without_query(path).lower())
    return os.path.splitext(base)[1] if last in COMPRESSED else last


def inspect(path: str) -> tuple[int, str | None]:
    """Return the stored size in bytes, and the module that decompresses the file (None: plain text)."""
    with naming_errors(path):
        status = look_at(path)
        with addresses.opened(path) as stream:
            return status.st_size, _compression(stream)


def _compression(stream: Any) -> str | None:
    """Return the module that decompresses a stream, of which nothing is consumed."""
    head = stream.peek(max(map(len, _MAGIC)))
    return next((module for magic, module in _MAGIC.items() if head.startswith(magic)), None)


class _Joined(io.RawIOBase):
    """The pieces of an iterator, one behind the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        self._rest = self._rest or next(filter(None, self._pieces), b"")
        count = min(len(out), len(self._rest))
        out[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _frames(stream: BinaryIO, decompressor: Callable[[], Any], padding: bytes = b"") -> Iterator[bytes]:
    """Yield the content of frames, each by a new decompressor, with padding between or behind them. Raises EOFError if
    the last frame is cut, and what the decompressor raises for damaged data."""
    frame, rest = None, b""
    while read := rest or stream.read(CHUNK):
        if rest := read if frame else read.lstrip(padding):
            frame = frame or decompressor()
            yield frame.decompress(rest)
            rest, frame = frame.unused_data, None if frame.eof else frame
    if frame is not None:
        raise EOFError


def _decompressed(stream: BinaryIO, name: str) -> BinaryIO:
    """Return the content of a compressed stream, whose module has this name."""
    try:
        module = importlib.import_module(name)
    except ImportError as absent:
        without = f"this Python was built without {name}; decompress the file first, or take another Python"
        remedy = "such files need a package: pip install zstandard" if name == "zstandard" else without
        raise InputError(remedy) from absent
    if name in ("gzip", "bz2"):
        return module.open(stream, "rb")
    frames = _frames(stream, lambda: module.ZstdDecompressor().decompressobj())
    if name == "lzma":
        frames = _frames(stream, lambda: module.LZMADecompressor(module.FORMAT_XZ, memlimit=XZ_MEMORY), b"\0")
    return io.BufferedReader(_Joined(frames), 2**20)


@contextlib.contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """Open the file as a stream of bytes that are decompressed while they are read."""
    with naming_errors(path), contextlib.ExitStack() as streams:
        look_at(path)  # what is no file, and may block, is refused first
        stream: Any = streams.enter_context(addresses.opened(path))
        if module := _compression(stream):
            stream = streams.enter_context(_decompressed(stream, module))
        head = stream.peek(4)
        if b"\n" not in head:
            refuse_return(head, path)
        if encoding := _wide_encoding(head[:4]):
            remedy = f"iconv -f {encoding} -t UTF-8 OLD > NEW (Excel: save as CSV UTF-8)"
            raise InputError(f"{path}: is text in {encoding}; convert it to UTF-8 first: {remedy}")
        yield stream


def _wide_encoding(head: bytes) -> str | None:
    """Return the name of the encoding that the first four bytes of a text show, if it is not made of single bytes."""
    if marked := next((name for mark, name in _WIDE.items() if head.startswith(mark)), None):
        return marked
    zeros = "".join("0" if byte == 0 else "x" for byte in head)  # of text in ASCII without a byte order mark
    return {"x0x0": "UTF-16LE", "0x0x": "UTF-16BE"}.get(zeros)


def read_blocks(
    byte_range: ByteRange,
    block_bytes: int = BLOCK_BYTES,
    *,
    first: int | None = None,
    skip: Callable[[int], int] = lambda position: 0,
    rest: Callable[[int, bytes, BinaryIO], bytes] = lambda position, text, stream: b"",
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole lines) of a byte range, by blocks; b"" for those of which `skip` returns a length. It begins
    at the byte `first`, by default with the first line. `rest` reads from the stream what else belongs to a block."""
    (path, position, end), n_bytes = byte_range, block_bytes
    with open_text(path) as stream:
        if first is not None:
            position = first
            stream.read(first) if end is None else stream.seek(first)
        elif position:
            stream.seek(position - 1)
            while (part := stream.readline(BLOCK_BYTES)) and not part.endswith(b"\n"):
                pass
            position = stream.tell()
        while end is None or position < end:
            if length := skip(position):
                yield position, b""
                position += length
                stream.read(length) if end is None else stream.seek(position)
                continue
            if end is not None:
                n_bytes = min(block_bytes, end - position)
                if not addresses.is_address(path):  # to append the rest of the last line would be a copy
                    n_bytes = _to_line_end(stream, n_bytes, path)
            if not (text := stream.read(n_bytes)):
                if end is None:
                    return
                raise InputError(f"{path}: ends at byte {position}, but had {end}; is another program writing to it?")
            if not text.endswith(b"\n"):
                text += read_line(stream, path, LONGEST_LINE)
            text += rest(position, text, stream)  # which is no copy without a rest
            yield position, text
            position += len(text)


def _to_line_end(stream: BinaryIO, n_bytes: int, path: str) -> int:
    """Return how many bytes from here on are whole lines: at least so many, if the file has them."""
    here = stream.tell()
    stream.seek(here + n_bytes - 1)
    if stream.read(1) not in (b"", b"\n"):
        n_bytes += len(read_line(stream, path, LONGEST_LINE))
    stream.seek(here)
    return n_bytes


def read_line(stream: BinaryIO, path: str, longest: int) -> bytes:
    """Read the rest of a line. Raises InputError if it has `longest` bytes or more."""
    line = stream.readline(longest)
    if len(line) == longest:
        raise InputError(f"{path}: a line has more than {longest} bytes; is this a text file?")
    return line


def refuse_return(text: bytes, path: str) -> None:
    """Raise InputError if lines of a text end in a carriage return alone."""
    at = text.rstrip(b"\r\n").replace(b"\r\n", b"\n\n").find(b"\r")
    if at >= 0:
        raise InputError(f"{path}: lines end in a carriage return (CR) alone; convert: tr '\\r' '\\n' < OLD > NEW")


def line_number(origin: TextPosition, text: bytes, position: int) -> int:
    """Return the number, from 1, of the line that holds `text[position]`. Reads the file up to the text."""
    line = 1 + text.count(b"\n", 0, position)
    for offset, block in read_blocks(ByteRange(origin.path)) if origin.offset else ():
        if offset >= origin.offset:
            break
        line += block.count(b"\n", 0, origin.offset - offset)
    return line
