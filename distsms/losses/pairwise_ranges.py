"""Sums over pairs where the sorted class is too large for one rank: each rank has a range of it (sample sort).

The values q and the points b are those of `distsms.losses.pairwise`. Each rank gets one range of values. The borders of
the ranges, called splitters, are quantiles of a sample of q, b and b - nu. A rank receives the q in its range, and also
queries about the points b for which b or b - nu is in its range. So the sample balances the q and the queries of the
ranks together. The q that equal a splitter are shared among the ranks between the equal splitters, so equal scores do
not all go to one rank.

For a point b, most ranges are uniform: all their q have beta = 1, or all have beta = 0, or all are in the window of b.
The contribution of such a range follows from its totals alone: the number of its q, its lowest and highest q, and the
sums of the distances from the highest. An Allgather gives them to every rank. Only the range that contains b and the
range that contains b - nu need b itself. b is sent to their ranks as a query. The rank computes the contribution of its
range with `SortedClass` and sends it back. No digits are lost by cancellation, since no sum over a range is
subtracted from another.

Cost with P ranks, on average for each rank: it sends 8 bytes for each q and at most 16 for each b, and receives as
many. The answers take the same number of bytes in the opposite direction. The totals are 40 P bytes. Time: O((n/P) log
n + P^2). If the sample was not representative (because many different scores are very close together), the queries are
sent in several rounds, so that a rank holds about 4 n_b/P of them at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit, weight_of
from distsms.base.typing import Floats
from distsms.losses.pairwise import PairSums, SortedClass
from distsms.losses.pairwise_kernels import TINY
from distsms.parallel.communicator import Communicator

SAMPLE = 512  # number of scores of each kind that each rank contributes to the sample, drawn with repetition
ROOM = 4  # in one round, a rank receives about this many times the average number of points b per rank, at most


class RangedClass:
    """The same sums as those of `SortedClass`, over the q and b of all ranks. No rank holds a whole class.

    If rows have weights, 8 more bytes are sent for each q and each query.
    """

    def __init__(self, comm: Communicator, weighted: bool = False) -> None:
        self.comm = comm
        self._range = SortedClass(1, weighted)
        # Compile the kernels, or load them, now.
        Ranges(np.ones((1, 5)), 1.0).add_points(np.zeros(1), np.ones(1) if weighted else None)

    @np.errstate(over="ignore", invalid="ignore")  # sums may overflow, which shows in the result
    def evaluate(
        self,
        q: Floats,
        b: Floats,
        nu: float,
        finite: bool,
        q_weights: Floats | None = None,
        b_weights: Floats | None = None,
    ) -> tuple[Floats, Floats, PairSums]:
        """Return gamma of this rank's q and b, which come in any order, and the sums over all ranks' pairs.
        **Collective.**

        gamma is the sum of beta for each row, times the row's own weight. Unless all scores of all ranks are `finite`,
        gamma is zero, and the sums are NaN.
        """
        splits = self._splitters(q, b, nu, finite)
        if splits is None:
            return np.zeros(len(q)), np.zeros(len(b)), PairSums(np.nan, np.nan, np.nan)
        splitters, share = splits
        to = _range_of(q, splitters)
        sending = np.argsort(to, kind="stable")
        counts = np.bincount(to, minlength=self.comm.size)
        in_range, origin = self.comm.alltoall_rows(q[sending], counts)
        a = None if q_weights is None else self.comm.alltoall_rows(q_weights[sending], counts)[0]
        rows = np.argsort(in_range, kind="stable")
        in_range, a_held = in_range[rows], None if a is None else a[rows]
        self._range.tabulate(in_range, nu, a_held)
        ranges = Ranges(self._totals(in_range, a_held), nu)
        gamma_b, queries = ranges.add_points(b, b_weights)
        self._send_queries(b, b_weights, queries, gamma_b, ROOM * share)
        full, inside, t = self.comm.sum(ranges.shares(self.comm.size))[:, self.comm.rank]
        answers = np.empty(len(in_range))
        self._range.write_gamma(self._range.gamma(), in_range, rows, 1.0, answers, a)
        of_whole = full + ((inside * (in_range[-1:] - in_range) + t) / nu if inside else 0.0)
        answers[rows] += of_whole if a_held is None else a_held * of_whole
        gamma_q = np.empty(len(q))
        gamma_q[sending] = self.comm.alltoall_rows(answers, origin)[0]
        return gamma_q, gamma_b, PairSums._make(self.comm.sum(np.add(self._range.sums, ranges.sums)))

    def _splitters(self, q: Floats, b: Floats, nu: float, finite: bool) -> tuple[Floats, int] | None:
        """Choose the splitters, (P - 1,), increasing; None if scores of any rank are not finite. Collective.

        Also return a rank's share of the points b, if they were distributed evenly.
        """
        rng, sample = np.random.default_rng(self.comm.rank), np.zeros((3, SAMPLE))
        # A splitter belongs to the range above it. So if b is a splitter, all q < b are below it, as required. For b -
        # nu the splitter is the next larger float, since q = b - nu has beta = 1 and has to be below the splitter.
        kinds = (lambda x: x, q), (lambda x: x, b), (lambda x: np.nextafter(x - nu, np.inf), b)
        for picked, (value, scores) in zip(sample, kinds, strict=True):
            if len(scores):
                picked[:] = value(scores[rng.integers(0, len(scores), SAMPLE)])
        about = [0.0 if finite else np.nan, len(q), len(b)]
        message = np.concatenate([about, sample.ravel()])
        samples = self.comm.allgather_rows(message, [len(message)] * self.comm.size).reshape(self.comm.size, -1)
        if np.isnan(samples).any():
            return None
        counts, values = samples[:, [1, 2, 2]], np.append(0.0, samples[:, 3:])  # the first has no weight: there is one
        weights = np.append(0.0, np.repeat(counts / max(SAMPLE, 1), SAMPLE))
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        ends = reached[-1] * np.arange(1, self.comm.size) / self.comm.size
        return values[order[np.searchsorted(reached, ends)]], max(1, -(-int(counts[:, 1].sum()) // self.comm.size))

    def _totals(self, in_range: Floats, weights: Floats | None) -> Floats:
        """Gather the totals of each rank's range, (P, 5). Collective.

        These are the number (or summed weights) of q, the lowest, the highest, and the sums of distances to the highest
        and of their squares.
        """
        mine = np.zeros(5)
        if len(in_range):
            below, a = in_range[-1] - in_range, np.ones(len(in_range)) if weights is None else weights
            mine[:] = np.sum(a), in_range[0], in_range[-1], np.sum(a * below), np.sum(a * below * below)
        return self.comm.allgather_rows(mine, [5] * self.comm.size).reshape(-1, 5)

    def _send_queries(
        self,
        b: Floats,
        weights: Floats | None,
        queries: tuple[NDArray[Any], NDArray[Any]],
        gamma_b: Floats,
        room: float,
    ) -> None:
        """Send the point of each query to the rank of its range, and add the answers to gamma_b. Collective.

        queries : two arrays, the rank to ask and the row in b of each query.
        room : about how many queries a rank receives at a time.
        """
        to, row = queries
        order = np.argsort(to, kind="stable")
        to, row = to[order], row[order]
        load = self.comm.sum(np.bincount(to, minlength=self.comm.size))
        rounds = max(1, math.ceil(load.max() / room))
        for turn in range(rounds):
            ranks, rows = to[turn::rounds], row[turn::rounds]
            counts = np.bincount(ranks, minlength=self.comm.size)
            points, origin = self.comm.alltoall_rows(b[rows], counts)
            a = None if weights is None else self.comm.alltoall_rows(weights[rows], counts)[0]
            answers = np.empty(len(points))
            self._range.add_points(points, np.arange(len(points), dtype=np.uint32), 1.0, 0.0, 1.0, answers, a)
            np.add.at(gamma_b, rows, self.comm.alltoall_rows(answers, origin)[0])


class Ranges:
    """The totals of the B ranges that are not empty, and the contributions of this rank's points to them. Local.

    totals (P, 5) : see `RangedClass._totals`. O(B^2) time and memory.
    """

    def __init__(self, totals: Floats, nu: float) -> None:
        self.nu = nu
        self.rank = np.flatnonzero(totals[:, 0])
        self._count, self._low, self._high, t, t2 = np.ascontiguousarray(totals[self.rank].T)
        B = len(self.rank)
        # _t[i, j] and _t2[i, j] are sums over the q in the ranges i to j - 1: of the distance from q to the highest q
        # of range j - 1, and of its square.
        self._t, self._t2 = np.zeros((2, B + 1, B + 1))
        for j in range(1, B + 1):
            x = self._high[j - 1] - self._high[:j]
            n = self._count[:j]
            self._t[:j, j] = _sums_from(t[:j] + n * x)
            self._t2[:j, j] = _sums_from(t2[:j] + 2 * x * t[:j] + n * x * x)
        self._below = np.concatenate([[0.0], np.cumsum(self._count)])
        # _full[f] is the number of points for which exactly the first f ranges have beta = 1 throughout.
        self._full = np.zeros(B + 1)
        # _window[0, i, j] is the number of points whose window contains exactly the whole ranges i to j - 1, and
        # _window[1, i, j] is the sum of their t with the highest q of range j - 1.
        self._window = np.zeros((2, B + 1, B + 1))
        self.sums = PairSums(0.0, 0.0, 0.0)

    def add_points(self, b: Floats, weights: Floats | None = None) -> tuple[Floats, tuple[NDArray[Any], NDArray[Any]]]:
        """Return what uniform ranges contribute to gamma of the points, times their weights, and queries for the other
        ranges.

        The queries are the rank to ask and the row in b. O(log B) for each point.
        """
        gamma, ask = np.empty(len(b)), np.empty((2, len(b)), np.int64)
        sums = _add_points_to_ranges(
            b,
            weights,
            self.nu,
            self._low,
            self._high,
            self._below,
            self._t,
            self._t2,
            self._full,
            self._window,
            gamma,
            ask,
        )
        full, hinge, t, t2 = sums
        beta, huber = (t / self.nu, 0.5 * t2 / self.nu) if self.nu > 0 else (0.0, 0.0)
        self.sums = PairSums(hinge + t, hinge - 0.5 * self.nu * full + huber, full + beta)
        rows = [np.flatnonzero(ranges >= 0) for ranges in ask]
        ranks = [self.rank[ranges[asking]] for ranges, asking in zip(ask, rows, strict=True)]
        return gamma, (np.concatenate(ranks), np.concatenate(rows))

    def shares(self, size: int) -> Floats:
        """Return, for each rank, what this rank's points contribute to its whole range: (3, P).

        The three rows are: the number of points for which the whole range has beta = 1; the number of points whose
        window contains the whole range; and, over these, the sum of t with the highest q of the range.
        """
        B = len(self.rank)
        shares = np.zeros((3, size))
        shares[0, self.rank] = np.cumsum(self._full[::-1])[::-1][1:]
        # The window i..j-1 contains range r if i <= r < j.
        count, t = np.cumsum(self._window, axis=1)
        for r in range(B):
            ends = slice(r + 1, B + 1)
            shares[1, self.rank[r]] = np.sum(count[r, ends])
            shares[2, self.rank[r]] = np.sum(t[r, ends] + count[r, ends] * (self._high[r:] - self._high[r]))
        return shares


def _range_of(q: Floats, splitters: Floats) -> NDArray[np.int64]:
    """Return the rank for each q: the number of splitters <= q.

    If several splitters are equal, the q that equal them are distributed evenly over the ranks between these splitters.
    """
    first, last = np.searchsorted(splitters, q, "left"), np.searchsorted(splitters, q, "right")
    return last - np.arange(len(q)) % np.maximum(last - first, 1)


def _sums_from(terms: Floats) -> Floats:
    """Return the sum of terms[i:] for each i."""
    return np.cumsum(terms[::-1])[::-1]


@njit()
def _ranges_with(b: float, width: float, edge: Floats) -> int:
    """Return how many of the increasing edges have b - edge >= width."""
    low, high = 0, len(edge)
    while low < high:
        middle = (low + high) >> 1
        if b - edge[middle] >= width:
            low = middle + 1
        else:
            high = middle
    return low


@njit()
def _add_points_to_ranges(
    b: Floats,
    weights: Floats | None,
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
    """See `Ranges.add_points`. Returns the same sums as `pairwise_kernels.add_points`.

    ask : (2, n) output, the indices of the ranges that contain b - nu and b, or -1 if no query is needed.
    """
    full_sum = hinge_sum = t_sum = t2_sum = 0.0
    for row in range(len(b)):
        point, a = b[row], weight_of(weights, row)
        f, c = _ranges_with(point, max(nu, TINY), high), _ranges_with(point, TINY, high)
        cut_f = f < len(high) and point - low[f] >= max(nu, TINY)
        cut_c = c < len(high) and point - low[c] > 0
        ask[0, row] = f if cut_f else -1
        ask[1, row] = c if cut_c and not (cut_f and f == c) else -1
        full[f] += a
        gamma[row] = a * below[f]
        if f > 0:
            full_sum += a * below[f]
            hinge_sum += a * (below[f] * (point - high[f - 1]) + t[0, f])
        i = f + 1 if cut_f else f
        if i < c:
            x, n = point - high[c - 1], below[c] - below[i]
            sum_t = t[i, c] + n * x
            window[0, i, c] += a
            window[1, i, c] += a * x
            t_sum += a * sum_t
            t2_sum += a * (t2[i, c] + 2 * x * t[i, c] + n * x * x)
            gamma[row] += a * (sum_t / nu)
    return full_sum, hinge_sum, t_sum, t2_sum
