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

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.jit import njit
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Loss, LossValue, huber, ramp
from distsms.losses.gather import GatheringLoss, Solution, root_of_ramps, weighted_sum
from distsms.parallel.order_statistics import LEFT_OUT, NEGATIVE, POSITIVE, PositionSearch

LEAST = math.ulp(0.0)  # used in place of nu = 0: then t / LEAST is either at least 1 or at most 0
STEPS, PATIENCE = 200, 9  # the largest number of steps; from PATIENCE on, every other one halves the bracket
ROUNDING = 2e-15  # the relative error of a sum over many rows, and of a point in the first bracket


class PrbepRisk(Loss):
    """The PRBEP risk, independent of how tau is found; see the module's docstring."""

    family = measures.PRBEP

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        # The number a that is added to the scores of N: 1/n+ (one step of Delta) in units of margins.
        self.shift = self.A / (2.0 * self.A_pos)
        fewer = min(self.A_pos, self.A_neg)
        self.kappa = 2.0 * fewer / self.A  # sum_P beta = sum_N beta <= min(n+, n-) bounds 1/2 ||beta||^2
        self.R_at_zero = fewer / self.A_pos  # Delta alone, with as many rows swapped as possible

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu = mu n / 2 = c_mu epsilon, since D = n / 2."""
        return c_mu * epsilon

    def risks(self, balance: Balance, of_pos: Correction, nu: float) -> tuple[float, float, float]:
        """Return R, R_mu before the corrections, which change it by less than rounding does, and d."""
        R, R_mu = (2.0 / self.A * total for total in (balance.hinge, balance.huber))
        return R, R_mu if nu > 0 else R, of_pos.total(balance.pos) / self.A_pos


class ClassSums(NamedTuple):
    """Sums over all rows of one class (P or N), on all ranks, each term times the weight of its row."""

    total: float  # the sum of beta
    near: float  # the number of rows near the kink, whose beta rounding may change, and the sum of their beta
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
        return self.scale * (side.total + self.share * (self.goal * side.near - side.near_total))

    def apply(self, beta: Floats, near: NDArray[np.bool_]) -> Floats:
        """Return beta (n_class,) of the class's rows after the change; `near`: those near the kink."""
        return self.scale * np.where(near, beta + self.share * (self.goal - beta), beta)


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
        """Find tau by Algorithms 2 and 3, and the tau of the exact R by sorting. O(n log n)."""
        shifted = negative + self.shift  # t_j = shifted_j - tau
        weights, both_weights = (self.a_pos, self.a_neg), np.concatenate([self.a_pos, self.a_neg])
        # 1) The place where the exact risk is attained.
        # At nu = 0 the two sums are equal where rows of the weight A- have s_i (on P) or s_j + a (on N) of at most tau.
        places = np.concatenate([positive, shifted])
        order = np.argsort(places)
        at = int(np.searchsorted(np.cumsum(both_weights[order]), self.A_neg))
        tau0 = float(places[order[min(at, len(order) - 1)]])
        positive, shifted, tau = positive - tau0, shifted - tau0, 0.0  # near tau0 these differences are exact
        # 2) The root of the smoothed one, as a distance from it.
        if nu > 0:  # as a function of tau, 1 - beta_j of a negative is a ramp that starts at shifted_j - nu
            heads = np.concatenate([positive, shifted - nu])
            order = np.argsort(heads)
            tau = root_of_ramps(heads[order], nu, self.A_neg, both_weights[order])
        hinge = weighted_sum(np.maximum(-positive, 0.0), self.a_pos)
        hinge += weighted_sum(np.maximum(shifted, 0.0), self.a_neg)

        def sides(tau: float) -> Iterator[tuple[Floats, Floats, NDArray[np.bool_]]]:
            # Near the kink is a row whose beta may change when tau changes by its rounding error.
            largest = nu + 8 * float(np.spacing(abs(tau))) if nu > 0 else 0.0
            for t in (tau - positive, shifted - tau):
                yield t, ramp(t, nu), np.abs(t) <= largest

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
        changed = [each.apply(beta, near) for each, (_, beta, near) in zip(corrections, sides(tau), strict=True)]
        coef_pos, coef_neg = (a * beta for a, beta in zip(weights, changed, strict=True))
        R, R_mu, d = self.risks(balance, corrections[0], nu)
        return Solution(R, R_mu, d, -2.0 / self.A * coef_pos, 2.0 / self.A * coef_neg)


