"""The compiled loops of coded rows: categories, whose codes are the stored ones, and crosses of two blocks of them.

A part is worked on strip by strip, and a strip block by block, so that its scores and the *table* of a block, a number
for each code, stay in the caches. A code not below its limit counts as missing; kernels check nothing else. In all of
them a part has first = 0. `_cross` makes the codes of a cross for a strip, four crosses at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.matrix.blocks import Part

Array = NDArray[Any]

STRIP = 2**14
"""Rows of a strip: their scores take an eighth of a usual second-level cache."""
_LONG_STRIP = 2**18
"""Rows of a strip of categories: so many that making the tables of large blocks costs little beside using them."""
_WORTH = 16
"""Tables of so many places for each row pay."""
TOGETHER = 2**13
"""Four blocks of at most so many codes each are looked up at a time, so that scores are read and written only once."""


@njit()
def term(value: Any, absolute: bool) -> Any:
    return abs(value) if absolute else value


@njit()
def complete(codes: Array, size: Any) -> bool:
    return len(codes) == 0 or codes.max() < size


@njit()
def _places(codes: Array, rows: int) -> int:
    """Return the size of a table with a place for each code; 0 where none pays: for large codes, or few rows."""
    places = 1 << 8 * min(codes.itemsize, 2)
    return 0 if codes.itemsize > 2 or places > _WORTH * rows else places


@njit()
def _entry(code: Any, w: Array, factor: float, absolute: bool) -> Any:
    if code < len(w):
        return term(factor * w[code], absolute)
    return 0.0


@njit()
def _look_up_few(codes: Array, run: int, w: Array, offsets: Array, factors: Array, absolute: bool, out: Array) -> None:
    """Do without tables what `look_up_four` does, with the same result to the last digit."""
    w0, w1 = w[offsets[0] : offsets[1]], w[offsets[1] : offsets[2]]
    w2, w3 = w[offsets[2] : offsets[3]], w[offsets[3] : offsets[4]]
    for r in range(len(out)):
        left = _entry(codes[r], w0, factors[0], absolute) + _entry(codes[r + run], w1, factors[1], absolute)
        k = r + 2 * run
        out[r] += left + (_entry(codes[k], w2, factors[2], absolute) + _entry(codes[k + run], w3, factors[3], absolute))


@njit()
def look_up_four(codes: Array, run: int, tables: Array, out: Array) -> None:
    n = len(out)
    c0, c1, c2, c3 = codes[:n], codes[run : run + n], codes[2 * run : 2 * run + n], codes[3 * run : 3 * run + n]
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    for r in range(n):
        out[r] += (t0[c0[r]] + t1[c1[r]]) + (t2[c2[r]] + t3[c3[r]])


@njit()
def add_up_four(codes: Array, run: int, c: Array, tables: Array) -> None:
    n = len(c)
    c0, c1, c2, c3 = codes[:n], codes[run : run + n], codes[2 * run : 2 * run + n], codes[3 * run : 3 * run + n]
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    for r in range(n):
        x = c[r]
        t0[c0[r]] += x
        t1[c1[r]] += x
        t2[c2[r]] += x
        t3[c3[r]] += x


@njit()
def look_up(codes: Array, w: Array, factor: float, absolute: bool, out: Array) -> None:
    for r in range(len(out)):
        out[r] += _entry(codes[r], w, factor, absolute)


@njit()
def add_up(codes: Array, c: Array, factor: float, out: Array) -> None:
    size = len(out)
    for r in range(len(c)):
        if codes[r] < size:
            out[codes[r]] += factor * c[r]


@njit()
def dot_categories(
    codes: Array, part: Part, offsets: Array, factors: Array, absolute: bool, w: Array, out: Array
) -> None:
    """Set out[i] to the sum of factors[b] w[offsets[b] + code], or of their sizes, over blocks b, for a part's rows."""
    tables, filled = np.zeros((4, _places(codes, part.last))), np.zeros(4, np.int64)
    for first in range(0, part.last, _LONG_STRIP):
        n, b, at = min(_LONG_STRIP, part.last - first), 0, part.start + first
        s = out[first : first + n]
        s[:] = 0.0
        while b < len(factors):
            block = codes[at + b * part.run :]
            if b + 4 >= len(offsets):  # fewer than four blocks are left
                look_up(block, w[offsets[b] : offsets[b + 1]], factors[b], absolute, s)
                b += 1
                continue
            if tables.shape[1] == 0:
                _look_up_few(block, part.run, w, offsets[b:], factors[b:], absolute, s)
            else:
                for k in range(4):
                    table, piece = tables[k], w[offsets[b + k] : offsets[b + k + 1]]
                    for j in range(len(piece)):
                        table[j] = term(factors[b + k] * piece[j], absolute)
                    table[len(piece) : filled[k]] = 0.0
                    filled[k] = len(piece)
                look_up_four(block, part.run, tables, s)
            b += 4


