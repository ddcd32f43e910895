"""Sums over pairs where the sorted class is too large for one rank: each rank has a range of it (sample sort).

The splitters of the ranges are quantiles of a sample of q, b and b - nu, the scores at which something is looked up. So
the ranges are balanced in q and in questions together. Each q goes to the rank of its range. The q that equal a
splitter are shared among the ranks between the equal splitters, so equal scores do not all go to one rank.

For a point b, most ranges are uniform: all their q have beta = 1, or all have beta = 0, or all are in b's window. Such
a range contributes by its totals alone (the number of q, and the sums of their distances to its top), which every rank
has from an Allgather. Only the two ranges in which beta changes its form, those around b and around b - nu, need b
itself. b is sent there as a question, paired with q by `SmallerClass`, and the answer is sent back. As there, nothing
cancels: no sum over one range is subtracted from another.

Cost with P ranks, for each rank on average: it sends 8 bytes for each q and at most 16 for each b, receives as much,
and the answers travel the same way back; 40 P bytes of totals; O((n/P) log n + P^2) time. If the sample was misleading
(many different scores in one place), questions are sent in several rounds, so that a rank holds about 4 n_b/P of them
at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.losses.pairwise import TINY, PairSums, SmallerClass
from distsms.parallel.communicator import Communicator
from distsms.utils.jit import njit
from distsms.utils.typing import Floats

SAMPLE = 512  # number of scores of each kind that each rank contributes to the sample
ROOM = 4  # at most this many times its even share of the questions goes to a rank at a time


class KeyRanges:
    """The sums of `SmallerClass` over all ranks' q and b; no rank holds either class as a whole.

    Parameters
    ----------
    n_q, n_b : int
        This rank's number of rows in the two classes.
    comm : Communicator
        The ranks. Construction is **collective**.
    """

    def __init__(self, n_q: int, n_b: int, comm: Communicator) -> None:
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
        Ranges(np.ones((1, 5)), 1.0).meet(np.zeros(1))  # compile the kernels, or load them, now

    @np.errstate(over="ignore", invalid="ignore")  # sums may overflow, which shows in the result
    def evaluate(self, q: Floats, b: Floats, nu: float, finite: bool) -> tuple[Floats, Floats, PairSums]:
        """Compute gamma of this rank's q and b, and the sums over all pairs. **Collective.**

        Parameters
        ----------
        q, b : (n_q,) and (n_b,) float64
            This rank's rows of the two classes, in any order.
        nu : float
            The width >= 0.
        finite : bool
            Whether all scores of this rank are finite.

        Returns
        -------
        gamma_q, gamma_b : (n_q,) and (n_b,) float64
            Zeros unless all ranks' scores are finite.
        sums : Sums
            NaN unless all ranks' scores are finite.
        """
        splitters = self._splitters(q, b, nu, finite)
        if splitters is None:
            return np.zeros(len(q)), np.zeros(len(b)), PairSums(np.nan, np.nan, np.nan)
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
        return gamma_q, gamma_b, PairSums(*self.comm.sum(np.add(self._range.sums, ranges.sums)))

    def _splitters(self, q: Floats, b: Floats, nu: float, finite: bool) -> Floats | None:
        """Choose the splitters, (P - 1,), increasing; None if scores of any rank are not finite. Collective."""
        q_pick, b_pick, f_pick = self._picks
        # If b itself is a splitter, every q is on the right side of it. For b - nu the splitter is the next larger
        # float, since q = b - nu has to lie below it.
        values = [np.array([0.0 if finite else np.nan]), q[q_pick], b[b_pick], np.nextafter(b[f_pick] - nu, np.inf)]
        sample = self.comm.allgather_rows(np.concatenate(values), self._counts)
        if np.isnan(sample).any():
            return None
        order = np.argsort(sample, kind="stable")
        reached = np.cumsum(self._weights[order])
        ends = reached[-1] * np.arange(1, self.comm.size) / self.comm.size
        return sample[order[np.searchsorted(reached, ends)]]

    def _totals(self, held: Floats) -> Floats:
        """Gather the totals of each rank's range, (P, 5). Collective.

        These are the number of q, the lowest, the highest, and the sums of distances to the highest and of their
        squares.
        """
        mine = np.zeros(5)
        if len(held):
            below = held[-1] - held
            mine[:] = len(held), held[0], held[-1], np.sum(below), np.sum(below * below)
        return self.comm.allgather_rows(mine, [5] * self.comm.size).reshape(-1, 5)

    def _ask(self, b: Floats, questions: tuple[NDArray[Any], NDArray[Any]], gamma_b: Floats) -> None:
        """Send each question's point to the rank of its range, and add the answers to gamma_b. Collective.

        questions : the rank and the row in b of each question.
        """
        to, row = questions
        order = np.argsort(to, kind="stable")
        to, row = to[order], row[order]
        load = self.comm.sum(np.bincount(to, minlength=self.comm.size))
        rounds = max(1, math.ceil(load.max() / (ROOM * self._share)))
        for turn in range(rounds):
            ranks, rows = to[turn::rounds], row[turn::rounds]
            points, origin = self.comm.alltoall_rows(b[rows], np.bincount(ranks, minlength=self.comm.size))
            answers = np.empty(len(points))
            self._range.meet(points, np.arange(len(points), dtype=np.uint32), 1.0, 0.0, 1.0, answers)
            np.add.at(gamma_b, rows, self.comm.alltoall_rows(answers, origin)[0])


class Ranges:
    """What every rank knows of the B ranges that contain any q, and what this rank's points contribute to them.

    Parameters
    ----------
    totals : (P, 5) float64
        See `KeyRanges._totals`.
    nu : float
        The width >= 0.

    Notes
    -----
    O(B^2) time and memory.
    """

    def __init__(self, totals: Floats, nu: float) -> None:
        self.nu = nu
        self.rank = np.flatnonzero(totals[:, 0])
        self._count, self._low, self._high, t, t2 = np.ascontiguousarray(totals[self.rank].T)
        B = len(self.rank)
        # _t[i, j] and _t2[i, j]: the sums of distances, and of their squares, of the q in the ranges i to j - 1 to the
        # top of range j - 1.
        self._t, self._t2 = np.zeros((2, B + 1, B + 1))
        for j in range(1, B + 1):
            x = self._high[j - 1] - self._high[:j]
            n = self._count[:j]
            self._t[:j, j] = _sums_from(t[:j] + n * x)
            self._t2[:j, j] = _sums_from(t2[:j] + 2 * x * t[:j] + n * x * x)
        self._below = np.concatenate([[0.0], np.cumsum(self._count)])
        self._full = np.zeros(B + 1)  # [f]: the number of points that have beta = 1 with exactly the first f ranges
        # [0, i, j]: the number of points with exactly the ranges i to j - 1 in their window; [1, i, j]: the sum of
        # their t with the top of range j - 1.
        self._window = np.zeros((2, B + 1, B + 1))
        self.sums = PairSums(0.0, 0.0, 0.0)

    def meet(self, b: Floats) -> tuple[Floats, tuple[NDArray[Any], NDArray[Any]]]:
        """Compute the points' gamma from uniform ranges, and the questions for the others. O(log B) for each point.

        Returns
        -------
        gamma : (n_b,) float64
            The contribution of the uniform ranges.
        questions : (ranks, rows)
            For each question, the rank of the range and the row in b.
        """
        gamma, ask = np.empty(len(b)), np.empty((2, len(b)), np.int64)
        found = _meet_ranges(
            b, self.nu, self._low, self._high, self._below, self._t, self._t2, self._full, self._window, gamma, ask
        )
        full, hinge, t, t2 = found
        beta, huber = (t / self.nu, 0.5 * t2 / self.nu) if self.nu > 0 else (0.0, 0.0)
        self.sums = PairSums(hinge + t, hinge - 0.5 * self.nu * full + huber, full + beta)
        rows = [np.flatnonzero(ranges >= 0) for ranges in ask]
        ranks = [self.rank[ranges[asking]] for ranges, asking in zip(ask, rows, strict=True)]
        return gamma, (np.concatenate(ranks), np.concatenate(rows))

    def shares(self, size: int) -> Floats:
        """Return, for each rank, what this rank's points contribute to its whole range: (3, P).

        The rows are the number of points that have beta = 1 with the whole range, the number of points that have all of
        it in their window, and the sum of the latter's t with its top.
        """
        B = len(self.rank)
        found = np.zeros((3, size))
        found[0, self.rank] = np.cumsum(self._full[::-1])[::-1][1:]
        # The window i..j-1 contains range r if i <= r < j.
        count, t = np.cumsum(self._window, axis=1)
        for r in range(B):
            ends = slice(r + 1, B + 1)
            found[1, self.rank[r]] = np.sum(count[r, ends])
            found[2, self.rank[r]] = np.sum(t[r, ends] + count[r, ends] * (self._high[r:] - self._high[r]))
        return found


def _range_of(q: Floats, splitters: Floats) -> NDArray[np.int64]:
    """Return the rank for each q: the number of splitters <= q.

    The q that equal several splitters are dealt out to the ranks between these in turn.
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
    """See `Ranges.meet`. Returns the same sums as `pairwise._meet`.

    ask : (2, n) is set to the ranges around b - nu and around b, or -1.
    """
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
