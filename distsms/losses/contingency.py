"""The risks of measures of the contingency table: error rate, F-beta, precision@k and recall@k (Joachims 2005).

With z the labelings of the rows that the measure allows, y the true one, and the letters of `distsms.losses.base`,

    R(w) = max(0, max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ])

Delta depends only on b, the number of positives that z calls negative, and c, that of negatives that it calls positive.
The maximum for these calls the b lowest positives negative and the c highest negatives positive. With B_b and C_c the
sums of their scores, R = max(0, max over (b, c) of Delta(b, c) + 2/n (C_c - B_b)), and d = Delta.

precision@k and recall@k allow only labelings with k positives. If k != n+, y is none of these; the outer 0, which keeps
the risk from being negative, then makes it weak: R becomes 0 if all scores are shifted up (k < n+) or down (k > n+).
The error rate alone has a smoothed risk here: the other Delta are not concave on the convex hull of the z.
"""

from __future__ import annotations

import numpy as np

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.jit import njit
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Loss, LossValue, huber, ramp
from distsms.losses.gather import GatheringLoss, Solution, weighted_sum


class FBeta(GatheringLoss):
    """The risk of F-beta: Delta = 1 - (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 b + c), with tp = n+ - b."""

    family = measures.F_BETA
    R_at_zero = 1.0  # Delta alone, with no true positive

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator, beta: float) -> None:
        self.measure = f"f{beta:g}"
        super().__init__(labels, weights, comm)
        self.beta2, self.calls_positive = beta * beta, None
        if comm.is_root:  # compile the kernel, or load it, before the first evaluation
            worst_table(np.zeros(1), np.zeros(1), self.beta2)

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        scale = 2.0 / self.n
        low, high = np.argsort(positive), np.argsort(-negative)
        R, d, b, c = worst_table(scale * positive[low], scale * negative[high], self.beta2)
        coef_pos, coef_neg = np.zeros(self.n_pos), np.zeros(self.n_neg)
        coef_pos[low[:b]], coef_neg[high[:c]] = -scale, scale
        return Solution(R, R, d, coef_pos, coef_neg)


@njit()
def worst_table(low: Floats, high: Floats, beta2: float) -> tuple[float, float, int, int]:
    """Return F-beta's risk, exactly, and Delta, b and c (the missed and the false positives) where it is attained.

    low (n+,) are 2/n times the positive scores, ascending, and high (n-,) 2/n times the negative ones, descending. One
    more false positive changes the value by high_c + (1 + beta^2) tp / (D (D + 1)), D = beta^2 n+ + tp + c. Both terms
    fall as c grows, so bisection finds the best c. No digits are lost: all terms add up to at most R + 4.
    """
    n_pos, n_neg = len(low), len(high)
    tops = np.zeros(n_neg + 1)
    for c in range(n_neg):
        tops[c + 1] = tops[c] + high[c]
    best, best_delta, best_b, best_c = 0.0, 0.0, 0, 0  # z = y
    missed = 0.0
    for b in range(n_pos + 1):
        if b > 0:
            missed += low[b - 1]
        tp = float(n_pos - b)
        c, end = 0, n_neg
        while c < end:
            middle = (c + end) // 2
            D = beta2 * n_pos + tp + middle
            if high[middle] + (1.0 + beta2) * tp / (D * (D + 1.0)) > 0:
                c = middle + 1
            else:
                end = middle
        delta = (beta2 * b + c) / (beta2 * n_pos + tp + c)  # equals 1 - F; the subtraction would lose digits
        value = delta + tops[c] - missed
        if value > best:
            best, best_delta, best_b, best_c = value, delta, b, c
    return best, best_delta, best_b, best_c


