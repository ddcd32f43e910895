"""The risks of measures of the contingency table: error rate, F-beta, precision@k and recall@k (Joachims 2005).

With z the labelings of the rows that the measure allows, y the true one, and the letters of `distsms.losses.base`,

    R(w) = max(0, max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ])

Delta depends only on b, the number of positives that z calls negative, and c, the number of negatives that z calls
positive. For given b and c, the maximum is attained where z calls the b positives of smallest score negative, and the c
negatives of largest score positive. With B_b and C_c the sums of these scores,

    R = max(0, max over (b, c) of  Delta(b, c) + 2/n (C_c - B_b))
    coefficients  -2/n for each of these positives,  2/n for each of these negatives,      d = Delta.

The outer 0 is the value of the bracket at z = y. F-beta allows every labeling, so y is one of the z. precision@k and
recall@k allow only labelings with k positives. If k != n+, y is not one of these, and without the 0 the risks would be
negative at some w. But the 0 also makes them weak: z = y has n+ positives, so R becomes 0 if all scores are shifted up
(k < n+) or down (k > n+), whatever their order is. These risks are useful only with features that allow no such shift.

The error rate alone has a smoothed risk R_mu here. R_mu would be a maximum over the convex hull of the allowed z, and
Delta would have to be concave there. F-beta's Delta is neither linear nor concave in z. For k != n+ the hull contains
both the z with k positives and y. That is the set of the paper's Theorem 7 with one more unknown, the weight of y. So
neither the algorithm of that theorem nor the D of PRBEP applies.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.errors import InputError
from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.losses.base import Cost, Loss, LossValue, huber, ramp
from distsms.losses.gather import GatheringLoss, Solution, weighted_sum
from distsms.parallel.communicator import Communicator


class FBeta(GatheringLoss):
    """The risk of F-beta: Delta = 1 - (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 b + c).

    tp = n+ - b is the number of true positives. Delta is 1 where tp = 0.
    """

    family = measures.F_BETA
    nonnegative = True

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator, beta: float) -> None:
        self._beta, self.beta2 = beta, beta * beta
        super().__init__(labels, weights, comm)
        self.calls_positive = None
        if comm.is_root:  # compile the kernel, or load it, before the first evaluation
            worst_table(np.zeros(1), np.zeros(1), self.beta2)

    @property
    def name_of_measure(self) -> str:
        return f"f{self._beta:g}"

    def at_zero(self) -> float:
        """Return 1: Delta alone, with no true positive."""
        return 1.0

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Find the worst contingency table with `worst_table`. O(n log n)."""
        assert nu == 0, "there is no smoothing"
        scale = 2.0 / self.n
        low, high = np.argsort(positive), np.argsort(-negative)
        R, d, b, c = worst_table(scale * positive[low], scale * negative[high], self.beta2)
        coef_pos, coef_neg = np.zeros(self.n_pos), np.zeros(self.n_neg)
        coef_pos[low[:b]], coef_neg[high[:c]] = -scale, scale
        return Solution(R, R, d, coef_pos, coef_neg)


@njit()
def worst_table(low: Floats, high: Floats, beta2: float) -> tuple[float, float, int, int]:
    """Return F-beta's risk, exactly, and Delta, b and c (the missed and the false positives) where it is attained.

    low (n+,) are 2/n times the positive scores, ascending, and high (n-,) 2/n times the negative ones, descending. O(n-
    + n+ log n-) time and 8 n- bytes. Let v(b, c) = Delta(b, c) + 2/n (C_c - B_b), the value to be maximized. With tp =
    n+ - b and D = beta^2 n+ + tp + c, F-beta is (1 + beta^2) tp / D. One more false positive changes v by

        high_c + (1 + beta^2) tp / (D (D + 1))

    Both terms decrease as c grows, also after rounding. So v is concave in c, and the best c is the number of positive
    changes. Bisection finds it without computing v for all c.

    The maximum loses no digits by cancellation. Only false positives with a score < 0 and missed positives with a score
    > 0 lower v. In the best table each of these two groups lowers v by at most 1, since without the group Delta would
    be lower by at most 1. So the absolute values of all terms add up to at most R + 4.
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


class AtK(GatheringLoss):
    """The risk of a measure of the k rows that z calls positive.

    Delta = 1 - tp / denominator, with tp true positives, b = n+ - tp and c = k - tp.

    Delta is linear in z, so the best z calls the k rows of largest q positive, with q_i = s_i - a on P, q_j = s_j on N
    and a = n / (2 denominator). With tau the k-th largest q,

        Delta + 2/n (C - B) = 1 - n+ / denominator + 2/n [ sum over N of beta_j (q_j - tau)
                                                  + sum over P of beta_i (tau - q_i) + (k - n+) tau ]

    with beta_j = 1 for negatives that are called positive, and beta_i = 1 for missed positives. No term of the two sums
    is negative, so only the last term can lose digits by cancellation. If several rows have q = tau, each of them is
    called positive with the same weight. This is a convex combination of labelings, and it makes the plane independent
    of the order of the rows.

    Parameters
    ----------
    labels, weights, comm
        See `Loss`.
    k : int
        The number of rows called positive, at most n.

    Raises
    ------
    InputError
        If k > n.
    """

    nonnegative = True

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator, k: int) -> None:
        self._k = k
        super().__init__(labels, weights, comm)
        if k > self.n:
            raise InputError(f"{self.family} with k = {k}: the data have {self.n} rows, and k cannot be larger", True)
        self.calls_positive = k

    @property
    def name_of_measure(self) -> str:
        return f"{self.family.name.removesuffix('k')}{self._k}"

    @property
    @abstractmethod
    def denominator(self) -> int:
        """The denominator of the measure: Delta is 0 if there are as many true positives."""

    def at_zero(self) -> float:
        """Return Delta alone, with as few true positives as possible."""
        return 1.0 - max(0, self._k - self.n_neg) / self.denominator

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Find tau by a partial sort, and add up the terms of the class's docstring. O(n)."""
        assert nu == 0, "there is no smoothing"
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


