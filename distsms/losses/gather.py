"""The ordering "gather": the root sorts all n margins and finds theta and gamma exactly (JMLR, Algorithms 2, 3 and 4).

This is the reference for others. 8 n bytes go to the root and back; O(n log n) time, about 60 n bytes of memory.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.jit import njit
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Cost, Loss, LossValue


class Solution(NamedTuple):
    """The result of the computation on the root; see `LossValue`."""

    R: float
    R_mu: float
    d: float
    positive: Floats  # (n_pos,): the coefficients of each class, in the order of its scores
    negative: Floats


class GatheringLoss(Loss):
    """A loss that gathers margins and weights on the root, calls `solve` there, and scatters the coefficients."""

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        # The labels never change, so they are gathered once. None on the other ranks.
        self._all_positive = comm.gather_rows(self.positive)
        self._all_negative = comm.gather_rows(self.negative)
        whole = None if self.weights is None else comm.gather_rows(self.weights)
        self.a_pos, self.a_neg = np.broadcast_to(1.0, self.n_pos), np.broadcast_to(1.0, self.n_neg)  # without memory
        if whole is not None:
            self.a_pos, self.a_neg = whole[self._all_positive], whole[self._all_negative]
        if comm.is_root:  # compile the kernels, or load them, before the first evaluation
            score, weight = np.zeros(1), np.ones(1)
            pair_sums(score, score, 1.0, score.copy(), weight, weight)
            root_of_ramps(score, 1.0, 0.5, weight)

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        n = n_pos + n_neg
        return Cost(16.0 * n * (size - 1) / size, n * (math.log2(n) + 10.0), held_by_root=60.0 * n)

    @abstractmethod
    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Compute the exact solution from the scores of all rows of the classes, in any order. Local, on the root."""

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        whole = self.comm.gather_rows(scores)
        numbers, coefficients = np.full(3, np.nan), None
        if whole is not None:
            coefficients = np.zeros(len(whole))
            positive, negative = self._all_positive, self._all_negative
            if np.isfinite(whole).all():
                solution = self.solve(whole[positive], whole[negative], nu)
                numbers[:] = solution[:3]
                coefficients[positive], coefficients[negative] = solution.positive, solution.negative
        self.comm.broadcast(numbers)
        R, R_mu, d = map(float, numbers)
        return LossValue(R, R_mu, d, self.comm.scatter_rows(coefficients, len(scores)))


def weighted_sum(terms: NDArray[Any], weights: Floats | float) -> float:
    return float(np.sum(weights * terms))


@njit()
def pair_sums(
    q: Floats, x: Floats, nu: float, gamma: Floats, q_weights: Floats, x_weights: Floats
) -> tuple[float, float]:
    """Return the sums of a_i a_j max(0, t_ij) and a_i a_j h(t_ij), h the Huber hinge, over all pairs (Algorithm 4).

    t_ij = x_j - q_i, with q and x in decreasing order. gamma_i is set to sum_j a_j clip(t_ij / nu, 0, 1), at nu = 0 to
    the sum of a_j over t_ij > 0. O(n_q + n_x). The sums of t and t^2 over the window of q_i, the x_j with 0 < t_ij <
    nu, are updated: the paper's subtraction loses digits if scores are large.
    """
    n_x = len(x)
    inside = 0  # x[:inside] have t > 0
    full = 0  # x[:full] have t >= nu; x[full:inside] are the window, the paper's M_i
    a_full = a_window = 0.0  # the weights of both
    hinge_full = 0.0  # sum of a (t - nu/2) over x[:full]
    t_sum = 0.0  # sums of t and t^2 over the window, the paper's s_i and t_i
    t2_sum = 0.0
    total = 0.0
    total_mu = 0.0
    for i in range(len(q)):
        step = q[i - 1] - q[i] if i > 0 else 0.0
        hinge_full += a_full * step
        if step < nu:
            t2_sum += (2.0 * t_sum + a_window * step) * step
            t_sum += a_window * step
            while full < inside and x[full] - q[i] >= nu:
                t, a = x[full] - q[i], x_weights[full]
                t_sum -= a * t
                t2_sum -= a * t * t
                hinge_full += a * (t - 0.5 * nu)
                a_full += a
                a_window -= a
                full += 1
        else:  # every x of the old window has t >= nu now
            while full < inside:
                a = x_weights[full]
                hinge_full += a * (x[full] - q[i] - 0.5 * nu)
                a_full += a
                full += 1
        if full == inside:  # the window is empty: remove its rounding errors
            a_window = 0.0
            t_sum = 0.0
            t2_sum = 0.0
        while inside < n_x and x[inside] > q[i]:
            t, a = x[inside] - q[i], x_weights[inside]
            if t >= nu:  # then the window is empty
                hinge_full += a * (t - 0.5 * nu)
                a_full += a
                full += 1
            else:
                a_window += a
                t_sum += a * t
                t2_sum += a * t * t
            inside += 1
        a = q_weights[i]
        gamma[i] = a_full
        total += a * (hinge_full + 0.5 * nu * a_full + t_sum)
        total_mu += a * hinge_full
        if inside > full:
            gamma[i] += t_sum / nu
            total_mu += a * (0.5 * t2_sum / nu)
    return total, total_mu


@njit()
def root_of_ramps(heads: Floats, nu: float, target: float, weights: Floats) -> float:
    """Return the smallest tau at which sum_i a_i clip((tau - h_i) / nu, 0, 1) = target (Algorithms 2 and 3). O(n).

    The heads h_i ascend, nu > 0, and the target is between 0 and the sum of the weights. The sum is computed at the
    kinks, h_i and h_i + nu, until it reaches the target; then a linear equation is solved (equation (32)).
    """
    n = len(heads)
    head = 0
    tail = 0  # at this point `head` ramps have begun and `tail` ramps have ended
    slope = 0.0  # the weights of the ramps that have begun, but not ended
    ended = 0.0  # the weights of those that have ended
    anchor = heads[0]
    value = 0.0
    while tail < n:
        kink = heads[tail] + nu
        begins = head < n and heads[head] <= kink
        if begins:
            kink = heads[head]
        # The bound holds but for rounding: heads[tail] + nu may be further than nu from the head if nu is tiny.
        reached = min(value + slope * ((kink - anchor) / nu), ended + slope)
        if reached >= target:
            return anchor + (target - value) * nu / slope
        value = reached
        anchor = kink
        if begins:
            slope += weights[head]
            head += 1
        else:
            slope -= weights[tail]
            ended += weights[tail]
            tail += 1
            if tail == head:  # every ramp that has begun has ended: remove the rounding errors
                slope = 0.0
                value = ended
                if value >= target:
                    return anchor
    return anchor
