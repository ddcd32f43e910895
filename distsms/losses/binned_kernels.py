"""The compiled loops of `distsms.losses.binned`. The cell of a row follows from its place x, s - 1 or s, alone:

    z = (x - low) scale + 2^bits,  cut off below 0 and above `top`;   coarse cell  z >> bits,  offset  z mod 2^bits

With `fine`, unless it is empty, coarse cell k is divided into cells of 2^shift[k] units, the first of which has the
number first[k]. kinds (n_local,) int8 is 1 for a positive row, -1 for a negative one, and 0 for one that is left out.
"""

from __future__ import annotations

import numpy as np

from distsms.base.jit import UNCOUNTED, njit, weight_of

CHUNK = 2**10  # rows that stay in the fastest cache
COUNT_BITS, SUM_BITS = 20, 43
WORD, BLOCK = 1 << SUM_BITS, 2**COUNT_BITS - 1
"""A word holds a cell's number of rows, below 2^COUNT_BITS, times WORD, and the sum of offsets. After BLOCK rows, words
are added to larger numbers.
"""
LOOSE = {"nnan", "nsz", "reassoc"}  # what is compiled with this may add up in any order
_NO_POS, _NO_NEG = np.array([[np.inf, np.inf, 0.0], [0.0, np.inf, np.inf]])
"""By kind + 1, what is added to a score so that only those of one class count for a minimum."""


@njit(inline="always")
def is_positive(kind):  # type: ignore[no-untyped-def]
    """Return 1.0 for the kind 1, and 0.0 for 0 and -1. A choice by the kind would be compiled to a branch."""
    return float((kind + 1) >> 1)


@njit(error_model="numpy", fastmath=LOOSE, **UNCOUNTED)
def extremes(scores, kinds):  # type: ignore[no-untyped-def]
    """Return the least and the largest score of the positive rows, and of the negative ones. All must be finite."""
    low_pos = low_neg = np.inf
    high_pos = high_neg = -np.inf
    for i in range(len(scores)):
        s, kind = scores[i], np.uint64(kinds[i] + 1)
        low_pos, high_pos = min(low_pos, s + _NO_POS[kind]), max(high_pos, s - _NO_POS[kind])
        low_neg, high_neg = min(low_neg, s + _NO_NEG[kind]), max(high_neg, s - _NO_NEG[kind])
    return low_pos, high_pos, low_neg, high_neg


@njit(error_model="numpy", fastmath=LOOSE, **UNCOUNTED)
def _beyond(scores, kinds, weights, start, stop, low, high):  # type: ignore[no-untyped-def]
    """Return the sums of low - q over the positive rows below low, and of b - high over the negative ones above.
    Differences of any two scores must be finite, since those of the other class are multiplied by 0."""
    below = above = 0.0
    for i in range(np.uint64(start), np.uint64(stop)):  # unsigned places need no test of whether they are negative
        s, kind, a = scores[i], kinds[i], weight_of(weights, i)
        below += a * max(low - (s - 1.0), 0.0) * is_positive(kind)
        above += a * max(s - high, 0.0) * is_positive(-kind)
    return below, above


@njit(inline="always", error_model="numpy")
def _units(score, kind, low, scale, bits, top):  # type: ignore[no-untyped-def]
    """Return z of the module's docstring."""
    z = ((score - is_positive(kind)) - low) * scale + float(1 << bits)
    z = z if z > 0.0 else 0.0
    return int(z if z < top else top)


@njit(inline="always", error_model="numpy")
def _find(score, kind, low, scale, bits, top, fine):  # type: ignore[no-untyped-def]
    """Return a row's place in a table (2 cells,), negatives of a cell first, and its offset in the cell."""
    z = _units(score, kind, low, scale, bits, top)
    cell, offset = z >> bits, z & ((1 << bits) - 1)
    if fine.shape[1] > 0:
        shift = fine[1, np.uint64(cell)]
        cell = fine[0, np.uint64(cell)] + (offset >> shift)
        offset &= (1 << shift) - 1
    return np.uint64(2 * cell + (kind > 0)), offset


