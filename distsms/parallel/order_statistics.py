"""Where a sum of ramps over all ranks' rows reaches a target, and the k-th largest score, by a few small Allreduces.

Row i has a place z_i and a ramp of tau that rises from 0 to 1 on one side of it. The sum of all ramps G(tau) does not
fall; a root is a tau with G(tau) = target (JMLR, Algorithms 2 and 3, by another way). Ramps of width 0 are steps: the
root is then the target-th smallest place.

A bracket is cut into K buckets. One pass over the rows counts what G does in each of them, one Allreduce adds the
ranks' tables, and G is known at every edge: the bucket where it reaches the target is cut into K again, and so on. K
and the scale are powers of two, and positions in the bracket are on a grid, so cutting is exact: a kink (head or tail
of a ramp) stays in its buckets in every round. All that is added up is positive: nothing cancels, however narrow the
ramps. Where the grid is too coarse (ties, ramps narrower than it), the last bucket becomes a bracket with its own grid.

Cost of a search: a pass over the local rows and an Allreduce of 8 (4 K + 3) bytes, for steps 8 (3 K + 3): 16 and 12
KiB. Then, with m kinks in the first bracket, about log_K m more Allreduces and passes over those few rows, as long
as they fit into the buffer; if not, over all. Where the root is not in the first bracket, a pass and two or three
Allreduces more, and some hundred where single scores are 1e300; never more than LEVELS (1 + REFINEMENTS) rounds in a
bracket. Memory: 2 n_local bytes and 32 KiB, allocated once. The ranks decide alike because an Allreduce gives all of
them the same bits.
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

LEVELS = 3  # a bracket is cut so often before its last bucket is the next one
REFINEMENTS = 80  # and this happens so often: 27 bits each time lead from the largest of floats to the least
ENOUGH = 3  # or so often, where the root is one float already
GRID = 42  # positions are multiples of 2^-42
REACH = 8.0  # the first bracket extends so many times the root's last move to either side,
SIGHT = 128  # and at least as far as so many kinks are
_BASE = 3  # numbers before a table: rows full, rows under way and their summed distance from the head, at the left edge


class RootSearch:
    """One root, searched in rounds: `count` a table (local), `narrow` by the sum of all ranks' tables.

    kinds : (n_local,) uint8.  target : in (0, n].
    Within a bracket, positions are u = z scale - origin, in [0, K); a round looks at those in [left, right).
    """

    def __init__(self, kinds: NDArray[np.uint8], target: int) -> None:
        self.kinds, self.target = kinds, float(target)
        self._found = np.empty((2 * BLOCK + len(kinds) // 8, 2))  # head and tail of rows with a kink in sight
        self._table = np.empty(_BASE + 4 * BUCKETS)
        self._last: float | None = None  # root of the last question
        self._radius = 0.0  # how far from it the next root is looked for first

    def pose(self, shift: float, width: float, slack: float = 0.0, exact: bool = False) -> None:
        """A new question, probably much like the last one. Local; the same on every rank.

        shift, width : a positive's ramp is clip((tau - s) / width, 0, 1), so z = s; a negative's has z = s + shift and
        is 1 - clip((z - tau) / width, 0, 1).  slack : a root is near enough when its distance from the kinks around it,
        summed over these, is at most this.  exact : only look for a bucket whose places are probably one (width 0).
        """
        self.shift = shift
        self._width, self._slack, self._exact = width, slack, exact
        ends = (0.0, 0.0) if self._last is None else (self._last - self._radius, self._last + self._radius)
        self.root, self.done, self.lost = math.nan, False, not (ends[0] < ends[1] and all(map(math.isfinite, ends)))
        if not self.lost:
            self._begin(*ends)

    def look_between(self, low: float, high: float) -> None:
        """Cut this bracket next, which has a root for sure; if its ends are not numbers, the root is NaN. Local."""
        self.lost, self.done = False, not (math.isfinite(low) and math.isfinite(high))
        if not self.done:
            self._begin(low, high, sure=True)

    def track(self) -> None:
        """Let the next question begin near this root. Local."""
        if math.isfinite(self.root):
            if self._last is not None:
                seen = self._radius * min(1.0, SIGHT / max(self.kinks, 1.0))
                self._radius = max(REACH * abs(self.root - self._last), seen)
            self._last = self.root

    def _begin(self, low: float, high: float, sure: bool = False, refinements: int = 0) -> None:
        mantissa, exponent = math.frexp(max(high / 2 - low / 2, math.ulp(low), math.ulp(high)))
        # (high - low) 2^exponent < K, also when rounded to the grid
        exponent = math.frexp(BUCKETS / 4)[1] - exponent - (mantissa > 1 - 1e-9)
        self._lift = 2.0 ** min(max(exponent - 900, 0), 200)  # of denormal numbers, a part of the scale for itself
        self._scale = math.ldexp(1.0, min(exponent, 900))
        self._origin, self._left, self._factor = low * self._scale * self._lift, 0.0, 1.0
        self._reach = self._width * self._scale * self._lift
        if self._width > 0 and self._reach < BUCKETS:
            self._reach = math.ldexp(max(round(math.ldexp(self._reach, GRID)), 1), -GRID)
        self._level, self._rescan, self._sure, self._refinements = 0, True, sure, refinements

    @property
    def _window(self) -> tuple[float, float, float, float, float, float, float]:
        right = self._left + BUCKETS / self._factor
        return self.shift, self._reach, self._scale, self._lift, self._origin, self._left, right

    def count(self, scores: Floats) -> Floats:
        """This rank's table for the buckets of the bracket, to be summed over ranks. Local. O(n_local), or few rows."""
        columns = 4 if self._width > 0 else 3
        counted = self._table[: _BASE + columns * BUCKETS]
        counted[:] = 0
        base, table = counted[:_BASE], counted[_BASE:].reshape(BUCKETS, columns)
        if self._rescan:
            start = fills = 0
            while fills == 0 or start < len(scores):
                start, self._m = kernel.collect(scores, self.kinds, *self._window, start, self._found, base)
                kernel.tabulate(self._found[: self._m], self._left, self._factor, table)
                fills += 1
            self._rescan = fills > 1
        else:
            kernel.tabulate(self._found[: self._m], self._left, self._factor, table)
        return counted

    def narrow(self, counted: Floats) -> None:
        """Take the bucket in which G reaches the target for the next bracket, or find that it is not in here. Local."""
        steps, table = self._width == 0, counted[_BASE:].reshape(BUCKETS, -1)
        if self._level == 0:
            full, self._slope, distance = counted[:_BASE].tolist()
            if math.isnan(full):
                self.done = True
                return
            self._value = full - self.target + (0.0 if steps else distance / self._reach)  # small where it matters
            self.kinks = float(table[:, 0].sum() if steps else table[:, (0, 2, 3)].sum())
        k, value, slope, grown = kernel.walk(table, self._value, self._slope, self._reach * self._factor)
        if not self._sure and (k == BUCKETS or (self._level == 0 and (value > 0 or (steps and value == 0)))):
            # within a bracket that was refined, G is so near to the target that rounding decides
            self.lost, self.done = not self._refinements, bool(self._refinements)
            return
        k = min(k, BUCKETS - 1)
        bucket = 1 / self._factor
        if steps:
            kinks, share, squares = (table[k] / [1, max(table[k, 0], 1), max(table[k, 0], 1)]).tolist()
            spread = math.sqrt(max(squares - share * share, 0.0))  # 1e-8 at least, but for a single row: rounding
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
        """The largest place in the bucket that was found, and the least with its sign turned; -inf for none. Local."""
        return kernel.extremes(scores, self.kinds, *self._window)


