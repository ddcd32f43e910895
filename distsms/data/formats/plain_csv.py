"""Read the lines of a CSV file that hold nothing but plain fields, as most do, in one pass and faster than pyarrow.

`csv_kernels.read_plain` says what is plain. What it reads is the same as what pyarrow reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.formats import columns
from distsms.data.formats.csv_kernels import NUMBER, TEXT, UNUSED, read_plain
from distsms.data.formats.text_files import BYTE_ORDER_MARK


class Plain(NamedTuple):
    """The columns of plain lines."""

    values: NDArray[np.float64]  # (m, n), the columns of numbers; NaN for empty fields
    gaps: NDArray[np.int64]  # (m,), how many fields are empty
    padded: frozenset[str]  # columns of numbers that have a whole number with a leading zero
    texts: dict[str, Any]  # the other columns, encoded; see `columns`


def read(
    text: bytes, n: int, mark: int, header: Sequence[str], names: Sequence[str], numeric: Collection[str]
) -> Plain | None:
    """Read n lines that end in a newline; return None if they are not plain.

    mark : the byte that separates fields.  header : all columns.  names : those that are wanted, of which the columns
    of `numeric` hold numbers.
    """
    if text.startswith(BYTE_ORDER_MARK):  # which pyarrow leaves out
        return None
    words = [name for name in names if name not in numeric]
    kinds, places = np.full(len(header), UNUSED), np.zeros(len(header), np.int64)
    place_of = {name: place for place, name in enumerate(header)}
    for kind, wanted in ((NUMBER, numeric), (TEXT, words)):
        for k, name in enumerate(wanted):
            kinds[place_of[name]], places[place_of[name]] = kind, k
    values, gaps, padded = np.empty((len(numeric), n)), np.zeros(len(numeric), np.int64), np.zeros(len(numeric), bool)
    codes, ends = np.empty((len(words), n), np.int32), np.empty((len(words), n, 2), np.int32)
    table, sizes = np.zeros((len(words), 2 << n.bit_length()), np.int32), np.zeros(len(words), np.int64)
    numbers, strings = (values, gaps, padded), (codes, table, ends, sizes)
    with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT
        plain = read_plain(np.frombuffer(text, np.uint8), mark, kinds, places, *numbers, *strings)
    if not plain:
        return None
    texts = {
        name: columns.numbered(own, [text[start:end].decode() for start, end in spans[:size].tolist()])
        for name, own, spans, size in zip(words, codes, ends, sizes.tolist(), strict=True)
    }
    return Plain(values, gaps, frozenset(name for name, found in zip(numeric, padded, strict=True) if found), texts)
