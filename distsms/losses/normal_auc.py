"""The pairwise square, whose minimum has the direction of the best ROCArea by normal theory.

    R(w) = 1/2 mean over the pairs i in P, j in N of (1 - (s_i - s_j))^2 = 1/2 (t^2 + v+ + v-),   t = 1 - (m+ - m-)
    c_i = a_i / A+ (s_i - m+ - t) on P,    c_j = a_j / A- (s_j - m- + t) on N,    d = t - t^2/2 - (v+ + v-)/2

with the means m and variances v of the scores of each class. R is smooth by itself, and nothing is sorted. See Ghanbari
(2019), chapter 4; Gao, Jin, Zhu & Zhou, One-Pass AUC Optimization, ICML 2013; `distsms.training.normal_auc_closed`.
"""

from __future__ import annotations

import math

import numpy as np

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Loss, LossValue


class NormalAuc(Loss):
    """The pairwise square; an evaluation takes O(n_local) time and two Allreduces of six numbers together."""

    family = measures.NORMAL_AUC
    R_at_zero = 0.5  # every pair has the square 1
    kappa = 0.0  # there is no smoothing
    sent, steps_of_row, held_of_row = 96.0, 10.0, 40.0
    planes_up_to = 0.5
    """By the inequality of Jensen, the |c_i| sum to at most sqrt(v+ + t^2) + sqrt(v- + t^2) <= 2 sqrt(2 R)."""

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        a = 1.0 if self.weights is None else self.weights
        self._of_pos: Floats = self.positive * a / self.A_pos  # (n_local,), the share of each row in its class
        self._of_neg: Floats = self.negative * a / self.A_neg

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        of_pos, of_neg = self._of_pos, self._of_neg
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are seen below
            m_pos, m_neg = self.comm.sum(np.array([of_pos @ scores, of_neg @ scores])).tolist()
            # The means are inexact where scores are large. Their errors are means of what is left of the scores.
            left_pos, left_neg = scores - m_pos, scores - m_neg
            sums = [of_pos @ left_pos, of_neg @ left_neg, of_pos @ left_pos**2, of_neg @ left_neg**2]
            e_pos, e_neg, square_pos, square_neg = self.comm.sum(np.array(sums)).tolist()
            t = 1.0 - ((m_pos - m_neg) + (e_pos - e_neg))
            variances = (square_pos - e_pos * e_pos) + (square_neg - e_neg * e_neg)
            R = 0.5 * (t * t + variances)  # t**2 would raise an exception where this is infinite
            d = t - R
            coefficients = of_pos * (left_pos - (e_pos + t)) + of_neg * (left_neg - (e_neg - t))
        if not math.isfinite(R):
            return LossValue.undefined(coefficients)
        return LossValue(R, R, d, coefficients)
