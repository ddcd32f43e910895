"""The table of the sorted class, and the compiled loops of `distsms.losses.pairwise`, which explains the letters."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import UNCOUNTED, njit, weight_of
from distsms.base.typing import Floats

TINY = 5e-324
"""Used as a width: t >= TINY means t > 0, since the difference of two different floats is never zero."""

BUCKETS = 4  # number of buckets per edge; with so many, few edges share a bucket
CHUNK = 1024  # number of points that are processed together
ONE = np.uint64(1)  # indices are unsigned, since Numba adds a test for negative values to every signed index
MOST = sys.float_info.max
HALF_ULP = 2.0**-53  # x - |x| HALF_ULP is the next float below x, for every x > 0 that is not tiny

START, BETA, WINDOW, HUBER, HINGE, BELOW, POINTS, DISTANCE = range(8)
"""Columns of `Table.edges`. For a point b between this edge and the next, with x = b - START:

- WINDOW, BELOW: the number (or summed weights) of the q with 0 < t < nu, and with t > 0.
- BETA, HUBER, HINGE: the sums of beta, of the Huber hinge and of max(0, t) over all q, if b were at the edge.
- POINTS, DISTANCE: the number (or summed weights) of such points so far, and the sum of their x.
"""
ENTER, ENTER_T, LEAVE, LEAVE_T, PASS = BETA, WINDOW, HUBER, HINGE, BELOW
"""Columns that `walk` uses once no more points are added; those of edge i are about value i:

- ENTER, ENTER_T: the points whose window ends with this value: their number, and the sum of their t with it.
- LEAVE, LEAVE_T: the points whose window begins with this value: their number, and the sum of their t with it.
- PASS: the number of points that are above this value and below the next, and whose window is empty.
"""


class Table(NamedTuple):
    """The edges of the d different values of q in increasing order, one where a value is, and one at its end. Arrays
    may be longer. A point reads and changes one edge at an unpredictable place, so an edge fills a cache line.
    """

    value: Floats  # (d + 2,): -inf, the d values, inf; so value i is value[i + 1]
    end: Floats  # (d + 1,): of each value
    edges: Floats  # (2 d + 1, 8): see START and so on; the last one starts at inf
    is_value: NDArray[np.bool_]  # (2 d,): whether the edge is that of a value, or else of an end
    first: NDArray[np.uint32]  # (2 d BUCKETS + 1,): for each bucket, the number of edges in the buckets below it
    # (3,): where the first buckets end, of which there is one for each edge; and the buckets per unit below and above
    grid: Floats
    gamma: Floats  # (d,): gamma of each value

    @staticmethod
    def allocate(k: int) -> Table:
        m, line = 2 * k + 1, 8
        room = np.empty(line * (m + 1))
        begin = -room.ctypes.data // room.itemsize % line  # a cache line begins here
        edges, kinds = room[begin : begin + line * m].reshape(m, line), np.empty(2 * k, np.bool_)
        first = np.empty(2 * k * BUCKETS + 1, np.uint32)
        return Table(np.empty(k + 2), np.empty(k + 1), edges, kinds, first, np.empty(3), np.empty(k))


class Buffers(NamedTuple):
    """Room for the points of a chunk. To load a kernel that allocates memory itself would take Numba 0.03 s more."""

    points: Floats
    weights: Floats | None
    rows: NDArray[Any]

    @staticmethod
    def allocate(rows: NDArray[Any], weighted: bool) -> Buffers:
        n = CHUNK + 1
        return Buffers(np.empty(n), np.empty(n) if weighted else None, np.empty(n, rows.dtype))


@njit(error_model="numpy", **UNCOUNTED)  # nothing is divided by zero, so Numba need not test for it
def tabulate(q: Floats, weights: Floats | None, nu: float, table: Table) -> tuple[int, int]:
    """Fill the table for sorted q and no points so far; return d and the number of edges."""
    value, end = table.value, table.end
    weight, smooth = table.gamma, nu > 0.0
    width = nu if smooth else 1.0
    value[0] = -np.inf
    d = 0
    for i in range(len(q)):  # d grows only where q changes, so equal q share their edges
        if q[i] != value[d]:
            d += 1
            value[d] = q[i]
            weight[d - 1] = 0.0
        weight[d - 1] += weight_of(weights, i)
    value[d + 1] = np.inf
    # A point with b > end has t > nu. The end may be rounded up, but then beta of a point there would be more than 1.
    for i in range(d + 1):
        x = value[i + 1] + nu
        end[i] = min(x - (abs(x) * HALF_ULP if x - value[i + 1] > nu else 0.0), MOST)

    m = 2 * d if nu > 0.0 else d
    _set_grid(value, nu, d, m, table.grid)
    base, below, above = table.grid[0], table.grid[1], table.grid[2]
    edges, first = table.edges, table.first
    is_value, buckets = table.is_value, BUCKETS * m
    first[: buckets + 1] = 0
    # i values and j ends are at or below the edge. `both` is the weight of the j values: all of their t are above nu.
    i = j = 0
    last = anchor = value[1]
    beta = window = huber = hinge = n_below = both = 0.0
    for r in range(m):
        # The order of values and ends is unpredictable: branches would cost more than all the rest.
        of_value = value[i + 1] <= end[j] if smooth else False
        enters, leaves = (1.0, 0.0) if of_value else (0.0, 1.0)
        start, a = min(value[i + 1], end[j]), weight[i if of_value else j]
        step, last = start - last, start
        share = min(step / width, 1.0)
        huber += step * (beta + 0.5 * window * share)
        hinge += step * n_below
        # The end is rounded, so t of its value is not quite nu there. For points above it, beta is 1, and the Huber
        # hinge is t - nu/2, where the sums so far have t^2 / (2 nu).
        lacking = leaves * (nu - (start - value[j + 1]))
        huber -= a * lacking * (0.5 * lacking / width)
        beta += window * share + a * (lacking / width)
        both += leaves * a
        window += (enters - leaves) * a
        j += not of_value
        i += of_value
        n_below += enters * a
        if not smooth:
            i, n_below, beta = j, both, both
        window, beta = (0.0, both) if i == j else (window, beta)  # without rounding errors
        if start - anchor > nu:
            # Add up the window, so that rounding errors of `beta` do not grow from one window to the next.
            anchor, t = start, 0.0
            for k in range(j, i):
                t += weight[k] * (start - value[k + 1])
            beta = both + t / width
        is_value[r] = of_value
        edges[r, START], edges[r, BETA], edges[r, WINDOW], edges[r, HUBER] = start, beta, window, huber
        edges[r, HINGE], edges[r, BELOW], edges[r, POINTS], edges[r, DISTANCE] = hinge, n_below, 0.0, 0.0
        first[_bucket(start - base, m, below, above) + 1] += 1
    edges[m, START] = np.inf
    for k in range(buckets):
        first[k + 1] += first[k]
    return d, m


@njit(inline="always", error_model="numpy")
def _set_grid(value, nu, d, m, grid):  # type: ignore[no-untyped-def]
    """Place the buckets of m edges: m for the lowest 127/128 of the values' range, one for the outliers above."""
    trim = d >> 7
    base, end = value[trim + 1], value[d - trim] + nu
    below, above = m / (base - value[1]) if trim else 0.0, (BUCKETS - 1) * m / (end - base) if end > base else 0.0
    # With factors that are neither 0 nor infinite, no product is NaN.
    grid[0], grid[1], grid[2] = base, min(max(below, TINY), MOST), min(max(above, TINY), MOST)


