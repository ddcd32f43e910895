"""The compiled loops of `distsms.parallel.order_statistics`, which explains positions, brackets and buckets.

A row is at the position u = z scale lift - origin. No loop allocates memory: to load one that does takes 0.03 s more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distsms.base.jit import njit

BUCKETS = 2**9
BLOCK = 512  # number of rows that are processed together
LEFT_OUT, POSITIVE, NEGATIVE = 0, 1, 2  # kinds of rows


class Window(NamedTuple):
    """The positions that a round considers, in [left, right), and how scores become positions."""

    shift: float  # of negative rows
    scale: float
    lift: float
    origin: float
    left: float
    right: float


@njit(fastmath=False)  # explicit, since Numba would otherwise inline this function with its caller's fastmath
def _position(score, kind, window):  # type: ignore[no-untyped-def]
    """Return the position of a row, rounded to a grid of 2^-42 buckets."""
    place = (score + (window.shift if kind == NEGATIVE else 0.0)) * window.scale * window.lift - window.origin
    return place + 3 * BUCKETS - 3 * BUCKETS if kind != LEFT_OUT else np.inf


@njit(fastmath={"reassoc", "nsz"})
def _compute_positions(scores, kinds, weights, window, places, inside):  # type: ignore[no-untyped-def]
    """Compute the positions of a block of rows, and mark those in [left, right); return the weight of those below."""
    below = 0
    for j in range(len(scores)):
        place = _position(scores[j], kinds[j], window)
        places[j] = place
        a = 1 if weights is None else weights[j]  # without weights, whole numbers are counted faster
        below += a if place < window.left else 0
        inside[j] = (1 if place >= window.left else 0) & (1 if place < window.right else 0)
    return below


@njit()
def collect(scores, kinds, weights, window, start, listed, listed_weights, block):  # type: ignore[no-untyped-def]
    """Copy the positions in [left, right), and the weights, from row `start` on until `listed` is full. Return the row
    to continue with, the rows listed, and the weight below `left`. block: (BLOCK,) of float64 and uint8, working space.
    """
    places, inside = block
    m = 0
    below = 0.0
    while start < len(scores) and m + BLOCK <= len(listed):
        stop = min(len(scores), start + BLOCK)
        of_block = None if weights is None else weights[start:stop]
        below += _compute_positions(scores[start:stop], kinds[start:stop], of_block, window, places, inside)
        for j in range(stop - start):
            listed[m] = places[j]
            if weights is not None:
                listed_weights[m] = weights[start + j]
            m += inside[j]
        start = stop
    return start, m, below


@njit()
def tabulate(listed, weights, left, factor, table):  # type: ignore[no-untyped-def]
    """Add rows to a table (K, 3): weights, and with these positions in the bucket, in [0, 1), and their squares."""
    K = len(table)
    for j in range(len(listed)):
        place = (listed[j] - left) * factor
        if place >= K or place < 0.0:
            continue
        k = int(place)
        a = 1.0 if weights is None else weights[j]
        table[k, 0] += a
        table[k, 1] += a * (place - k)
        table[k, 2] += a * (place - k) ** 2


@njit()
def walk(table, value):  # type: ignore[no-untyped-def]
    """Return the first bucket (or K) with G >= target at its right edge, and G - target at its left."""
    for k in range(len(table)):
        grown = value + table[k, 0]
        if grown >= 0.0:
            return k, value
        value = grown
    return len(table), value


@njit()
def extremes(scores, kinds, window, block):  # type: ignore[no-untyped-def]
    """Return the largest z with a position in [left, right), and minus the smallest. See `collect`."""
    places, inside = block
    high = -np.inf
    low = np.inf
    for start in range(0, len(scores), BLOCK):
        some = scores[start : start + BLOCK]
        of_some = kinds[start : start + BLOCK]
        _compute_positions(some, of_some, None, window, places, inside)
        for j in range(len(some)):
            if inside[j]:
                place = some[j] + (window.shift if of_some[j] == NEGATIVE else 0.0)
                high = max(high, place)
                low = min(low, place)
    return high, -low
