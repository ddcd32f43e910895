"""Loops of the survey of tables: sums, extremes and a sample of the different values, and MurmurHash3 of strings.

The sample of a column is a bottom-k sketch: the k different values with the smallest hashes, each with the number of
rows that have it. The sample does not depend on the order of the rows, and the samples of two sets of rows can be
merged into the sample of all these rows. If there are fewer than k different values, the sample has all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def hash_strings(text: NDArray[np.uint8], offsets: NDArray[Any], seed: int = 0) -> NDArray[np.uint32]:
    """Return MurmurHash3 (32 bits, for x86; Appleby 2011) of strings, (m,), text[offsets[k] : offsets[k + 1]]."""
    begins, lengths = np.asarray(offsets[:-1], np.int64), np.diff(offsets)
    text, hashes = np.append(text, np.zeros(4, np.uint8)), np.full(len(lengths), seed, np.uint32)
    # 1) Four bytes after the other of all strings that have so many.
    for at in range(0, int(lengths.max(initial=0)) - 3, 4):
        strings = np.flatnonzero(lengths >= at + 4)
        mixed = hashes[strings] ^ _scrambled(_word(text, begins[strings] + at, 4))
        hashes[strings] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    # 2) Up to three bytes at the end.
    rest = lengths % 4
    hashes ^= _scrambled(_word(text, begins + lengths - rest, rest)) ^ lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))


def _word(text: NDArray[np.uint8], at: NDArray[np.int64], size: Any) -> NDArray[np.uint32]:
    """Return the first `size` bytes at each place as a number, the lowest byte first."""
    word = np.zeros(len(at), np.uint32)
    for k in range(4):
        word |= np.where(k < size, text[at + k], 0).astype(np.uint32) << np.uint32(8 * k)
    return word


def _scrambled(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(word: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))
