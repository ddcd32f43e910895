"""PRBEP, the precision/recall break-even point (JMLR, equations (3) and (4), sections 3.1 and 4.1).

R(w) = max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ], z any labeling with n+ positives, Delta = b/n+ for b missed
ones. In units of the margins, with tau = -n theta+ / 2 (Theorem 7), nu = mu n / 2 and a = n / (2 n+):

    t_i = tau - s_i on P,  t_j = s_j + a - tau on N,  beta = clip(t / nu, 0, 1),  tau such that sum_P beta = sum_N beta
    R_mu = 2/n (sum of the Huber hinges of t),    R = the minimum over tau of the same sum at nu = 0
    coefficients  c_i = -2/n beta_i on P,  c_j = 2/n beta_j on N,      d = 1/n+ sum_P beta

With weights, all sums are of a_i times their terms, and n+ and n are A+ and A. At nu = 0, rows with t = 0 get the
common beta for which both sums are equal. No term is negative, so no digits are lost, however large the margins are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.typing import Floats
from distsms.losses.base import Loss, huber, ramp
from distsms.losses.gather import GatheringLoss, Solution, in_order, root_of_ramps, weighted_sum


class PrbepRisk(Loss):
    """The PRBEP risk, independent of how tau is found; see the module's docstring."""

    family = measures.PRBEP
    nonnegative = True

    @property
    def shift(self) -> float:
        """The number a = n / (2 n+) that is added to the scores of N: 1/n+ (one step of Delta) in units of margins."""
        return self.A / (2.0 * self.A_pos)

    def smoothing_cost(self) -> float:
        """Return mu D / nu = 2/n min(n+, n-), since sum_P beta = sum_N beta <= min(n+, n-) bounds 1/2 ||beta||^2."""
        return 2.0 * min(self.A_pos, self.A_neg) / self.A

    def at_zero(self) -> float:
        """Return Delta alone, with as many rows swapped as possible."""
        return min(self.A_pos, self.A_neg) / self.A_pos

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu = mu n / 2 = c_mu epsilon, since D = n / 2."""
        return c_mu * epsilon

    def risks(
        self, balance: Balance, corrections: tuple[Correction, Correction], nu: float
    ) -> tuple[float, float, float]:
        """Return R, R_mu before the corrections, which change it by less than rounding does, and d."""
        R, R_mu = (2.0 / self.A * total for total in (balance.hinge, balance.huber))
        return R, R_mu if nu > 0 else R, corrections[0].total(balance.pos) / self.A_pos


class ClassSums(NamedTuple):
    """Sums over all rows of one class (P or N), on all ranks, each term times the weight of its row."""

    total: float  # the sum of beta
    near: float  # the number of rows near the kink (see `near_kink`), and the sum of their beta
    near_total: float


class Balance(NamedTuple):
    """Sums over the rows of both classes, on all ranks, for a given tau."""

    pos: ClassSums
    neg: ClassSums
    interior: float  # the number of rows with 0 < beta < 1
    huber: float  # the sum of the Huber hinges at tau
    hinge: float  # the sum of the hinges max(0, t) at tau0, the minimizing tau of the exact risk R

    @property
    def excess(self) -> float:
        """sum_P beta - sum_N beta, which should be 0."""
        return self.pos.total - self.neg.total


class Correction(NamedTuple):
    """A change of beta in one class: near the kink to scale * (beta + share * (goal - beta)), else to scale * beta."""

    share: float
    goal: float
    scale: float

    def total(self, side: ClassSums) -> float:
        """Return the sum of beta after the change."""
        return self.scale * (side.total + self.share * (self.goal * side.near - side.near_total))

    def apply(self, beta: Floats, near: NDArray[np.bool_]) -> Floats:
        """Return beta (n_class,) of the class's rows after the change; `near`: those near the kink."""
        return self.scale * np.where(near, beta + self.share * (self.goal - beta), beta)


def near_kink(tau: float, nu: float) -> float:
    """Return the largest |t| of the rows whose beta may change when tau changes by its rounding error."""
    return nu + 8 * float(np.spacing(abs(tau))) if nu > 0 else 0.0