@njit()
def add_categories(codes: Array, part: Part, offsets: Array, factors: Array, coefficients: Array, out: Array) -> None:
    """Add factors[b] c[i] to out[offsets[b] + code] for all rows i of a part and all blocks b. c : (rows,)."""
    tables = np.empty((4, _places(codes, part.last)))  # what is added to the places of missing codes is not read
    for first in range(0, part.last, _LONG_STRIP):
        n, b, at = min(_LONG_STRIP, part.last - first), 0, part.start + first
        c = coefficients[first : first + n]
        while b < len(factors):
            block = codes[at + b * part.run :]
            if tables.shape[1] and b + 4 < len(offsets):
                for k in range(4):
                    tables[k, : offsets[b + k + 1] - offsets[b + k]] = 0.0
                add_up_four(block, part.run, c, tables)
                for k in range(4):
                    table, piece = tables[k], out[offsets[b + k] : offsets[b + k + 1]]
                    for j in range(len(piece)):
                        piece[j] += factors[b + k] * table[j]
                b += 4
            else:
                add_up(block, c, factors[b], out[offsets[b] : offsets[b + 1]])
                b += 1


@njit()
def squares_of_categories(codes: Array, part: Part, offsets: Array, factors: Array, out: Array) -> None:
    """Set out[i] to the sum of factors[b]^2 over the blocks whose code is not missing, for the rows of a part."""
    for first in range(0, part.last, STRIP):
        n = min(STRIP, part.last - first)
        s = out[first : first + n]
        s[:] = 0.0
        for b in range(len(factors)):
            start, size = part.start + first + b * part.run, offsets[b + 1] - offsets[b]
            c, square = codes[start : start + n], factors[b] ** 2
            for r in range(n):
                s[r] += square if c[r] < size else 0.0


@njit()
def raise_largest(counts: Array, first: int, last: int, value: float, largest: Array) -> None:
    """Raise largest[j] to a value for the columns first..last - 1 that have entries."""
    there, here = counts[first:last], largest[first:last]
    for j in range(len(here)):
        here[j] = max(here[j], value) if there[j] > 0 else here[j]


NONE = 2**32 - 1  # the code of a cross, in four bytes, of a row that has none
_ROWS_OF_TABLES = 512  # tables pay if a part has at least so many rows


class Pairs(NamedTuple):
    """The crosses of `Crosses`."""

    blocks: Array  # (crosses, 2) int64: the blocks a and b of each cross
    sizes: Array  # (blocks,) int64: the number of codes of each block
    offsets: Array  # (crosses + 1,) int64: the first column of each cross, and the first after them


@njit()
def _complete_blocks(codes: Array, part: Part, first: int, n: int, sizes: Array) -> Array:
    """Return for each block whether no code of a strip is missing."""
    filled = np.empty(len(sizes), np.bool_)
    for b in range(len(sizes)):
        at = part.start + first + b * part.run
        filled[b] = complete(codes[at : at + n], sizes[b])
    return filled


@njit()
def _cross(
    codes: Array, part: Part, first: int, pairs: Pairs, k: int, complete: Array, missing: int, out: Array
) -> None:
    """Set `out` to the codes of cross k for the rows of a strip, and to `missing` where a row has none."""
    n, a, b = len(out), pairs.blocks[k, 0], pairs.blocks[k, 1]
    at, beside = part.start + first + a * part.run, part.start + first + b * part.run
    c, d = codes[at : at + n], codes[beside : beside + n]
    here, size = pairs.sizes[a], pairs.sizes[b]
    if complete[a] and complete[b]:
        for r in range(n):
            out[r] = c[r] * size + d[r]
    else:
        for r in range(n):
            out[r] = c[r] * size + d[r] if c[r] < here and d[r] < size else missing