class Piece(NamedTuple):
    """A function at a point: its value, its slope, and the sum of the absolute values of what its value consists of."""

    value: float
    slope: float
    size: float


T = TypeVar("T")


def rising_root(at: Callable[[float], tuple[Piece, T]], start: float, low: float, high: float) -> tuple[float, T]:
    """Return the root, between `low` and `high`, of a rising, piecewise linear function that costs a pass over the
    rows, and what `at` returned there besides the piece. Collective if `at` is. A step goes to the root of the present
    piece, or to the middle of the bracket. It ends where only rounding is left.
    """
    point, smallest_step = min(max(start, low), high), ROUNDING * (high - low)
    for step in range(STEPS):
        piece, more = at(point)
        if abs(piece.value) <= ROUNDING * piece.size:
            break
        low, high = (low, point) if piece.value > 0 else (point, high)
        moved = point - piece.value / piece.slope if piece.slope > 0 else math.nan
        if not low <= moved <= high or (step >= PATIENCE and step % 2):
            moved = 0.5 * (low + high)
        if abs(moved - point) <= smallest_step:
            break
        point = moved
    return point, more


class PrbepExchange(PrbepRisk):
    """The PRBEP risk without gathering or sorting the margins (JMLR, section 4.1).

    Let u_i = tau0 - s_i on P and u_j = s_j + a - tau0 on N, tau0 the minimizing tau of R: the position of a row. With
    delta = tau - tau0, which is from -nu to nu, t = u + delta on P and u - delta on N. The ranks find tau0 near the
    last one (`distsms.parallel.order_statistics`), in two or three passes over the rows, and then delta in two to five
    by Newton's method (`rising_root`), whose last step also has all sums for R, R_mu and d.
    """

    sent, steps_of_row, held_of_row = 4.0 * 12 * 2**10, 10.0, 3.0

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self._search: Any = self._position_search()
        self._start = 0.0  # delta / nu of the last evaluation

    def _position_search(self) -> Any:
        """Return the search for tau0, and compile or load the kernels now, before the first evaluation."""
        self._kinds = np.full(len(self._labels), LEFT_OUT, np.uint8)
        self._kinds[self.positive], self._kinds[self.negative] = POSITIVE, NEGATIVE
        weights = None if self.weights is None else self.weights[:0]
        _sums(np.zeros(0), self._kinds[:0], weights, 0.0, 0.0, 0.0, 0.0)
        _coefficients(np.zeros(0), self._kinds[:0], weights, 0.0, 0.0, 0.0, 0.0, np.zeros((2, 3)), np.zeros(0))
        return PositionSearch(self._kinds, self.A_neg, self.weights, self.comm)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        return self._evaluate(np.ascontiguousarray(scores, np.float64), nu, np.empty(len(scores)))

    def _evaluate(self, scores: Any, nu: float, out: Any) -> LossValue:
        """Evaluate the scores, and write the coefficients to `out`, which may be the scores. Collective."""
        tau0 = self._search.find(scores, self.shift)
        if math.isnan(tau0):
            return LossValue.undefined(out)

        def balance_at(delta: float) -> tuple[Piece, Balance]:
            sums = self.comm.sum(self._local_sums(scores, tau0, delta, nu)).tolist()
            balance = Balance(ClassSums._make(sums[:3]), ClassSums._make(sums[3:6]), sums[6], sums[7], sums[8])
            size = balance.pos.total + balance.neg.total + balance.interior
            return Piece(balance.excess, balance.interior / nu if nu > 0 else 0.0, size), balance

        delta, balance = rising_root(balance_at, self._start * nu, -nu, nu)
        if nu > 0:
            self._start = delta / nu
        pos, neg = balancing_corrections(balance.pos, balance.neg)
        scale = 2.0 / self.A
        of_pos, of_neg = (pos.share, pos.goal, -scale * pos.scale), (neg.share, neg.goal, scale * neg.scale)
        self._write(scores, tau0, delta, nu, np.array([of_pos, of_neg]), out)
        R, R_mu, d = self.risks(balance, pos, nu)
        return LossValue(R, R_mu, d, out)

    def _local_sums(self, scores: Any, tau0: float, delta: float, nu: float) -> Floats:
        """Return this rank's part of a `Balance` as its nine numbers. Local."""
        return np.array(_sums(scores, self._kinds, self.weights, self.shift, tau0, delta, nu))

    def _write(self, scores: Any, tau0: float, delta: float, nu: float, corrections: Floats, out: Any) -> None:
        """Write the coefficients. corrections (2, 3): share, goal and scale of either class, P first. Local."""
        _coefficients(scores, self._kinds, self.weights, self.shift, tau0, delta, nu, corrections, out)


