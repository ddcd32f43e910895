"""Sort scores together with their rows.

NumPy's stable sort merges runs that are sorted already. It is the fastest where few scores have changed their places
since the last evaluation. Where many have, as they do in most evaluations, a radix sort takes a third of the time
(Knuth, The Art of Computer Programming, volume 3, section 5.2.5). The bits of a float64, read as a whole number, are in
the order of the numbers, once those of negative numbers are reversed. They are sorted by their last eight bits, then by
the eight bits before these, and so on; each pass keeps the order of equal digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.utils.jit import njit
from distsms.utils.typing import Floats

LEAST, APART, FALLS = 2**13, 32, 0.25
"""Radix sort is faster from about LEAST numbers on, if a share FALLS of them are below the one APART places before."""
PASSES, DIGIT, LAST = 8, np.uint64(8), np.uint64(255)
"""The digits of a number, the bits of a digit, and the largest digit."""
SIGN, ALL = np.uint64(2**63), np.uint64(2**64 - 1)


def sort_with_rows(values: Floats, rows: NDArray[Any]) -> NDArray[Any]:
    """Sort numbers in place, ascending, and return their rows in the same order. Local.

    Parameters
    ----------
    values : (m,) float64
        The numbers, C-contiguous. Equal ones stay in their order. If some are NaN, all of them may come in any order.
    rows : (m,) int
        The row of each number.

    Notes
    -----
    O(m) time where radix sort is used. Up to 32 bytes of memory for each number.
    """
    if len(values) >= LEAST and np.count_nonzero(values[APART:] < values[:-APART]) >= FALLS * len(values):
        values += 0.0  # makes 0.0 of -0.0, which is equal but has other bits
        return radix_sort(values.view(np.uint64), rows)
    order = np.argsort(values, kind="stable")
    values[:] = values[order]
    return rows[order]


def radix_sort(bits: NDArray[np.uint64], rows: NDArray[Any]) -> NDArray[Any]:
    """Sort numbers, given by their bits (m,), in place, and return their rows (m,) in the same order. Local."""
    ordered, counts = rows.copy(), np.zeros((PASSES, int(LAST) + 1), np.int64)
    _radix_sort(bits, counts, np.empty_like(bits), ordered, np.empty_like(bits), np.empty_like(rows))
    return ordered


@njit()
def _radix_sort(bits, counts, keys, rows, other_keys, other_rows):  # type: ignore[no-untyped-def]
    # PASSES is even, so that the last pass writes into the keys and rows that were given.
    for i in range(len(bits)):
        key = bits[i] ^ (SIGN if bits[i] < SIGN else ALL)
        keys[i] = key
        for place in range(PASSES):
            counts[place, key & LAST] += 1
            key >>= DIGIT
    for place in range(PASSES):
        shift, begin, total = DIGIT * np.uint64(place), counts[place], 0
        for digit in range(len(begin)):
            begin[digit], total = total, total + begin[digit]
        for i in range(len(keys)):
            digit = (keys[i] >> shift) & LAST
            other_keys[begin[digit]], other_rows[begin[digit]] = keys[i], rows[i]
            begin[digit] += 1
        keys, other_keys, rows, other_rows = other_keys, keys, other_rows, rows
    for i in range(len(keys)):
        bits[i] = keys[i] ^ (SIGN if keys[i] >= SIGN else ALL)
