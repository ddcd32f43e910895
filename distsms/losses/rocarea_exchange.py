"""ROCArea's risk without gathering: only the smaller class is sorted, by every rank (`pairwise_everywhere`).

If positives are fewer, q = s_i - 1 and b = s_j, else q = -s_j and b = 1 - s_i; t_ij = b - q. With n_min <= n_max rows
in the classes, a rank receives 16 n_min bytes; O(n_min log P + n/P) time, 240 n_min bytes of memory.

Where the classes are well apart, few q are below any b. So a small sample shows the place with the fewest q below and b
above. If these are much fewer than n_min, only they are sorted: the low q are paired with all b, and the high b are the
sorted class for the high q, since t = (-q) - (-b).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.losses.base import ROW_BYTES_IN_PLACE, Cost, LossValue
from distsms.losses.pairwise import PairSums
from distsms.losses.pairwise_everywhere import WholeClass
from distsms.losses.pairwise_kernels import batch_size, divide
from distsms.losses.rocarea import RocAreaRisk
from distsms.parallel.communicator import Communicator

EVERYWHERE = 2**20
"""The largest number of rows that every rank may sort. Their table takes 0.25 GB on each rank."""
FEW = 2**14  # a smaller class with at most so many rows is sorted as a whole
SAMPLE = 256  # number of scores of each class that each rank contributes to the sample, at equal distances
SORTED, LISTED = 4.0, 0.2
"""What it takes to sort a row into a table, and to list it, as multiples of what a point takes; measured."""
NOT_FINITE = PairSums(np.nan, np.nan, np.nan)


class RocAreaExchange(RocAreaRisk):
    """The ROCArea risk; only the smaller class is sorted. See the module's docstring."""

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        positives_fewer = self.n_pos <= self.n_neg
        smaller, larger = (self.positive, self.negative) if positives_fewer else (self.negative, self.positive)
        self._smaller, self._left_out = np.flatnonzero(smaller), np.flatnonzero(~(smaller | larger))
        self._larger = np.flatnonzero(larger).astype(np.uint32 if len(labels) < 2**32 else np.uint64)
        self._sign, self._offset = (1.0, 0.0) if positives_fewer else (-1.0, 1.0)  # b = offset + sign s
        self._whole = WholeClass(self._smaller, self.weights, comm)
        if min(self.n_pos, self.n_neg) > FEW:
            none, out = self._larger[:0], np.empty(1, self._larger.dtype)
            self._low = WholeClass(none, self.weights, comm, self._whole)
            self._high = WholeClass(none, self.weights, comm)
            divide(np.zeros(0), none, 1.0, 0.0, 0.0, out, out)  # compile it, or load it

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of sorting the whole smaller class; see the module's docstring."""
        n_min, n_max = sorted((n_pos, n_neg))
        n_local, moved = (n_min + n_max) / size, 0.0 if size == 1 else (24.0 + 8.0 / size) * n_min
        # The smaller class is sorted; points are looked up in its table, half of them: where it is small, most rows of
        # the larger class may lie so low that they are in no pair with t > 0.
        doublings = math.log2(n_min + 1.0)
        steps = n_min * (math.log2(size) + 2.0 * doublings) + n_max / size * 0.4 * doublings
        memory = 240.0 * n_min + 4.0 * n_local + 18.0 * batch_size(2 * n_min, math.ceil(n_local))
        return Cost(moved, steps, held_by_each=memory, of_row=ROW_BYTES_IN_PLACE)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. **Collective.**"""
        return self._evaluate(scores, nu, np.empty(len(scores)))

    def evaluate_in_place(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate_in_place`. **Collective.**"""
        return self._evaluate(scores, nu, scores)

    def _evaluate(self, scores: Floats, nu: float, coefficients: Floats) -> LossValue:
        factor = self._sign / self.A_pos / self.A_neg  # two divisions, since n+ n- may exceed 2^53
        sums = self._everywhere(self._whole, scores, nu, factor, coefficients)
        R, R_mu, d = (float(total / self.A_pos / self.A_neg) for total in sums)
        coefficients[slice(None) if math.isnan(R) else self._left_out] = 0.0
        return LossValue(R, R_mu, d, coefficients)

    def _everywhere(self, whole: WholeClass, scores: Floats, nu: float, factor: float, out: Floats) -> PairSums:
        """Sort the whole smaller class on every rank. Collective."""
        finite, cut = all_finite(scores), self._cut(scores)
        if not math.isnan(cut):
            sums = self._divided(cut, finite, scores, nu, factor, out)
            if sums is not None:
                return sums
        # 1 - s_i is computed first, so that t = 1 - (s_i - s_j) is rounded as in the ordering "gather".
        whole.q[:] = self._sign * scores[whole.rows] - (1.0 - self._offset)
        if not whole.tabulate(finite, nu):
            return NOT_FINITE
        whole.add_points(scores, self._larger, self._sign, self._offset, factor, out)
        gamma, sums_of_pairs = whole.total(np.array(whole.sums))
        whole.write(gamma, -factor, out)
        return PairSums._make(sums_of_pairs)

    def _cut(self, scores: Floats) -> float:
        """Return a place with few q below and few b above, by a sample; NaN if that is no faster. **Collective.**"""
        n_min, size = min(self.n_pos, self.n_neg), self.comm.size
        saved = n_min - (n_min + LISTED * self.n) / (SORTED * size)
        if n_min <= FEW or saved <= 0:
            return math.nan
        picked = np.full((2, 1 + SAMPLE), np.nan)
        of_classes = (self._smaller, self._offset - 1), (self._larger, self._offset)
        for of_class, (rows, offset) in zip(picked, of_classes, strict=True):
            some = rows[:: -(-len(rows) // SAMPLE)] if len(rows) else rows
            of_class[0], of_class[1 : 1 + len(some)] = len(rows) / max(len(some), 1), offset + self._sign * scores[some]
        samples = self.comm.allgather_rows(picked.ravel(), [picked.size] * size).reshape(size, 2, 1 + SAMPLE)
        weights, values = np.repeat(samples[:, :, :1], SAMPLE, axis=2) * [[[1.0], [-1.0]]], samples[:, :, 1:]
        order = np.argsort(values, axis=None)[: np.count_nonzero(~np.isnan(values))]
        if not len(order):  # no score is a number
            return math.nan
        # The number of q up to a place, less the number of b up to it: the place where most b and fewest q are below.
        balance = np.cumsum(weights.ravel()[order])
        best = int(np.argmin(balance))
        return float(values.ravel()[order[best]]) if max(self.n_pos, self.n_neg) + balance[best] < saved else math.nan

    def _divided(
        self, cut: float, finite: bool, scores: Floats, nu: float, factor: float, out: Floats
    ) -> PairSums | None:
        """Sort the q up to the cut and the b above it; None if these are too many after all. Collective."""
        low, high, most = self._low, self._high, min(self.n_pos, self.n_neg)
        rows_low, rows_high, rows_above = (
            np.empty(1 + min(len(rows), most), self._larger.dtype)
            for rows in (self._smaller, self._smaller, self._larger)
        )
        n_low, n_high = divide(scores, self._smaller, self._sign, self._offset - 1, cut, rows_low, rows_high)
        _, n_above = divide(scores, self._larger, self._sign, self._offset, cut, rows_low[-1:], rows_above)
        counts = np.zeros((2, self.comm.size))
        counts[:, self.comm.rank] = n_low, n_above if n_above < len(rows_above) else math.inf
        counts = self.comm.sum(counts.ravel()).reshape(counts.shape)
        if counts.sum() > most:
            return None
        low.take(rows_low[:n_low], counts[0].astype(int).tolist())
        high.take(rows_above[:n_above], counts[1].astype(int).tolist())
        low.q[:] = self._sign * scores[low.rows] - (1.0 - self._offset)
        high.q[:] = -(self._offset + self._sign * scores[high.rows])
        if not (low.tabulate(finite, nu) and high.tabulate(finite, nu)):
            return NOT_FINITE
        low.add_points(scores, self._larger, self._sign, self._offset, factor, out)
        high.add_points(scores, rows_high[:n_high], -self._sign, 1.0 - self._offset, -factor, out)
        gamma, rest = low.total(np.concatenate([high.gamma(), np.add(low.sums, high.sums)]))
        low.write(gamma, -factor, out)
        with_low = out[high.rows]
        high.write(rest[: len(rest) - len(PairSums._fields)], factor, out)
        out[high.rows] += with_low
        return PairSums._make(rest[-len(PairSums._fields) :])


def all_finite(scores: Floats) -> bool:
    """Return whether all scores are finite, without an array of their length. Local."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(scores) == 0 or math.isfinite(scores.sum()):  # one pass over the scores in place of two
            return True
    return math.isfinite(scores.min()) and math.isfinite(scores.max())
