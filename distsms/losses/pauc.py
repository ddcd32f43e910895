"""pauc@beta, the area under the ROC curve up to a false positive rate of beta (Narasimhan and Agarwal 2013).

With K = beta A-, and t_ij = 1 - (s_i - s_j), the risk counts the pairs with the highest negatives of total weight K:

    R(w) = 1/(A+ K) max { sum_ij a_i a_j beta_ij t_ij :  0 <= beta_ij <= alpha_j <= 1,  sum_j a_j alpha_j <= K }

Smoothed by 1/2 sum_ij a_i a_j beta_ij^2, with nu = mu A+ K and q_i = s_i - 1, the maximum is at

    beta_ij = clip((s_j - max(q_i, x)) / nu, 0, 1),   x the root of  sum_j a_j clip((s_j - x) / nu, 0, 1) = K

so beta is that of ROCArea with the q of the positives clamped from below at x. With its row sums gamma,

    R_mu = 1/(A+ K) [ sum_ij a_i a_j h(s_j - max(q_i, x)) + K sum_i a_i (x - q_i)_+ ],   h the Huber hinge of width nu
    coefficients  c_i = -a_i gamma_i / (A+ K),  c_j = a_j gamma_j / (A+ K),      d = 1/(A+ K) sum_ij a_i a_j beta_ij.

At nu = 0, x is x0, the largest score from which on the negatives weigh at least K; those at x0 share what is left of K.
x is from x0 - nu to x0, so scores are measured from x0, and delta = x - x0 is computed, which loses no digits. If
rounding makes the sum of a_j alpha_j larger than K, all beta are divided by the excess: the plane stays a lower bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.losses.base import ramp
from distsms.losses.gather import GatheringLoss, Solution, in_order, root_of_ramps, weighted_sum
from distsms.losses.rocarea import RocAreaRisk, sums_in_order, turned


class PaucRisk(RocAreaRisk):
    """The risk of pauc@beta, independent of how it is computed. R(0), kappa and the paper's width are those of ROCArea
    with m = A+ K, since the sum of beta^2 is at most m, so D = m / 2.
    """

    family = measures.PAUC

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator, max_fpr: float) -> None:
        super().__init__(labels, weights, comm)
        self.K = max_fpr * self.A_neg
        if self.A_pos * self.K < np.finfo(float).tiny:
            raise InputError(
                f"the weights of one class are so small beside those of the other that pauc@{max_fpr:g} vanishes in "
                "float64: give both classes weights of a similar size",
                everywhere=True,
            )


def tie_share(K: float, above: float, tied: float) -> float:
    """Return which share of the weight `tied` of the negatives at x0 counts, if those above have the weight `above`."""
    return min(max((K - above) / tied, 0.0), 1.0)


class Pauc(PaucRisk, GatheringLoss):
    """The risk of pauc@beta with all margins gathered on the root. `PaucExchange` is tested against it."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Sort both classes, and find x by Algorithms 2 and 3. O(n log n)."""
        up_pos, up_neg = np.argsort(positive), np.argsort(negative)
        a_pos, a_neg = in_order(self.a_pos, up_pos), in_order(self.a_neg, up_neg)
        x0 = negative[up_neg[position_of_cut(len(negative), a_neg, self.K)]]
        with np.errstate(over="ignore", invalid="ignore"):  # differences may overflow, which shows in the result
            q, u = (positive[up_pos] - x0) - 1.0, negative[up_neg] - x0  # both measured from x0
            head = head_in_order(q, u, nu, self.K, a_pos, a_neg)
        coef_pos, coef_neg, scale = np.empty_like(q), np.empty_like(u), head.scale / self.A_pos
        coef_pos[up_pos] = -scale * (head.gamma_pos if a_pos is None else a_pos * head.gamma_pos)
        coef_neg[up_neg] = scale * (head.gamma_neg if a_neg is None else a_neg * head.gamma_neg)
        R, R_mu = (total / self.A_pos / self.K for total in (head.hinge, head.huber))
        return Solution(R, R_mu, scale * weighted_sum(head.gamma_pos, a_pos), coef_pos, coef_neg)


class HeadInOrder(NamedTuple):
    """A+ K R and A+ K R_mu, gamma of each row in increasing order, and what gamma is to be multiplied with, 1 / K."""

    hinge: float
    huber: float
    gamma_pos: Floats
    gamma_neg: Floats
    scale: float


def position_of_cut(n: int, a_neg: Floats | None, K: float) -> int:
    """Return the position of x0 among the n negatives in increasing order, from their weights."""
    reached = np.arange(1.0, n + 1) if a_neg is None else np.cumsum(a_neg[::-1])
    return n - 1 - min(int(np.searchsorted(reached, K)), n - 1)


def head_in_order(q: Floats, u: Floats, nu: float, K: float, a_pos: Floats | None, a_neg: Floats | None) -> HeadInOrder:
    """Solve the problem of the module's docstring, from increasing q and u = s_j, both measured from x0. O(n)."""
    delta = 0.0
    if nu > 0:  # as a function of -x, alpha is a ramp that starts at -u
        delta = min(max(-root_of_ramps(-u[::-1], nu, K, turned(a_neg)), -nu), 0.0)
    scale = 1.0 / max(K, weighted_sum(ramp(u - delta, nu), a_neg))
    smooth = sums_in_order(np.maximum(q, delta), u, nu, a_pos, a_neg)
    # The exact risk: the same at nu = 0 and x = x0
    exact = sums_in_order(np.maximum(q, 0.0), u, 0.0, a_pos, a_neg)
    hinge, huber = (
        sums + K * weighted_sum(np.maximum(x - q, 0.0), a_pos)
        for sums, x in ((exact.hinge, 0.0), (smooth.huber, delta))
    )
    gamma_pos, gamma_neg = smooth.gamma_pos, smooth.gamma_neg
    if nu == 0:
        low, tied = q <= 0.0, u == 0.0
        share = tie_share(K, weighted_sum(u > 0.0, a_neg), weighted_sum(tied, a_neg))
        gamma_pos[low] += share * weighted_sum(tied, a_neg)
        gamma_neg[tied] += share * weighted_sum(low, a_pos)
        huber = hinge
    return HeadInOrder(hinge, huber, gamma_pos, gamma_neg, scale)
