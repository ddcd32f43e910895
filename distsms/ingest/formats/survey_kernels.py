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
_C1, _C2, _FIVE, _N = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(5), np.uint32(0xE6546B64)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


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
def add_all(hashes, times, size, new_hashes, rows):  # type: ignore[no-untyped-def]
    """Add values to a sample, by their hashes (m,) and numbers of `rows` (m,); return the sample's new size."""
    for k in range(len(new_hashes)):
        size = add_to_sample(hashes, times, size, new_hashes[k], rows[k])
    return size


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


@njit(**UNCOUNTED)
def _murmur3(text, start, stop, seed):  # type: ignore[no-untyped-def]
    """MurmurHash3 (32 bits, for x86) of the bytes text[start:stop]; Appleby 2011."""
    h = np.uint32(seed)
    n = stop - start
    for k in range(start, start + n - n % 4, 4):
        word = (
            np.uint32(text[k])
            | np.uint32(np.uint32(text[k + 1]) << np.uint32(8))
            | np.uint32(np.uint32(text[k + 2]) << np.uint32(16))
            | np.uint32(np.uint32(text[k + 3]) << np.uint32(24))
        )
        word = np.uint32(word * _C1)
        word = np.uint32((word << np.uint32(15)) | (word >> np.uint32(17)))
        h = np.uint32(h ^ np.uint32(word * _C2))
        h = np.uint32((h << np.uint32(13)) | (h >> np.uint32(19)))
        h = np.uint32(np.uint32(h * _FIVE) + _N)
    word = np.uint32(0)
    for k in range(n % 4):
        word = np.uint32(word | np.uint32(np.uint32(text[start + n - n % 4 + k]) << np.uint32(8 * k)))
    if n % 4:
        word = np.uint32(word * _C1)
        word = np.uint32((word << np.uint32(15)) | (word >> np.uint32(17)))
        h = np.uint32(h ^ np.uint32(word * _C2))
    h = np.uint32(h ^ np.uint32(n))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * _F1)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * _F2)
    return np.uint32(h ^ (h >> np.uint32(16)))


@njit(**UNCOUNTED)
def _hash_strings(text, offsets, seed, hashes):  # type: ignore[no-untyped-def]
    for k in range(len(hashes)):
        hashes[k] = _murmur3(text, offsets[k], offsets[k + 1], seed)


def hash_strings(text: NDArray[np.uint8], offsets: NDArray[Any], seed: int = 0) -> NDArray[np.uint32]:
    """Return MurmurHash3 of each string, (m,): of the bytes text[offsets[k] : offsets[k + 1]], offsets (m + 1,)."""
    hashes = np.empty(len(offsets) - 1, np.uint32)
    with np.errstate(over="ignore"):  # for NUMBA_DISABLE_JIT
        _hash_strings(text, np.ascontiguousarray(offsets, np.int64), np.uint32(seed), hashes)
    return hashes


@njit(**UNCOUNTED)
def merge_samples(hashes, times, sizes, more_hashes, more_times, more_sizes):  # type: ignore[no-untyped-def]
    """Add the samples of other rows, of the same columns, to samples: hashes, times (c, k), sizes (c,)."""
    for c in range(len(sizes)):
        m = more_sizes[c]
        sizes[c] = add_all(hashes[c], times[c], sizes[c], more_hashes[c, :m], more_times[c, :m])
