"""The PRBEP risk without gathering or sorting the margins (JMLR, section 4.1), with the letters of
`distsms.losses.prbep`.

Let u_i = tau0 - s_i on P and u_j = s_j + a - tau0 on N, tau0 the minimizing tau of R: the position of a row. With delta
= tau - tau0, which is from -nu to nu, t = u + delta on P and u - delta on N. The ranks find tau0 near the last one
(`distsms.parallel.order_statistics`), and then delta by Newton's method (`distsms.losses.newton`), whose last step also
has all sums for R, R_mu and d. Neither depends on where its search began, but in the last digits.

Cost for any n: some small Allreduces and an Allgather of at most 16 KiB for tau0, and 72 bytes for each of two to five
Newton steps; a pass over the local rows for each, two or three for tau0, and one for the coefficients; 3 n_local bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.losses.base import Cost, LossValue
from distsms.losses.newton import Piece, rising_root
from distsms.losses.prbep import Balance, ClassSums, PrbepRisk, balancing_corrections
from distsms.parallel.order_statistics import LEFT_OUT, NEGATIVE, POSITIVE, PositionSearch

LEAST = math.ulp(0.0)  # used in place of nu = 0: then t / LEAST is either at least 1 or at most 0


class PrbepExchange(PrbepRisk):
    """The PRBEP risk; every rank keeps its own margins. See the module's docstring."""

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> None:
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

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of the messages and of about five passes; see the module's docstring."""
        n_local = (n_pos + n_neg) / size
        return Cost(0.0 if size == 1 else 4 * 12 * 2**10, 10.0 * n_local, held_by_each=3.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. **Collective**, about five small Allreduces; see the module's docstring."""
        return self._evaluate(np.ascontiguousarray(scores, np.float64), nu, np.empty(len(scores)))

    def _evaluate(self, scores: Any, nu: float, out: Any) -> LossValue:
        """Evaluate the scores, and write the coefficients to `out`, which may be the scores. Collective."""
        tau0 = self._search.find(scores, self.shift)
        if math.isnan(tau0):
            out[:] = 0.0
            return LossValue(math.nan, math.nan, math.nan, out)

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
        R, R_mu, d = self.risks(balance, (pos, neg), nu)
        return LossValue(R, R_mu, d, out)

    def _local_sums(self, scores: Any, tau0: float, delta: float, nu: float) -> Floats:
        """Return this rank's part of a `Balance` as its nine numbers. Local."""
        return np.array(_sums(scores, self._kinds, self.weights, self.shift, tau0, delta, nu))

    def _write(self, scores: Any, tau0: float, delta: float, nu: float, corrections: Floats, out: Any) -> None:
        """Write the coefficients. corrections (2, 3): share, goal and scale of either class, P first. Local."""
        _coefficients(scores, self._kinds, self.weights, self.shift, tau0, delta, nu, corrections, out)


# fastmath=False is given, since Numba would otherwise inline this function with the fastmath of its caller. Then equal
# scores would no longer give equal u.
@njit(fastmath=False)
def _distance(tau0, score, kind, shift):  # type: ignore[no-untyped-def]
    """Return u of a row: tau0 - s on P, s + shift - tau0 on N."""
    return score + shift - tau0 if kind == NEGATIVE else tau0 - score


@njit(fastmath=False)
def _hinge_argument(u, kind, delta):  # type: ignore[no-untyped-def]
    """Return t of a row."""
    return u - delta if kind == NEGATIVE else u + delta


@njit(error_model="numpy", fastmath=False)
def _ramp(t, nu):  # type: ignore[no-untyped-def]
    """Return beta of a row."""
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
    """Set out (n_local,) to the coefficients. corrections (2, 3): `Correction` of either class, P first; its scale
    includes the factor 2/A.
    """
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
