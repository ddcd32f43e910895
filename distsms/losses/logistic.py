"""The logistic loss, as it is and with balanced classes. It is smooth by itself, so R_mu = R at every width nu.

    R(w) = sum_i a_i log(1 + exp(-m_i)),   m_i = y_i s_i,   sum_i a_i = 1 (balanced: 1/2 in each class)
    c_i = -a_i y_i sigma(-m_i),    d = R - sum_i c_i s_i = sum_i a_i H(sigma(m_i)),    H the entropy

Both are written with e = exp(-|m|), without overflow and cancellation: log(1 + exp(-m)) = max(-m, 0) + log(1 + e), and
H = |m| e / (1 + e) + log(1 + e).
"""

from __future__ import annotations

import math

import numpy as np

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.jit import njit, weight_of
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Loss, LossValue

BLOCK = 4096
"""The number of rows that are computed at a time, so that intermediate results stay in the processor's cache."""


class Logistic(Loss):
    """The mean logistic loss, -log of the probability of the true label; rows count as much as they weigh."""

    family = measures.LOGISTIC
    R_at_zero = math.log(2.0)  # every row has the probability 1/2
    kappa = 0.0  # there is no smoothing
    sent, steps_of_row, held_of_row, held = 32.0, 10.0, 9.0, 16.0 * BLOCK

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self.calls_positive = None
        self._y = self.positive.astype(np.int8) - self.negative.astype(np.int8)  # 0 for rows that are left out

    def class_factors(self) -> tuple[float, float]:
        """Return the factors of the weights of positive and of negative rows that give a_i."""
        return (0.5 / self.A_pos, 0.5 / self.A_neg) if self.family.balanced else (1.0 / self.A, 1.0 / self.A)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        sums, coefficients, both = np.zeros(2), np.empty(len(scores)), np.empty((2, BLOCK))
        of_pos, of_neg = self.class_factors()
        for start in range(0, len(scores), BLOCK):
            rows = slice(start, start + BLOCK)
            s = scores[rows]
            e, log1p = both[:, : len(s)]
            # NumPy computes these with vector instructions, which makes them several times as fast as in a kernel.
            np.exp(np.negative(np.abs(s, out=e), out=e), out=e)
            np.log1p(e, out=log1p)
            a = None if self.weights is None else self.weights[rows]
            sums += logistic_block(s, self._y[rows], a, of_pos, of_neg, e, log1p, coefficients[rows])
        self.comm.sum(sums)
        R, d = sums.tolist()
        if math.isnan(d):  # a score is not finite
            return LossValue.undefined(coefficients)
        return LossValue(R, R, d, coefficients)


class LogisticBalanced(Logistic):
    """The mean of both classes' mean logistic losses."""

    family = measures.BALANCED


@njit(error_model="numpy", fastmath={"reassoc", "nsz", "contract"})
def logistic_block(scores, y, weights, of_pos, of_neg, e, log1p, coefficients):  # type: ignore[no-untyped-def]
    """Write the coefficients of some rows, y 0 if left out; return their sums for R and d. e, log1p: of exp(-|s|)."""
    R = d = 0.0
    for i in range(len(scores)):
        margin = y[i] * scores[i]
        a = weight_of(weights, i) * (of_pos if y[i] > 0 else of_neg) * abs(y[i])
        small = e[i] / (1.0 + e[i])  # the probability of the less probable label
        R += a * (log1p[i] + max(-margin, 0.0))
        d += a * (log1p[i] + abs(margin) * small)
        coefficients[i] = -a * y[i] * (small if margin > 0 else 1.0 - small)
    return R, d