@njit(error_model="numpy", **UNCOUNTED)
def count(scores, kinds, low, high, scale, bits, top, fine, words, counts, sums):  # type: ignore[no-untyped-def]
    """Count rows, add up offsets (2 cells,), and return the result of `_beyond`; words: working space, all 0."""
    below = above = 0.0
    for begin in range(0, len(scores), BLOCK):
        end = min(begin + BLOCK, len(scores))
        for start in range(begin, end, CHUNK):
            stop = min(start + CHUNK, end)
            more = _beyond(scores, kinds, None, start, stop, low, high)
            below, above = below + more[0], above + more[1]
            for i in range(np.uint64(start), np.uint64(stop)):
                place, offset = _find(scores[i], kinds[i], low, scale, bits, top, fine)
                words[place] += (WORD + offset) & -abs(np.int64(kinds[i]))  # nothing for the kind 0
        for place in range(len(counts)):
            counts[place] += words[place] >> SUM_BITS
            sums[place] += words[place] & (WORD - 1)
            words[place] = 0
    return below, above


@njit(error_model="numpy", **UNCOUNTED)
def weigh(scores, kinds, weights, low, high, scale, bits, top, fine, counts, sums):  # type: ignore[no-untyped-def]
    """Do what `count` does with the weights of the rows; counts and sums are float64."""
    below, above = _beyond(scores, kinds, weights, 0, len(scores), low, high)
    for i in range(len(scores)):
        place, offset = _find(scores[i], kinds[i], low, scale, bits, top, fine)
        counts[place] += weights[i]
        sums[place] += weights[i] * offset
    return below, above


@njit(error_model="numpy", **UNCOUNTED)
def look_up(scores, kinds, weights, low, scale, bits, top, fine, table, out):  # type: ignore[no-untyped-def]
    """Set out[row] to the number at the row's place in the table (2 cells,), times its weight."""
    for i in range(len(scores)):
        place, _ = _find(scores[i], kinds[i], low, scale, bits, top, fine)
        out[i] = table[place] * abs(kinds[i]) * weight_of(weights, i)


@njit(error_model="numpy")
def summarize(counts, sums, bits, unit, ends, fine, weight, mean, cell, widths):  # type: ignore[no-untyped-def]
    """List the cells that are not empty for each class; return the lengths. ends (2, 2): places beyond the range."""
    n_neg = n_pos = coarse = 0
    last = len(widths) - 1
    for k in range(last + 1):
        units, edge = 2.0**bits, (k - 1.0) * 2.0**bits
        if fine.shape[1] > 0:
            while coarse + 1 < fine.shape[1] and fine[0, coarse + 1] <= k:
                coarse += 1
            units = 2.0 ** fine[1, coarse]
            edge = (coarse - 1.0) * 2.0**bits + (k - fine[0, coarse]) * units
        B, A, width = counts[2 * k], counts[2 * k + 1], 0.0
        beta, alpha = 0.0, 0.0
        if B > 0:
            beta = sums[2 * k] / B
            place = ends[0, 0] if k == 0 else (ends[0, 1] if k == last else (edge + beta) * unit)
            weight[0, n_neg], mean[0, n_neg], cell[0, n_neg] = B, place, k
            n_neg += 1
        if A > 0:
            alpha = sums[2 * k + 1] / A
            place = ends[1, 0] if k == 0 else (ends[1, 1] if k == last else (edge + alpha) * unit)
            weight[1, n_pos], mean[1, n_pos], cell[1, n_pos] = A, place, k
            n_pos += 1
        if A > 0 and B > 0 and 0 < k < last:
            alpha, beta = alpha / units, beta / units
            width = A * (B * (units * unit * min(beta * (1.0 - alpha), alpha * (1.0 - beta))))
        widths[k] = width
    return n_neg, n_pos
