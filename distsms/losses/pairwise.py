"""Sums over all pairs of two classes, of which only one is sorted (JMLR, section 4.2, but not by Algorithm 4).

One class is given by its k sorted values q; the values b of the other class, called points, come in any order. Each
pair has t = b - q and beta = clip(t / nu, 0, 1). The window of b is the q with 0 < t < nu, and F the weight of the q
with t >= nu. Then gamma, the sum of beta over the pairs of a value, is

    gamma_b = F + 1/nu (sum of t over the window of b)
    gamma_q = (weight of the b with t >= nu) + 1/nu (sum of t over the b that have q in their window)

gamma_b changes its slope where b passes a q, or its end q + nu. The table has all these edges in order, with gamma, the
two sums over pairs, and the slopes up to the next edge. A grid of buckets finds the edge of a point in O(1) expected
time. gamma_q follows from number and distances of the points of each edge, in one pass over q from the highest down.

No digits are lost by cancellation, however large the scores are: terms are distances, and running sums begin anew where
windows have no value in common. Every rank sorts the q of all ranks, and pairs them with its own rows b. A rank
receives 16 k bytes, with weights 24 k; O(k log P + n/P) time, 240 k bytes of memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.jit import UNCOUNTED, njit
from distsms.base.typing import Floats
from distsms.losses import pairwise_kernels as kernel
from distsms.losses.pairwise_kernels import Buffers, Table

LEAST, APART, FALLS = 2**13, 32, 0.25
"""Radix sort is worth compiling from about LEAST numbers on, if a share FALLS is below the one APART places before."""
DIGITS, DIGIT, LAST = 4, np.uint64(8), np.uint64(255)
"""The digits of a number, the bits of a digit, and the largest digit."""
MOVES = 4  # numbers are moved one by one at most so many times for each of them
HALF, SIGN = np.uint64(32), np.uint32(2**31)

Rows = NDArray[Any]
"""Numbers of local rows, (m,) of an integer type."""


class SortedClass:
    """All ranks' rows of a class, sorted on every rank, with the `sums` over their pairs so far: set the values `q`
    (m,) of this rank's `rows` (m,), which are kept in the order of the last values, call `tabulate_all`, then
    `add_points` any number of times, then `total`, and `write`. Construction is **collective**.
    """

    def __init__(self, rows: Rows, weights: Floats | None, comm: Communicator) -> None:
        self._weights, self.comm, counts = weights, comm, comm.allgather(len(rows))
        self.rows, self._counts, self._run = rows, [count + 1 for count in counts], np.empty(len(rows) + 1)
        self.q = self._run[1:]
        # Compile the kernels, or load them, before the first evaluation.
        if max(self._counts) > LEAST:
            radix_sort(np.empty(0), rows[:0])
        self._table, one, a = Table.allocate(1), np.zeros(1), None if weights is None else np.ones(1)
        self.tabulate(one, 1.0, a)
        self.add_points(np.ones(1), np.zeros(1, np.uint32), 1.0, 0.0, 1.0, np.empty(1), a)
        kernel.write_gamma(self._table.value, self.gamma(), one, np.zeros(1, np.intp), 1.0, a, np.empty(1))
        self._table = Table.allocate(sum(counts))

    def tabulate(self, q: Floats, nu: float, weights: Floats | None = None) -> None:
        """Set the sorted values q, and forget all points. Local; O(k)."""
        self._nu, self.sums = nu, np.zeros(3)  # over the pairs so far: of max(0, t), of its Huber hinge, and of beta
        self._d, self._m = kernel.tabulate(q, weights, nu, self._table)

    def add_points(
        self, scores: Floats, rows: Rows, sign: float, offset: float, factor: float, out: Floats, weights: Floats | None
    ) -> None:
        """Add points b = offset + sign scores[row], weighted, and set out[row] = factor gamma_b. Local; O(1) each."""
        buffers = Buffers.allocate(rows, weights is not None)
        self.sums += kernel.add_points(
            scores, rows, weights, sign, offset, self._nu, self._m, self._table, factor, out, buffers
        )

    def gamma(self) -> Floats:
        """Return gamma (d,) of each different q, increasing, over the local points so far, in a reused buffer. O(d)."""
        kernel.walk(self._nu, self._d, self._table)
        return self._table.gamma[: self._d]

    def tabulate_all(self, finite: bool, nu: float) -> bool:
        """Sort all ranks' values, forget all points; return whether all ranks' margins are finite. **Collective.**"""
        self.rows = sort_with_rows(self.q, self.rows)
        # Each rank adds one number that says whether all its margins are finite. If so, the number is -inf, which comes
        # first after sorting; if not, it is NaN, which comes last.
        self._run[0] = -np.inf if finite else np.nan
        q, weights = self.comm.allgather_rows(self._run, self._counts), None
        if self._weights is None:
            q.sort(kind="stable")  # a single rank has its run itself here, which is sorted already
        else:
            weights = self.comm.allgather_rows(np.append(0.0, self._weights[self.rows]), self._counts)
            order = np.argsort(q, kind="stable")
            q, weights = q[order], weights[order][self.comm.size :]
        if not q[-1] < np.inf:
            return False
        self.tabulate(q[self.comm.size :], nu, weights)
        return True

    def total(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return gamma of each different q, ascending, and `numbers`, both summed over ranks. **Collective.**"""
        total = self.comm.sum(np.concatenate([self.gamma(), numbers]))
        gamma, numbers = np.split(total, [len(total) - len(numbers)])
        return gamma, numbers

    def write(self, gamma: Floats, factor: float, out: Floats) -> None:
        """Set out[row] to factor times gamma (and the weight) of each of this rank's rows of the class. Local."""
        kernel.write_gamma(self._table.value, gamma, self.q, self.rows, factor, self._weights, out)


