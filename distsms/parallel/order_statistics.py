"""Find the k-th largest score over all ranks, and places of weighted rows, with a few small Allreduces.

Each row has a position: its score, plus a shift if it is negative. The place that is searched for is the smallest
position at which G, the weight of all rows up to it, reaches a target. An interval that contains it, the bracket, is
divided into K buckets; one pass computes how G changes in each, and one Allreduce adds the tables. The bucket in which
G reaches the target is divided again, and so on. K and scales are powers of two, and positions are rounded to a grid,
so that a row is in the same bucket in each round.

Cost: a pass and an Allreduce of 12 KiB; for m rows in the bracket about log_K m more, with passes over these; if the
place is elsewhere two or three more, a hundred for scores of 1e300. n_local bytes of memory (2 n_local with weights).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.parallel import order_statistics_kernels as kernel
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics_kernels import BLOCK, BUCKETS, POSITIVE, Window

LEVELS = 3  # how often a bracket is divided before its extremes are computed
SAME = 1e-7  # positions in a bucket with at most this standard deviation, in buckets, are probably equal
MOVES_WIDE = 1.0  # the first bracket extends to both sides of the last place by this many times its last change,
ROWS_WIDE = 128  # and by so much that it contains about this many rows
FEW = 2**17  # up to so many rows of all ranks are sorted by each of them


class BucketSearch:
    """The search for one place: in each round `count` makes a local table, and `narrow` uses the sum of all tables.

    `kinds` is LEFT_OUT, POSITIVE or NEGATIVE for each row; `target` is above 0 and at most the sum of weights of mean
    about 1. `rows_in_bracket`, by weight, are in the first bracket; `done` says whether it has been divided far enough,
    `lost` that the place is elsewhere (call `continue_between`), `failed` that a score is not finite. Positions in a
    bracket are u = z scale - origin, in [0, K), of which a round considers [left, right).
    """

    def __init__(self, kinds: NDArray[np.uint8], target: float, weights: Floats | None = None) -> None:
        self.kinds, self.target, self.weights = kinds, float(target), weights
        self._listed = np.empty(2 * BLOCK + len(kinds) // 8)  # the positions in the bracket
        self._listed_weights = None if weights is None else np.empty_like(self._listed)
        self._block = np.empty(BLOCK), np.empty(BLOCK, np.uint8)
        self._table = np.empty(1 + 3 * BUCKETS)  # G below the bracket, and a table of the buckets
        self.rows_in_bracket = 0.0
        self._last: float | None = None  # the last place
        self._radius = 0.0  # the first bracket of the next search extends this far to both sides of the last place

    @property
    def bracket(self) -> tuple[float, float]:
        """The interval in which the next search begins; empty before the second search."""
        return (0.0, 0.0) if self._last is None else (self._last - self._radius, self._last + self._radius)

    def start(self, shift: float) -> None:
        """Begin a search, near the last place if any; `shift` is for negative rows. Local, alike on all ranks."""
        self.shift, ends = shift, self.bracket
        self.failed, self.done, self.lost = False, False, not (ends[0] < ends[1] and all(map(math.isfinite, ends)))
        if not self.lost:
            self._begin(*ends, sure=False)

    def continue_between(self, low: float, high: float) -> None:
        """Continue in the bracket [low, high], which has the place; fail if an end is not finite. Local."""
        self.lost = False
        self.done = self.failed = not (math.isfinite(low) and math.isfinite(high))
        if not self.done:
            self._begin(low, high, sure=True)

    def keep(self, place: float, radius: float, rows: float) -> None:
        """Remember a place, and half the width of a bracket around it with its rows, for the next search. Local."""
        if math.isfinite(place):
            if self._last is not None:
                seen = radius * min(1.0, ROWS_WIDE / max(rows, 1.0))
                self._radius = max(MOVES_WIDE * abs(place - self._last), seen, 2 * math.ulp(place))
            self._last = place

    def _begin(self, low: float, high: float, sure: bool) -> None:
        mantissa, exponent = math.frexp(max(high / 2 - low / 2, math.ulp(low), math.ulp(high)))
        # (high - low) 2^exponent < K, even when rounded to the grid
        exponent = math.frexp(BUCKETS / 4)[1] - exponent - (mantissa > 1 - 1e-9)
        # The scale is a product of two factors, since for denormal numbers it would overflow.
        self._lift = 2.0 ** min(max(exponent - 900, 0), 200)
        self._scale = math.ldexp(1.0, min(exponent, 900))
        self._origin, self._left, self._factor = low * self._scale * self._lift, 0.0, 1.0
        self._level, self._rescan, self._sure = 0, True, sure

    @property
    def _window(self) -> Window:
        right = self._left + BUCKETS / self._factor
        return Window(self.shift, self._scale, self._lift, self._origin, self._left, right)

    def count(self, scores: Floats) -> Floats:
        """Return this rank's table of the buckets, to be summed; a pass, unless rows fit the buffer. Local."""
        counted = self._table
        counted[:] = 0
        table = counted[1:].reshape(BUCKETS, 3)
        if self._rescan:
            start = fills = 0
            while fills == 0 or start < len(scores):
                listed, masses = self._listed, self._listed_weights
                start, self._m, below = kernel.collect(
                    scores, self.kinds, self.weights, self._window, start, listed, masses, self._block
                )
                counted[0] += below
                self._tabulate(table)
                fills += 1
            self._rescan = fills > 1
        else:
            self._tabulate(table)
        return counted

    def _tabulate(self, table: Floats) -> None:
        weights = None if self._listed_weights is None else self._listed_weights[: self._m]
        kernel.tabulate(self._listed[: self._m], weights, self._left, self._factor, table)

    def narrow(self, counted: Floats) -> None:
        """Continue with the bucket in which G reaches the target by the summed table; else `lost` is set. Local."""
        table = counted[1:].reshape(BUCKETS, 3)
        if self._level == 0:
            self._value = float(counted[0]) - self.target  # subtracted first, so that the sum is small near the place
            if math.isnan(self._value):
                self.done = self.failed = True
                return
            self.rows_in_bracket = float(table[:, 0].sum())
        k, value = kernel.walk(table, self._value)
        if not self._sure and (k == BUCKETS or (self._level == 0 and value >= 0)):
            self.lost = True
            return
        if k == BUCKETS:  # added in another order, the weights do not quite reach the target: take the last rows
            k = int(np.max(np.flatnonzero(table[:, 0]), initial=0))
            value = -float(table[k, 0])
        mean, square = (table[k, 1:] / (table[k, 0] or 1.0)).tolist()
        # The standard deviation of the positions; equal positions give up to about 1e-8 because of rounding.
        spread = math.sqrt(max(square - mean * mean, 0.0))
        self._left += k / self._factor
        self._factor *= BUCKETS
        self._value = value
        self._level += 1
        self.done = spread < SAME or self._level == LEVELS

    def extremes(self, scores: Floats) -> Floats:
        """Return the largest position in the present bucket, and minus the smallest; -inf if it has no row. Local."""
        return np.array(kernel.extremes(scores, self.kinds, self._window, self._block))


