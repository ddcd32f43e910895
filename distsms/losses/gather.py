"""Ordering by gathering: the n margins on the root, sorted, theta and gamma exact (JMLR, Algorithms 2, 3 and 4).

The reference for every other way of ordering. Cost of one evaluation: n float64 to the root and n back, O(n log n)
there; 8 n bytes on each wire of the root and about 60 n bytes of its memory, whatever the number of ranks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple

import numpy as np

from distsms.losses.base import Cost, Loss, LossValue
from distsms.parallel.communicator import Communicator
from distsms.utils.jit import njit
from distsms.utils.typing import Floats


class Solution(NamedTuple):
    """What the root finds: R, R_mu, d, and the coefficients (n_pos,) and (n_neg,) in the order of the scores given."""

    R: float
    R_mu: float
    d: float
    positive: Floats
    negative: Floats


class GatheringLoss(Loss):
    """Brings margins to the root, has `solve` called there, and brings each row's coefficient back to its rank."""

    def __init__(self, labels: np.ndarray, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        # The labels never change: they travel once. None on the other ranks.
        self._all_positive = comm.gather_rows(self.positive)
        self._all_negative = comm.gather_rows(self.negative)
        if comm.is_root:  # compiles the kernels, or loads them, now: not in the first evaluation
            one = np.zeros(1)
            pair_sums(one, one, 1.0, one.copy())
            root_of_ramps(one, 1.0, 0.5)

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """On the root."""
        n = n_pos + n_neg
        return Cost(16.0 * n * (size - 1) / size, n * (math.log2(n) + 10.0), held_by_root=60.0 * n)

    @abstractmethod
    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """The exact solution from all (finite) scores of the classes, (n_pos,) and (n_neg,), in any order. Local."""

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. Collective."""
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


@njit()
def pair_sums(q: Floats, x: Floats, nu: float, gamma: Floats) -> tuple[float, float]:
    """Algorithm 4: for each q_i, sums over all x_j of functions of t_ij = x_j - q_i, by one walk down both.

    q : (n_q,), x : (n_x,), both sorted decreasingly; nu : the width >= 0; at 0 the window is always empty.
    gamma : (n_q,), set to sum_j clip(t_ij / nu, 0, 1), at nu = 0 to the count of t_ij > 0.
    Returns sum_ij max(0, t_ij) and sum_ij h(t_ij), h the Huber hinge. O(n_q + n_x).

    Where the paper keeps sums of a_j and a_j^2 and subtracts, this keeps the sums of t itself, moved along with q: they
    stay as small as what they stand for, so scores of size 1e8 lose nothing.
    """
    n_x = len(x)
    inside = 0  # x[:inside] have t > 0
    full = 0  # x[:full] have t >= nu; those between are the window, the paper's M_i
    hinge_full = 0.0  # sum of t - nu/2 over the full ones
    t_sum = 0.0  # sums of t and t^2 over the window, the paper's s_i and t_i
    t2_sum = 0.0
    total = 0.0
    total_mu = 0.0
    for i in range(len(q)):
        step = q[i - 1] - q[i] if i > 0 else 0.0
        hinge_full += full * step
        if step < nu:
            t2_sum += (2.0 * t_sum + (inside - full) * step) * step
            t_sum += (inside - full) * step
            while full < inside and x[full] - q[i] >= nu:
                t = x[full] - q[i]
                t_sum -= t
                t2_sum -= t * t
                hinge_full += t - 0.5 * nu
                full += 1
        else:  # every x of the old window is full now
            while full < inside:
                hinge_full += x[full] - q[i] - 0.5 * nu
                full += 1
        if full == inside:  # an empty window has no rounding errors either
            t_sum = 0.0
            t2_sum = 0.0
        while inside < n_x and x[inside] > q[i]:
            t = x[inside] - q[i]
            if t >= nu:  # then the window is empty
                hinge_full += t - 0.5 * nu
                full += 1
            else:
                t_sum += t
                t2_sum += t * t
            inside += 1
        gamma[i] = full
        total += hinge_full + 0.5 * nu * full + t_sum
        total_mu += hinge_full
        if inside > full:
            gamma[i] += t_sum / nu
            total_mu += 0.5 * t2_sum / nu
    return total, total_mu


@njit()
def root_of_ramps(heads: Floats, nu: float, target: float) -> float:
    """Algorithms 2 and 3: the tau at which sum_i clip((tau - h_i) / nu, 0, 1) = target.

    heads : (n,) sorted increasingly, each the kink h_i where a ramp starts (the paper's heads); its tail is h_i + nu.
    target : in (0, n). Of several roots the smallest. O(n).

    The walk goes from kink to kink with the paper's anchor, slope and intercept (Algorithm 3) until the sum switches
    sides (Algorithm 2), and solves the linear equation (32) there. The two stages of Algorithm 2, first among the kinks
    of one class and then of the other, are one walk here, since the kinks of both classes were sorted together.
    """
    n = len(heads)
    head = 0
    tail = 0  # ramps begun and ended; the slope is their difference
    anchor = heads[0]
    value = 0.0
    while tail < n:
        kink = heads[tail] + nu
        begins = head < n and heads[head] <= kink
        if begins:
            kink = heads[head]
        reached = value + (head - tail) * ((kink - anchor) / nu)
        if reached >= target:
            return anchor + (target - value) * nu / (head - tail)
        value = reached
        anchor = kink
        if begins:
            head += 1
        else:
            tail += 1
            if tail == head:  # no ramp is under way: the count is exact
                value = float(tail)
                if value >= target:
                    return anchor
    return anchor
