"""Sums over all pairs of two classes, of which only one is sorted (JMLR, section 4.2, but not by Algorithm 4).

One class is given by its k sorted values q. The values b of the other class, called points, come in any order. Each
pair has t = b - q and beta = clip(t / nu, 0, 1). gamma of a value is the sum of beta over all its pairs.

For a point b, let f be the number of q with t >= nu, where beta = 1, and c the number of q with t > 0. The window of b
is the q number f to c - 1, in increasing order from 0, where beta = t / nu. Then

    gamma_b = f + 1/nu (sum of t over the window of b)
    gamma_q = (number of b with t >= nu) + 1/nu (sum of t over the b that have q in their window)

With weights, every number above is a sum of weights, and every sum has terms that are multiplied by their weights. The
weights of the smaller class enter through the prefix sums, and a point's weight multiplies what the point adds.

gamma_b is computed from prefix sums of q. gamma_q is computed in one pass over q, from the highest to the lowest. A
point b joins the running sums at q number c - 1, and leaves the sum of t at q number f - 1, from which on its beta is
1. The running sums are the number of points and the sum of their t.

f and c are looked up in a table of buckets over the range of q. This takes O(1) expected time, and O(log k) in the
worst case.

As in `distsms.losses.gather.pair_sums`, no digits are lost by cancellation, however large the scores are. The terms are
distances, and long sums only have terms added to them. Sums over a window are differences of prefix sums, but the
prefix sums start again from zero in each block, and a block is not wider than nu. A window is narrower than nu, so it
lies in at most two blocks, and no term is larger than 2 nu.

If the table is larger than the caches, the points are brought together by slices of it, since four places of it are
read for each point.

Cost: O(k) for sorted q, O(1) expected for each b. About 150 bytes of memory for each different q. For b there is none,
or 10 bytes (with weights 18) for each of at most `BATCH` points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.losses import pairwise_kernels as kernel
from distsms.losses.pairwise_kernels import Buffers, Table
from distsms.utils.typing import Floats


class PairSums(NamedTuple):
    """Sums over all pairs of max(0, t), of its Huber hinge, and of beta."""

    hinge: float
    huber: float
    beta: float


class SortedClass:
    """The sorted class, with its table and the sums over its pairs. Local.

    Call `tabulate`, then `add_points` (any number of times), then `gamma`. The buffers are reused in the next
    evaluation. The constructor compiles the kernels, or loads them.

    Parameters
    ----------
    capacity : int
        The expected number of values q. Larger buffers are allocated when they are needed.
    weighted : bool
        Whether the rows have weights.

    Attributes
    ----------
    sums : PairSums
        The sums over all pairs so far.
    """

    def __init__(self, capacity: int, weighted: bool = False) -> None:
        self._table, weights = Table.allocate(1), np.ones(1) if weighted else None
        self.tabulate(np.zeros(1), 1.0, weights)
        self.add_points(np.ones(1), np.zeros(1, np.uint32), 1.0, 0.0, 1.0, np.empty(1), weights)
        self.write_gamma(self.gamma(), np.zeros(1), np.zeros(1, np.intp), 1.0, np.empty(1), weights)
        self._table = Table.allocate(capacity)

    def tabulate(self, q: Floats, nu: float, weights: Floats | None = None) -> None:
        """Set the sorted class, and forget all points.

        Parameters
        ----------
        q : (k,) float64
            The values, finite and in increasing order.
        nu : float
            The width >= 0.
        weights : (k,) float64 or None
            The weights of these values; None means 1.

        Notes
        -----
        O(k).
        """
        if len(q) + 2 > len(self._table.value):
            self._table = Table.allocate(len(q))
        self._nu, self._d, self.sums = nu, kernel.tabulate(q, weights, nu, self._table), PairSums(0.0, 0.0, 0.0)

    def add_points(
        self,
        scores: Floats,
        rows: NDArray[Any],
        sign: float,
        offset: float,
        factor: float,
        out: Floats,
        weights: Floats | None = None,
    ) -> None:
        """Add the points b = offset + sign scores[row] of the given rows, and set out[row] = factor gamma_b.

        With `weights`, the point has the weight weights[row], and out[row] is multiplied by it. The pairs of the points
        with all q are added to `sums`. O(1) expected time for each point.
        """
        buffers = Buffers.allocate(rows, self._d, weights is not None)
        full, hinge, t, t2 = kernel.add_points(
            scores, rows, weights, sign, offset, self._nu, self._d, self._table, factor, out, buffers
        )
        beta, huber = (t / self._nu, 0.5 * t2 / self._nu) if self._nu > 0 else (0.0, 0.0)
        added = hinge + t, hinge - 0.5 * self._nu * full + huber, full + beta
        self.sums = PairSums(*(old + new for old, new in zip(self.sums, added, strict=True)))

    def gamma(self) -> Floats:
        """Return gamma (d,) of each different q, increasing in q, over the points added so far. O(d).

        The array is a buffer that the next call overwrites.
        """
        kernel.walk(self._nu, self._d, self._table)
        return self._table.gamma[: self._d]

    def write_gamma(
        self, gamma: Floats, q: Floats, rows: NDArray[Any], factor: float, out: Floats, weights: Floats | None = None
    ) -> None:
        """Write factor times gamma of given values q to their rows in `out`.

        Parameters
        ----------
        gamma : (d,) float64
            The result of `gamma`, or its sum over ranks.
        q : (m,) float64
            Some of the values q, in increasing order.
        rows : (m,) int
            The row of each of these values.
        factor : float
            Multiplies each gamma.
        out : (n_local,) float64
            The output.
        weights : (n_local,) float64 or None
            Also multiply by the weight of each row.

        Notes
        -----
        O(d + m).
        """
        kernel.write_gamma(self._table.value, gamma, q, rows, factor, weights, out)
