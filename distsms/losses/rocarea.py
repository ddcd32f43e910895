"""ROCArea, the share of correctly ordered pairs (JMLR, equation (5), sections 3.2 and 4.2).

    R(w) = 1/m sum_{i in P, j in N} a_i a_j max(0, t_ij),   t_ij = 1 - (s_i - s_j),   m = A+ A-

In units of the margins, the smoothed risk replaces max(0, t) by the Huber hinge of width nu = mu m, whose derivative is
the paper's beta_ij = clip(t_ij / nu, 0, 1). Only its row sums are needed, gamma_i = sum_j a_j beta_ij and gamma_j =
sum_i a_i beta_ij (at nu = 0 they are sums over the pairs with t_ij > 0):

    coefficients  c_i = -a_i gamma_i / m on P,  c_j = a_j gamma_j / m on N,      d = 1/m sum_ij a_i a_j beta_ij.
"""

from __future__ import annotations

import numpy as np

from distsms.losses.base import Loss
from distsms.losses.gather import GatheringLoss, Solution, in_order, pair_sums, weighted_sum
from distsms.utils.typing import Floats


class RocAreaRisk(Loss):
    """The ROCArea risk, independent of how the pairs are summed; see the module's docstring."""

    name = "rocarea"
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
        order_pos, order_neg = np.argsort(positive), np.argsort(negative)
        q, x = positive[order_pos] - 1.0, negative[order_neg]  # t_ij = x_j - q_i; both increase
        down_pos, down_neg = order_pos[::-1].copy(), order_neg[::-1].copy()
        # m = n+ n- may exceed 2^53, so divide by the two counts one after the other.
        gamma_pos, gamma_neg = np.empty_like(q), np.empty_like(x)
        weights = in_order(self.a_pos, down_pos), in_order(self.a_neg, down_neg)
        total, total_mu = pair_sums(q[::-1].copy(), x[::-1].copy(), nu, gamma_pos, *weights)
        # with the classes' roles exchanged: t_ij = (-q_i) - (-x_j)
        pair_sums(-x, -q, nu, gamma_neg, in_order(self.a_neg, order_neg), in_order(self.a_pos, order_pos))
        coef_pos, coef_neg = np.empty_like(q), np.empty_like(x)
        coef_pos[down_pos], coef_neg[order_neg] = gamma_pos / self.A_neg, gamma_neg / self.A_pos  # now means of beta
        d = weighted_sum(coef_pos, self.a_pos) / self.A_pos
        coef_pos *= -(1.0 if self.a_pos is None else self.a_pos) / self.A_pos
        coef_neg *= (1.0 if self.a_neg is None else self.a_neg) / self.A_neg
        scale = 1.0 / self.A_pos / self.A_neg
        return Solution(total * scale, total_mu * scale, d, coef_pos, coef_neg)
