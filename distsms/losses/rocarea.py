"""ROCArea, the share of correctly ordered pairs (JMLR, equation (5), sections 3.2 and 4.2).

    R(w) = 1/m sum_{i in P, j in N} a_i a_j max(0, t_ij),   t_ij = 1 - (s_i - s_j),   m = A+ A-

R_mu has the Huber hinge of width nu = mu m in place of max(0, t), with beta_ij = clip(t_ij / nu, 0, 1). Of these, only
gamma_i = sum_j a_j beta_ij and gamma_j = sum_i a_i beta_ij are needed (at nu = 0 sums over t_ij > 0):

    coefficients  c_i = -a_i gamma_i / m on P,  c_j = a_j gamma_j / m on N,      d = 1/m sum_ij a_i a_j beta_ij.

`RocAreaExchange` gathers nothing but the smaller class, which every rank sorts (`distsms.losses.pairwise`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Labels
from distsms.losses.base import ROW_BYTES_IN_PLACE, Cost, Loss, LossValue
from distsms.losses.gather import GatheringLoss, Solution, pair_sums, weighted_sum
from distsms.losses.pairwise import SortedClass

EVERYWHERE = 2**20
"""The largest number of rows that every rank may sort. Their table takes 0.25 GB on each rank."""


class RocAreaRisk(Loss):
    """The ROCArea risk, independent of how the pairs are summed; see the module's docstring."""

    family = measures.ROCAREA
    R_at_zero = 1.0  # every pair has t = 1
    kappa = 0.5  # 1/m * m/2

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self.K = self.A_neg  # the weight of the negatives that count, m / A+: all of them


class RocArea(RocAreaRisk, GatheringLoss):
    """The ROCArea risk with all margins gathered on the root. `RocAreaExchange` is tested against it."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Run Algorithm 4 once for each class. O(n log n)."""
        up_pos, up_neg = np.argsort(positive), np.argsort(negative)
        sums = sums_in_order(positive[up_pos] - 1.0, negative[up_neg], nu, self.a_pos[up_pos], self.a_neg[up_neg])
        coef_pos, coef_neg = np.empty_like(positive), np.empty_like(negative)
        # m = n+ n- may exceed 2^53, so divide by the two counts one after the other. These are means of beta:
        coef_pos[up_pos], coef_neg[up_neg] = sums.gamma_pos / self.A_neg, sums.gamma_neg / self.A_pos
        d = weighted_sum(coef_pos, self.a_pos) / self.A_pos
        coef_pos *= -self.a_pos / self.A_pos
        coef_neg *= self.a_neg / self.A_neg
        scale = 1.0 / self.A_pos / self.A_neg
        return Solution(sums.hinge * scale, sums.huber * scale, d, coef_pos, coef_neg)


class SumsInOrder(NamedTuple):
    """The sums over pairs of the hinge and of the Huber hinge, and gamma of each row, in increasing order."""

    hinge: float
    huber: float
    gamma_pos: Floats
    gamma_neg: Floats
    scale: float = 1.0  # what gamma is to be multiplied with


def sums_in_order(q: Floats, b: Floats, nu: float, a_pos: Floats, a_neg: Floats) -> SumsInOrder:
    """Run Algorithm 4 once for each class, with t_ij = b_j - q_i, from increasing q and b and their weights. O(n)."""
    gamma_pos, gamma_neg = np.empty_like(q), np.empty_like(b)
    hinge, huber = pair_sums(q[::-1].copy(), b[::-1].copy(), nu, gamma_pos, a_pos[::-1].copy(), a_neg[::-1].copy())
    # with the classes' roles exchanged: t_ij = (-q_i) - (-b_j)
    pair_sums(-b, -q, nu, gamma_neg, a_neg, a_pos)
    return SumsInOrder(hinge, huber, gamma_pos[::-1], gamma_neg)


class RocAreaExchange(RocAreaRisk):
    """The ROCArea risk; only the smaller class is sorted. If positives are fewer, q = s_i - 1 and b = s_j, else q =
    -s_j and b = 1 - s_i; t_ij = b - q. A rank receives 16 n_min bytes; O(n_min log P + n/P) time.
    """

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        positives_fewer = self.n_pos <= self.n_neg
        smaller, larger = (self.positive, self.negative) if positives_fewer else (self.negative, self.positive)
        self._left_out = np.flatnonzero(~(smaller | larger))
        self._larger = np.flatnonzero(larger).astype(np.uint32 if len(labels) < 2**32 else np.uint64)
        self._sign, self._offset = (1.0, 0.0) if positives_fewer else (-1.0, 1.0)  # b = offset + sign s
        self._whole = SortedClass(np.flatnonzero(smaller), self.weights, comm)

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        n_min, n_max = sorted((n_pos, n_neg))
        n_local, moved = (n_min + n_max) / size, 0.0 if size == 1 else (24.0 + 8.0 / size) * n_min
        # The smaller class is sorted; points are looked up in its table, half of them: where it is small, most rows of
        # the larger class may lie so low that they are in no pair with t > 0.
        doublings = math.log2(n_min + 1.0)
        steps = n_min * (math.log2(size) + 2.0 * doublings) + n_max / size * 0.4 * doublings
        memory = 240.0 * n_min + 4.0 * n_local
        return Cost(moved, steps, held_by_each=memory, of_row=ROW_BYTES_IN_PLACE)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        return self.evaluate_in_place(np.array(scores, np.float64), nu)

    def evaluate_in_place(self, scores: Floats, nu: float) -> LossValue:
        whole, finite, coefficients = self._whole, all_finite(scores), scores
        # 1 - s_i is computed first, so that t = 1 - (s_i - s_j) is rounded as in the ordering "gather".
        whole.q[:] = self._sign * scores[whole.rows] - (1.0 - self._offset)
        if not whole.tabulate_all(finite, nu):
            return LossValue.undefined(coefficients)
        factor = self._sign / self.A_pos / self.A_neg  # two divisions, since n+ n- may exceed 2^53
        whole.add_points(scores, self._larger, self._sign, self._offset, factor, coefficients, self.weights)
        gamma, sums = whole.total(whole.sums)
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
