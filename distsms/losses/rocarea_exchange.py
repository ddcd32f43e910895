"""ROCArea's risk without gathering: only the smaller class is sorted, by every rank (`pairwise_everywhere`).

If positives are fewer, q = s_i - 1 and b = s_j, else q = -s_j and b = 1 - s_i; t_ij = b - q. With n_min <= n_max rows
in the classes, a rank receives 16 n_min bytes; O(n_min log P + n/P) time, 240 n_min bytes of memory.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.losses.base import ROW_BYTES_IN_PLACE, Cost, LossValue
from distsms.losses.pairwise_everywhere import WholeClass
from distsms.losses.rocarea import RocAreaRisk

EVERYWHERE = 2**20
"""The largest number of rows that every rank may sort. Their table takes 0.25 GB on each rank."""


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

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of sorting the whole smaller class; see the module's docstring."""
        n_min, n_max = sorted((n_pos, n_neg))
        n_local, moved = (n_min + n_max) / size, 0.0 if size == 1 else (24.0 + 8.0 / size) * n_min
        # The smaller class is sorted; points are looked up in its table, half of them: where it is small, most rows of
        # the larger class may lie so low that they are in no pair with t > 0.
        doublings = math.log2(n_min + 1.0)
        steps = n_min * (math.log2(size) + 2.0 * doublings) + n_max / size * 0.4 * doublings
        memory = 240.0 * n_min + 4.0 * n_local
        return Cost(moved, steps, held_by_each=memory, of_row=ROW_BYTES_IN_PLACE)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. **Collective.**"""
        return self._evaluate(scores, nu, np.empty(len(scores)))

    def evaluate_in_place(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate_in_place`. **Collective.**"""
        return self._evaluate(scores, nu, scores)

    def _evaluate(self, scores: Floats, nu: float, coefficients: Floats) -> LossValue:
        whole, finite = self._whole, all_finite(scores)
        # 1 - s_i is computed first, so that t = 1 - (s_i - s_j) is rounded as in the ordering "gather".
        whole.q[:] = self._sign * scores[whole.rows] - (1.0 - self._offset)
        if not whole.tabulate(finite, nu):
            coefficients[:] = 0.0
            return LossValue(math.nan, math.nan, math.nan, coefficients)
        factor = self._sign / self.A_pos / self.A_neg  # two divisions, since n+ n- may exceed 2^53
        whole.add_points(scores, self._larger, self._sign, self._offset, factor, coefficients)
        gamma, sums = whole.total(np.array(whole.sums))
        whole.write(gamma, -factor, coefficients)
        R, R_mu, d = (sums / self.A_pos / self.A_neg).tolist()
        coefficients[self._left_out] = 0.0
        return LossValue(R, R_mu, d, coefficients)


def all_finite(scores: Floats) -> bool:
    """Return whether all scores are finite, without an array of their length. Local."""
    with np.errstate(over="ignore", invalid="ignore"):
        if len(scores) == 0 or math.isfinite(scores.sum()):  # one pass over the scores in place of two
            return True
    return math.isfinite(scores.min()) and math.isfinite(scores.max())
