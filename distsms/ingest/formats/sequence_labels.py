"""The labels of sequences, as they are written in lines, in the headers of FASTA, or in a file of labels.

Words such as `chromosome=III` in headers or comments say more about a sequence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.base.text_files import BYTE_ORDER_MARK, ByteRange, TextPosition, line_number
from distsms.base.untrusted_text import printable
from distsms.shards.labels import Label, in_one_type

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def name_in(header: bytes, place: Callable[[], str]) -> str:
    """Return the name of a sequence, the first word of its header; `place()` is for messages."""
    return text_of(next(iter(header.split(None, 1)), b""), place)


def text_of(word: bytes, place: Callable[[], str]) -> str:
    """Return a word as a string. Raises InputError unless it is UTF-8."""
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place()}: {printable(word.decode('latin-1'))!r} is not UTF-8; convert the file first, from Latin-1 for "
            "instance by: iconv -f LATIN1 -t UTF-8 OLD > NEW"
        ) from error


def label_in(header: bytes) -> bytes | None:
    """Return what follows `label=` in a header, or its second word if it has two; else None."""
    if named := value_in(header, "label"):
        return named
    words = header.split()
    return words[1] if len(words) == 2 else None


def value_in(text: bytes, name: str) -> bytes:
    """Return what follows `name=` in a header or comment; b"" if nothing does."""
    sign = name.encode() + b"="
    return next((word[len(sign) :] for word in text.split() if word.startswith(sign)), b"")


def to_array(texts: Sequence[bytes], place: Callable[[int], str]) -> NDArray[Any]:
    """Return labels (n,) as float64 if all are (finite) numbers, else as strings; `place(row)` is for messages."""
    values: dict[bytes, Label] = {}
    for row, text in enumerate(texts):
        if text in values:
            continue
        values[text] = float(text) if _NUMBER.fullmatch(text) else text_of(text, partial(place, row))
        if isinstance(values[text], float) and not math.isfinite(values[text]):  # type: ignore[arg-type]
            raise InputError(f"{place(row)}: the label {printable(text.decode())} is too large for a double (1.8e308)")
    place_of = {text: place for place, text in enumerate(values)}
    return in_one_type([*values.values()])[[place_of[text] for text in texts]]


def read_file(path: str) -> dict[str, bytes]:
    """Return the label of each name in a file with lines `NAME LABEL`, and comments after #. Local."""
    labels: dict[str, bytes] = {}
    size, compression = text_files.inspect(path)
    for offset, text in text_files.read_blocks(ByteRange(path, 0, None if compression else size)):
        at = 0
        for line in text.split(b"\n"):
            words = line.removeprefix(BYTE_ORDER_MARK).partition(b"#")[0].split()
            where = partial(_line, TextPosition(path, offset), text, at)
            name = text_of(words[0], where) if words else ""
            if words and (len(words) != 2 or name in labels):
                problem = "expected NAME LABEL" if len(words) != 2 else f"{printable(name)!r} has a label already"
                raise InputError(f"{where()}: {problem}")
            if words:
                labels[name] = words[1]
            at += len(line) + 1
    return labels


def _line(origin: TextPosition, text: bytes, at: int) -> str:
    return f"{origin.path}:{line_number(origin, text, at)}"
