"""The compiled loops of `distsms.parallel.order_statistics`; there it says what kinks, brackets and buckets are.

The head and tail of a row lie at positions u = z scale lift - origin, `reach` apart; a round looks at those in
[left, right).
"""

from __future__ import annotations

import numpy as np

from distsms.utils.jit import njit

BUCKETS = 2**9
BLOCK = 512  # rows that are looked at together
LEFT_OUT, POSITIVE, NEGATIVE = 0, 1, 2  # kinds of rows


@njit(fastmath=False)  # said aloud: else the caller's is taken over
def _kinks(score, kind, shift, reach, scale, lift, origin):  # type: ignore[no-untyped-def]
    """Positions of a row's head and tail, on the grid: every ramp in sight has exactly the same length."""
    place = (score + (shift if kind == NEGATIVE else 0.0)) * scale * lift - origin
    place = place + 3 * BUCKETS - 3 * BUCKETS if kind != LEFT_OUT else np.inf  # rounded to the grid
    return place - (reach if kind == NEGATIVE else 0.0), place + (0.0 if kind == NEGATIVE else reach)


@njit(fastmath={"reassoc", "nsz"})
def _look(scores, kinds, shift, reach, scale, lift, origin, left, right, heads, tails, in_sight):  # type: ignore[no-untyped-def]
    """Kinks of a block of rows, and whether one is in [left, right). Returns the count of rows whose ramp ends before
    left, of those under way there, and the summed distance of these from their heads."""
    full = 0
    under_way = 0
    distance = 0.0
    for j in range(len(scores)):
        head, tail = _kinks(scores[j], kinds[j], shift, reach, scale, lift, origin)
        heads[j] = head
        tails[j] = tail
        behind = left - head if tail >= left else 0.0
        full += 1 if tail < left else 0
        under_way += 1 if behind > 0.0 else 0
        distance += behind if behind > 0.0 else 0.0
        head_in = (1 if head >= left else 0) & (1 if head < right else 0)
        tail_in = (1 if tail >= left else 0) & (1 if tail < right else 0)
        in_sight[j] = head_in | tail_in
    return full, under_way, distance


@njit()
def collect(scores, kinds, shift, reach, scale, lift, origin, left, right, start, found, base):  # type: ignore[no-untyped-def]
    """Rows from `start` on with a kink in [left, right) into `found`, until it is full; the others into `base`.

    Returns the row to go on with, and how many were found. By blocks, and without a branch for each row: whether one is
    in sight is as good as random.
    """
    heads, tails, in_sight = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK, np.uint8)
    m = 0
    while start < len(scores) and m + BLOCK <= len(found):
        stop = min(len(scores), start + BLOCK)
        seen = _look(
            scores[start:stop],
            kinds[start:stop],
            shift,
            reach,
            scale,
            lift,
            origin,
            left,
            right,
            heads,
            tails,
            in_sight,
        )
        base[0] += seen[0]
        base[1] += seen[1]
        base[2] += seen[2]
        for j in range(stop - start):
            found[m, 0] = heads[j]
            found[m, 1] = tails[j]
            m += in_sight[j]
        start = stop
    return start, m


@njit()
def tabulate(found, left, factor, table):  # type: ignore[no-untyped-def]
    """Add rows to a table: what each bucket adds to G, apart from ramps that go right through it.

    Columns for ramps (K, 4): rows with both kinks in the bucket; for those with one, the summed lengths of the ramps
    in the bucket, in buckets; the heads, and the tails, among these. For steps (K, 3): rows, their positions in the
    bucket, and the squares of these.
    """
    K = len(table)
    for j in range(len(found)):
        head = (found[j, 0] - left) * factor
        tail = (found[j, 1] - left) * factor
        if head >= K or tail < 0.0:
            continue
        at_head = int(head) if head >= 0.0 else -1
        at_tail = int(tail) if tail < K else K
        if at_head == at_tail:
            table[at_head, 0] += 1.0
            if table.shape[1] == 3:
                table[at_head, 1] += head - at_head
                table[at_head, 2] += (head - at_head) ** 2
            continue
        if at_head >= 0:
            table[at_head, 1] += at_head + 1 - head
            table[at_head, 2] += 1.0
        if at_tail < K:
            table[at_tail, 1] += tail - at_tail
            table[at_tail, 3] += 1.0


@njit()
def walk(table, value, slope, reach):  # type: ignore[no-untyped-def]
    """The first bucket at whose right edge G >= target (K: none); G - target and the ramps under way at its left edge;
    G - target at its right edge. value, slope : these at the table's left end.  reach : a ramp's width in buckets."""
    for k in range(len(table)):
        grown = value + table[k, 0]
        if reach > 0.0:
            grown += (slope - table[k, 3] + table[k, 1]) / reach
        if grown >= 0.0:
            return k, value, slope, grown
        value = grown
        if reach > 0.0:
            slope += table[k, 2] - table[k, 3]
    return len(table), value, slope, value


@njit()
def extremes(scores, kinds, shift, reach, scale, lift, origin, left, right):  # type: ignore[no-untyped-def]
    """The largest place at a position in [left, right), and the least with its sign turned."""
    high = -np.inf
    low = np.inf
    for i in range(len(scores)):
        position, _ = _kinks(scores[i], kinds[i], shift, reach, scale, lift, origin)
        if left <= position < right:
            place = scores[i] + (shift if kinds[i] == NEGATIVE else 0.0)
            high = max(high, place)
            low = min(low, place)
    return np.array([high, -low])