@njit()
def _four_small(k: int, offsets: Array) -> bool:
    """Return whether the crosses k..k + 3 exist and are small."""
    return k + 4 < len(offsets) and np.max(offsets[k + 1 : k + 5] - offsets[k : k + 4]) <= TOGETHER


@njit()
def dot_crosses(codes: Array, part: Part, pairs: Pairs, absolute: bool, w: Array, out: Array) -> None:
    """Add to out[i] the sum, perhaps of absolute values, of w (p,) over the columns of the crosses that row i has."""
    offsets, tables = pairs.offsets, np.zeros((4, TOGETHER + 1))
    for first in range(0, part.last, STRIP):
        n, k = min(STRIP, part.last - first), 0
        s, complete = out[first : first + n], _complete_blocks(codes, part, first, n, pairs.sizes)
        four_codes, cross_codes = np.empty(4 * n, np.uint16), np.empty(n, np.uint32)
        while k < len(pairs.blocks):
            if part.last < _ROWS_OF_TABLES or not _four_small(k, offsets):
                _cross(codes, part, first, pairs, k, complete, NONE, cross_codes)
                look_up(cross_codes, w[offsets[k] : offsets[k + 1]], 1.0, absolute, s)
                k += 1
                continue
            for j in range(4):
                _cross(codes, part, first, pairs, k + j, complete, TOGETHER, four_codes[j * n : (j + 1) * n])
                table, piece = tables[j], w[offsets[k + j] : offsets[k + j + 1]]
                for c in range(len(piece)):
                    table[c] = term(piece[c], absolute)
            look_up_four(four_codes, n, tables, s)
            k += 4


@njit()
def add_crosses(codes: Array, part: Part, pairs: Pairs, coefficients: Array, out: Array) -> None:
    """Add c[i] to `out` (p,) in the columns of the crosses that row i has, for all rows of a part."""
    offsets, tables = pairs.offsets, np.zeros((4, TOGETHER + 1))
    for first in range(0, part.last, STRIP):
        n, k = min(STRIP, part.last - first), 0
        c, complete = coefficients[first : first + n], _complete_blocks(codes, part, first, n, pairs.sizes)
        four_codes, cross_codes = np.empty(4 * n, np.uint16), np.empty(n, np.uint32)
        while k < len(pairs.blocks):
            if part.last < _ROWS_OF_TABLES or not _four_small(k, offsets):
                _cross(codes, part, first, pairs, k, complete, NONE, cross_codes)
                add_up(cross_codes, c, 1.0, out[offsets[k] : offsets[k + 1]])
                k += 1
                continue
            for j in range(4):
                _cross(codes, part, first, pairs, k + j, complete, TOGETHER, four_codes[j * n : (j + 1) * n])
                tables[j, : offsets[k + j + 1] - offsets[k + j]] = 0.0
            add_up_four(four_codes, n, c, tables)
            for j in range(4):
                table, piece = tables[j], out[offsets[k + j] : offsets[k + j + 1]]
                for i in range(len(piece)):
                    piece[i] += table[i]
            k += 4


@njit()
def lengths_of_crosses(codes: Array, part: Part, pairs: Pairs, out: Array) -> None:
    """Set out[i] to the length of row i with its blocks and crosses, for the rows of a part."""
    for first in range(0, part.last, STRIP):
        n = min(STRIP, part.last - first)
        s, there = out[first : first + n], np.empty((len(pairs.sizes), n), np.bool_)
        s[:] = 0.0
        for b in range(len(pairs.sizes)):
            at = part.start + first + b * part.run
            there[b] = codes[at : at + n] < pairs.sizes[b]
            s += there[b]
        for k in range(len(pairs.blocks)):
            s += there[pairs.blocks[k, 0]] & there[pairs.blocks[k, 1]]
        s[:] = np.sqrt(s)
