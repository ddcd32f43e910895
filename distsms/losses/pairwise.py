"""Sums over all pairs of two classes, of which only one is sorted (JMLR, section 4.2, but not by Algorithm 4).

One class is given by its k sorted values q. The values b of the other class, called points, come in any order. Each
pair has t = b - q and beta = clip(t / nu, 0, 1). gamma of a value is the sum of beta over all its pairs.

The window of a point b is the q with 0 < t < nu, and F is the number of q with t >= nu. Then

    gamma_b = F + 1/nu (sum of t over the window of b)
    gamma_q = (number of b with t >= nu) + 1/nu (sum of t over the b that have q in their window)

With weights, every number above is a sum of weights, and every sum has terms that are multiplied by their weights. The
weights of the smaller class enter through the table, and a point's weight multiplies what the point adds.

As a function of b, gamma_b changes its slope where b passes a value q, and again where b passes its end, q + nu. The
table has all these edges in order. For each, it has gamma, the two sums over pairs, and the slopes for a point between
this edge and the next. A point is looked up in a grid of buckets, which takes O(1) expected time, and O(log k) in the
worst case. Then its gamma and its part of the sums follow from one edge. gamma_q is computed from the number and the
distances of the points of each edge, in one pass over q, from the highest to the lowest: points join the running sums
at the last q of their window, and leave the sum of t at its first one, below which their beta is 1.

No digits are lost by cancellation, however large the scores are. The terms are distances, and from edge to edge the
sums over pairs only have terms added to them, since all of them grow with b. gamma of an edge is computed anew from its
window whenever the window has no value in common with the one of the last time. So rounding errors do not add up over
more than the values of a window.

If the table is larger than the caches, the points are brought together by slices of it, unless most of them are in few
places: where a model ranks well, most negatives are below nearly all positives.

Cost: O(k) for sorted q, O(1) expected for each b. About 190 bytes of memory for each different q. For b there is none,
or 10 bytes (with weights 18) for each of at most `BATCH` points, or eight for each q if that is more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.losses import pairwise_kernels as kernel
from distsms.losses.pairwise_kernels import Buffers, Table

HELD = 24
"""The number of slices up to which the caches of most processors hold the table, so that it need not be divided."""
SAMPLE, PLACE, PLACES, MOST_OF_THEM = 256, 2**11, 4, 0.75
"""Most points are in few places if this share of a sample is among PLACES times PLACE values (in sum 1 MB of edges)."""


class PairSums(NamedTuple):
    """Sums over all pairs of max(0, t), of its Huber hinge, and of beta."""

    hinge: float
    huber: float
    beta: float


class SortedClass:
    """The sorted class, with its table and the `sums` over its pairs so far. Local.

    Call `tabulate`, then `add_points` (any number of times), then `gamma`. The buffers, at first for `capacity` values,
    are reused in the next evaluation. The constructor compiles the kernels, or loads them.
    """

    def __init__(self, capacity: int, weighted: bool = False) -> None:
        self._table, weights = Table.allocate(1), np.ones(1) if weighted else None
        self.tabulate(np.zeros(1), 1.0, weights)
        self.add_points(np.ones(1), np.zeros(1, np.uint32), 1.0, 0.0, 1.0, np.empty(1), weights)
        self.write_gamma(self.gamma(), np.zeros(1), np.zeros(1, np.intp), 1.0, np.empty(1), weights)
        self._table = Table.allocate(capacity)

    def tabulate(self, q: Floats, nu: float, weights: Floats | None = None) -> None:
        """Set the sorted class, values q that increase, and forget all points. O(k)."""
        if len(q) + 2 > len(self._table.value):
            self._table = Table.allocate(len(q))
        self._nu, self.sums = nu, PairSums(0.0, 0.0, 0.0)
        self._d, self._m = kernel.tabulate(q, weights, nu, self._table)

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
        slices = kernel.BUCKETS * self._m // kernel.SLICE + 1
        if slices <= HELD or len(rows) < self._d or self._is_in_few_places(scores, rows, sign, offset):
            slices = 1
        buffers = Buffers.allocate(rows, slices, weights is not None)
        add = kernel.add_points if slices == 1 else kernel.add_by_slices
        added = add(scores, rows, weights, sign, offset, self._nu, self._m, self._table, factor, out, buffers)
        self.sums = PairSums._make(old + new for old, new in zip(self.sums, added, strict=True))

    def _is_in_few_places(self, scores: Floats, rows: NDArray[Any], sign: float, offset: float) -> bool:
        """Whether most points are among so few values that the caches hold their edges; from a sample of points."""
        sample = offset + sign * scores[rows[:: max(1, len(rows) // SAMPLE)]]
        places = np.searchsorted(self._table.value[1 : self._d + 1], sample) // PLACE
        return np.sum(np.sort(np.bincount(places))[-PLACES:]) >= MOST_OF_THEM * len(sample)

    def gamma(self) -> Floats:
        """Return gamma (d,) of each different q, increasing in q, over the points added so far. O(d).

        The array is a buffer that the next call overwrites.
        """
        kernel.walk(self._nu, self._d, self._table)
        return self._table.gamma[: self._d]

    def write_gamma(
        self, gamma: Floats, q: Floats, rows: NDArray[Any], factor: float, out: Floats, weights: Floats | None = None
    ) -> None:
        """Write factor times gamma of values q (m,), which increase, to their rows in `out`, times the weight of the
        row.

        gamma (d,) is the result of `gamma`, or its sum over ranks. O(d + m).
        """
        kernel.write_gamma(self._table.value, gamma, q, rows, factor, weights, out)