@njit(inline="always")
def _bucket(x: float, m: int, below: float, above: float) -> int:
    """Return the bucket of a number at x from the end of the first m, monotonously: `below` or `above` per unit."""
    x = m + x * (below if x < 0.0 else above)
    x = x if x > 0.0 else 0.0
    top = BUCKETS * m - 1.0
    return int(x if x < top else top)


@njit(error_model="numpy", **UNCOUNTED)
def add_points(scores, rows, weights, sign, offset, nu, m, table, factor, out, buffers):  # type: ignore[no-untyped-def]
    """Add points to the table; return the sums over all pairs of max(0, t), of its Huber hinge, and of beta."""
    lowest, hinge_sum, huber_sum, beta_sum = table.edges[0, START], 0.0, 0.0, 0.0
    points, point_weights, places = buffers.points, buffers.weights, buffers.rows
    for begin in range(0, len(rows), CHUNK):
        n = 0
        # Points that are not above any q have no pairs with t > 0. They are dropped without a branch.
        for i in range(begin, min(begin + CHUNK, len(rows))):
            row = rows[i]
            b = offset + sign * scores[row]
            points[n], places[n] = b, row
            if weights is not None:
                point_weights[n] = weights[row]
            out[row] = 0.0
            n += b > lowest
        hinge, huber, beta = _pair(points[:n], None if weights is None else point_weights[:n], nu, m, table, factor)
        hinge_sum, huber_sum, beta_sum = hinge_sum + hinge, huber_sum + huber, beta_sum + beta
        for j in range(n):
            out[places[j]] = points[j]
    return hinge_sum, huber_sum, beta_sum


