"""The table of the sorted class, and the compiled loops of `distsms.losses.pairwise`, which explains the letters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.utils.jit import njit, weight_of
from distsms.utils.typing import Floats

TINY = 5e-324
"""Used as a width: t >= TINY means t > 0, since the difference of two different floats is never zero."""

BUCKETS = 8  # number of buckets per different value of q; with so many, few values share a bucket
CHUNK = 1024  # number of points that are processed together
SLICE = 2**14  # number of buckets of a slice of the table; with their values they take some 0.3 MB
BATCH = 2**22  # number of points that are brought together by slices
WORTH = 1  # a table is divided into slices if there are so many points for each of its values
ONE = np.uint64(1)  # indices are unsigned, since Numba adds a test for negative values to every signed index


N_BELOW, HINGE, T, T2, BLOCK, ORIGIN, CLOSED_T, CLOSED_T2 = range(8)
"""Columns of `Table.sums`, for the i-th value:

- N_BELOW: the number (or summed weights) of q below this value; HINGE: the sum of (value - q) over these q.
- T, T2: the sums of x and x^2, with x = q - ORIGIN, over the q that are below this value and in the same block.
- BLOCK, ORIGIN: the index at which the block of this value starts, and the value at that index.
- CLOSED_T, CLOSED_T2: set where a block starts: the sums of x and x^2 over the whole previous block.
"""
ENTER, ENTER_T, LEAVE, LEAVE_T, PASS = range(5)
"""Columns of `Table.moves`; row i is for the place between value i - 1 and value i:

