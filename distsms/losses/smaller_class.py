"""Sums over all pairs of two classes with only one of them sorted (JMLR, section 4.2, otherwise than by Algorithm 4).

q (k,) is one class, sorted; the points b of the other come in any order, and t = b - q. For each b, let f be how many q
have t >= nu (beta = 1) and c how many have t > 0; the q between are its window, where beta = t / nu. Then

    gamma_b = f + 1/nu (sum of t over the window), from prefix sums of q;
    gamma_q = how many b have q below their f, + 1/nu (sum of t over the b with q in their window), by a walk down the
    sorted q, which b enters at its c and leaves at its f: only how many do there, and the sum of their t, is kept.

The places f and c come from a table of buckets over the range of q: O(1) expected, O(log k) at worst.

Nothing cancels, however large the scores are, as in `pair_sums`: sums are of distances, and only added, where they may
be long. Windows are differences of prefix sums that start anew in blocks no wider than nu: a window (it is narrower)
lies in two of them at most, and no term is larger than 2 nu.

Cost: O(k) for sorted q, O(1) expected for each b; about 150 bytes of memory for each different q and none for b.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from distsms.losses.contract import Floats

TINY = 5e-324
"""As a width: t >= TINY means t > 0, since the difference of two unlike floats is never zero."""

BUCKETS = 8  # for each different q: few have to share one
CHUNK = 1024  # points that are looked at together
ONE = np.uint64(1)  # unsigned indices, since numba tests signed ones for being negative


class Table(NamedTuple):
    """What is kept for the d different values of q, in increasing order; room for more. float64 where not said."""

    value: Floats  # value[i + 1] is the i-th, between -inf and inf
    n_below: Floats  # how many q are below the i-th; n_below[d] = k
    hinge: Floats  # sum of value[i] - q over these q
    block: NDArray[np.uint32]  # the place where the block of i starts
    t: Floats  # sum of q - (the block's first) over the q of the block below the i-th
    t2: Floats  # sum of the squares of these
    closed_t: Floats  # at a block's start: the same two sums over the whole block before
    closed_t2: Floats
    first: NDArray[np.uint32]  # how many values are in lower buckets; BUCKETS d + 1 of them
    grid: Floats  # (3,): where the second bucket of eight begins, buckets per unit below and above: see `_bucket`
    entering: Floats  # (., 2): how many points have their c here, and a window; sum of t with the value below
    leaving: Floats  # (., 2): how many points have their f here, and a window; sum of t with the value above
    passing: Floats  # how many points have both here, and so no window
    gamma: Floats

    @staticmethod
    def room(k: int) -> Table:
        """For k different values."""
        one, places, two = np.empty((9, k + 2)), np.empty((2, BUCKETS * k + 1), np.uint32), np.empty((2, k + 1, 2))
        starts = places[0], one[3], one[4], one[5], one[6]
        return Table(one[0], one[1], one[2], *starts, places[1], np.empty(3), two[0], two[1], one[7], one[8])


class Sums(NamedTuple):
    """Sums over all pairs of max(0, t), of its Huber hinge, and of beta."""

    hinge: float
    huber: float
    beta: float


class SmallerClass:
    """The sorted class of one evaluation after the other; buffers are made once. Local."""

    def __init__(self, capacity: int) -> None:
        """Room for `capacity` values of q (more is made when needed); the kernels are compiled or loaded here."""
        self._table = Table.room(1)
        self.sort(np.zeros(1), 1.0)
        self.meet(np.ones(1), np.zeros(1, np.uint32), 1.0, 0.0, 1.0, np.empty(1))
        self.give(self.gamma(), np.zeros(1), np.zeros(1, np.intp), 1.0, np.empty(1))
        self._table = Table.room(capacity)

    def sort(self, q: Floats, nu: float) -> None:
        """Take in another class, q (k,) increasing and finite, and a width nu >= 0. O(k)."""
        if len(q) + 2 > len(self._table.value):
            self._table = Table.room(len(q))
        self._nu, self._d, self.sums = nu, _tabulate(q, nu, self._table), Sums(0.0, 0.0, 0.0)

    def meet(self, scores: Floats, rows: NDArray[Any], sign: float, offset: float, factor: float, out: Floats) -> None:
        """Meet the points b = offset + sign scores[row] of all rows: out[row] = factor gamma_b. O(1) each."""
        full, hinge, t, t2 = _meet(scores, rows, sign, offset, self._nu, self._d, self._table, factor, out)
        beta, huber = (t / self._nu, 0.5 * t2 / self._nu) if self._nu > 0 else (0.0, 0.0)
        added = hinge + t, hinge - 0.5 * self._nu * full + huber, full + beta
        self.sums = Sums(*(old + new for old, new in zip(self.sums, added, strict=True)))

    def gamma(self) -> Floats:
        """gamma of each different q over all points met, (d,) in increasing order: a view. O(d)."""
        _walk(self._nu, self._d, self._table)
        return self._table.gamma[: self._d]

    def give(self, gamma: Floats, q: Floats, rows: NDArray[Any], factor: float, out: Floats) -> None:
        """out[row] = factor gamma of its q, for some of the q in increasing order. gamma : (d,). O(d + len(q))."""
        _give(self._table.value, gamma, q, rows, factor, out)


@numba.njit(cache=True, nogil=True)
def _tabulate(q: Floats, nu: float, table: Table) -> int:
    """Fill the table for sorted q, no points met yet; returns d."""
    value, count = table.value, table.n_below
    value[0] = -np.inf
    d = 0
    for i in range(len(q)):
        if d == 0 or q[i] != value[d]:
            count[d] = i
            d += 1
            value[d] = q[i]
    count[d] = len(q)
    value[d + 1] = np.inf
    table.entering[: d + 1] = 0.0
    table.leaving[: d + 1] = 0.0
    table.passing[: d + 1] = 0.0

    # The lowest values have buckets of their own, since most b are there; the highest share the last one. So outliers
    # do not widen the others.
    trim = d >> 7
    base, end = value[trim + 1], value[d - trim]
    buckets = BUCKETS * d
    below = d / (base - value[1]) if trim else 0.0
    above = (buckets - d) / (end - base) if end > base else 0.0
    table.grid[0], table.grid[1], table.grid[2] = base, below, above
    start = 0
    for i in range(d):
        bucket = _bucket(value[i + 1] - base, d, below, above)
        while start <= bucket:
            table.first[start] = i
            start += 1
    table.first[start : buckets + 1] = d

    table.hinge[0] = 0.0
    block, t, t2 = 0, 0.0, 0.0
    table.closed_t[0] = table.closed_t2[0] = 0.0
    for i in range(d):
        previous = value[i] if i > 0 else value[1]
        table.hinge[i + 1] = (table.hinge[i] if i > 0 else 0.0) + count[i] * (value[i + 1] - previous)
        x = value[i + 1] - value[block + 1]
        if x > nu:
            table.closed_t[i], table.closed_t2[i] = t, t2
            block, x, t, t2 = i, 0.0, 0.0, 0.0
        table.block[i], table.t[i], table.t2[i] = block, t, t2
        t += (count[i + 1] - count[i]) * x
        t2 += (count[i + 1] - count[i]) * x * x
    return d


@numba.njit(cache=True, nogil=True, inline="always")
def _bucket(x: float, d: int, below: float, above: float) -> int:
    """The bucket at a distance x from where the first d buckets end, so many per unit below it and above it.

    What is beyond an end is in the last bucket there, 0 inf in the first.
    """
    x = d + x * (below if x < 0.0 else above)
    x = x if x > 0.0 else 0.0
    top = BUCKETS * d - 1.0
    return int(x if x < top else top)


@numba.njit(cache=True, nogil=True, inline="always")
def _place(
    b: float,
    width: float,
    d: int,
    value: Floats,
    first: NDArray[np.uint32],
    base: float,
    below: float,
    above: float,
) -> Any:
    """How many different q have b - q >= width > 0, as an unsigned integer.

    No branch where the bucket holds one value at most: what cannot be predicted would cost more than all the rest.
    """
    bucket = np.uint64(_bucket(b - base - width, d, below, above))
    low, high = np.uint64(first[bucket]), np.uint64(first[bucket + ONE])
    if high > low + ONE or b - value[low] < width or b - value[high + ONE] >= width:
        return _search(b, width, d, value, low, high)
    return low + np.uint64(b - value[low + ONE] >= width)


@numba.njit(cache=True, nogil=True)
def _search(b: float, width: float, d: int, value: Floats, low: Any, high: Any) -> Any:
    """`_place` by bisection, in a bucket or, where rounding missed it by one, beside it."""
    if b - value[low] < width:
        low, high = np.uint64(0), low - ONE
    elif b - value[high + ONE] >= width:
        low, high = high + ONE, np.uint64(d)
    while low < high:
        middle = (low + high) >> ONE
        if b - value[middle + ONE] >= width:
            low = middle + ONE
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def _meet(
    scores: Floats,
    rows: NDArray[Any],
    sign: float,
    offset: float,
    nu: float,
    d: int,
    table: Table,
    factor: float,
    out: Floats,
) -> tuple[float, float, float, float]:
    """See `SmallerClass.meet`. Returns the number of pairs with beta = 1 and the sum of their t; for those with beta
    in (0, 1), the sums of t and of t^2.

    One long loop, since numba counts references to every array that is handed to a function in it.
    """
    value, count, hinge, block, t_below, t2_below, closed_t, closed_t2, first, grid = table[:10]
    entering, leaving, passing = table.entering, table.leaving, table.passing
    base, below, above = grid[0], grid[1], grid[2]
    lowest, width = value[1], max(nu, TINY)
    full_sum = hinge_sum = t_sum = t2_sum = 0.0
    points, places = np.empty(CHUNK + 1), np.empty(CHUNK + 1, rows.dtype)
    for begin in range(0, len(rows), CHUNK):
        n = 0
        for i in range(begin, min(begin + CHUNK, len(rows))):  # leave out without a branch what is below all q
            row = rows[i]
            b = offset + sign * scores[row]
            points[n], places[n] = b, row
            out[row] = 0.0
            n += b > lowest
        for j in range(n):
            b = points[j]
            c = _place(b, TINY, d, value, first, base, below, above)
            f = _place(b, width, d, value, first, base, below, above)
            full = count[f]
            if f > 0:
                full_sum += full
                hinge_sum += full * (b - value[f]) + hinge[f]
            if f == c:
                passing[f] += 1.0
                out[places[j]] = factor * full
                continue
            # The window, places f to c - 1: what of it is in the block before (if it begins there), then the rest but
            # for the last value, which is added by itself, so that what is only a little above it keeps its digits.
            last = c - ONE
            start = np.uint64(block[last])
            two = f < start
            x = b - value[np.uint64(block[f]) + ONE]
            n_q = count[start] - full if two else 0.0
            t_q = closed_t[start] - t_below[f] if two else 0.0
            t2_q = closed_t2[start] - t2_below[f] if two else 0.0
            t, t2 = n_q * x - t_q, (n_q * x - 2 * t_q) * x + t2_q
            x = b - value[start + ONE]
            n_q = count[last] - (count[start] if two else full)
            t_q = t_below[last] - (0.0 if two else t_below[f])
            t2_q = t2_below[last] - (0.0 if two else t2_below[f])
            t, t2 = t + (n_q * x - t_q), t2 + ((n_q * x - 2 * t_q) * x + t2_q)
            n_q, x = count[c] - count[last], b - value[c]
            t, t2 = t + n_q * x, t2 + n_q * x * x
            t_sum += t
            t2_sum += t2
            entering[c, 0] += 1.0
            entering[c, 1] += x
            leaving[f, 0] += 1.0
            leaving[f, 1] += b - value[f + ONE]
            out[places[j]] = factor * (full + t / nu)
    return full_sum, hinge_sum, t_sum, t2_sum


@numba.njit(cache=True, nogil=True)
def _walk(nu: float, d: int, table: Table) -> None:
    """gamma of each value, from the highest down, as in `pair_sums`: the sum of t moves with q."""
    full = inside = t_sum = 0.0
    for i in range(d - 1, -1, -1):
        if i < d - 1:  # first the points leave that have this value in their window no more, then the others move
            full += table.leaving[i + 1, 0]
            inside -= table.leaving[i + 1, 0]
            t_sum -= table.leaving[i + 1, 1]
            if inside == 0:  # an empty window has no rounding errors either
                t_sum = 0.0
            t_sum += inside * (table.value[i + 2] - table.value[i + 1])
        full += table.passing[i + 1]
        inside += table.entering[i + 1, 0]
        t_sum += table.entering[i + 1, 1]
        table.gamma[i] = full + (t_sum / nu if inside > 0 else 0.0)


@numba.njit(cache=True, nogil=True)
def _give(value: Floats, gamma: Floats, q: Floats, rows: NDArray[Any], factor: float, out: Floats) -> None:
    """See `SmallerClass.give`."""
    i = 0
    for j in range(len(q)):
        while value[i + 1] < q[j]:
            i += 1
        out[rows[j]] = factor * gamma[i]