@njit(error_model="numpy", **UNCOUNTED)
def _pair(points, weights, nu, m, table, factor):  # type: ignore[no-untyped-def]
    """Add points, each above the lowest q, and replace each by factor gamma_b (and its weight)."""
    edges, first, grid = table.edges, table.first, table.grid
    base, below, above = grid[0], grid[1], grid[2]
    width = nu if nu > 0.0 else 1.0
    hinge_sum = huber_sum = beta_sum = 0.0
    for k in range(len(points)):
        b, a = points[k], weight_of(weights, k)
        bucket = np.uint64(_bucket(b - base, m, below, above))
        low, high = np.uint64(first[bucket]), np.uint64(first[bucket + ONE])
        # No branch is taken if the bucket holds at most one edge: mispredicted ones would cost more than all the rest.
        if high > low + ONE:
            while low < high:
                middle = (low + high) >> ONE
                if edges[middle, START] < b:
                    low = middle + ONE
                else:
                    high = middle
            edge = low - ONE
        else:
            edge = low - np.uint64(edges[low, START] >= b)
        x = b - edges[edge, START]
        share = min(x / width, 1.0)
        at_edge, inside = edges[edge, BETA], edges[edge, WINDOW]
        beta = at_edge + inside * share
        hinge_sum += a * (edges[edge, HINGE] + x * edges[edge, BELOW])
        huber_sum += a * (edges[edge, HUBER] + x * (at_edge + 0.5 * inside * share))
        beta_sum += a * beta
        edges[edge, POINTS] += a
        edges[edge, DISTANCE] += a * x
        points[k] = factor * a * beta
    return hinge_sum, huber_sum, beta_sum


@njit(error_model="numpy", **UNCOUNTED)
def walk(nu: float, d: int, table: Table) -> None:
    """Compute gamma of each value, from the highest to the lowest, as `distsms.losses.gather.pair_sums`."""
    full = inside = t_sum = 0.0
    value, edges, gamma = table.value, table.edges, table.gamma
    if nu == 0.0:
        for i in range(d - 1, -1, -1):
            full += edges[i, POINTS]
            gamma[i] = full
        return
    _sum_by_values(d, table)
    for i in range(d - 1, -1, -1):
        if i < d - 1:  # remove the points whose window ends above this value, then update t of the remaining points
            full += edges[i + 1, LEAVE]
            inside -= edges[i + 1, LEAVE]
            t_sum -= edges[i + 1, LEAVE_T]
            step = value[i + 2] - value[i + 1]
            moved = step - value[i + 2]
            rounded_off = (value[i + 2] - (step - moved)) - (value[i + 1] + moved)  # exactly (Knuth)
            # If the values are nu apart, the window is empty: remove its rounding errors, also those of weights.
            if inside == 0 or step > nu or (step == nu and rounded_off >= 0.0):
                inside = t_sum = 0.0
            t_sum += inside * step
        full += edges[i, PASS]
        inside += edges[i, ENTER]
        t_sum += edges[i, ENTER_T]
        gamma[i] = full + (t_sum / nu if inside > 0 else 0.0)


@njit(error_model="numpy", **UNCOUNTED)
def _sum_by_values(d: int, table: Table) -> None:
    """Add up the points of edges by the values of their windows (see ENTER), in place of what the edges had."""
    value, edges, is_value = table.value, table.edges, table.is_value
    i = j = 0
    enter = enter_t = leave = leave_t = passed = 0.0
    for r in range(2 * d):
        start, n, x = edges[r, START], edges[r, POINTS], edges[r, DISTANCE]
        # `keep` and `renew` choose between the two kinds of edges, whose order is unpredictable, without a branch.
        keep, renew = (1.0, 0.0) if is_value[r] else (0.0, 1.0)
        i, j = i + is_value[r], j + (not is_value[r])
        n_inside, x = (0.0, 0.0) if i == j else (n, x)
        enter, enter_t = renew * enter + n_inside, renew * enter_t + (x + n_inside * (start - value[i]))
        leave, leave_t = keep * leave + n_inside, keep * leave_t + (x + n_inside * (start - value[min(j + 1, d)]))
        passed = keep * passed + (n - n_inside)
        edges[i - 1, ENTER], edges[i - 1, ENTER_T] = enter, enter_t
        edges[j, LEAVE], edges[j, LEAVE_T] = leave, leave_t
        edges[max(j - 1, 0), PASS] = passed


@njit(**UNCOUNTED)
def write_gamma(value, gamma, q, rows, factor, weights, out):  # type: ignore[no-untyped-def]
    """Write factor times gamma (d,), and the weight, of increasing q (m,) to their rows in `out`. O(d + m)."""
    i = 0
    for j in range(len(q)):
        while value[i + 1] < q[j]:
            i += 1
        out[rows[j]] = factor * weight_of(weights, rows[j]) * gamma[i]
