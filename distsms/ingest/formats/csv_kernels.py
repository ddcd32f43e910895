"""Compiled loops over the text of CSV files."""

from __future__ import annotations

import numpy as np

from distsms.base.hashing import GOLDEN
from distsms.base.jit import UNCOUNTED, njit
from distsms.ingest.formats.svmlight_kernels import POWERS, byte_at, decimal, digit_at

NUMBER, TEXT, UNUSED = range(3)
"""What `read_plain` makes of a column."""
_TAB, _NEWLINE, _RETURN, _SPACE, _QUOTE = 9, 10, 13, 32, 34
_PLUS, _MINUS, _POINT, _ZERO, _NINE = 43, 45, 46, 48, 57
_LEADING, _FIRST, _MORE, _TRAILING, _OTHER = range(5)
"""Where in a field we are: before its first character, after a leading zero, after more digits, after a space that
follows these, or in a field that is something else.
"""
MOST_MET = 64
"""A text is compared with at most so many others. In a table that is half empty, far fewer share a place by chance."""
_ONE, _FACTOR, _HALF = np.uint64(1), np.uint64(0x100000001B3), np.uint64(32)


@njit()
def count_lines(text):  # type: ignore[no-untyped-def]
    """Return the number of newlines of a text (bytes,), and of those that may end an empty line."""
    lines, empty = 0, int(text[0] == _NEWLINE or text[0] == _RETURN)
    for i in range(1, len(text)):
        lines += text[i - 1] == _NEWLINE
        empty += (text[i - 1] == _NEWLINE) & ((text[i] == _NEWLINE) | (text[i] == _RETURN))
    return lines + (text[-1] == _NEWLINE), empty


@njit()
def find_padded(text, mark, padded):  # type: ignore[no-untyped-def]
    """Mark in `padded`, (columns,), which columns of lines have a whole number with a leading zero, as codes have."""
    hits = 0
    for i in range(len(text) - 1):  # a quick look, since most texts have none
        before = text[i - 1] if i else _NEWLINE
        starts = (before <= _SPACE) | (before == mark) | (before == _QUOTE)
        hits += starts & (text[i] == _ZERO) & (text[i + 1] >= _ZERO) & (text[i + 1] <= _NINE)
    if not hits:
        return
    # A field has the state _LEADING (only space yet), _FIRST (a zero), _MORE (digits after it), _TRAILING, or _OTHER.
    column, state = 0, _LEADING
    quoted = inside = False
    for byte in text:
        if byte == _QUOTE and (quoted or state == _LEADING):
            if quoted and not inside:  # two quotes are one in the text
                state = _OTHER
            quoted, inside = True, not inside
        elif not inside and (byte in (mark, _NEWLINE)):
            if (state in (_MORE, _TRAILING)) and column < len(padded):
                padded[column] = True
            column = 0 if byte == _NEWLINE else column + 1
            state, quoted = _LEADING, False
        elif byte in (_SPACE, _TAB, _RETURN):
            if state == _FIRST:
                state = _OTHER
            elif state == _MORE:
                state = _TRAILING
        elif _ZERO <= byte <= _NINE and (state in (_FIRST, _MORE)):
            state = _MORE
        else:
            state = _FIRST if state == _LEADING and byte == _ZERO else _OTHER


def without_space_before_quotes(text: bytes, mark: str) -> bytes:
    """Return lines of fields separated by `mark` without the space between a separator and a quote."""
    out = np.empty(len(text), np.uint8)
    return out[: _copy_fields(np.frombuffer(text, np.uint8), ord(mark), out)].tobytes()


@njit(**UNCOUNTED)
def _copy_fields(text, mark, out):  # type: ignore[no-untyped-def]
    """Copy lines without the space before quotes at the beginning of fields; return the length of what was copied."""
    size = i = 0
    starts, quoted, inside = True, False, False
    while i < len(text):
        byte = text[i]
        if byte == _QUOTE and (quoted or starts):
            quoted, inside, starts = True, not inside, False
        elif not inside and (byte in (mark, _NEWLINE)):
            starts, quoted = True, False
        elif starts:
            k = i
            while k < len(text) and text[k] != mark and (text[k] in (_SPACE, _TAB)):
                k += 1
            starts = k < len(text) and text[k] == _QUOTE
            if starts:
                i = k
                continue
        out[size] = byte
        size += 1
        i += 1
    return size


