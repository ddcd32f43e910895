"""Measures of the contingency table by exact separation: F-beta, precision@k and recall@k (Joachims 2005; SVM-Perf).

    R(w) = max(0, max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ])

Delta depends only on b, the number of positives that z calls negative, and c, the number of negatives that z calls
positive. For given b and c the best z takes the b smallest scores of P and the c largest of N. With B_b and C_c their
sums,

    R = max(0, max over (b, c) of  Delta(b, c) + 2/n (C_c - B_b))
    coefficients  c_i = -2/n on those of P,  c_j = 2/n on those of N,      d = Delta.

The outer 0 stands for z = y. For F-beta, y is one of the z. For precision@k and recall@k with k != n+ it is not:
without the 0 these risks would be negative somewhere. The 0 is also their weak point. y calls n+ rows positive, so
shifting all scores up (k < n+) or down (k > n+) brings R to 0, whatever their order is. They are useful only with
features that allow no such shift.

There is no R_mu here. It would be a maximum over the convex hull of these z, with Delta made concave on it. F-beta's
Delta is neither linear nor concave in z. With k != n+ the hull is that of the z with k positives *and y*: the set of
Theorem 7 scaled by a weight, which is a second unknown beside the root. So neither the theorem's algorithm nor PRBEP's
D applies.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.losses.gather import GatheringLoss, Solution
from distsms.parallel.communicator import Communicator
from distsms.utils.jit import njit
from distsms.utils.typing import Floats


class FBeta(GatheringLoss):
    """The risk of F-beta: Delta = 1 - (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 b + c) with tp = n+ - b.

    Delta = 1 where tp = 0.

    Parameters
    ----------
    labels, weights, comm
        See `Loss`.
    beta : float
        Above 1, recall counts for more; below 1, precision does.
    """

    name = "f-beta"
    nonnegative = True
    smooth = False

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator, beta: float) -> None:
        super().__init__(labels, weights, comm)
        self.calls_positive = None
        self._beta2 = beta * beta
        if comm.is_root:  # compile the kernel, or load it, before the first evaluation
            worst_table(np.zeros(1), np.zeros(1), self._beta2)

    def at_zero(self) -> float:
        """Return 1: Delta alone, with no true positive."""
        return 1.0

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Find the worst contingency table with `worst_table`. O(n log n)."""
        assert nu == 0, "there is no smoothing"
        scale = 2.0 / self.n
        low, high = np.argsort(positive), np.argsort(-negative)
        R, d, b, c = worst_table(scale * positive[low], scale * negative[high], self._beta2)
        coef_pos, coef_neg = np.zeros(self.n_pos), np.zeros(self.n_neg)
        coef_pos[low[:b]], coef_neg[high[:c]] = -scale, scale
        return Solution(R, R, d, coef_pos, coef_neg)


@njit()
def worst_table(low: Floats, high: Floats, beta2: float) -> tuple[float, float, int, int]:
    """Find the contingency table (b, c) at which F-beta's risk is attained, exactly.

    Parameters
    ----------
    low : (n+,) float64
        2/n times the positive scores, ascending.
    high : (n-,) float64
        2/n times the negative scores, descending.
    beta2 : float
        beta^2.

    Returns
    -------
    R, Delta : float
        The risk, and Delta of this table.
    b, c : int
        The missed positives and the false positives.

    Notes
    -----
    O(n- + n+ log n-) time and 8 n- bytes. For fixed b, with tp = n+ - b and D = beta^2 n+ + tp + c, F = (1 + beta^2) tp
    / D, and one more false positive changes the bracket by

        high_c + (1 + beta^2) tp / (D (D + 1))

    Both terms decrease as c grows, in floats as well. So the bracket is concave in c, and the best c is the number of
    positive changes, which bisection finds without looking at all c.

    Nothing large cancels in the maximum. Without its negatives of score < 0, or its positives of score > 0, the best
    table would lose at most 1 of Delta. So these terms add up to at most 2, and the absolute values of all terms to at
    most R + 4.
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
        delta = (beta2 * b + c) / (beta2 * n_pos + tp + c)  # 1 - F without a difference
        value = delta + tops[c] - missed
        if value > best:
            best, best_delta, best_b, best_c = value, delta, b, c
    return best, best_delta, best_b, best_c


class AtK(GatheringLoss):
    """The risk of a measure of the k rows that z calls positive.

    Delta = 1 - tp / full, with b = n+ - tp and c = k - tp.

    Delta is linear in z, so the best z calls the k rows of largest q positive, with q_i = s_i - a on P, q_j = s_j on N
    and a = n / (2 full). With tau the k-th largest q, the terms in the sums below are positive, and only the shift by
    tau can cancel:

        Delta + 2/n (C - B) = 1 - n+ / full + 2/n [ sum over N of beta_j (q_j - tau) + sum over P of beta_i (tau - q_i)
                                                    + (k - n+) tau ]

    with beta_j = 1 on negatives that are called positive, and beta_i = 1 on missed positives. Rows tied at tau are
    called positive in equal parts, a convex mixture of labelings, so the plane does not depend on the order of the
    rows.

    Parameters
    ----------
    labels, weights, comm
        See `Loss`.
    k : int
        At most n; else InputError.
    """

    nonnegative = True
    smooth = False

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator, k: int) -> None:
        super().__init__(labels, weights, comm)
        if k > self.n:
            raise InputError(f"{self.name} with k = {k}: the data have {self.n} rows, and k cannot be larger", True)
        self.calls_positive = self._k = k

    @property
    @abstractmethod
    def full(self) -> int:
        """The number of true positives for which Delta is 0."""

    def at_zero(self) -> float:
        """Return Delta alone, with as few true positives as possible."""
        return 1.0 - max(0, self._k - self.n_neg) / self.full

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Select tau and sum. O(n)."""
        assert nu == 0, "there is no smoothing"
        k, scale = self._k, 2.0 / self.n
        q = np.concatenate([positive - self.n / (2.0 * self.full), negative])
        tau = np.partition(q, self.n - k)[self.n - k]
        called = np.where(q > tau, 1.0, 0.0)
        tied = q == tau
        called[tied] = (k - np.count_nonzero(called)) / np.count_nonzero(tied)
        # In extended precision, if there is one, since (k - n+) tau may cancel most of the sum.
        total = float(np.sum(np.maximum(q[self.n_pos :] - tau, 0.0), dtype=np.longdouble))
        total += float(np.sum(np.maximum(tau - q[: self.n_pos], 0.0), dtype=np.longdouble))
        R = 1.0 - self.n_pos / self.full + scale * (total + (k - self.n_pos) * float(tau))
        if not R > 0:  # z = y
            return Solution(0.0, 0.0, 0.0, np.zeros(self.n_pos), np.zeros(self.n_neg))
        of_positive, of_negative = np.split(called, [self.n_pos])
        d = 1.0 - float(np.sum(of_positive)) / self.full
        return Solution(R, R, d, scale * (of_positive - 1.0), scale * of_negative)


class PrecisionAtK(AtK):
    """1 - precision among the k rows called positive; if k > n+ it cannot become 0."""

    name = "precision@k"

    @property
    def full(self) -> int:
        """k."""
        return self._k


class RecallAtK(AtK):
    """1 - recall of the k rows called positive; if k < n+ it cannot become 0."""

    name = "recall@k"

    @property
    def full(self) -> int:
        """n+."""
        return self.n_pos