# With the fastmath of its caller, as which Numba would inline this, equal scores would not give equal u.
@njit(fastmath=False)
def _distance(tau0, score, kind, shift):  # type: ignore[no-untyped-def]
    """Return u of a row: tau0 - s on P, s + shift - tau0 on N."""
    return score + shift - tau0 if kind == NEGATIVE else tau0 - score


@njit(fastmath=False)
def _hinge_argument(u, kind, delta):  # type: ignore[no-untyped-def]
    return u - delta if kind == NEGATIVE else u + delta


@njit(error_model="numpy", fastmath=False)
def _ramp(t, nu):  # type: ignore[no-untyped-def]
    beta = t / (nu if nu > 0.0 else LEAST)
    beta = beta if beta > 0.0 else 0.0
    return beta if beta < 1.0 else 1.0


@njit(error_model="numpy", fastmath={"reassoc", "nsz"})
def _sums(scores, kinds, weights, shift, tau0, delta, nu):  # type: ignore[no-untyped-def]
    """Return this rank's part of a `Balance` as its nine numbers; rows near the kink are those with |t| <= nu."""
    pos = pos_near = pos_near_total = neg = neg_near = neg_near_total = interior = huber = hinge = 0.0
    for i in range(len(scores)):
        kind = kinds[i]
        u = _distance(tau0, scores[i], kind, shift)
        t = _hinge_argument(u, kind, delta)
        beta = _ramp(t, nu)
        in_pos = (1.0 if weights is None else weights[i]) if kind == POSITIVE else 0.0
        in_neg = (1.0 if weights is None else weights[i]) if kind == NEGATIVE else 0.0
        close = 1.0 if abs(t) <= nu else 0.0
        pos += in_pos * beta
        neg += in_neg * beta
        pos_near += in_pos * close
        neg_near += in_neg * close
        pos_near_total += in_pos * close * beta
        neg_near_total += in_neg * close * beta
        counted = in_pos + in_neg
        interior += counted if 0.0 < beta < 1.0 else 0.0
        huber += counted * beta * (t - 0.5 * nu * beta)
        hinge += counted * (u if u > 0.0 else 0.0)
    return pos, pos_near, pos_near_total, neg, neg_near, neg_near_total, interior, huber, hinge


@njit(error_model="numpy")
def _coefficients(scores, kinds, weights, shift, tau0, delta, nu, corrections, out):  # type: ignore[no-untyped-def]
    """Set out to the coefficients. corrections (2, 3): `Correction` of either class, P first, with 2/A in its scale."""
    # Outside of the loop, since for all that the compiler knows, `out` could lie in the same place.
    share_pos, goal_pos, scale_pos = corrections[0, 0], corrections[0, 1], corrections[0, 2]
    share_neg, goal_neg, scale_neg = corrections[1, 0], corrections[1, 1], corrections[1, 2]
    for i in range(len(scores)):
        kind = kinds[i]
        t = _hinge_argument(_distance(tau0, scores[i], kind, shift), kind, delta)
        beta = _ramp(t, nu)
        share, goal = (share_pos, goal_pos) if kind == POSITIVE else (share_neg, goal_neg)
        scale = scale_pos if kind == POSITIVE else scale_neg
        value = scale * (beta + (share if abs(t) <= nu else 0.0) * (goal - beta))
        value = value if kind != LEFT_OUT else 0.0
        out[i] = value if weights is None else weights[i] * value