def refine(tau: float, nu: float, sums_at: Callable[[float], Balance]) -> tuple[float, Balance]:
    """Return tau after up to three Newton steps, and `sums_at` it, the sums of both classes."""
    best = sums_at(tau)
    for _ in range(3):
        if abs(best.excess) <= 1e-12 * best.pos.total or best.interior == 0:
            break
        moved = tau - best.excess * nu / best.interior
        trial = best if moved == tau else sums_at(moved)
        if abs(trial.excess) >= abs(best.excess):
            break
        tau, best = moved, trial
    return tau, best


def balancing_corrections(pos: ClassSums, neg: ClassSums) -> tuple[Correction, Correction]:
    """Return the small changes of beta that make sum_P beta = sum_N beta in spite of rounding: else no lower bound."""
    excess = pos.total - neg.total
    falling, rising = (pos, neg) if excess > 0 else (neg, pos)
    room = falling.near_total + (rising.near - rising.near_total)
    share = min(1.0, abs(excess) / room) if room > 0 else 0.0
    fall, rise = Correction(share, 0.0, 1.0), Correction(share, 1.0, 1.0)
    total, limit = fall.total(falling), rise.total(rising)
    if limit < total:  # in practice they differ only by rounding; scaling beta down to meet the equation is safe
        fall = fall._replace(scale=limit / total)
    return (fall, rise) if excess > 0 else (rise, fall)


class Prbep(PrbepRisk, GatheringLoss):
    """The PRBEP risk with all margins gathered on the root. `PrbepExchange` is tested against it."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Find tau by Algorithms 2 and 3, and the tau of the exact R by a partial sort. O(n log n)."""
        shifted = negative + self.shift  # t_j = shifted_j - tau
        weights = self.a_pos, self.a_neg
        # 1) The place where the exact risk is attained.
        # At nu = 0 the two sums are equal where n- of the n numbers s_i (on P) and s_j + a (on N) are at most tau.
        tau0 = self._position(np.concatenate([positive, shifted]))
        positive, shifted, tau = positive - tau0, shifted - tau0, 0.0  # near tau0 these differences are exact
        # 2) The root of the smoothed one, as a distance from it.
        if nu > 0:  # as a function of tau, 1 - beta_j of a negative is a ramp that starts at shifted_j - nu
            heads = np.concatenate([positive, shifted - nu])
            order = np.argsort(heads)
            tau = root_of_ramps(heads[order], nu, self.A_neg, in_order(self._both_weights(), order))
        hinge = weighted_sum(np.maximum(-positive, 0.0), self.a_pos)
        hinge += weighted_sum(np.maximum(shifted, 0.0), self.a_neg)

        def sides(tau: float) -> Iterator[tuple[Floats, Floats, NDArray[np.bool_]]]:
            for t in (tau - positive, shifted - tau):
                yield t, ramp(t, nu), np.abs(t) <= near_kink(tau, nu)

        def sums_at(tau: float) -> Balance:
            both = list(zip(sides(tau), weights, strict=True))
            pos, neg = (
                ClassSums._make(weighted_sum(terms, a) for terms in (beta, near, beta * near))
                for (_, beta, near), a in both
            )
            interior = sum(weighted_sum((beta > 0) & (beta < 1), a) for (_, beta, _), a in both)
            smooth = sum(weighted_sum(huber(t, beta, nu), a) for (t, beta, _), a in both)
            return Balance(pos, neg, interior, smooth, hinge)

        # 3) Without the errors of rounding, the plane is a lower bound.
        tau, balance = refine(tau, nu, sums_at)
        corrections = balancing_corrections(balance.pos, balance.neg)
        pos, neg = (
            correction.apply(beta, near) for correction, (_, beta, near) in zip(corrections, sides(tau), strict=True)
        )
        coef_pos, coef_neg = (beta if a is None else a * beta for beta, a in zip((pos, neg), weights, strict=True))
        R, R_mu, d = self.risks(balance, corrections, nu)
        return Solution(R, R_mu, d, -2.0 / self.A * coef_pos, 2.0 / self.A * coef_neg)

    def _both_weights(self) -> Floats | None:
        return None if self.a_pos is None or self.a_neg is None else np.concatenate([self.a_pos, self.a_neg])

    def _position(self, places: Floats) -> float:
        """Return the smallest place up to which the rows, first P and then N, have the weight A-."""
        weights = self._both_weights()
        if weights is None:
            return float(np.partition(places, self.n_neg - 1)[self.n_neg - 1])
        order = np.argsort(places)
        at = int(np.searchsorted(np.cumsum(weights[order]), self.A_neg))
        return float(places[order[min(at, len(order) - 1)]])
