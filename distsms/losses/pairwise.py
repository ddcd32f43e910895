"""Sums over all pairs of two classes with only one of them sorted (JMLR, section 4.2, but not by Algorithm 4).

q (k,) is one class, sorted. The points b of the other class come in any order, and t = b - q. For each b, let f be the
number of q with t >= nu (where beta = 1), and c the number of q with t > 0. The q between them are b's window, where
beta = t / nu. Then

    gamma_b = f + 1/nu (sum of t over the window), from prefix sums of q;
    gamma_q = (number of b with q below their f) + 1/nu (sum of t over the b with q in their window).

gamma_q comes from a walk down the sorted q, during which each b enters at its c and leaves at its f. Only their number
and the sum of their t is kept.

The places f and c are looked up in a table of buckets over the range of q: O(1) expected, O(log k) in the worst case.

As in `pair_sums`, nothing cancels, however large the scores are: the sums are of distances, and long sums are only
added to. Windows are differences of prefix sums that start anew in blocks no wider than nu. A window is narrower than
nu, so it lies in at most two blocks, and no term exceeds 2 nu.

Cost: O(k) for sorted q, O(1) expected for each b; about 150 bytes of memory for each different q, and none for b.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.utils.jit import njit
from distsms.utils.typing import Floats

TINY = 5e-324
"""Used as a width: t >= TINY means t > 0, since the difference of two different floats is never zero."""

BUCKETS = 8  # for each different q, so that few of them share a bucket
CHUNK = 1024  # number of points that are processed together
ONE = np.uint64(1)  # indices are unsigned, since Numba tests signed ones for being negative


N_BELOW, HINGE, T, T2, BLOCK, ORIGIN, CLOSED_T, CLOSED_T2 = range(8)
"""Columns of `Table.sums`, for the i-th value:

- N_BELOW: the number of q below it; HINGE: the sum of (value - q) over these.
- T, T2: the sums of t and t^2, with t = q - origin, over the q below it in its block.
- BLOCK, ORIGIN: the index at which its block starts, and the value there.
- CLOSED_T, CLOSED_T2: at the start of a block, the sums of t and t^2 over the whole previous block.
"""
ENTER, ENTER_T, LEAVE, LEAVE_T, PASS = range(5)
"""Columns of `Table.moves`, at the i-th place:

