"""PRBEP, the precision/recall break-even point (JMLR, equations (3) and (4), sections 3.1 and 4.1).

    R(w) = max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ],   Delta = b/n+ where b positives and b negatives swap

In units of the margins, with tau = -n theta+ / 2 (Theorem 7), nu = mu n / 2 and a = n / (2 n+):

    t_i = tau - s_i on P,  t_j = s_j + a - tau on N,  beta = clip(t / nu, 0, 1),  tau such that sum_P beta = sum_N beta
    R_mu = 2/n (sum of the Huber hinges of t),    R = the minimum over tau of the same sum at nu = 0
    At nu = 0, beta = [t > 0], and the rows tied at tau share the difference, so that the two sums are equal.

    coefficients  c_i = -2/n beta_i on P,  c_j = 2/n beta_j on N,      d = 1/n+ sum_P beta.

Every term of R and R_mu is positive here, so nothing cancels, however large the margins are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.losses.base import Loss, huber, ramp
from distsms.losses.gather import GatheringLoss, Solution, root_of_ramps
from distsms.utils.typing import Floats


class PrbepRisk(Loss):
    """The PRBEP risk, independent of how tau is found; see the module's docstring."""

    name = "prbep"
    nonnegative = True

    @property
    def shift(self) -> float:
        """a: what swapping two rows gains, in units of the margins."""
        return self.n / (2.0 * self.n_pos)

    def smoothing_cost(self) -> float:
        """Return mu D / nu = 2/n min(n+, n-).

        On the feasible set sum_P beta = sum_N beta <= min(n+, n-), so the prox term 1/2 ||beta||^2 is at most that.
        """
        return 2.0 * min(self.n_pos, self.n_neg) / self.n

    def at_zero(self) -> float:
        """Return Delta alone, with as many rows swapped as possible."""
        return min(self.n_pos, self.n_neg) / self.n_pos

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu = mu n / 2 = c_mu epsilon, since D = n / 2."""
        return c_mu * epsilon

    def risks(self, found: Balance, rules: tuple[Rule, Rule], nu: float) -> tuple[float, float, float]:
        """Return R, R_mu and d. The rules of `settlement` change R_mu by less than rounding does."""
        R, R_mu = (2.0 / self.n * total for total in (found.hinge, found.huber))
        return R, R_mu if nu > 0 else R, rules[0].total(found.pos) / self.n_pos


class Side(NamedTuple):
    """Sums over all of P or all of N.

    Attributes
    ----------
    total : float
        The sum of beta.
    near, near_total : float
        The number of rows near the kink (see `near_kink`), and the sum of their beta.
    """

    total: float
    near: float
    near_total: float


class Balance(NamedTuple):
    """Both classes at a tau.

    Attributes
    ----------
    pos, neg : Side
        The sums over P and over N.
    under_way : float
        The number of rows with 0 < beta < 1.
    huber : float
        The sum of the Huber hinges at tau.
    hinge : float
        The sum of the plain hinges at tau0, the tau of the exact R.
    """

    pos: Side
    neg: Side
    under_way: float
    huber: float
    hinge: float

    @property
    def excess(self) -> float:
        """sum_P beta - sum_N beta, which should be 0."""
        return self.pos.total - self.neg.total


class Rule(NamedTuple):
    """How beta changes on one side.

    beta becomes scale * (beta + share * (goal - beta)), with share = 0 for rows not near the kink.
    """

    share: float
    goal: float
    scale: float

    def total(self, side: Side) -> float:
        """Return the sum of beta after the change."""
        return self.scale * (side.total + self.share * (self.goal * side.near - side.near_total))

    def apply(self, beta: Floats, near: NDArray[np.bool_]) -> Floats:
        """Return beta after the change. beta : of the rows of this side; near : which of them are near the kink."""
        return self.scale * np.where(near, beta + self.share * (self.goal - beta), beta)


def near_kink(tau: float, nu: float) -> float:
    """Return the largest |t| of rows near the kink, whose beta may change when tau moves within its rounding error."""
    return nu + 8 * float(np.spacing(abs(tau))) if nu > 0 else 0.0


def polish(tau: float, nu: float, balance: Callable[[float], Balance]) -> tuple[float, Balance]:
    """Improve tau by up to three Newton steps, which remove the rounding errors of finding it.

    Returns
    -------
    tau : float
        The improved root.
    best : Balance
        The balance there.
    """
    best = balance(tau)
    for _ in range(3):
        if abs(best.excess) <= 1e-12 * best.pos.total or best.under_way == 0:
            break
        moved = tau - best.excess * nu / best.under_way
        trial = best if moved == tau else balance(moved)
        if abs(trial.excess) >= abs(best.excess):
            break
        tau, best = moved, trial
    return tau, best


def settlement(pos: Side, neg: Side) -> tuple[Rule, Rule]:
    """Return the rules for P and N that make sum_P beta = sum_N beta exactly, whatever rounding did to tau.

    The plane is valid only if beta is feasible. Only rows near the kink change, which hardly changes J_mu. If nu is
    below the resolution of the scores, these are the rows tied at tau, and no tau alone would balance the sums.
    """
    excess = pos.total - neg.total
    falling, rising = (pos, neg) if excess > 0 else (neg, pos)
    room = falling.near_total + (rising.near - rising.near_total)
    share = min(1.0, abs(excess) / room) if room > 0 else 0.0
    fall, rise = Rule(share, 0.0, 1.0), Rule(share, 1.0, 1.0)
    total, limit = fall.total(falling), rise.total(rising)
    if limit < total:  # by more than rounding this does not happen in practice; a smaller beta is feasible, too
        fall = fall._replace(scale=limit / total)
    return (fall, rise) if excess > 0 else (rise, fall)


class Prbep(PrbepRisk, GatheringLoss):
    """The PRBEP risk with all margins on the root: the reference."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Find tau by Algorithms 2 and 3, and the exact R by a selection. O(n log n)."""
        shifted = negative + self.shift  # t_j = shifted_j - tau
        # At nu = 0 the sums balance where n- of all positions (s_i and s_j + a) are at most tau.
        tau = tau0 = np.partition(np.concatenate([positive, shifted]), self.n_neg - 1)[self.n_neg - 1]
        if nu > 0:  # a negative's 1 - beta_j is a ramp of tau with its head at shifted_j - nu
            tau = root_of_ramps(np.sort(np.concatenate([positive, shifted - nu])), nu, float(self.n_neg))
        hinge = np.sum(np.maximum(tau0 - positive, 0.0)) + np.sum(np.maximum(shifted - tau0, 0.0))

        def sides(tau: float) -> Iterator[tuple[Floats, Floats, NDArray[np.bool_]]]:
            for t in (tau - positive, shifted - tau):
                yield t, ramp(t, nu), np.abs(t) <= near_kink(tau, nu)

        def balance(tau: float) -> Balance:
            both = list(sides(tau))
            pos, neg = (np.array([np.sum(beta), np.count_nonzero(near), np.sum(beta[near])]) for _, beta, near in both)
            under_way = sum(int(np.count_nonzero((beta > 0) & (beta < 1))) for _, beta, _ in both)
            smooth = sum(np.sum(huber(t, beta, nu)) for t, beta, _ in both)
            return Balance(Side(*pos.tolist()), Side(*neg.tolist()), under_way, float(smooth), float(hinge))

        tau, found = polish(tau, nu, balance)
        rules = settlement(found.pos, found.neg)
        pos, neg = (rule.apply(beta, near) for rule, (_, beta, near) in zip(rules, sides(tau), strict=True))
        return Solution(*self.risks(found, rules, nu), -2.0 / self.n * pos, 2.0 / self.n * neg)
