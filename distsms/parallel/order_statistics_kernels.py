"""The compiled loops of `distsms.parallel.order_statistics`, which explains kinks, brackets and buckets.

The head and the tail of a row are at positions u = z scale lift - origin. Their distance is `width`. A round considers
the kinks with a position in [left, right).
"""

from __future__ import annotations

import numpy as np

from distsms.utils.jit import njit

BUCKETS = 2**9
BLOCK = 512  # number of rows that are processed together
LEFT_OUT, POSITIVE, NEGATIVE = 0, 1, 2  # kinds of rows


@njit(fastmath=False)  # explicit, since Numba would otherwise inline this function with its caller's fastmath
def _kinks(score, kind, shift, width, scale, lift, origin):  # type: ignore[no-untyped-def]
    """Return the positions of a row's head and tail on the grid, where all ramps have exactly the same length."""
    place = (score + (shift if kind == NEGATIVE else 0.0)) * scale * lift - origin
    place = place + 3 * BUCKETS - 3 * BUCKETS if kind != LEFT_OUT else np.inf  # rounded to the grid
    return place - (width if kind == NEGATIVE else 0.0), place + (0.0 if kind == NEGATIVE else width)


@njit(fastmath={"reassoc", "nsz"})
def _compute_kinks(scores, kinds, weights, shift, width, scale, lift, origin, left, right, heads, tails, inside):  # type: ignore[no-untyped-def]
    """Compute the kinks of a block of rows, and mark the rows that have one in [left, right).

    Returns how many ramps end before `left`, how many begin before it and end after it, and the sum of the distances
    from the heads of the ramps of the second kind to `left`, all three weighted.
    """
    full = 0
    rising = 0
    distance = 0.0
    for j in range(len(scores)):
        head, tail = _kinks(scores[j], kinds[j], shift, width, scale, lift, origin)
        heads[j] = head
        tails[j] = tail
        behind = left - head if tail >= left else 0.0
        a = 1 if weights is None else weights[j]  # without weights, whole numbers are counted faster
        full += a if tail < left else 0
        rising += a if behind > 0.0 else 0
        distance += a * behind if behind > 0.0 else 0.0
        head_in = (1 if head >= left else 0) & (1 if head < right else 0)
        tail_in = (1 if tail >= left else 0) & (1 if tail < right else 0)
        inside[j] = head_in | tail_in
    return full, rising, distance


@njit()
def collect(scores, kinds, weights, shift, width, scale, lift, origin, left, right, start, found, base):  # type: ignore[no-untyped-def]
    """Copy the kinks of the rows with a kink in [left, right) to `found`, from row `start` on until `found` is full.

    If `weights` is not None, `found` has a third column for the weights.

    What all ramps contribute to G at the left edge is added to `base`.

    Returns the row to continue with, and how many rows are in `found`. The rows are processed in blocks and without a
    branch for each row, since a processor cannot predict whether a row has a kink in the interval.
    """
    heads, tails, inside = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, np.uint8)
    m = 0
    while start < len(scores) and m + BLOCK <= len(found):
        stop = min(len(scores), start + BLOCK)
        seen = _compute_kinks(
            scores[start:stop],
            kinds[start:stop],
            None if weights is None else weights[start:stop],
            shift,
            width,
            scale,
            lift,
            origin,
            left,
            right,
            heads,
            tails,
            inside,
        )
        base[0] += seen[0]
        base[1] += seen[1]
        base[2] += seen[2]
        for j in range(stop - start):
            found[m, 0] = heads[j]
            found[m, 1] = tails[j]
            if weights is not None:
                found[m, 2] = weights[start + j]
            m += inside[j]
        start = stop
    return start, m


@njit()
def tabulate(found, weights, left, factor, table):  # type: ignore[no-untyped-def]
    """Add rows to a table of how G changes in each bucket, apart from ramps that rise throughout the bucket.

    With `weights`, each row counts as often as its weight says. For ramps the table is (K, 4). Column 0 is the number
    of rows with both kinks in the bucket. The other columns are
    for the rows with one kink in the bucket: the summed lengths of the parts of their ramps inside the bucket, in units
    of its width; the number of heads; and the number of tails.

    For steps the table is (K, 3): the number of rows, the sum of their positions relative to the bucket, in [0, 1), and
    the sum of the squares of these.
    """
    K = len(table)
    for j in range(len(found)):
        head = (found[j, 0] - left) * factor
        tail = (found[j, 1] - left) * factor
        if head >= K or tail < 0.0:
            continue
        at_head = int(head) if head >= 0.0 else -1
        at_tail = int(tail) if tail < K else K
        a = 1.0 if weights is None else weights[j]
        if at_head == at_tail:
            table[at_head, 0] += a
            if table.shape[1] == 3:
                table[at_head, 1] += a * (head - at_head)
                table[at_head, 2] += a * (head - at_head) ** 2
            continue
        if at_head >= 0:
            table[at_head, 1] += a * (at_head + 1 - head)
            table[at_head, 2] += a
        if at_tail < K:
            table[at_tail, 1] += a * (tail - at_tail)
            table[at_tail, 3] += a


@njit()
def walk(table, value, slope, width):  # type: ignore[no-untyped-def]
    """Find the first bucket at whose right edge G >= target.

    Parameters
    ----------
    table : (K, 3) or (K, 4)
        See `tabulate`.
    value, slope : float
        G - target, and the number of ramps that are rising, at the table's left end.
    width : float
        The width of a ramp in buckets, 0 for steps.

    Returns
    -------
    k : int
        The bucket; K if there is none.
    value, slope : float
        G - target and the number of ramps that are rising, at the bucket's left edge.
    grown : float
        G - target at the bucket's right edge.
    """
    for k in range(len(table)):
        grown = value + table[k, 0]
        if width > 0.0:
            grown += (slope - table[k, 3] + table[k, 1]) / width
        if grown >= 0.0:
            return k, value, slope, grown
        value = grown
        if width > 0.0:
            slope += table[k, 2] - table[k, 3]
    return len(table), value, slope, value


@njit()
def extremes(scores, kinds, shift, width, scale, lift, origin, left, right):  # type: ignore[no-untyped-def]
    """Return the largest z with a position in [left, right), and minus the smallest."""
    heads, tails, inside = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, np.uint8)
    high = -np.inf
    low = np.inf
    for start in range(0, len(scores), BLOCK):
        some = scores[start : start + BLOCK]
        of_some = kinds[start : start + BLOCK]
        _compute_kinks(some, of_some, None, shift, 0.0, scale, lift, origin, left, right, heads, tails, inside)
        for j in range(len(some)):
            if inside[j]:
                place = some[j] + (shift if of_some[j] == NEGATIVE else 0.0)
                high = max(high, place)
                low = min(low, place)
    return np.array([high, -low])
