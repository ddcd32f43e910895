"""The compiled loops of coded rows: categories, whose codes are the stored ones.

A part of the rows is worked on strip by strip, and a strip block by block, so that the scores of the strip and the
table of a block stay in the caches. A *table* has a number for each code of a block: a piece of w for X w, or of X'c.

A code that is not below its limit counts as missing, so no code leads out of a table. The kernels check nothing else.
In all of them a part is given with first = 0, and vectors with a number for each row are those of the part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.matrix.blocks import Part
from distsms.utils.jit import njit

Array = NDArray[Any]

STRIP = 2**14
"""Rows of a strip: their scores take an eighth of a usual second-level cache."""
_TOGETHER = 2**13
"""Four blocks of at most so many codes each are looked up at a time, so that scores are read and written only once."""


@njit()
def term(value: Any, absolute: bool) -> Any:
    return abs(value) if absolute else value


@njit()
def complete(codes: Array, size: Any) -> bool:
    """Return whether all codes are below `size`."""
    return len(codes) == 0 or codes.max() < size


@njit()
def _four(codes: Array, b: int, offsets: Array) -> bool:
    """Return whether the blocks b..b + 3 exist and are small, and tables can have a place for each code of the type."""
    if codes.itemsize > 2 or b + 4 >= len(offsets):
        return False
    return np.max(offsets[b + 1 : b + 5] - offsets[b : b + 4]) <= _TOGETHER


@njit()
def _tables(codes: Array) -> Array:
    """Return tables of zeros for four blocks, with a place for each code of the type; pages not used take no memory."""
    return np.zeros((4, 1 << 8 * min(codes.itemsize, 2)))


@njit()
def _look_up_four(codes: Array, run: int, tables: Array, out: Array) -> None:
    n = len(out)
    c0, c1, c2, c3 = codes[:n], codes[run : run + n], codes[2 * run : 2 * run + n], codes[3 * run : 3 * run + n]
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    for r in range(n):
        out[r] += (t0[c0[r]] + t1[c1[r]]) + (t2[c2[r]] + t3[c3[r]])


@njit()
def _add_up_four(codes: Array, run: int, c: Array, tables: Array) -> None:
    n = len(c)
    c0, c1, c2, c3 = codes[:n], codes[run : run + n], codes[2 * run : 2 * run + n], codes[3 * run : 3 * run + n]
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    for r in range(n):
        x = c[r]  # not read again after each sum, which could be in the same array for all that the compiler knows
        t0[c0[r]] += x
        t1[c1[r]] += x
        t2[c2[r]] += x
        t3[c3[r]] += x


@njit()
def _look_up(codes: Array, w: Array, factor: float, absolute: bool, out: Array) -> None:
    size = len(w)
    for r in range(len(out)):
        if codes[r] < size:
            out[r] += term(factor * w[codes[r]], absolute)


@njit()
def _add_up(codes: Array, c: Array, factor: float, out: Array) -> None:
    size = len(out)
    for r in range(len(c)):
        if codes[r] < size:
            out[codes[r]] += factor * c[r]


@njit()
def dot_categories(
    codes: Array, part: Part, offsets: Array, factors: Array, absolute: bool, w: Array, out: Array
) -> None:
    """Set out[i] to the sum of factors[b] w[offsets[b] + code] over the blocks b, for the rows of a part.

    offsets : (B + 1,); factors : (B,); w : (p,); out : (rows,). With `absolute`, the absolute values are summed.
    """
    tables, filled = _tables(codes), np.zeros(4, np.int64)
    for first in range(0, part.last, STRIP):
        n, b, at = min(STRIP, part.last - first), 0, part.start + first
        s = out[first : first + n]
        s[:] = 0.0
        while b < len(factors):
            block = codes[at + b * part.run :]
            if _four(codes, b, offsets):
                for k in range(4):
                    table, piece = tables[k], w[offsets[b + k] : offsets[b + k + 1]]
                    for j in range(len(piece)):
                        table[j] = term(factors[b + k] * piece[j], absolute)
                    table[len(piece) : filled[k]] = 0.0
                    filled[k] = len(piece)
                _look_up_four(block, part.run, tables, s)
                b += 4
            else:
                _look_up(block, w[offsets[b] : offsets[b + 1]], factors[b], absolute, s)
                b += 1


@njit()
def add_categories(codes: Array, part: Part, offsets: Array, factors: Array, coefficients: Array, out: Array) -> None:
    """Add factors[b] c[i] to out[offsets[b] + code] for all rows i of a part and all blocks b. c : (rows,)."""
    tables = _tables(codes)
    for first in range(0, part.last, STRIP):
        n, b, at = min(STRIP, part.last - first), 0, part.start + first
        c = coefficients[first : first + n]
        while b < len(factors):
            block = codes[at + b * part.run :]
            if _four(codes, b, offsets):
                for k in range(4):
                    tables[k, : offsets[b + k + 1] - offsets[b + k]] = 0.0
                _add_up_four(block, part.run, c, tables)
                for k in range(4):
                    table, piece = tables[k], out[offsets[b + k] : offsets[b + k + 1]]
                    for j in range(len(piece)):
                        piece[j] += factors[b + k] * table[j]
                b += 4
            else:
                _add_up(block, c, factors[b], out[offsets[b] : offsets[b + 1]])
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