def find_position(search: BucketSearch, scores: Floats, shift: float, comm: Communicator) -> float:
    """Return the place exactly; NaN if any score is not finite. `shift` is added to negative rows. **Collective.**"""
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (math.inf, -math.inf)
    finite = len(scores) == 0 or (math.isfinite(low) and math.isfinite(high))
    search.start(shift)
    while True:
        while not search.done:
            if search.lost:
                ends = comm.maximum(np.array([-low, high]) if finite else np.full(2, math.inf))
                search.continue_between(-float(ends[0]), float(ends[1]) + shift)
            else:
                counted = search.count(scores if finite else scores[:0])
                search.narrow(comm.sum(counted + (0.0 if finite else math.nan)))
        if search.failed:
            return math.nan
        largest, minus_smallest = comm.maximum(search.extremes(scores)).tolist()
        if not -minus_smallest < largest:  # all rows in the bucket have the same position
            return float(largest)
        search.continue_between(-minus_smallest, largest)


def select(scores: Floats, k: int, comm: Communicator) -> float:
    """Return the k-th largest of all scores, or NaN; InputError if there are fewer. **Collective**; O(n_local)."""
    n = int(comm.sum(np.array([len(scores)]))[0])
    if not 1 <= k <= n:
        raise InputError(f"k = {k} is not possible with {n} scores: choose k from 1 to {n}", everywhere=True)
    scores = np.ascontiguousarray(scores, np.float64)
    if n <= FEW:
        ordered = np.sort(comm.allgather_rows(scores, comm.allgather(len(scores))))
        return float(ordered[n - k]) if np.isfinite(ordered).all() else math.nan
    return find_position(BucketSearch(np.full(len(scores), POSITIVE, np.uint8), n - k + 1), scores, 0.0, comm)
