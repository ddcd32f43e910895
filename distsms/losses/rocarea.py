"""ROCArea, the share of correctly ordered pairs (JMLR, equation (5), sections 3.2 and 4.2).

    R(w) = 1/m sum_{i in P, j in N} a_i a_j max(0, t_ij),   t_ij = 1 - (s_i - s_j),   m = A+ A-

R_mu has the Huber hinge of width nu = mu m in place of max(0, t), with beta_ij = clip(t_ij / nu, 0, 1). Of these, only
gamma_i = sum_j a_j beta_ij and gamma_j = sum_i a_i beta_ij are needed (at nu = 0 sums over t_ij > 0):

    coefficients  c_i = -a_i gamma_i / m on P,  c_j = a_j gamma_j / m on N,      d = 1/m sum_ij a_i a_j beta_ij.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distsms.base import measures
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.losses.gather import GatheringLoss, Solution, in_order, pair_sums, weighted_sum


class RocAreaRisk(Loss):
    """The ROCArea risk, independent of how the pairs are summed; see the module's docstring."""

    family = measures.ROCAREA
    nonnegative = True

    def smoothing_cost(self) -> float:
        """Return mu D / nu = 1/m * m/2 = 1/2."""
        return 0.5

    def at_zero(self) -> float:
        """Return 1: every pair has t = 1."""
        return 1.0

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu = mu m = 2 c_mu epsilon, since D = m / 2."""
        return 2.0 * c_mu * epsilon


class RocArea(RocAreaRisk, GatheringLoss):
    """The ROCArea risk with all margins gathered on the root. `RocAreaExchange` is tested against it."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Run Algorithm 4 once for each class. O(n log n)."""
        up_pos, up_neg = np.argsort(positive), np.argsort(negative)
        a_pos, a_neg = in_order(self.a_pos, up_pos), in_order(self.a_neg, up_neg)
        sums = sums_in_order(positive[up_pos] - 1.0, negative[up_neg], nu, a_pos, a_neg)
        coef_pos, coef_neg = np.empty_like(positive), np.empty_like(negative)
        # m = n+ n- may exceed 2^53, so divide by the two counts one after the other. These are means of beta:
        coef_pos[up_pos], coef_neg[up_neg] = sums.gamma_pos / self.A_neg, sums.gamma_neg / self.A_pos
        d = weighted_sum(coef_pos, self.a_pos) / self.A_pos
        coef_pos *= -(1.0 if self.a_pos is None else self.a_pos) / self.A_pos
        coef_neg *= (1.0 if self.a_neg is None else self.a_neg) / self.A_neg
        scale = 1.0 / self.A_pos / self.A_neg
        return Solution(sums.hinge * scale, sums.huber * scale, d, coef_pos, coef_neg)


class SumsInOrder(NamedTuple):
    """The sums over pairs of the hinge and of the Huber hinge, and gamma of each row, in increasing order."""

    hinge: float
    huber: float
    gamma_pos: Floats
    gamma_neg: Floats


def sums_in_order(q: Floats, b: Floats, nu: float, a_pos: Floats | None, a_neg: Floats | None) -> SumsInOrder:
    """Run Algorithm 4 once for each class, with t_ij = b_j - q_i, from increasing q and b and their weights. O(n)."""
    gamma_pos, gamma_neg = np.empty_like(q), np.empty_like(b)
    hinge, huber = pair_sums(q[::-1].copy(), b[::-1].copy(), nu, gamma_pos, turned(a_pos), turned(a_neg))
    # with the classes' roles exchanged: t_ij = (-q_i) - (-b_j)
    pair_sums(-b, -q, nu, gamma_neg, a_neg, a_pos)
    return SumsInOrder(hinge, huber, gamma_pos[::-1], gamma_neg)


def turned(weights: Floats | None) -> Floats | None:
    """Return the weights in reverse order; None if there are none."""
    return None if weights is None else weights[::-1].copy()
