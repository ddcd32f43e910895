"""Find the k-th largest score over all ranks, and roots of sums of ramps, with a few small Allreduces.

Each row i of any rank has a position z_i and a ramp. A ramp is a function of tau that is 0 at first, rises linearly to
1, and stays 1. The ramp of a positive row starts to rise at z_i, and that of a negative row reaches 1 there. A ramp
starts to rise at its head and reaches 1 at its tail; both are called kinks. G(tau) is the sum of the ramps of all rows,
each times the weight of its row. A root is a tau at which G(tau) equals a given target. If the width of the ramps is 0,
they are steps, and without weights the root is the target-th smallest position. This module replaces Algorithms 2 and 3
of JMLR.

The search begins with an interval that contains the root, called the bracket, which is divided into K buckets. One pass
over the rows computes how G changes in each bucket, and one Allreduce adds the tables of the ranks. Then G is known at
the edges of all buckets. The bucket in which G reaches the target is divided into K buckets again, and so on. K and the
factor by which positions are scaled are powers of two, and positions in the bracket are rounded to a grid. So the
division has no rounding errors, and a kink is in the same bucket in every round. No summand is negative, so no digits
are lost by cancellation, however narrow the ramps are. If the grid is too coarse (because of ties, or because the ramps
are narrower than the grid), the last bucket becomes a new bracket with a finer grid.

Cost of a search: it begins with one pass over the local rows and an Allreduce of 8 (4 K + 3) bytes (16 KiB), or for
steps of 8 (3 K + 3) bytes (12 KiB). If there are m kinks in the first bracket, about log_K m more Allreduces follow.
With each of them goes a pass over the rows that have these kinks, or over all rows if those do not fit into the buffer.
If the root is not in the first bracket, one more pass and two or three more Allreduces are needed, or about a hundred
Allreduces if some scores are as large as 1e300. No bracket needs more than LEVELS (1 + REFINEMENTS) rounds, those of
its refinements included. Memory: 2 n_local bytes and 32 KiB, allocated once. All ranks take the same decisions, because
an Allreduce gives identical numbers to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.parallel import order_statistics_kernels as kernel
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics_kernels import BLOCK, BUCKETS, POSITIVE
from distsms.utils.typing import Floats

LEVELS = 3  # how often a bracket is divided before its last bucket becomes a new bracket
# The largest number of new brackets. Each is narrower by 27 bits, so 80 lead from the largest float to the smallest.
REFINEMENTS = 80
ENOUGH = 3  # the largest number of new brackets if the bucket is as narrow as the distance between two floats
GRID = 42  # positions are rounded to multiples of 2^-42 buckets
MOVES_WIDE = (
    8.0  # the first bracket extends to both sides of the last root by this many times the last change of the root,
)
KINKS_WIDE = 128  # and by so much that it contains about this many kinks
# A table has three numbers before its columns, all for the left edge of the bracket: how many ramps end before it, how
# many contain it, and, over the ramps that contain it, the sum of the distances from their heads to the edge.
_BASE = 3


class RootSearch:
    """The search for one root. In each round `count` makes a local table, and `narrow` uses the sum of all tables.

    Parameters
    ----------
    kinds : (n_local,) uint8
        LEFT_OUT, POSITIVE or NEGATIVE for each row.
    target : float
        The value that the sum of ramps has to reach, above 0 and at most n, or the sum of the weights.
    weights : (n_local,) float64 or None
        The weights, whose mean is about 1; None means 1. They have to be above 0 but in rows that are left out.

    Attributes
    ----------
    root : float
        The result; NaN before `done`.
    done, lost : bool
        `done` says whether the search has ended. `lost` says whether the root is outside the bracket; then
        `continue_between` must be called.

    Notes
    -----
    Within a bracket, positions are u = z scale - origin, in [0, K). A round considers the positions in [left, right).
    """

    def __init__(self, kinds: NDArray[np.uint8], target: float, weights: Floats | None = None) -> None:
        self.kinds, self.target, self.weights = kinds, float(target), weights
        columns = 2 if weights is None else 3  # head, tail and weight of the rows with a kink in the bracket
        self._found = np.empty((2 * BLOCK + len(kinds) // 8, columns))
        self._table = np.empty(_BASE + 4 * BUCKETS)
        self._last: float | None = None  # the root of the last search
        self._radius = 0.0  # the first bracket of the next search extends this far to both sides of the last root

    def start(self, shift: float, width: float, slack: float = 0.0, exact: bool = False) -> None:
        """Begin a new search. If there was a search before, begin near its root.

        Local, with the same arguments on every rank.

        Parameters
        ----------
        shift, width : float
            The ramp of a positive row with score s is clip((tau - z) / width, 0, 1) with z = s. The ramp of a negative
            row is 1 - clip((z - tau) / width, 0, 1) with z = s + shift.
        slack : float, optional
            The search may end if the distances of the root from the kinks in its bucket add up to at most this.
        exact : bool, optional
            End as soon as the bucket probably contains a single position. Only for width 0.
        """
        self.shift = shift
        self._width, self._slack, self._exact = width, slack, exact
        ends = self.bracket
        self.root, self.done, self.lost = math.nan, False, not (ends[0] < ends[1] and all(map(math.isfinite, ends)))
        if not self.lost:
            self._begin(*ends)

    @property
    def bracket(self) -> tuple[float, float]:
        """The interval in which the next search begins; empty before the second search."""
        return (0.0, 0.0) if self._last is None else (self._last - self._radius, self._last + self._radius)

    def continue_between(self, low: float, high: float) -> None:
        """Continue in the bracket [low, high], which certainly contains a root.

        If an end is not finite, the root is NaN. Local.
        """
        self.lost, self.done = False, not (math.isfinite(low) and math.isfinite(high))
        if not self.done:
            self._begin(low, high, sure=True)

    def keep_root(self) -> None:
        """Remember the root, so that the next search begins near it. Local."""
        if math.isfinite(self.root):
            if self._last is not None:
                seen = self._radius * min(1.0, KINKS_WIDE / max(self.kinks, 1.0))
                self._radius = max(MOVES_WIDE * abs(self.root - self._last), seen)
            self._last = self.root

    def _begin(self, low: float, high: float, sure: bool = False, refinements: int = 0) -> None:
        mantissa, exponent = math.frexp(max(high / 2 - low / 2, math.ulp(low), math.ulp(high)))
        # (high - low) 2^exponent < K, even when rounded to the grid
        exponent = math.frexp(BUCKETS / 4)[1] - exponent - (mantissa > 1 - 1e-9)
        # The scale is a product of two factors, since for denormal numbers it would overflow.
        self._lift = 2.0 ** min(max(exponent - 900, 0), 200)
        self._scale = math.ldexp(1.0, min(exponent, 900))
        self._origin, self._left, self._factor = low * self._scale * self._lift, 0.0, 1.0
        self._scaled_width = self._width * self._scale * self._lift
        if self._width > 0 and self._scaled_width < BUCKETS:
            self._scaled_width = math.ldexp(max(round(math.ldexp(self._scaled_width, GRID)), 1), -GRID)
        self._level, self._rescan, self._sure, self._refinements = 0, True, sure, refinements

    @property
    def _window(self) -> tuple[float, float, float, float, float, float, float]:
        right = self._left + BUCKETS / self._factor
        return self.shift, self._scaled_width, self._scale, self._lift, self._origin, self._left, right

    def count(self, scores: Floats) -> Floats:
        """Return this rank's table for the buckets of the bracket, to be summed over ranks.

        Local. O(n_local) in the first round of a bracket; then only rows with a kink in the bracket are considered, if
        they fit into the buffer.
        """
        columns = 4 if self._width > 0 else 3
        counted = self._table[: _BASE + columns * BUCKETS]
        counted[:] = 0
        base, table = counted[:_BASE], counted[_BASE:].reshape(BUCKETS, columns)
        if self._rescan:
            start = fills = 0
            while fills == 0 or start < len(scores):
                rows = scores, self.kinds, self.weights
                start, self._m = kernel.collect(*rows, *self._window, start, self._found, base)
                self._tabulate(table)
                fills += 1
            self._rescan = fills > 1
        else:
            self._tabulate(table)
        return counted

    def _tabulate(self, table: Floats) -> None:
        found = self._found[: self._m]
        kernel.tabulate(found, None if self.weights is None else found[:, 2], self._left, self._factor, table)

    def narrow(self, counted: Floats) -> None:
        """Continue with the bucket in which G reaches the target. Local.

        If G reaches the target outside the bracket, `lost` is set.

        counted : the sum of all ranks' tables.
        """
        steps, table = self._width == 0, counted[_BASE:].reshape(BUCKETS, -1)
        if self._level == 0:
            full, self._slope, distance = counted[:_BASE].tolist()
            if math.isnan(full):
                self.done = True
                return
            self._value = (
                full - self.target + (0.0 if steps else distance / self._scaled_width)
            )  # the target is subtracted first, so that the sum is small near the root
            self.kinks = float(table[:, 0].sum() if steps else table[:, (0, 2, 3)].sum())
        k, value, slope, grown = kernel.walk(table, self._value, self._slope, self._scaled_width * self._factor)
        if not self._sure and (k == BUCKETS or (self._level == 0 and (value > 0 or (steps and value == 0)))):
            # within a refined bracket, G is so near the target that only rounding decides
            self.lost, self.done = not self._refinements, bool(self._refinements)
            return
        k = min(k, BUCKETS - 1)
        bucket = 1 / self._factor
        if steps:
            in_bucket = table[k, 0] or 1.0
            kinks, share, squares = (table[k] / [1, in_bucket, in_bucket]).tolist()
            # The standard deviation of the positions; equal positions give up to about 1e-8 because of rounding.
            spread = math.sqrt(max(squares - share * share, 0.0))
        else:
            kinks, spread = float(table[k, 0] + table[k, 2] + table[k, 3]), 1.0
            share = -value / (grown - value) if grown > value else 0.0
        self._left += k * bucket
        self._factor *= BUCKETS
        self._value, self._slope = value, slope
        self._level += 1
        self.root = (self._origin + self._left + min(max(share, 0.0), 1.0) * bucket) / self._lift / self._scale
        if self._exact:
            self.done = spread < 1e-7 or self._level == LEVELS
        else:
            off = kinks * (spread * bucket + steps * 2.0**-GRID) / self._scale / self._lift
            one_float = bucket / self._scale / self._lift <= math.ulp(self.root)
            self.done = off <= self._slack or self._refinements >= (ENOUGH if one_float else REFINEMENTS)
        if not self.done and self._level == LEVELS:
            margin = bucket / self._scale / self._lift + 2 * math.ulp(self.root)
            self._begin(self.root - margin, self.root + margin, refinements=self._refinements + 1)

    def extremes(self, scores: Floats) -> Floats:
        """Return the largest position in the present bucket, and minus the smallest. Local.

        If this rank has no row there, both are -inf.
        """
        return kernel.extremes(scores, self.kinds, *self._window)


def find_roots(searches: Sequence[RootSearch], scores: Floats, comm: Communicator) -> None:
    """Find the roots of several searches at the same time. **Collective.**

    Parameters
    ----------
    searches : sequence of RootSearch
        The searches, after `start`. Their `root` is set; it is NaN if a score of any rank is not finite.
    scores : (n_local,) float64
        This rank's scores.
    comm : Communicator
        The ranks.
    """
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (math.inf, -math.inf)
    finite = len(scores) == 0 or (math.isfinite(low) and math.isfinite(high))
    while unsolved := [search for search in searches if not search.done]:
        if any(search.lost for search in unsolved):
            ends = comm.maximum(np.array([-low, high]) if finite else np.full(2, math.inf))
            for search in unsolved:
                if search.lost:
                    search.continue_between(-float(ends[0]), float(ends[1]) + search.shift)
            continue
        tables = [search.count(scores if finite else scores[:0]) for search in unsolved]
        counted = comm.sum(np.concatenate(tables) + (0.0 if finite else math.nan))
        start = 0
        for search, table in zip(unsolved, tables, strict=True):
            search.narrow(counted[start : start + len(table)])
            start += len(table)


def find_position(search: RootSearch, scores: Floats, shift: float, comm: Communicator) -> float:
    """Return the target-th smallest position exactly; NaN if a score is not finite.

    **Collective**, with one or two more Allreduces than `find_roots`.
    """
    search.start(shift, 0.0, exact=True)
    while True:
        find_roots([search], scores, comm)
        if math.isnan(search.root):
            return search.root
        high, low = comm.maximum(search.extremes(scores)).tolist()
        if not -low < high:  # all rows in the bucket have the same position
            return high
        search.continue_between(-low, high)


def select(scores: Floats, k: int, comm: Communicator) -> float:
    """Return the k-th largest of all ranks' scores. **Collective**, about six small Allreduces; O(n_local).

    Parameters
    ----------
    scores : (n_local,)
        This rank's scores.
    k : int
        From 1 to the number of scores over all ranks.
    comm : Communicator
        The ranks.

    Returns
    -------
    float
        NaN if a score of any rank is not finite.

    Raises
    ------
    InputError
        If there are fewer than k scores.
    """
    n = int(comm.sum(np.array([len(scores)]))[0])
    if not 1 <= k <= n:
        raise InputError(f"k = {k} is not possible with {n} scores: choose k from 1 to {n}", everywhere=True)
    search = RootSearch(np.full(len(scores), POSITIVE, np.uint8), n - k + 1)
    return find_position(search, np.ascontiguousarray(scores, np.float64), 0.0, comm)
