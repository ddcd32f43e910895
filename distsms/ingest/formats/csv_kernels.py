"""Compiled loops over the text of CSV files."""

from __future__ import annotations

import numpy as np

from distsms.base.hashing import GOLDEN
from distsms.base.jit import UNCOUNTED, njit
from distsms.ingest.formats.svmlight_kernels import byte_at, decimal, digit_at, digits, short_decimal

NUMBER, TEXT, UNUSED = range(3)
"""What `read_plain` makes of a column."""
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_PLUS, _ZERO = 43, 48
MOST_MET = 64
"""A text is compared with at most so many others. In a table that is half empty, far fewer share a place by chance."""
_ONE, _FACTOR, _HALF, _BYTE = map(np.uint64, (1, 0x100000001B3, 32, 8))


@njit(error_model="numpy", **UNCOUNTED)
def read_plain(text, mark, missing, kinds, places, values, counts, odd, codes, table, spans, sizes):  # type: ignore[no-untyped-def]
    """Read n rows in one pass; return how many numbers are odd, or -1 if the rows are not plain: with other quotes than
    around whole fields, or with another number of rows or fields.

    text : (bytes,) uint8, lines that end in a newline.  mark : the byte that separates fields.
    missing : (marks,) uint64, the texts of missing values, of at most seven bytes, filled with zero bytes.
    kinds, places : (columns,) int64, what each column is, and its place among those of its kind.
    values : (m, n) float64, receives the columns of numbers, with NaN for missing values.
    counts : (m, 2) int64, zeros, receive how many are missing, and how many are whole with a leading zero.
    odd : (m n, 4) int64, receives place, row, begin and end of each field that `decimal` does not read.
    codes : (c, n) int32, receives the number of each field's text among the different ones, by their first appearance.
    table : (c, at least 2 n, a power of two) int32 zeros, becomes a hash table of these numbers, counted from 1.
    spans : (c, n, 2) int32, receives where in `text` each different text begins and ends, without quotes around it.
    sizes : (c,) int64, zeros, receives how many different texts there are.
    """
    row, i = 0, 0
    last, n_odd = len(kinds) - 1, 0
    while i < text.size:
        if row == values.shape[1] or _ends_line(byte_at(text, i)):
            return -1
        for column in range(len(kinds)):
            kind, place = kinds[column], places[column]
            # 1) A number: mostly a short one, without quotes.
            start, quoted, plain = i, False, False
            end, h = i, np.uint64(0)
            if kind == NUMBER:
                plain, value, end = short_decimal(text, start, mark)
            if not plain:
                quoted = byte_at(text, i) == _QUOTE
                start = i + int(quoted)
                closing = _QUOTE if quoted else mark
                if kind == NUMBER:
                    plain, value, end = decimal(text, start, closing)
                    byte = byte_at(text, end)
                    plain = plain and (byte == closing or (not quoted and _ends_line(byte)))
                    plain = plain and byte_at(text, start) != _PLUS
            # 2) Anything else: where it ends, and a hash of its bytes.
            if not plain:
                end = start
                while True:
                    byte = byte_at(text, end)
                    while byte != closing and byte != _QUOTE and not _ends_line(byte):
                        h = (h ^ np.uint64(byte)) * _FACTOR  # FNV-1a
                        end += 1
                        byte = byte_at(text, end)
                    if quoted and byte != _QUOTE and end + 1 < text.size:  # an end of a line
                        h = (h ^ np.uint64(byte)) * _FACTOR
                        end += 1
                        continue
                    if not quoted or byte != _QUOTE or byte_at(text, end + 1) != _QUOTE:
                        break
                    h = (h ^ np.uint64(byte)) * _FACTOR
                    end += 2
                if (byte == _QUOTE) != quoted:
                    return -1
            if plain:
                values[place, row] = value
                second = digit_at(text, start + 1)
                if (byte_at(text, start) == _ZERO) & (second >= 0) & (second <= 9):  # hardly ever
                    counts[place, 1] += digits(text, start, 0)[1] == end
            elif kind == NUMBER:
                values[place, row] = np.nan
                if _is_missing(text, start, end, missing):
                    counts[place, 0] += 1
                else:
                    odd[n_odd, 0], odd[n_odd, 1], odd[n_odd, 2], odd[n_odd, 3] = place, row, start, end
                    n_odd += 1
            elif kind == TEXT:
                code = _number_of(text, start, end, h, table[place], spans[place], sizes, place)
                if code < 0:
                    return -1
                codes[place, row] = code
            # 3) The separator before the next column.
            i = end + int(quoted)
            if column < last:
                if byte_at(text, i) != mark:
                    return -1
                i += 1
        i += byte_at(text, i) == _RETURN
        if byte_at(text, i) != _NEWLINE:
            return -1
        i += 1
        row += 1
    return n_odd if row == values.shape[1] else -1


@njit(**UNCOUNTED)
def _ends_line(byte):  # type: ignore[no-untyped-def]
    return byte in (_NEWLINE, _RETURN)


@njit(**UNCOUNTED)
def _is_missing(text, start, end, missing):  # type: ignore[no-untyped-def]
    if end - start > 7:
        return False
    word = np.uint64(0)
    for k in range(end - 1, start - 1, -1):
        word = word << _BYTE | np.uint64(byte_at(text, k))
    equal = False
    for mark in missing:
        equal |= mark == word
    return equal


@njit(**UNCOUNTED)
def _number_of(text, start, end, h, table, spans, sizes, place):  # type: ignore[no-untyped-def]
    """Return the number of text[start:end], of hash h, among the different ones; -1 if too many share a place."""
    last = np.uint64(len(table) - 1)
    slot = (h * GOLDEN >> _HALF) & last
    met = 0
    while table[slot]:
        if met == MOST_MET:
            return -1
        met += 1
        code = table[slot] - 1
        first, size = spans[code, 0], end - start
        if spans[code, 1] - first == size:
            k = 0
            while k < size and byte_at(text, first + k) == byte_at(text, start + k):
                k += 1
            if k == size:
                return code
        slot = (slot + _ONE) & last
    code = sizes[place]
    sizes[place] += 1
    table[slot] = code + 1
    spans[code, 0], spans[code, 1] = start, end
    return code