def find_roots(searches: Sequence[RootSearch], scores: Floats, comm: Communicator) -> None:
    """Set `root` of searches that were posed on this rank's (n_local,) scores. Collective.

    The root is NaN if a score of any rank is not finite.
    """
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (math.inf, -math.inf)
    finite = len(scores) == 0 or (math.isfinite(low) and math.isfinite(high))
    while unsolved := [search for search in searches if not search.done]:
        if any(search.lost for search in unsolved):
            ends = comm.maximum(np.array([-low, high]) if finite else np.full(2, math.inf))
            for search in unsolved:
                if search.lost:
                    search.look_between(-float(ends[0]), float(ends[1]) + search.shift)
            continue
        tables = [search.count(scores if finite else scores[:0]) for search in unsolved]
        counted = comm.sum(np.concatenate(tables) + (0.0 if finite else math.nan))
        start = 0
        for search, table in zip(unsolved, tables, strict=True):
            search.narrow(counted[start : start + len(table)])
            start += len(table)


def find_place(search: RootSearch, scores: Floats, shift: float, comm: Communicator) -> float:
    """The target-th smallest place itself; NaN if a score is not finite. Collective: one or two Allreduces more."""
    search.pose(shift, 0.0, exact=True)
    while True:
        find_roots([search], scores, comm)
        if math.isnan(search.root):
            return search.root
        high, low = comm.maximum(search.extremes(scores)).tolist()
        if not -low < high:  # one place, however many rows are tied there
            return high
        search.look_between(-low, high)


def select(scores: Floats, k: int, comm: Communicator) -> float:
    """The k-th largest of all ranks' (n_local,) scores; NaN if one of them is not finite. O(n_local).

    Collective, some six small Allreduces. Raises InputError if there are no k scores.
    """
    n = int(comm.sum(np.array([len(scores)]))[0])
    if not 1 <= k <= n:
        raise InputError(f"there are {n} scores, so k = {k} is not possible: take one from 1 to n", everywhere=True)
    search = RootSearch(np.full(len(scores), POSITIVE, np.uint8), n - k + 1)
    return find_place(search, np.ascontiguousarray(scores, np.float64), 0.0, comm)
