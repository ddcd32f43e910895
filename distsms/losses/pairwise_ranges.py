"""Sums over pairs where the sorted class is too large for one rank: each rank has a range of it (sample sort).

Splitters are quantiles of a sample of q, b and b - nu, the scores where something has to be looked up, so that ranges
are alike in q and in questions together. Each q goes to the rank of its range; q that tie at a splitter are shared out
among the ranks between the equal splitters, so equal scores do not meet on one rank.

To a point b most ranges are one thing: all their q have beta = 1, or all beta = 0, or all are in b's window. Such a
range takes part by its totals alone (number of q, sums of their distances to its top), which every rank has from an
Allgather. Only the two ranges where beta changes its piece, those around b and b - nu, must see b itself: it is sent
there, met by `SmallerClass` and answered. As there, nothing cancels: no sum over one range is subtracted from another.

Cost with P ranks, for each, in the mean: 8 bytes sent for each q and at most 16 for each b, as much received, and the
answers the same way back; 40 P bytes of totals; O((n/P) log n + P^2) time. Where the sample misjudged (many unlike
scores in one place), questions are sent in several rounds: a rank holds some 4 n_b/P of them at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.losses.pairwise import TINY, SmallerClass, Sums
from distsms.parallel.communicator import Communicator
from distsms.utils.jit import njit
from distsms.utils.typing import Floats

SAMPLE = 512  # of each kind of score, from each rank
ROOM = 4  # how many times its even share of questions a rank takes at a time, at most


class KeyRanges:
    """The sums of `SmallerClass` over all ranks' q and b, with nothing held whole anywhere."""

    def __init__(self, n_q: int, n_b: int, comm: Communicator) -> None:
        """n_q, n_b : this rank's numbers of rows in the two classes. Collective."""
        self.comm = comm
        rng = np.random.default_rng(comm.rank)
        self._picks = [rng.integers(0, n, min(SAMPLE, n)) for n in (n_q, n_b, n_b)]
        weights = [
            np.full(len(pick), n / max(1, len(pick))) for pick, n in zip(self._picks, (n_q, n_b, n_b), strict=True)
        ]
        self._counts = [count + 1 for count in comm.allgather(sum(map(len, self._picks)))]
        self._weights = comm.allgather_rows(np.concatenate([[0.0], *weights]), self._counts)
        self._share = -(-int(comm.sum(np.array([n_b]))[0]) // comm.size)
        self._range = SmallerClass(1)
        Ranges(np.ones((1, 5)), 1.0).meet(np.zeros(1))  # compiles its kernels, or loads them, now

    @np.errstate(over="ignore", invalid="ignore")  # sums may pass the largest float, and say so by what they are
    def evaluate(self, q: Floats, b: Floats, nu: float, finite: bool) -> tuple[Floats, Floats, Sums]:
        """gamma of this rank's q and b, and the sums over all pairs; zeros and NaN if not `finite` on every rank.

        q, b : this rank's rows of either class in any order. Collective.
        """
        splitters = self._splitters(q, b, nu, finite)
        if splitters is None:
            return np.zeros(len(q)), np.zeros(len(b)), Sums(np.nan, np.nan, np.nan)
        to = _range_of(q, splitters)
        sending = np.argsort(to, kind="stable")
        held, origin = self.comm.alltoall_rows(q[sending], np.bincount(to, minlength=self.comm.size))
        rows = np.argsort(held, kind="stable")
        held = held[rows]
        self._range.sort(held, nu)
        ranges = Ranges(self._totals(held), nu)
        gamma_b, questions = ranges.meet(b)
        self._ask(b, questions, gamma_b)
        full, inside, t = self.comm.sum(ranges.shares(self.comm.size))[:, self.comm.rank]
        answers = np.empty(len(held))
        self._range.give(self._range.gamma(), held, rows, 1.0, answers)
        answers[rows] += full + ((inside * (held[-1:] - held) + t) / nu if inside else 0.0)
        gamma_q = np.empty(len(q))
        gamma_q[sending] = self.comm.alltoall_rows(answers, origin)[0]
        return gamma_q, gamma_b, Sums(*self.comm.sum(np.add(self._range.sums, ranges.sums)))

    def _splitters(self, q: Floats, b: Floats, nu: float, finite: bool) -> Floats | None:
        """(P - 1,), increasing; None if not `finite` on every rank. Collective."""
        q_pick, b_pick, f_pick = self._picks
        # Where b itself is a splitter, no q is on the wrong side; likewise for b - nu, if what equals it is below.
        values = [np.array([0.0 if finite else np.nan]), q[q_pick], b[b_pick], np.nextafter(b[f_pick] - nu, np.inf)]
        sample = self.comm.allgather_rows(np.concatenate(values), self._counts)
        if np.isnan(sample).any():
            return None
        order = np.argsort(sample, kind="stable")
        reached = np.cumsum(self._weights[order])
        ends = reached[-1] * np.arange(1, self.comm.size) / self.comm.size
        return sample[order[np.searchsorted(reached, ends)]]

    def _totals(self, held: Floats) -> Floats:
        """(P, 5): of each rank's range the number of q, the lowest and highest, sums of distances to that, squared."""
        mine = np.zeros(5)
        if len(held):
            below = held[-1] - held
            mine[:] = len(held), held[0], held[-1], np.sum(below), np.sum(below * below)
        return self.comm.allgather_rows(mine, [5] * self.comm.size).reshape(-1, 5)

    def _ask(self, b: Floats, questions: tuple[NDArray[Any], NDArray[Any]], gamma_b: Floats) -> None:
        """Add to gamma_b what the ranges find that must see their points: (rank, row) of each question. Collective."""
        to, row = questions
        order = np.argsort(to, kind="stable")
        to, row = to[order], row[order]
        load = self.comm.sum(np.bincount(to, minlength=self.comm.size))
        rounds = max(1, math.ceil(load.max() / (ROOM * self._share)))
        for turn in range(rounds):
            some, rows = to[turn::rounds], row[turn::rounds]
            points, origin = self.comm.alltoall_rows(b[rows], np.bincount(some, minlength=self.comm.size))
            answers = np.empty(len(points))
            self._range.meet(points, np.arange(len(points), dtype=np.uint32), 1.0, 0.0, 1.0, answers)
            np.add.at(gamma_b, rows, self.comm.alltoall_rows(answers, origin)[0])


class Ranges:
    """What all ranks know of all ranges that hold some q, B of them, and what this rank's points do to these."""

    def __init__(self, totals: Floats, nu: float) -> None:
        """totals : (P, 5), as `KeyRanges._totals` has them. O(B^2) time and memory."""
        self.nu = nu
        self.rank = np.flatnonzero(totals[:, 0])
        self._count, self._low, self._high, t, t2 = np.ascontiguousarray(totals[self.rank].T)
        B = len(self.rank)
        # t, t2[i, j]: sums of distances, and of squares, of the q of the ranges i to j - 1 to the top of the last
        self._t, self._t2 = np.zeros((2, B + 1, B + 1))
        for j in range(1, B + 1):
            x = self._high[j - 1] - self._high[:j]
            n = self._count[:j]
            self._t[:j, j] = _sums_from(t[:j] + n * x)
            self._t2[:j, j] = _sums_from(t2[:j] + 2 * x * t[:j] + n * x * x)
        self._below = np.concatenate([[0.0], np.cumsum(self._count)])
        self._full = np.zeros(B + 1)  # how many points have exactly so many ranges full
        # how many points have just the ranges i to j - 1 in their window, and the sum of their t with the top of these
        self._window = np.zeros((2, B + 1, B + 1))
        self.sums = Sums(0.0, 0.0, 0.0)

    def meet(self, b: Floats) -> tuple[Floats, tuple[NDArray[Any], NDArray[Any]]]:
        """gamma of each point from whole ranges, and the questions: the ranks that must see it, and the rows of b.

        O(log B) for each point.
        """
        gamma, ask = np.empty(len(b)), np.empty((2, len(b)), np.int64)
        found = _meet_ranges(
            b, self.nu, self._low, self._high, self._below, self._t, self._t2, self._full, self._window, gamma, ask
        )
        full, hinge, t, t2 = found
        beta, huber = (t / self.nu, 0.5 * t2 / self.nu) if self.nu > 0 else (0.0, 0.0)
        self.sums = Sums(hinge + t, hinge - 0.5 * self.nu * full + huber, full + beta)
        rows = [np.flatnonzero(one >= 0) for one in ask]
        return gamma, (
            np.concatenate([self.rank[one[r]] for one, r in zip(ask, rows, strict=True)]),
            np.concatenate(rows),
        )

    def shares(self, size: int) -> Floats:
        """(3, P): for each rank, how many of this rank's points have beta = 1 with its whole range, how many have it in
        their window, and the sum of their t with its top."""
        B = len(self.rank)
        found = np.zeros((3, size))
        found[0, self.rank] = np.cumsum(self._full[::-1])[::-1][1:]
        # Points with window i..j-1 hold range r where i <= r < j.
        count, t = np.cumsum(self._window, axis=1)
        for r in range(B):
            ends = slice(r + 1, B + 1)
            found[1, self.rank[r]] = np.sum(count[r, ends])
            found[2, self.rank[r]] = np.sum(t[r, ends] + count[r, ends] * (self._high[r:] - self._high[r]))
        return found


def _range_of(q: Floats, splitters: Floats) -> NDArray[np.int64]:
    """The rank for each q: how many splitters are <= q; of several ranks between equal splitters, each in turn."""
    first, last = np.searchsorted(splitters, q, "left"), np.searchsorted(splitters, q, "right")
    return last - np.arange(len(q)) % np.maximum(last - first, 1)


def _sums_from(terms: Floats) -> Floats:
    """sum of terms[i:], for each i."""
    return np.cumsum(terms[::-1])[::-1]


@njit()
def _ranges_with(b: float, width: float, edge: Floats) -> int:
    """How many of the increasing edges have b - edge >= width."""
    low, high = 0, len(edge)
    while low < high:
        middle = (low + high) >> 1
        if b - edge[middle] >= width:
            low = middle + 1
        else:
            high = middle
    return low


@njit()
def _meet_ranges(
    b: Floats,
    nu: float,
    low: Floats,
    high: Floats,
    below: Floats,
    t: Floats,
    t2: Floats,
    full: Floats,
    window: Floats,
    gamma: Floats,
    ask: NDArray[np.int64],
) -> tuple[float, float, float, float]:
    """See `Ranges.meet`; ask : (2, n), the ranges around b - nu and around b, or -1. Returns what `_meet` does."""
    full_sum = hinge_sum = t_sum = t2_sum = 0.0
    for row in range(len(b)):
        point = b[row]
        f, c = _ranges_with(point, max(nu, TINY), high), _ranges_with(point, TINY, high)
        cut_f = f < len(high) and point - low[f] >= max(nu, TINY)
        cut_c = c < len(high) and point - low[c] > 0
        ask[0, row] = f if cut_f else -1
        ask[1, row] = c if cut_c and not (cut_f and f == c) else -1
        full[f] += 1.0
        gamma[row] = below[f]
        if f > 0:
            full_sum += below[f]
            hinge_sum += below[f] * (point - high[f - 1]) + t[0, f]
        i = f + 1 if cut_f else f
        if i < c:
            x, n = point - high[c - 1], below[c] - below[i]
            sum_t = t[i, c] + n * x
            window[0, i, c] += 1.0
            window[1, i, c] += x
            t_sum += sum_t
            t2_sum += t2[i, c] + 2 * x * t[i, c] + n * x * x
            gamma[row] += sum_t / nu
    return full_sum, hinge_sum, t_sum, t2_sum
