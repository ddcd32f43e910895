"""The compiled pass over svmlight text: a state machine on bytes, used by `distsms.ingest.formats.svmlight`.

Texts end in a newline, at which every loop over a field stops, so no loop has to look for the end of the text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import UNCOUNTED, njit

MAX_INDEX = 2**62
"""The largest index that is accepted; the sum of two indices then never overflows."""
BAD_ENTRY, BASE, ORDER, LARGE, WIDE = 1, 2, 3, 4, 5
"""The codes of the faults that `scan` finds. WIDE is an index that needs 64 bits."""

_TAB, _NEWLINE, _RETURN, _SPACE, _HASH = 9, 10, 13, 32, 35
_PLUS, _MINUS, _POINT, _ZERO, _COLON = 43, 45, 46, 48, 58
_UPPER_E, _LOWER_E = 69, 101
_Q, _I, _D = 113, 105, 100
_EXACT_INTEGERS = 2**53  # all integers up to here, and powers of ten up to 10^22, are exact doubles
_LARGEST_MANTISSA = 9 * 10**18  # the double nearest to it still fits in an int64
POWERS = np.array([float(f"1e{power}") for power in range(23)])
_SPLIT = 134217729.0  # 2^27 + 1


class Scan(NamedTuple):
    """What `scan` returns."""

    fault: int  # one of the codes, or 0
    at: int  # where the pass ended: at the fault, or at the end of the text
    rows: int
    entries: int
    hard: int  # the number of numbers that are left to Python
    columns: int
    queries: int  # the number of query ids


@njit(**UNCOUNTED)
def byte_at(text: NDArray[np.uint8], i: int) -> Any:
    """Return text[i]. An unsigned place needs no test of whether it counts from the end."""
    return text[np.uint64(i)]


@njit(**UNCOUNTED)
def _ends_field(byte: int, mark: int) -> bool:
    return byte in (mark, _SPACE, _NEWLINE, _TAB, _RETURN, _HASH)


@njit(**UNCOUNTED)
def _ends_row(text: NDArray[np.uint8], i: int) -> bool:
    """Whether nothing but a comment follows. A carriage return counts only if a newline follows it."""
    return byte_at(text, i) in (_NEWLINE, _HASH) or (byte_at(text, i) == _RETURN and byte_at(text, i + 1) == _NEWLINE)


@njit(error_model="numpy", **UNCOUNTED)
def _divide(mantissa: int, power: float) -> tuple[bool, float]:
    """Divide an int64 above 2^53 by an exact power of ten; return whether its rounding is proved, and the result.

    high + low is the mantissa and high = q power + r, all of them exactly (Dekker's product), so that the quotient is q
    + (r + low) / power. The last term carries a relative error below 2^-51. If a change of the last term by 2^-48
    either way does not change the rounded sum, that sum is the correctly rounded quotient.
    """
    high = float(mantissa)
    low = float(mantissa - np.int64(high))
    q = high / power
    scaled = q * _SPLIT
    q1 = scaled - (scaled - q)
    q2 = q - q1
    scaled = power * _SPLIT
    p1 = scaled - (scaled - power)
    p2 = power - p1
    product = q * power
    error = ((q1 * p1 - product) + q1 * p2 + q2 * p1) + q2 * p2
    term = (((high - product) - error) + low) / power
    change = abs(term) * 2.0**-48
    value = q + term
    return (q + (term - change)) == value and (q + (term + change)) == value, value


@njit(**UNCOUNTED)
def digit_at(text: NDArray[np.uint8], i: int) -> Any:
    """Return the digit at i, below 0 or above 9 if there is none; as int64, for NumPy 2 without Numba."""
    return np.int64(byte_at(text, i)) - _ZERO


@njit(**UNCOUNTED)
def digits(text: NDArray[np.uint8], i: int, number: Any) -> tuple[Any, Any]:
    """Return the number whose digits are those of `number` and then those from i on, and where these end."""
    digit = digit_at(text, i)
    while 0 <= digit <= 9:
        number = number * 10 + digit
        i += 1
        digit = digit_at(text, i)
    return number, i


@njit(error_model="numpy", **UNCOUNTED)
def decimal(text: NDArray[np.uint8], start: int, mark: int) -> tuple[bool, float, int]:
    """Read the number at `start` (`mark` ends fields, too); return whether `float` would agree, the value, its end."""
    i = start
    byte = byte_at(text, i)
    negative = byte == _MINUS
    if negative or byte == _PLUS:
        i += 1
        byte = byte_at(text, i)
    # 1) The digits before and after the point.
    digits_at = i
    mantissa, i = digits(text, i, 0)
    n_digits = i - digits_at
    exponent = 0
    if byte_at(text, i) == _POINT:
        point_at = i + 1
        mantissa, i = digits(text, point_at, mantissa)
        exponent = point_at - i
        n_digits -= exponent
    # 2) The exponent, and whatever follows before the end of the field.
    easy = n_digits > 0
    if byte_at(text, i) == _LOWER_E or byte_at(text, i) == _UPPER_E:
        i += 1
        negative_power = byte_at(text, i) == _MINUS
        if negative_power or byte_at(text, i) == _PLUS:
            i += 1
        power_at = i
        power, i = digits(text, i, 0)
        easy = easy and 0 < i - power_at <= 4  # Python reads longer ones, which may have overflowed
        exponent += -power if negative_power else power
    while not _ends_field(byte_at(text, i), mark):
        easy = False
        i += 1
    if n_digits > 18:  # leading zeros do not count; a mantissa of 19 digits that overflowed is negative
        while byte_at(text, digits_at) == _ZERO or byte_at(text, digits_at) == _POINT:
            n_digits -= byte_at(text, digits_at) == _ZERO
            digits_at += 1
        easy = easy and (n_digits <= 18 or (n_digits == 19 and 0 < mantissa <= _LARGEST_MANTISSA))
    # 3) The value, where one rounding of exact numbers gives it.
    value = 0.0
    if easy and mantissa:
        if exponent == 0:
            value = float(mantissa)
        elif exponent < -22 or exponent > 22:
            easy = False
        elif mantissa <= _EXACT_INTEGERS:
            value = mantissa / POWERS[-exponent] if exponent < 0 else mantissa * POWERS[exponent]
        elif exponent < 0:
            easy, value = _divide(mantissa, POWERS[-exponent])
        else:
            easy = False
    return easy, -value if negative else value, i


@njit(error_model="numpy", **UNCOUNTED)
def short_decimal(text: NDArray[np.uint8], start: int, mark: int) -> tuple[bool, float, int]:
    """Read a field of at most 15 digits, faster than `decimal`; return whether it is one, the value, and its end."""
    negative = byte_at(text, start) == _MINUS
    mantissa, i = digits(text, start + negative, 0)
    n_digits, decimals = i - start - negative, 0
    if byte_at(text, i) == _POINT:
        point_at = i + 1
        mantissa, i = digits(text, point_at, mantissa)
        decimals = i - point_at
        n_digits += decimals
    byte = byte_at(text, i)
    short = (1 <= n_digits <= 15) & ((byte == mark) | (byte == _NEWLINE) | (byte == _RETURN))
    value = float(mantissa) / POWERS[np.uint64(min(decimals, 15))]  # both are exact
    return short, -value if negative else value, i


@njit(**UNCOUNTED)
def _is_index(text: NDArray[np.uint8], start: int, end: int) -> bool:
    """Whether these digits make an index of at most MAX_INDEX."""
    index = 0
    for k in range(start, end):
        if index > MAX_INDEX // 10:
            return False
        index = index * 10 + digit_at(text, k)
    return index <= MAX_INDEX


@njit(**UNCOUNTED)
def _after_query(text: NDArray[np.uint8], start: int) -> tuple[int, int]:
    """Read `qid:` and digits: return the field's end (`start` if there is none) and the id (at most MAX_INDEX + 1)."""
    if text[start] != _Q or text[start + 1] != _I or text[start + 2] != _D or text[start + 3] != _COLON:
        return start, -1
    number, i = digits(text, start + 4, 0)
    number = number if _is_index(text, start + 4, i) else MAX_INDEX + 1
    return (i if i > start + 4 and _ends_field(text[i], _SPACE) else start), number


@njit(**UNCOUNTED)
def scan(text, first, base, largest, labels, indptr, indices, data, hard, queries):  # type: ignore[no-untyped-def]
    """Fill the arrays from `text[first:]`, up to its end or its first fault; return what `Scan` says.

    text : (bytes,) uint8, lines, the last of which ends in a newline.  base : the index of the first column, 0 or 1.
    labels, indptr, indices, data : receive the rows in CSR form (float64, int64, int32 or int64, float64), with columns
    up to `largest`.
    hard : (rows + entries, 2) int64, receives (position, slot) of each number that is left to Python; the slot is a
    place in `data`, or -1 - row for a label.
    queries : (rows,) int64, receives the query id of each row, or -1.
    """
    n_queries = 0
    n = 0
    nnz = 0
    n_hard = 0
    last = base - 1
    i = first
    while i < text.size:
        while byte_at(text, i) == _SPACE or byte_at(text, i) == _TAB:
            i += 1
        if not _ends_row(text, i):
            # 1) The label.
            easy, value, end = decimal(text, i, _SPACE)
            labels[n] = value
            if not easy:
                hard[n_hard, 0] = i
                hard[n_hard, 1] = -1 - n
                n_hard += 1
            i = end
            previous = base - 1
            has_query = False
            queries[n] = -1
            while True:
                while byte_at(text, i) == _SPACE or byte_at(text, i) == _TAB:
                    i += 1
                at = i
                other = not 0 <= digit_at(text, i) <= 9
                if other and _ends_row(text, i):
                    break
                # 2) A query id, which may only come before the first entry.
                if other and not has_query and previous < base:
                    i, number = _after_query(text, at)
                    if i > at:
                        has_query = True
                        queries[n] = number
                        n_queries += 1
                        continue
                # 3) The index of an entry, above the one before it.
                index, i = digits(text, i, 0)
                if i - at > 18 and not _is_index(text, at, i):
                    return LARGE, at, n, nnz, n_hard, 0, n_queries
                if i == at or byte_at(text, i) != _COLON:
                    return BAD_ENTRY, at, n, nnz, n_hard, 0, n_queries
                if index <= previous:
                    return BASE if index < base else ORDER, at, n, nnz, n_hard, 0, n_queries
                # 4) Its value; zeros are not stored.
                if index - base > largest:
                    return WIDE, at, n, nnz, n_hard, 0, n_queries
                previous = index
                i += 1
                easy, value, end = short_decimal(text, i, _SPACE)
                if not easy:
                    easy, value, end = decimal(text, i, _SPACE)
                indices[nnz] = index - base
                data[nnz] = value
                if easy:
                    nnz += value != 0
                else:
                    hard[n_hard, 0] = i
                    hard[n_hard, 1] = nnz
                    n_hard += 1
                    nnz += 1
                i = end
            last = max(last, previous)
            n += 1
            indptr[n] = nnz
        while byte_at(text, i) != _NEWLINE:
            i += 1
        i += 1
    return 0, i, n, nnz, n_hard, last - base + 1, n_queries