class PrecisionAtK(AtK):
    """1 - precision among the k rows called positive; if k > n+ it cannot become 0."""

    family = measures.PRECISION_AT_K

    @property
    def denominator(self) -> int:
        """The number of rows called positive, k."""
        return self._k


class RecallAtK(AtK):
    """1 - recall of the k rows called positive; if k < n+ it cannot become 0."""

    family = measures.RECALL_AT_K

    @property
    def denominator(self) -> int:
        """The number of positive rows, n+."""
        return self.n_pos


class ErrorRate(Loss):
    """The risk of the error rate, Delta = (b + c) / n.

    This risk is a sum over rows: each row may be labeled either way, independently of the others (Joachims 2005,
    section 5). So the maximum over all labelings is taken term by term, and nothing has to be sorted:

        R(w) = max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ] = 2/n sum_i max(0, t_i),   t_i = 1/2 - y_i s_i

    With weights a_i, sums over rows are sums of a_i times their terms, and n is A.

    This is the hinge loss of the linear SVM in another scale. With u = 2 w, the objective lambda/2 ||w||^2 + R(w)
    equals the SVM's objective (lambda/4)/2 ||u||^2 + 1/n sum_i max(0, 1 - y_i <u, x_i>). The convex hull of all
    labelings is the box [0, 1]^n, and Delta is linear on it. So smoothing with the prox term 1/2 ||beta||^2 gives
    the Huber hinge of width nu = mu n / 2. This is the smoothing of PRBEP without the constraint sum_P beta = sum_N
    beta.

        beta_i = clip(t_i / nu, 0, 1),   coefficients c_i = -2/n y_i beta_i,   d = 1/n sum_i beta_i.

    An evaluation takes O(n_local) time and one Allreduce of three numbers.
    """

    family = measures.ERROR_RATE
    nonnegative = True

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self.calls_positive = None
        self._y: Floats = self.positive.astype(float) - self.negative  # (n_local,), 0 for rows that are left out

    def smoothing_cost(self) -> float:
        """Return mu D / nu = 2/n * n/2 = 1."""
        return 1.0

    def at_zero(self) -> float:
        """Return 1: every row has t = 1/2."""
        return 1.0

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu = mu n / 2 = c_mu epsilon, since D = n / 2."""
        return c_mu * epsilon

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of a pass over each rank's own rows and of a sum of three numbers."""
        n_local = (n_pos + n_neg) / size
        return Cost(0.0 if size == 1 else 48.0, 5.0 * n_local, held_by_each=40.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. **Collective.**"""
        sums, coefficients = np.full(3, np.nan), np.zeros(len(scores))
        if np.isfinite(scores).all():
            t = np.where(self._y, 0.5 - self._y * scores, 0.0)  # at t = 0 a row adds nothing
            beta = ramp(t, nu)
            sums[:] = [weighted_sum(terms, self.weights) for terms in (np.maximum(t, 0.0), huber(t, beta, nu), beta)]
            coefficients = -2.0 / self.A * self._y * (beta if self.weights is None else self.weights * beta)
        self.comm.sum(sums)
        if np.isnan(sums).any():
            coefficients[:] = 0.0
        R, R_mu, d = map(float, sums / self.A)
        return LossValue(2.0 * R, 2.0 * R_mu, d, coefficients)