def sort_with_rows(values: Floats, rows: Rows) -> NDArray[Any]:
    """Sort numbers in place, ascending and stable, and return their rows alike; with NaN in any order. Local; O(m).

    NumPy's stable sort is the fastest where few scores have changed places since the last evaluation. Else a radix sort
    takes a fifth of the time, unless too many scores are too close together.
    """
    falling = len(values) >= LEAST and np.count_nonzero(values[APART:] < values[:-APART]) >= FALLS * len(values)
    if falling and len(values) < 2**32:
        values += 0.0  # makes 0.0 of -0.0, which is equal but has other bits
        in_order = radix_sort(values, rows)
        if in_order is not None:
            values[:] = in_order[0]
            return in_order[1]
    order = np.argsort(values, kind="stable")
    values[:] = values[order]
    return rows[order]


def radix_sort(values: Floats, rows: Rows) -> tuple[Floats, NDArray[Any]] | None:
    """Return numbers (m,) in order, and their rows (m,), or None if they are too close together. Local.

    They are sorted as float32, whose bits are in the order of the numbers once those of negative ones are reversed,
    eight bits at a time from the last (Knuth, volume 3, section 5.2.5). The few that are then out of order are moved.
    """
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    counts, keys, others = np.zeros((DIGITS, int(LAST) + 1), np.int64), *np.empty((2, len(values)), np.uint64)
    ordered, order = np.empty_like(values), np.empty(len(values), np.uint32)
    return (ordered, rows[order]) if _radix_sort(bits, values, counts, keys, others, ordered, order) else None


@njit(**UNCOUNTED)
def _radix_sort(bits, values, counts, keys, others, ordered, order):  # type: ignore[no-untyped-def]
    for i in range(len(bits)):
        key = np.uint64(~bits[i] if bits[i] & SIGN else bits[i] | SIGN)
        keys[i] = key << HALF | np.uint64(i)
        for place in range(DIGITS):
            counts[place, key & LAST] += 1
            key >>= DIGIT
    for place in range(DIGITS):  # an even number, so that the last pass writes into `keys`
        shift, begin, total = HALF + DIGIT * np.uint64(place), counts[place], 0
        for digit in range(len(begin)):
            begin[digit], total = total, total + begin[digit]
        for i in range(len(keys)):
            digit = (keys[i] >> shift) & LAST
            others[begin[digit]] = keys[i]
            begin[digit] += 1
        keys, others = others, keys
    left = MOVES * len(keys)
    for i in range(len(keys)):
        at = keys[i] & np.uint64(2**32 - 1)
        value, j = values[at], i
        while j > 0 and ordered[j - 1] > value and left > 0:
            ordered[j], order[j] = ordered[j - 1], order[j - 1]
            j -= 1
            left -= 1
        ordered[j], order[j] = value, at
    return left > 0 or len(keys) == 0