class PrecisionAtK(GatheringLoss):
    """1 - precision among the k rows called positive; if k > n+ it cannot become 0.

    Delta = 1 - tp / denominator, which is k, or n+ for recall@k, b = n+ - tp, c = k - tp.

    Delta is linear in z, so the best z calls the k rows of largest q positive, with q_i = s_i - a on P, q_j = s_j on N
    and a = n / (2 denominator). With tau the k-th largest q,

        Delta + 2/n (C - B) = 1 - n+ / denominator + 2/n [ sum over N of beta_j (q_j - tau)
                              + sum over P of beta_i (tau - q_i) + (k - n+) tau ]

    where only the last term can lose digits. Rows with q = tau share the rest of k alike, whatever their order.
    """

    family = measures.PRECISION_AT_K

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator, k: int) -> None:
        self.measure = f"{self.family.name.removesuffix('k')}{k}"
        super().__init__(labels, weights, comm)
        if k > self.n:
            raise InputError(f"{self.family} with k = {k}: the data have {self.n} rows, and k cannot be larger", True)
        self._k = self.calls_positive = k
        # Delta is 0 if there are so many true positives, and at w = 0 there are as few of them as possible.
        self.denominator = k if self.family == measures.PRECISION_AT_K else self.n_pos
        self.R_at_zero = 1.0 - max(0, k - self.n_neg) / self.denominator

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Find tau by a partial sort, and add up the terms of the class's docstring. O(n)."""
        k, scale = self._k, 2.0 / self.n
        q = np.concatenate([positive - self.n / (2.0 * self.denominator), negative])
        tau = np.partition(q, self.n - k)[self.n - k]
        called = np.where(q > tau, 1.0, 0.0)
        tied = q == tau
        called[tied] = (k - np.count_nonzero(called)) / np.count_nonzero(tied)
        # The sums use extended precision, if the machine has it, since (k - n+) tau may cancel most of them.
        total = float(np.sum(np.maximum(q[self.n_pos :] - tau, 0.0), dtype=np.longdouble))
        total += float(np.sum(np.maximum(tau - q[: self.n_pos], 0.0), dtype=np.longdouble))
        R = 1.0 - self.n_pos / self.denominator + scale * (total + (k - self.n_pos) * float(tau))
        if not R > 0:  # z = y
            return Solution(0.0, 0.0, 0.0, np.zeros(self.n_pos), np.zeros(self.n_neg))
        of_positive, of_negative = np.split(called, [self.n_pos])
        d = 1.0 - float(np.sum(of_positive)) / self.denominator
        return Solution(R, R, d, scale * (of_positive - 1.0), scale * of_negative)


class RecallAtK(PrecisionAtK):
    """1 - recall of the k rows called positive; if k < n+ it cannot become 0."""

    family = measures.RECALL_AT_K


class ErrorRate(Loss):
    """The risk of the error rate, Delta = (b + c) / n, a sum over rows, since each may be labeled either way:

        R(w) = 2/n sum_i a_i max(0, t_i),   t_i = 1/2 - y_i s_i,   beta_i = clip(t_i / nu, 0, 1)
        coefficients c_i = -2/n a_i y_i beta_i,   d = 1/n sum_i a_i beta_i,   n the sum of the weights

    This is the hinge loss of the linear SVM in another scale (u = 2 w), with PRBEP's smoothing without its constraint.
    """

    family = measures.ERROR_RATE
    R_at_zero = 1.0  # every row has t = 1/2
    kappa = 1.0  # 2/n * n/2
    sent, steps_of_row, held_of_row = 48.0, 5.0, 40.0

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self.calls_positive = None
        self._y: Floats = self.positive.astype(float) - self.negative  # (n_local,), 0 for rows that are left out

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        sums, coefficients = np.full(3, np.nan), np.zeros(len(scores))
        if np.isfinite(scores).all():
            t = np.where(self._y, 0.5 - self._y * scores, 0.0)  # at t = 0 a row adds nothing
            beta = ramp(t, nu)
            a = 1.0 if self.weights is None else self.weights
            sums[:] = [weighted_sum(terms, a) for terms in (np.maximum(t, 0.0), huber(t, beta, nu), beta)]
            coefficients = -2.0 / self.A * self._y * (a * beta)
        self.comm.sum(sums)
        if np.isnan(sums).any():
            coefficients[:] = 0.0
        R, R_mu, d = map(float, sums / self.A)
        return LossValue(2.0 * R, 2.0 * R_mu, d, coefficients)
