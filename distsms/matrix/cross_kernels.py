"""The compiled loops of coded rows: crosses of two blocks of categories, whose codes are made from those of the blocks.

A part of the rows is worked on strip by strip, and a strip four crosses at a time. `_cross` makes the codes of a cross
for the rows of the strip, which stay in the cache, and the loops of `distsms.matrix.coded_kernels` look them up and add
to them. That module also says how parts and vectors are given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.matrix.blocks import Part
from distsms.matrix.coded_kernels import STRIP, TOGETHER, add_up, add_up_four, complete, look_up, look_up_four, term

Array = NDArray[Any]

NONE = 2**32 - 1
"""The code of a cross, in four bytes, of a row that has none."""
_WORTH = 512
"""Tables pay if a part has at least so many rows."""


class Pairs(NamedTuple):
    """The crosses of `Crosses`."""

    blocks: Array  # (crosses, 2) int64: the blocks a and b of each cross
    sizes: Array  # (blocks,) int64: the number of codes of each block
    offsets: Array  # (crosses + 1,) int64: the first column of each cross, and the first after them


@njit()
def _known(codes: Array, part: Part, first: int, n: int, sizes: Array) -> Array:
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
def _four(k: int, offsets: Array) -> bool:
    """Return whether the crosses k..k + 3 exist and are small."""
    return k + 4 < len(offsets) and np.max(offsets[k + 1 : k + 5] - offsets[k : k + 4]) <= TOGETHER


@njit()
def dot_crosses(codes: Array, part: Part, pairs: Pairs, absolute: bool, w: Array, out: Array) -> None:
    """Add to out[i] the sum of w over the columns of the crosses that row i has, for the rows of a part.

    w : (p,), of all columns; out : (rows,). With `absolute`, the absolute values are summed.
    """
    offsets, tables = pairs.offsets, np.zeros((4, TOGETHER + 1))
    for first in range(0, part.last, STRIP):
        n, k = min(STRIP, part.last - first), 0
        s, complete = out[first : first + n], _known(codes, part, first, n, pairs.sizes)
        few, many = np.empty(4 * n, np.uint16), np.empty(n, np.uint32)
        while k < len(pairs.blocks):
            if part.last < _WORTH or not _four(k, offsets):
                _cross(codes, part, first, pairs, k, complete, NONE, many)
                look_up(many, w[offsets[k] : offsets[k + 1]], 1.0, absolute, s)
                k += 1
                continue
            for j in range(4):
                _cross(codes, part, first, pairs, k + j, complete, TOGETHER, few[j * n : (j + 1) * n])
                table, piece = tables[j], w[offsets[k + j] : offsets[k + j + 1]]
                for c in range(len(piece)):
                    table[c] = term(piece[c], absolute)
            look_up_four(few, n, tables, s)
            k += 4


@njit()
def add_crosses(codes: Array, part: Part, pairs: Pairs, coefficients: Array, out: Array) -> None:
    """Add c[i] to `out` in the columns of the crosses that row i has, for all rows of a part.

    coefficients : (rows,); out : (p,), of all columns.
    """
    offsets, tables = pairs.offsets, np.zeros((4, TOGETHER + 1))
    for first in range(0, part.last, STRIP):
        n, k = min(STRIP, part.last - first), 0
        c, complete = coefficients[first : first + n], _known(codes, part, first, n, pairs.sizes)
        few, many = np.empty(4 * n, np.uint16), np.empty(n, np.uint32)
        while k < len(pairs.blocks):
            if part.last < _WORTH or not _four(k, offsets):
                _cross(codes, part, first, pairs, k, complete, NONE, many)
                add_up(many, c, 1.0, out[offsets[k] : offsets[k + 1]])
                k += 1
                continue
            for j in range(4):
                _cross(codes, part, first, pairs, k + j, complete, TOGETHER, few[j * n : (j + 1) * n])
                tables[j, : offsets[k + j + 1] - offsets[k + j]] = 0.0
            add_up_four(few, n, c, tables)
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
