"""PRBEP, the precision/recall break-even point (JMLR, equations (3) and (4), sections 3.1 and 4.1).

    R(w) = max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ],   Delta = b/n+ where b positives and b negatives swap

In units of the margins, with tau = -n theta+ / 2 (Theorem 7), nu = mu n / 2 and a = n / (2 n+):

    t_i = tau - s_i on P,  t_j = s_j + a - tau on N,  beta = clip(t / nu, 0, 1),  tau such that sum_P beta = sum_N beta
    R_mu = 2/n sum of the Huber hinges of t,    R = the least such sum over tau at nu = 0
    At nu = 0, beta = [t > 0], and the rows tied at tau share what keeps the sums equal.

    coefficients  c_i = -2/n beta_i on P,  c_j = 2/n beta_j on N,      d = 1/n+ sum_P beta.

Every term of R and R_mu is positive here, so nothing cancels however large the margins are.
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
    """The PRBEP risk, however tau is found; see the module's docstring."""

    name = "prbep"
    nonnegative = True

    @property
    def shift(self) -> float:
        """a: what a swap of two rows gains, in units of the margins."""
        return self.n / (2.0 * self.n_pos)

    def smoothing_cost(self) -> float:
        """sum_P beta = sum_N beta <= min(n+, n-), so the prox 1/2 ||beta||^2 is at most that, and mu = 2 nu / n."""
        return 2.0 * min(self.n_pos, self.n_neg) / self.n

    def at_zero(self) -> float:
        """Delta alone, with as many rows swapped as can be."""
        return min(self.n_pos, self.n_neg) / self.n_pos

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """D = n / 2, so nu = mu n / 2 = c_mu epsilon."""
        return c_mu * epsilon

    def risks(self, found: Balance, rules: tuple[Rule, Rule], nu: float) -> tuple[float, float, float]:
        """R, R_mu and d. Settling beta changes R_mu less than rounding does."""
        R, R_mu = (2.0 / self.n * total for total in (found.hinge, found.huber))
        return R, R_mu if nu > 0 else R, rules[0].total(found.pos) / self.n_pos


class Side(NamedTuple):
    """Sums over all of P or all of N: of beta, of the rows near the kink (see `near_kink`), and of their beta."""

    total: float
    near: float
    near_total: float


class Balance(NamedTuple):
    """Both sides at a tau, how many ramps are under way there (0 < beta < 1), and the sums of hinges: Huber's at tau,
    and plain ones at tau0."""

    pos: Side
    neg: Side
    under_way: float
    huber: float
    hinge: float

    @property
    def excess(self) -> float:
        """What should be 0."""
        return self.pos.total - self.neg.total


class Rule(NamedTuple):
    """How beta changes on one side: to scale * (beta + share * (goal - beta)), with share = 0 for rows not near."""

    share: float
    goal: float
    scale: float

    def total(self, side: Side) -> float:
        """The sum of beta by this rule."""
        return self.scale * (side.total + self.share * (self.goal * side.near - side.near_total))

    def apply(self, beta: Floats, near: NDArray[np.bool_]) -> Floats:
        """beta (rows of this side,) by this rule; near: which of them are."""
        return self.scale * np.where(near, beta + self.share * (self.goal - beta), beta)


def near_kink(tau: float, nu: float) -> float:
    """Rows with |t| up to this are near the kink: those that change when tau moves within its rounding."""
    return nu + 8 * float(np.spacing(abs(tau))) if nu > 0 else 0.0


def polish(tau: float, nu: float, balance: Callable[[float], Balance]) -> tuple[float, Balance]:
    """tau after a few Newton steps, and the balance there: they take away what finding tau has rounded."""
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
    """What makes sum_P beta = sum_N beta: the plane is valid only if beta is feasible, whatever rounding did to tau.

    Only rows near the kink change: J_mu hardly does. Where nu is below the resolution of the scores these are the rows
    tied at tau, and no tau would do.
    """
    excess = pos.total - neg.total
    falling, rising = (pos, neg) if excess > 0 else (neg, pos)
    room = falling.near_total + (rising.near - rising.near_total)
    share = min(1.0, abs(excess) / room) if room > 0 else 0.0
    fall, rise = Rule(share, 0.0, 1.0), Rule(share, 1.0, 1.0)
    if rise.total(rising) < fall.total(
        falling
    ):  # by more than rounding: not met in practice; less beta is feasible, too
        fall = fall._replace(scale=rise.total(rising) / fall.total(falling))
    return (fall, rise) if excess > 0 else (rise, fall)


class Prbep(PrbepRisk, GatheringLoss):
    """The PRBEP risk with all margins on the root: the reference."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Algorithms 2 and 3 for tau; a selection for the exact R. O(n log n)."""
        shifted = negative + self.shift  # t_j = shifted_j - tau
        # At nu = 0 the balance holds where n- of all places lie below or at tau.
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