@njit(error_model="numpy", **UNCOUNTED)
def read_plain(text, mark, kinds, places, values, gaps, padded, codes, table, words, sizes):  # type: ignore[no-untyped-def]
    """Read lines of plain fields in one pass; return whether there are n of them, and they hold nothing else.

    Plain are numbers that `decimal` reads, without space around them or a plus sign, empty fields, and text without
    quotes. Arrays that receive something begin with zeros, but for `values`, `codes` and `words`.

    text : (bytes,) uint8, lines that end in a newline.  mark : the byte that separates fields.
    kinds, places : (columns,) int64, what each column is, and its place among those of its kind.
    values : (m, n) float64, receives the columns of numbers, with NaN for empty fields.
    gaps, padded : (m,) int64 and bool, receive how many fields are empty, and if a whole number has a leading zero.
    codes : (c, n) int32, receives the number of each field's text among the different ones, by their first appearance.
    table : (c, at least 2 n, a power of two) int32, becomes a hash table of the numbers of texts, counted from 1.
    words : (c, n, 2) int32, receives where in `text` each different text begins and ends.
    sizes : (c,) int64, receives how many different texts there are.
    """
    row, i, last = 0, 0, len(kinds) - 1
    while i < text.size:
        if row == values.shape[1] or _ends_line(byte_at(text, i)):
            return False
        for column in range(len(kinds)):
            kind, place = kinds[column], places[column]
            start, byte = i, byte_at(text, i)
            # 1) A field of a column of numbers: a short one, an empty one, or any that `decimal` reads exactly.
            if kind == NUMBER:
                short, value, i = _short_decimal(text, start, mark)
                if not short:
                    if byte == mark or _ends_line(byte):
                        value, i = np.nan, start
                        gaps[place] += 1
                    else:
                        easy, value, i = decimal(text, start, mark)
                        if not easy or byte == _PLUS:
                            return False
                values[place, row] = value
                second = digit_at(text, start + 1)
                if (byte == _ZERO) & (second >= 0) & (second <= 9):  # a single branch, which is hardly ever taken
                    k = start
                    while 0 <= digit_at(text, k) <= 9:
                        k += 1
                    padded[place] |= k == i
            # 2) A field of text, which is hashed, or one that nobody needs.
            else:
                h = np.uint64(0)
                while byte != mark and not _ends_line(byte):
                    if byte == _QUOTE:
                        return False
                    h = (h ^ np.uint64(byte)) * _FACTOR  # FNV-1a
                    i += 1
                    byte = byte_at(text, i)
                if kind == TEXT:
                    code = _number_of(text, start, i, h, table[place], words[place], sizes, place)
                    if code < 0:
                        return False
                    codes[place, row] = code
            # 3) The separator before the next column.
            if column < last:
                if byte_at(text, i) != mark:
                    return False
                i += 1
        i += byte_at(text, i) == _RETURN
        if byte_at(text, i) != _NEWLINE:
            return False
        i += 1
        row += 1
    return row == values.shape[1]


@njit(error_model="numpy", **UNCOUNTED)
def _short_decimal(text, start, mark):  # type: ignore[no-untyped-def]
    """Read a field of at most 15 digits, faster than `decimal`; return whether it is one, the value, and its end."""
    negative = byte_at(text, start) == _MINUS
    i = start + negative
    mantissa = decimals = 0
    n_digits, digit = -i, digit_at(text, i)
    while 0 <= digit <= 9:
        mantissa = mantissa * 10 + digit
        i += 1
        digit = digit_at(text, i)
    n_digits += i
    if byte_at(text, i) == _POINT:
        i += 1
        decimals -= i
        digit = digit_at(text, i)
        while 0 <= digit <= 9:
            mantissa = mantissa * 10 + digit
            i += 1
            digit = digit_at(text, i)
        decimals += i
        n_digits += decimals
    byte = byte_at(text, i)
    short = (1 <= n_digits <= 15) & ((byte == mark) | _ends_line(byte))
    value = float(mantissa) / POWERS[np.uint64(min(decimals, 15))]  # both are exact
    return short, -value if negative else value, i


@njit(**UNCOUNTED)
def _ends_line(byte):  # type: ignore[no-untyped-def]
    return byte in (_NEWLINE, _RETURN)


@njit(**UNCOUNTED)
def _number_of(text, start, end, h, table, words, sizes, place):  # type: ignore[no-untyped-def]
    """Return the number of text[start:end], of hash h, among the different ones; -1 if too many share a place."""
    last = np.uint64(len(table) - 1)
    slot = (h * GOLDEN >> _HALF) & last
    met = 0
    while table[slot]:
        if met == MOST_MET:
            return -1
        met += 1
        code = table[slot] - 1
        first, size = words[code, 0], end - start
        if words[code, 1] - first == size:
            k = 0
            while k < size and byte_at(text, first + k) == byte_at(text, start + k):
                k += 1
            if k == size:
                return code
        slot = (slot + _ONE) & last
    code = sizes[place]
    sizes[place] += 1
    table[slot] = code + 1
    words[code, 0], words[code, 1] = start, end
    return code
