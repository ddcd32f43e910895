"""Loops of the survey of tables: sums, extremes and samples of the different values of columns of numbers."""

from __future__ import annotations

import numpy as np

from distsms.base.hashing import GOLDEN, _mix
from distsms.base.jit import UNCOUNTED, njit

SCALE = 2.0**-64
"""Numbers are multiplied by this before they are added, so that sums do not overflow."""
RECENT = np.uint64(1024)
"""So many values are counted before they are added to the sample."""
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@njit(**UNCOUNTED)
def add_to_sample(hashes, times, size, h, rows):  # type: ignore[no-untyped-def]
    """Add a value, by its hash, to a sample: hashes (k,) ascending, times (k,); return the sample's new size."""
    if size == len(hashes) and h > hashes[size - 1]:
        return size
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] < h:
            low = middle + 1
        else:
            high = middle
    if low < size and hashes[low] == h:
        times[low] += rows
        return size
    last = min(size, len(hashes) - 1)
    for k in range(last, low, -1):
        hashes[k], times[k] = hashes[k - 1], times[k - 1]
    hashes[low], times[low] = h, rows
    return last + 1


@njit(**UNCOUNTED)
def add_numbers(values, bits, where, recent, seen, counts, sums, extremes, whole, hashes, times, sizes):  # type: ignore[no-untyped-def]
    """Add rows of numbers to the statistics of their columns.

    values : (m, n), column by column, NaN where they are missing.  bits : (m, n), the same as uint64, since Numba needs
    far more modules to look at an array in another way.  where : (m,), the places of these columns in the statistics
    of shape (c, ...): counts and missing values (c, 2), sums (c, 3) as sum, rounding error and sum of squares, extremes
    (c, 2), whole (c,), and samples: hashes, times (c, k), sizes (c,).
    recent, seen : (RECENT,) uint64, and int64 zeros, which are zeros again afterwards.
    """
    n = values.shape[1]
    for j in range(values.shape[0]):
        c = where[j]
        low, high = extremes[c, 0], extremes[c, 1]
        total, error, squares = sums[c, 0], sums[c, 1], sums[c, 2]
        all_whole, gaps, size = whole[c], 0, sizes[c]
        # 1) Sums and extremes; the sum with its rounding error (Knuth's two-sum).
        for i in range(n):
            x = values[j, i] + 0.0  # no negative zero
            if x != x:
                gaps += 1
                continue
            low, high = min(low, x), max(high, x)
            all_whole &= x == np.floor(x)
            add = x * SCALE
            before, total = total, total + add
            part = total - before
            error += (before - (total - part)) + (add - part)
            squares += add * add
            # 2) The sample of different values.
            h = _mix((bits[j, i] if x else _ZERO) * GOLDEN + _ONE)
            if size == hashes.shape[1] and h > hashes[c, size - 1]:
                continue
            # Values that were met before are counted here first, since a search in the sample takes longer.
            slot = h % RECENT
            if seen[slot] and recent[slot] != h:
                size = add_to_sample(hashes[c], times[c], size, recent[slot], seen[slot])
                seen[slot] = 0
            recent[slot] = h
            seen[slot] += 1
        # 3) Values that were only counted go into the sample.
        for slot in range(RECENT):
            if seen[slot]:
                size = add_to_sample(hashes[c], times[c], size, recent[slot], seen[slot])
                seen[slot] = 0
        counts[c, 0] += n - gaps
        counts[c, 1] += gaps
        extremes[c, 0], extremes[c, 1] = low, high
        sums[c, 0], sums[c, 1], sums[c, 2] = total, error, squares
        whole[c], sizes[c] = all_whole, size