- ENTER: the number of points with c = i and f < c; ENTER_T: the sum of their t with value i - 1.
- LEAVE: the number of points with f = i and f < c; LEAVE_T: the sum of their t with value i.
- PASS: the number of points with f = c = i, whose window is empty.
"""


class Table(NamedTuple):
    """The sums for the d different values of q, in increasing order. The arrays may be longer than needed.

    Each point reads four rows at unpredictable places, which are rarely in the cache. Therefore numbers that are read
    together are stored side by side.
    """

    value: Floats  # (d + 2,): -inf, the d values, inf; so value i is value[i + 1]
    sums: Floats  # (d + 1, 8): see N_BELOW and so on; in the last row only N_BELOW is set, to the number of all q
    first: NDArray[np.uint32]  # (BUCKETS d + 1,): for each bucket, the number of values in the buckets below it
    # (3,): the value at which the first d buckets end, and the number of buckets per unit below and above this value.
    grid: Floats
    moves: Floats  # (d + 1, 5): see ENTER and so on
    gamma: Floats  # (d,): gamma of each value

    @staticmethod
    def allocate(k: int) -> Table:
        """Allocate a table for k different values."""
        places = np.empty(BUCKETS * k + 1, np.uint32)
        return Table(np.empty(k + 2), np.empty((k + 1, 8)), places, np.empty(3), np.empty((k + 1, 5)), np.empty(k))


class Buffers(NamedTuple):
    """Room for some points. To load a kernel that allocates memory itself would take Numba 0.03 s more."""

    points: Floats
    weights: Floats | None
    rows: NDArray[Any]  # of the points of a chunk
    places: NDArray[np.uint64]  # (2, CHUNK): f and c
    slice_of: NDArray[np.uint16]  # the slice of each point of a batch
    ends: NDArray[np.int64]  # (slices + 2,): where the points of each slice end

    @staticmethod
    def allocate(rows: NDArray[Any], d: int, weighted: bool) -> Buffers:
        """Allocate room for the points of some rows; for a batch of them where the table is larger than the caches."""
        slices = BUCKETS * d // SLICE + 1
        batch = min(BATCH, len(rows)) if slices > 1 and len(rows) > WORTH * d else 0
        n = batch or CHUNK + 1
        floats, places = np.empty(n), np.empty((2, CHUNK), np.uint64)
        weights, ends = np.empty(n) if weighted else None, np.empty(slices + 2, np.int64)
        return Buffers(floats, weights, np.empty(CHUNK + 1, rows.dtype), places, np.empty(batch, np.uint16), ends)


@njit()
def tabulate(q: Floats, weights: Floats | None, nu: float, table: Table) -> int:
    """Fill the table for sorted q and no points so far; return d."""
    value, sums = table.value, table.sums
    value[0] = -np.inf
    d, reached = 0, 0.0
    for i in range(len(q)):  # d grows only where q changes, so equal q share one row
        sums[d, N_BELOW] = i if weights is None else reached
        value[d + 1] = q[i]
        d += q[i] != value[d]
        reached += weight_of(weights, i)
    sums[d, N_BELOW] = reached
    value[d + 1] = np.inf
    table.moves[: d + 1] = 0.0

    # The lowest 1/128 of the values gets the first d buckets, since most b are in their range. The highest 1/128 shares
    # the last bucket. So outliers do not make the other buckets wide.
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
    """Return the number of the bucket that contains a value, given its distance x from the end of the first d buckets.

    There are `below` buckets per unit where x < 0, and `above` elsewhere. A value beyond the range of the buckets
    belongs to the nearest bucket. If the product is NaN (0 times inf), the result is the first bucket.
    """
    x = d + x * (below if x < 0.0 else above)
    x = x if x > 0.0 else 0.0
    top = BUCKETS * d - 1.0
    return int(x if x < top else top)


@njit(inline="always")
def _place(b, width, d, value, first, base, below, above):  # type: ignore[no-untyped-def]
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
    """Return the same number as `_place`, by bisection: in the bucket, or outside if rounding led to a wrong bucket."""
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


@njit(error_model="numpy")
def add_points(scores, rows, weights, sign, offset, nu, d, table, factor, out, buffers):  # type: ignore[no-untyped-def]
    """Add points to the table and to the sums; see `pairwise.SortedClass.add_points`.

    Returns four sums: over the pairs with beta = 1, their number and the sum of t; over the pairs with 0 < beta < 1,
    the sums of t and of t^2.
    """
    if len(buffers.slice_of) > 0:
        return _add_by_slices(scores, rows, weights, sign, offset, nu, d, table, factor, out, buffers)
    lowest, full_sum, hinge_sum, t_sum, t2_sum = table.value[1], 0.0, 0.0, 0.0, 0.0
    points, own, places, room = buffers.points, buffers.weights, buffers.rows, buffers.places
    for begin in range(0, len(rows), CHUNK):
        n = 0
        # Points that are not above any q have no pairs with t > 0. They are dropped without a branch.
        for i in range(begin, min(begin + CHUNK, len(rows))):
            row = rows[i]
            b = offset + sign * scores[row]
            points[n], places[n] = b, row
            if weights is not None:
                own[n] = weights[row]
            out[row] = 0.0
            n += b > lowest
        full, hinge, t, t2 = _pair(points[:n], None if weights is None else own[:n], nu, d, table, factor, room)
        full_sum, hinge_sum, t_sum, t2_sum = full_sum + full, hinge_sum + hinge, t_sum + t, t2_sum + t2
        for j in range(n):
            out[places[j]] = points[j]
    return full_sum, hinge_sum, t_sum, t2_sum


@njit(error_model="numpy")
def _add_by_slices(scores, rows, weights, sign, offset, nu, d, table, factor, out, buffers):  # type: ignore[no-untyped-def]
    """Do what `add_points` does where the table is larger than the caches.

    The points of a batch are brought together by slices of the table, so that each slice is in the caches while its
    points are processed.
    """
    grid, lowest, full_sum, hinge_sum, t_sum, t2_sum = table.grid, table.value[1], 0.0, 0.0, 0.0, 0.0
    base, below, above = grid[0], grid[1], grid[2]
    points, own, room = buffers.points, buffers.weights, buffers.places
    slice_of, ends = buffers.slice_of, buffers.ends
    batch, slices = len(slice_of), len(ends) - 2
    for begin in range(0, len(rows), batch):
        n = min(batch, len(rows) - begin)
        ends[:] = 0
        for i in range(n):
            b = offset + sign * scores[rows[begin + i]]
            # Points that are not above any q have no pairs with t > 0. They come last, and are left alone.
            k = _bucket(b - base, d, below, above) // SLICE if b > lowest else slices
            slice_of[i] = k
            ends[k + 1] += 1
        for k in range(slices):
            ends[k + 1] += ends[k]
        for i in range(n):
            row, at = rows[begin + i], ends[slice_of[i]]
            points[at] = offset + sign * scores[row]
            if weights is not None:
                own[at] = weights[row]
            ends[slice_of[i]] = at + 1
        m = ends[slices - 1]
        for start in range(0, m, CHUNK):
            stop = min(start + CHUNK, m)
            of_chunk = None if weights is None else own[start:stop]
            full, hinge, t, t2 = _pair(points[start:stop], of_chunk, nu, d, table, factor, room)
            full_sum, hinge_sum, t_sum, t2_sum = full_sum + full, hinge_sum + hinge, t_sum + t, t2_sum + t2
        points[m:n] = 0.0
        for i in range(n - 1, -1, -1):
            ends[slice_of[i]] -= 1
            out[rows[begin + i]] = points[ends[slice_of[i]]]
    return full_sum, hinge_sum, t_sum, t2_sum


@njit(error_model="numpy")  # the function divides only where nu > 0, so Numba need not test for division by zero
def _pair(points, weights, nu, d, table, factor, room):  # type: ignore[no-untyped-def]
    """Add at most CHUNK points, each above the lowest q, and replace each by factor gamma_b (and its weight).

    There are two loops over the points, one that looks up f and c and one that adds up. A single loop would need more
    registers than the processor has, and a mispredicted branch in the lookup would also discard work of the addition.
    The loops call no helper functions with arrays, since Numba counts references to every array that is passed to a
    function.

    room : (2, CHUNK) uint64, working space for f and c.
    """
    value, sums, first, grid, moves = table[:5]
    base, below, above = grid[0], grid[1], grid[2]
    width = max(nu, TINY)
    full_sum = hinge_sum = t_sum = t2_sum = 0.0
    above_zero, above_width = room[0], room[1]
    for j in range(len(points)):
        above_zero[j] = _place(points[j], TINY, d, value, first, base, below, above)
        above_width[j] = _place(points[j], width, d, value, first, base, below, above)
    for j in range(len(points)):
        b, c, f, a = points[j], above_zero[j], above_width[j], weight_of(weights, j)
        full = sums[f, N_BELOW]
        if f > 0:
            full_sum += a * full
            hinge_sum += a * (full * (b - value[f]) + sums[f - ONE, HINGE])
        if f == c:
            moves[f, PASS] += a
            points[j] = factor * a * full
            continue
        # The window, the values f to c - 1, is added up in three steps: its part in the previous block, if it begins
        # there; the rest without the last value; and the last value. The last value is separate, since the difference
        # of prefix sums would lose the digits of a small t. `two` is 1 if the window begins in the previous block and
        # 0 if not. It is used as a factor, since a branch would be unpredictable.
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
        t_sum += a * t
        t2_sum += a * t2
        moves[c, ENTER] += a
        moves[c, ENTER_T] += a * x
        moves[f, LEAVE] += a
        moves[f, LEAVE_T] += a * (b - value[f + ONE])
        points[j] = factor * a * (full + t / nu)
    return full_sum, hinge_sum, t_sum, t2_sum


@njit()
def walk(nu: float, d: int, table: Table) -> None:
    """Compute gamma of each value, from the highest to the lowest.

    As in `distsms.losses.gather.pair_sums`, the sum of t over the window is updated from one value to the next.
    """
    full = inside = t_sum = 0.0
    value, moves = table.value, table.moves
    for i in range(d - 1, -1, -1):
        if i < d - 1:  # remove the points whose window ends above this value, then update t of the remaining points
            full += moves[i + 1, LEAVE]
            inside -= moves[i + 1, LEAVE]
            t_sum -= moves[i + 1, LEAVE_T]
            step = value[i + 2] - value[i + 1]
            if inside == 0 or step >= nu:  # the window is empty: remove its rounding errors, also those of weights
                inside = t_sum = 0.0
            t_sum += inside * step
        full += moves[i + 1, PASS]
        inside += moves[i + 1, ENTER]
        t_sum += moves[i + 1, ENTER_T]
        table.gamma[i] = full + (t_sum / nu if inside > 0 else 0.0)


@njit()
def write_gamma(value, gamma, q, rows, factor, weights, out):  # type: ignore[no-untyped-def]
    """See `pairwise.SortedClass.write_gamma`."""
    i = 0
    for j in range(len(q)):
        while value[i + 1] < q[j]:
            i += 1
        out[rows[j]] = factor * weight_of(weights, rows[j]) * gamma[i]
