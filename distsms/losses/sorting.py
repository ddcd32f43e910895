"""Sort scores together with their rows.

NumPy's stable sort is the fastest where few scores have changed places since the last evaluation. Else a radix sort
takes a fifth of the time (Knuth, volume 3, section 5.2.5): of the scores as float32, whose bits are in the order of the
numbers once those of negative ones are reversed, eight bits at a time from the last. The few scores that are then out
of order are moved one by one; where there are many, NumPy sorts after all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import UNCOUNTED, njit
from distsms.base.typing import Floats

LEAST, APART, FALLS = 2**13, 32, 0.25
"""Radix sort is worth compiling from about LEAST numbers on, if a share FALLS is below the one APART places before."""
DIGITS, DIGIT, LAST = 4, np.uint64(8), np.uint64(255)
"""The digits of a number, the bits of a digit, and the largest digit."""
MOVES = 4  # numbers are moved one by one at most so many times for each of them
HALF, SIGN = np.uint64(32), np.uint32(2**31)


def sort_with_rows(values: Floats, rows: NDArray[Any]) -> NDArray[Any]:
    """Sort numbers in place, ascending and stable, and return their rows alike; with NaN in any order. Local; O(m)."""
    falling = len(values) >= LEAST and np.count_nonzero(values[APART:] < values[:-APART]) >= FALLS * len(values)
    if falling and len(values) < 2**32:
        values += 0.0  # makes 0.0 of -0.0, which is equal but has other bits
        in_order = radix_sort(values, rows)
        if in_order is not None:
            values[:] = in_order[0]
            return in_order[1]
    order = np.argsort(values, kind="stable")
    values[:] = values[order]
    return rows[order]


def radix_sort(values: Floats, rows: NDArray[Any]) -> tuple[Floats, NDArray[Any]] | None:
    """Return numbers (m,) in order, and their rows (m,), or None if they are too close together. Local."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    counts, keys, others = np.zeros((DIGITS, int(LAST) + 1), np.int64), *np.empty((2, len(values)), np.uint64)
    ordered, order = np.empty_like(values), np.empty(len(values), np.uint32)
    return (ordered, rows[order]) if _radix_sort(bits, values, counts, keys, others, ordered, order) else None


@njit(**UNCOUNTED)
def _radix_sort(bits, values, counts, keys, others, ordered, order):  # type: ignore[no-untyped-def]
    for i in range(len(bits)):
        key = np.uint64(~bits[i] if bits[i] & SIGN else bits[i] | SIGN)
        keys[i] = key << HALF | np.uint64(i)
        for place in range(DIGITS):
            counts[place, key & LAST] += 1
            key >>= DIGIT
    for place in range(DIGITS):  # an even number, so that the last pass writes into `keys`
        shift, begin, total = HALF + DIGIT * np.uint64(place), counts[place], 0
        for digit in range(len(begin)):
            begin[digit], total = total, total + begin[digit]
        for i in range(len(keys)):
            digit = (keys[i] >> shift) & LAST
            others[begin[digit]] = keys[i]
            begin[digit] += 1
        keys, others = others, keys
    left = MOVES * len(keys)
    for i in range(len(keys)):
        at = keys[i] & np.uint64(2**32 - 1)
        value, j = values[at], i
        while j > 0 and ordered[j - 1] > value and left > 0:
            ordered[j], order[j] = ordered[j - 1], order[j - 1]
            j -= 1
            left -= 1
        ordered[j], order[j] = value, at
    return left > 0 or len(keys) == 0