- ENTER: the number of points with a window whose c is here; ENTER_T: their sum of t with the value below.
- LEAVE: the number of points with a window whose f is here; LEAVE_T: their sum of t with the value above.
- PASS: the number of points without a window, whose c and f are both here.
"""


class Table(NamedTuple):
    """What is stored for the d different values of q, in increasing order; the arrays may have room for more.

    What is read together is stored together, since a point looks at four unpredictable places, which no cache holds.
    """

    value: Floats  # value[i + 1] is the i-th, between -inf and inf
    sums: Floats  # (., 8); the row after the last value also has N_BELOW, the number of all q
    first: NDArray[np.uint32]  # (BUCKETS d + 1,): how many values are in lower buckets
    grid: (
        Floats  # (3,): the value where the first d buckets end, and the buckets per unit below and above: see `_bucket`
    )
    moves: Floats  # (., 5)
    gamma: Floats

    @staticmethod
    def room(k: int) -> Table:
        """Allocate a table for k different values."""
        places = np.empty(BUCKETS * k + 1, np.uint32)
        return Table(np.empty(k + 2), np.empty((k + 1, 8)), places, np.empty(3), np.empty((k + 1, 5)), np.empty(k))


class PairSums(NamedTuple):
    """Sums over all pairs of max(0, t), of its Huber hinge, and of beta."""

    hinge: float
    huber: float
    beta: float


class SmallerClass:
    """The sorted class of successive evaluations, with buffers that are reused. Local.

    Parameters
    ----------
    capacity : int
        Expected number of values of q; larger buffers are allocated when needed. The kernels are compiled or loaded
        here.
    """

    def __init__(self, capacity: int) -> None:
        self._table = Table.room(1)
        self.sort(np.zeros(1), 1.0)
        self.meet(np.ones(1), np.zeros(1, np.uint32), 1.0, 0.0, 1.0, np.empty(1))
        self.give(self.gamma(), np.zeros(1), np.zeros(1, np.intp), 1.0, np.empty(1))
        self._table = Table.room(capacity)

    def sort(self, q: Floats, nu: float) -> None:
        """Start with another class.

        Parameters
        ----------
        q : (k,) float64
            Increasing and finite.
        nu : float
            The width >= 0.

        Notes
        -----
        O(k).
        """
        if len(q) + 2 > len(self._table.value):
            self._table = Table.room(len(q))
        self._nu, self._d, self.sums = nu, _tabulate(q, nu, self._table), PairSums(0.0, 0.0, 0.0)

    def meet(self, scores: Floats, rows: NDArray[Any], sign: float, offset: float, factor: float, out: Floats) -> None:
        """Pair q with the points b = offset + sign scores[row] of the rows given, and set out[row] = factor gamma_b.

        Also adds these pairs to `sums`. O(1) for each point.
        """
        full, hinge, t, t2 = _meet(scores, rows, sign, offset, self._nu, self._d, self._table, factor, out)
        beta, huber = (t / self._nu, 0.5 * t2 / self._nu) if self._nu > 0 else (0.0, 0.0)
        added = hinge + t, hinge - 0.5 * self._nu * full + huber, full + beta
        self.sums = PairSums(*(old + new for old, new in zip(self.sums, added, strict=True)))

    def gamma(self) -> Floats:
        """Return gamma of each different q over all points so far, (d,) in increasing order of q, a view. O(d)."""
        _walk(self._nu, self._d, self._table)
        return self._table.gamma[: self._d]

    def give(self, gamma: Floats, q: Floats, rows: NDArray[Any], factor: float, out: Floats) -> None:
        """Set out[row] = factor gamma of the row's q.

        Parameters
        ----------
        gamma : (d,)
            As `gamma` returns it, perhaps summed over ranks.
        q : (m,)
            Some of the q, in increasing order.
        rows : (m,)
            The row of each of them.
        factor : float
            Multiplies each gamma.
        out : (n_local,)
            Where to write.

        Notes
        -----
        O(d + m).
        """
        _give(self._table.value, gamma, q, rows, factor, out)


@njit()
def _tabulate(q: Floats, nu: float, table: Table) -> int:
    """Fill the table for sorted q and no points so far; return d."""
    value, sums = table.value, table.sums
    value[0] = -np.inf
    d = 0
    for i in range(len(q)):  # of equal q, each overwrites the one before
        sums[d, N_BELOW] = i
        value[d + 1] = q[i]
        d += q[i] != value[d]
    sums[d, N_BELOW] = len(q)
    value[d + 1] = np.inf
    table.moves[: d + 1] = 0.0

    # The lowest values have buckets of their own, since most b are there, and the highest share the last bucket. So
    # outliers do not widen the other buckets.
    trim = d >> 7
    base, end = value[trim + 1], value[d - trim]
    buckets = BUCKETS * d
    below = d / (base - value[1]) if trim else 0.0
    above = (buckets - d) / (end - base) if end > base else 0.0
    table.grid[0], table.grid[1], table.grid[2] = base, below, above
    table.first[: buckets + 1] = 0
    for i in range(d):
        table.first[_bucket(value[i + 1] - base, d, below, above) + 1] += 1
    for i in range(buckets):
        table.first[i + 1] += table.first[i]

    block, hinge, t, t2 = 0, 0.0, 0.0, 0.0
    sums[0, CLOSED_T] = sums[0, CLOSED_T2] = 0.0
    for i in range(d):
        count, equal = sums[i, N_BELOW], sums[i + 1, N_BELOW] - sums[i, N_BELOW]
        hinge += count * (value[i + 1] - value[i]) if i > 0 else 0.0
        x = value[i + 1] - value[block + 1]
        if x > nu:
            sums[i, CLOSED_T], sums[i, CLOSED_T2] = t, t2
            block, x, t, t2 = i, 0.0, 0.0, 0.0
        sums[i, HINGE], sums[i, T], sums[i, T2] = hinge, t, t2
        sums[i, BLOCK], sums[i, ORIGIN] = block, value[block + 1]
        t += equal * x
        t2 += equal * x * x
    return d


@njit(inline="always")
def _bucket(x: float, d: int, below: float, above: float) -> int:
    """Return the bucket at the distance x from where the first d buckets end, with different widths below and above it.

    Values beyond an end belong to the last bucket there; 0 times inf belongs to the first.
    """
    x = d + x * (below if x < 0.0 else above)
    x = x if x > 0.0 else 0.0
    top = BUCKETS * d - 1.0
    return int(x if x < top else top)


@njit(inline="always")
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
    """Return how many different q have b - q >= width > 0, as an unsigned integer.

    No branch is taken if the bucket holds at most one value: mispredicted branches would cost more than all the rest.
    """
    bucket = np.uint64(_bucket(b - base - width, d, below, above))
    low, high = np.uint64(first[bucket]), np.uint64(first[bucket + ONE])
    if high > low + ONE or b - value[low] < width or b - value[high + ONE] >= width:
        return _search(b, width, d, value, low, high)
    return low + np.uint64(b - value[low + ONE] >= width)


@njit()
def _search(b: float, width: float, d: int, value: Floats, low: Any, high: Any) -> Any:
    """Do the same as `_place` by bisection, in a bucket or, where rounding missed it by one, beside it."""
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


@njit(error_model="numpy")  # it divides only where nu > 0, so Numba need not test for division by zero
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
    """Pair the points with the table; see `SmallerClass.meet`.

    Returns the number of pairs with beta = 1 and the sum of their t; and for the pairs with beta in (0, 1), the sums of
    t and of t^2.

    There are two loops over a chunk, one that looks up places and one that adds up. A single loop would need more
    registers than there are, and a misprediction in one half would cost the other's work. There are no helper
    functions, since Numba counts references to every array that is passed to one.
    """
    value, sums, first, grid, moves = table[:5]
    base, below, above = grid[0], grid[1], grid[2]
    lowest, width = value[1], max(nu, TINY)
    full_sum = hinge_sum = t_sum = t2_sum = 0.0
    points, places = np.empty(CHUNK + 1), np.empty(CHUNK + 1, rows.dtype)
    above_zero, above_width = np.empty((2, CHUNK), np.uint64)
    for begin in range(0, len(rows), CHUNK):
        n = 0
        for i in range(begin, min(begin + CHUNK, len(rows))):  # drop, without a branch, the points below all q
            row = rows[i]
            b = offset + sign * scores[row]
            points[n], places[n] = b, row
            out[row] = 0.0
            n += b > lowest
        for j in range(n):
            above_zero[j] = _place(points[j], TINY, d, value, first, base, below, above)
            above_width[j] = _place(points[j], width, d, value, first, base, below, above)
        for j in range(n):
            b, c, f = points[j], above_zero[j], above_width[j]
            full = sums[f, N_BELOW]
            if f > 0:
                full_sum += full
                hinge_sum += full * (b - value[f]) + sums[f - ONE, HINGE]
            if f == c:
                moves[f, PASS] += 1.0
                out[places[j]] = factor * full
                continue
            # The window, places f to c - 1, is added up in three steps: its part in the previous block, if it begins
            # there; the rest without the last value; and the last value separately, so that points only slightly above
            # it keep their digits. `two`, whether there is a previous block, is a factor, since a branch would be
            # unpredictable.
            last = c - ONE
            start = sums[last, BLOCK]
            two = 1.0 if np.float64(f) < start else 0.0
            at_start = np.uint64(start)
            x = b - sums[f, ORIGIN]
            n_q = two * (sums[at_start, N_BELOW] - full)
            t_q = two * (sums[at_start, CLOSED_T] - sums[f, T])
            t2_q = two * (sums[at_start, CLOSED_T2] - sums[f, T2])
            t, t2 = n_q * x - t_q, (n_q * x - 2 * t_q) * x + t2_q
            x = b - sums[last, ORIGIN]
            n_q = sums[last, N_BELOW] - full - n_q
            t_q = sums[last, T] - (1.0 - two) * sums[f, T]
            t2_q = sums[last, T2] - (1.0 - two) * sums[f, T2]
            t, t2 = t + (n_q * x - t_q), t2 + ((n_q * x - 2 * t_q) * x + t2_q)
            n_q, x = sums[c, N_BELOW] - sums[last, N_BELOW], b - value[c]
            t, t2 = t + n_q * x, t2 + n_q * x * x
            t_sum += t
            t2_sum += t2
            moves[c, ENTER] += 1.0
            moves[c, ENTER_T] += x
            moves[f, LEAVE] += 1.0
            moves[f, LEAVE_T] += b - value[f + ONE]
            out[places[j]] = factor * (full + t / nu)
    return full_sum, hinge_sum, t_sum, t2_sum


@njit()
def _walk(nu: float, d: int, table: Table) -> None:
    """Compute gamma of each value, from the highest down; as in `pair_sums`, the sum of t is shifted along with q."""
    full = inside = t_sum = 0.0
    value, moves = table.value, table.moves
    for i in range(d - 1, -1, -1):
        if i < d - 1:  # first remove the points whose window ends above this value, then shift the others
            full += moves[i + 1, LEAVE]
            inside -= moves[i + 1, LEAVE]
            t_sum -= moves[i + 1, LEAVE_T]
            if inside == 0:  # the window is empty: remove its rounding errors
                t_sum = 0.0
            t_sum += inside * (value[i + 2] - value[i + 1])
        full += moves[i + 1, PASS]
        inside += moves[i + 1, ENTER]
        t_sum += moves[i + 1, ENTER_T]
        table.gamma[i] = full + (t_sum / nu if inside > 0 else 0.0)


@njit()
def _give(value: Floats, gamma: Floats, q: Floats, rows: NDArray[Any], factor: float, out: Floats) -> None:
    """See `SmallerClass.give`."""
    i = 0
    for j in range(len(q)):
        while value[i + 1] < q[j]:
            i += 1
        out[rows[j]] = factor * gamma[i]
