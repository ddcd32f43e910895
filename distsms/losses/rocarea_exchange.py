"""ROCArea's risk without gathering: only the smaller class is sorted, by every rank or by ranges of scores.

With q = s_i - 1 and b = s_j where positives are fewer, q = -s_j and b = 1 - s_i where negatives are, t_ij = b - q: see
`distsms.losses.pairwise` for the sums. P ranks, n_min and n_max rows in the classes, n_min <= n_max:

- *everywhere*: each rank sends its q to all, and all sort them; each meets its own b's; sums are then added up over
  ranks. A rank sends 8 n_min (1 + 1/P) bytes and receives 16 n_min; O(n_min log P + n/P) time, 200 n_min bytes.
- *by ranges* (`distsms.losses.pairwise_ranges`): each rank has a range of q. A rank sends, and receives, at most
  (16 n_min + 32 n_max)/P bytes in the mean; O((n/P) log n) time, memory in proportion to n/P.

By neither a rank holds an array of the length n, and by ranges none of the length n_min.
"""

from __future__ import annotations

import math

import numpy as np

from distsms.losses.base import Cost, LossValue
from distsms.losses.pairwise import SmallerClass, Sums
from distsms.losses.pairwise_ranges import KeyRanges
from distsms.losses.rocarea import RocAreaRisk
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

EVERYWHERE = 2**20
"""Rows of a class that any rank can afford to sort: 0.2 GB."""
NOT_FINITE = Sums(np.nan, np.nan, np.nan)


class RocAreaExchange(RocAreaRisk):
    """The ROCArea risk; see the module's docstring."""

    by_ranges: bool | None = None
    """Whether the smaller class is sorted by ranges. None: where it has more than `EVERYWHERE` rows and that moves
    fewer bytes; two collectives are quicker than ten as long as there is little to send."""

    def __init__(self, labels: np.ndarray, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        positives_fewer = self.n_pos <= self.n_neg
        smaller, larger = (self.positive, self.negative) if positives_fewer else (self.negative, self.positive)
        self._smaller = np.flatnonzero(smaller)
        self._larger = np.flatnonzero(larger).astype(np.uint32 if len(labels) < 2**32 else np.uint64)
        self._sign, self._offset = (1.0, 0.0) if positives_fewer else (-1.0, 1.0)  # b = offset + sign s
        self._sums: KeyRanges | SmallerClass
        if by_ranges(self.n_pos, self.n_neg, comm.size) if self.by_ranges is None else self.by_ranges:
            self._sums = KeyRanges(len(self._smaller), len(self._larger), comm)
        else:
            self._sums = SmallerClass(min(self.n_pos, self.n_neg))
            self._counts = [count + 1 for count in comm.allgather(len(self._smaller))]
            self._run = np.empty(len(self._smaller) + 1)

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """The way that is taken; see the module's docstring."""
        (n_min, n_max), (everywhere, ranges) = sorted((n_pos, n_neg)), _bytes(n_pos, n_neg, size)
        n_local = (n_min + n_max) / size
        if by_ranges(n_pos, n_neg, size):
            return Cost(ranges, n_local * (math.log2(n_min + n_max) + 10.0), held_by_each=100.0 * n_local)
        steps = n_min * (math.log2(size) + 10.0) + n_max / size * 10.0
        return Cost(everywhere, steps, held_by_each=200.0 * n_min + 12.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. Collective."""
        coefficients = np.zeros(len(scores))
        factor = self._sign / self.n_pos / self.n_neg  # n+ n- may pass 2^53: divide by one after the other
        if isinstance(self._sums, KeyRanges):
            sums = self._by_ranges(self._sums, scores, nu, factor, coefficients)
        else:
            sums = self._everywhere(self._sums, scores, nu, factor, coefficients)
        R, R_mu, d = (float(total / self.n_pos / self.n_neg) for total in sums)
        return LossValue(R, R_mu, d, coefficients)

    def _everywhere(self, table: SmallerClass, scores: Floats, nu: float, factor: float, out: Floats) -> Sums:
        """All ranks sort all of the smaller class. Collective."""
        # Its rows are kept in the order of the last evaluation: at the next one that is nearly right, and a stable
        # sort, which merges runs, is quick. t = 1 - (s_i - s_j) is rounded as by gathering, first 1 - s_i.
        run = self._run
        run[1:] = self._sign * scores[self._smaller] - (1.0 - self._offset)
        order = np.argsort(run[1:], kind="stable")
        self._smaller, run[1:] = self._smaller[order], run[1:][order]
        # One more number from each rank says whether all its margins are finite, and is sorted out of the way.
        run[0] = -np.inf if np.isfinite(scores).all() else np.nan
        q = self.comm.allgather_rows(run, self._counts)
        q.sort(kind="stable")  # one rank alone has `run` itself here, which is in order
        if not np.isfinite(q[-1]):
            return NOT_FINITE
        table.sort(q[self.comm.size :], nu)
        table.meet(scores, self._larger, self._sign, self._offset, factor, out)
        total = self.comm.sum(np.concatenate([table.gamma(), table.sums]))
        table.give(total[:-3], run[1:], self._smaller, -factor, out)
        return Sums(*total[-3:])

    def _by_ranges(self, ranges: KeyRanges, scores: Floats, nu: float, factor: float, out: Floats) -> Sums:
        """Each rank sorts a range of the smaller class. Collective."""
        q, b = (
            self._sign * scores[self._smaller] - (1.0 - self._offset),
            self._offset + self._sign * scores[self._larger],
        )
        gamma_q, gamma_b, sums = ranges.evaluate(q, b, nu, bool(np.isfinite(scores).all()))
        out[self._smaller], out[self._larger] = -factor * gamma_q, factor * gamma_b
        return sums


def _bytes(n_pos: int, n_neg: int, size: int) -> tuple[float, float]:
    """Bytes that a rank sends and receives in an evaluation: everywhere, and by ranges. See the module's docstring."""
    n_min, n_max = sorted((n_pos, n_neg))
    if size == 1:
        return 0.0, 0.0
    return (24.0 + 8.0 / size) * n_min, (32.0 * n_min + 64.0 * n_max) / size


def by_ranges(n_pos: int, n_neg: int, size: int) -> bool:
    """Whether the smaller class is too large for every rank, and ranges move fewer bytes."""
    everywhere, ranges = _bytes(n_pos, n_neg, size)
    return min(n_pos, n_neg) > EVERYWHERE and ranges < everywhere
