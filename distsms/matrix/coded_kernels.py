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
"""Four blocks of at most so many codes each are looked up at a time, which reads and writes the scores once."""


@njit()
def term(value: Any, absolute: bool) -> Any:
    return abs(value) if absolute else value


@njit()
def complete(codes: Array, size: Any) -> bool:
    """Return whether all codes are below `size`."""
    largest = np.uint32(0)
    for code in codes:
        largest = max(largest, np.uint32(code))
    return len(codes) == 0 or largest < size


@njit()
def _four(codes: Array, run: int, b: int, at: int, n: int, offsets: Array) -> bool:
    """Return whether the blocks b..b + 3 are small and none of their codes in a strip is missing."""
    if b + 4 >= len(offsets):
        return False
    for k in range(b, b + 4):
        size, start = offsets[k + 1] - offsets[k], at + k * run
        if size > _TOGETHER or not complete(codes[start : start + n], size):
            return False
    return True


@njit()
def dot_categories(
    codes: Array, part: Part, offsets: Array, factors: Array, absolute: bool, w: Array, out: Array
) -> None:
    """Set out[i] to the sum of factors[b] w[offsets[b] + code] over the blocks b, for the rows of a part.

    offsets : (B + 1,); factors : (B,); w : (p,), whose absolute values are used with `absolute`; out : (n_local,).
    """
    run = part.run
    for first in range(part.first, part.last, STRIP):
        n, b, at = min(STRIP, part.last - first), 0, part.start + first - part.first
        s = out[first : first + n]
        s[:] = 0.0
        while b < len(factors):
            start = at + b * run
            c0, w0, v0 = codes[start : start + n], w[offsets[b] : offsets[b + 1]], factors[b]
            if _four(codes, run, b, at, n, offsets):
                c1, w1, v1 = codes[start + run : start + run + n], w[offsets[b + 1] : offsets[b + 2]], factors[b + 1]
                start += 2 * run
                c2, w2, v2 = codes[start : start + n], w[offsets[b + 2] : offsets[b + 3]], factors[b + 2]
                c3, w3, v3 = codes[start + run : start + run + n], w[offsets[b + 3] : offsets[b + 4]], factors[b + 3]
                for r in range(n):
                    s[r] += (term(v0 * w0[c0[r]], absolute) + term(v1 * w1[c1[r]], absolute)) + (
                        term(v2 * w2[c2[r]], absolute) + term(v3 * w3[c3[r]], absolute)
                    )
                b += 4
                continue
            size = len(w0)
            for r in range(n):
                if c0[r] < size:
                    s[r] += term(v0 * w0[c0[r]], absolute)
            b += 1


@njit()
def add_categories(codes: Array, part: Part, offsets: Array, factors: Array, coefficients: Array, out: Array) -> None:
    """Add factors[b] c[i] to out[offsets[b] + code] for all rows i of a part and all blocks b. c : (n_local,)."""
    run = part.run
    for first in range(part.first, part.last, STRIP):
        n, b, at = min(STRIP, part.last - first), 0, part.start + first - part.first
        c = coefficients[first : first + n]
        while b < len(factors):
            start = at + b * run
            c0, t0, v0 = codes[start : start + n], out[offsets[b] : offsets[b + 1]], factors[b]
            if _four(codes, run, b, at, n, offsets):
                c1, t1, v1 = codes[start + run : start + run + n], out[offsets[b + 1] : offsets[b + 2]], factors[b + 1]
                start += 2 * run
                c2, t2, v2 = codes[start : start + n], out[offsets[b + 2] : offsets[b + 3]], factors[b + 2]
                c3, t3, v3 = codes[start + run : start + run + n], out[offsets[b + 3] : offsets[b + 4]], factors[b + 3]
                for r in range(n):
                    t0[c0[r]] += v0 * c[r]
                    t1[c1[r]] += v1 * c[r]
                    t2[c2[r]] += v2 * c[r]
                    t3[c3[r]] += v3 * c[r]
                b += 4
                continue
            size = len(t0)
            for r in range(n):
                if c0[r] < size:
                    t0[c0[r]] += v0 * c[r]
            b += 1


@njit()
def squares_of_categories(codes: Array, part: Part, offsets: Array, factors: Array, out: Array) -> None:
    """Set out[i] to the sum of factors[b]^2 over the blocks whose code is not missing, for the rows of a part."""
    for first in range(part.first, part.last, STRIP):
        n = min(STRIP, part.last - first)
        s = out[first : first + n]
        s[:] = 0.0
        for b in range(len(factors)):
            start, size = part.start + first - part.first + b * part.run, offsets[b + 1] - offsets[b]
            c, square = codes[start : start + n], factors[b] ** 2
            for r in range(n):
                s[r] += square if c[r] < size else 0.0
