"""The PRBEP risk without gathering or sorting the margins (JMLR, section 4.1).

The ranks find tau together by `distsms.parallel.order_statistics`, and then add up sums over their rows at this tau.
The letters are those of `distsms.losses.prbep`.

As a function of tau, beta_i of a positive is a ramp that rises from 0 at s_i to 1 at s_i + nu. 1 - beta_j of a negative
is a ramp that rises from 0 at s_j + a - nu to 1 at s_j + a. So sum_P beta = sum_N beta says that the sum of all ramps
is n-. At nu = 0 the ramps are steps, and the root of the equation is tau0, the minimizing tau of the exact risk R. Both
roots are searched for at the same time. The search starts near the roots of the last evaluation, since margins change
little from one evaluation to the next.

Cost of one evaluation, for any n:

- Communication: one Allreduce of 28 KiB and a smaller one for the roots, and one of 72 bytes for the sums. There are
  about three more if the roots have moved far, one more of 16 bytes at nu = 0, and one of 72 bytes for each Newton
  step, if rounding requires any.
- Passes over the local rows: one for each root, one for the sums, and one that writes the coefficients.
- Memory in addition to the scores and coefficients: 5 n_local bytes and 64 KiB on every rank.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from distsms.losses.base import Cost, LossValue
from distsms.losses.prbep import Balance, ClassSums, PrbepRisk, balancing_corrections, near_kink, refine
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import RootSearch, find_position, find_roots, select
from distsms.parallel.order_statistics_kernels import LEFT_OUT, NEGATIVE, POSITIVE
from distsms.utils.jit import njit, weight_of
from distsms.utils.typing import Floats

SLACK = 1e-13  # the tolerance of the two roots, as the relative error of the sum of beta or of R
LEAST = sys.float_info.min  # used in place of nu = 0: then t / LEAST is either at least 1 or at most 0


class PrbepExchange(PrbepRisk):
    """The PRBEP risk; every rank keeps its own margins. See the module's docstring."""

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self._kinds = np.full(len(labels), LEFT_OUT, np.uint8)
        self._kinds[self.positive], self._kinds[self.negative] = POSITIVE, NEGATIVE
        self._smooth, self._exact = (RootSearch(self._kinds, self.A_neg, self.weights) for _ in range(2))
        select(np.zeros(1), 1, Communicator())  # compile or load the kernels now, before the first evaluation
        weights = None if self.weights is None else self.weights[:0]
        _sums(np.zeros(0), self._kinds[:0], weights, 0.0, 0.0, 0.0, 0.0, 0.0)
        _coefficients(np.zeros(0), self._kinds[:0], weights, 0.0, 0.0, 0.0, 0.0, np.zeros((2, 3)), np.zeros(0))

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of two Allreduces of 28 KiB and four passes; see the module's docstring."""
        n_local = (n_pos + n_neg) / size
        return Cost(0.0 if size == 1 else 4 * 28 * 2**10, 10.0 * n_local, held_by_each=5.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. **Collective**, about three to five small Allreduces; see the module's docstring."""
        scores = np.ascontiguousarray(scores, np.float64)
        tau, tau0 = self._roots(scores, nu)
        if math.isnan(tau):
            return LossValue(math.nan, math.nan, math.nan, np.zeros(len(scores)))

        def sums_at(tau: float) -> Balance:
            near = near_kink(tau, nu)
            sums = self.comm.sum(_sums(scores, self._kinds, self.weights, self.shift, tau, tau0, nu, near)).tolist()
            return Balance(ClassSums(*sums[:3]), ClassSums(*sums[3:6]), *sums[6:])

        tau, found = refine(tau, nu, sums_at)
        corrections = balancing_corrections(found.pos, found.neg)
        scale, coefficients = 2.0 / self.A, np.empty(len(scores))
        signed = np.array(corrections) * [[1, 1, -scale], [1, 1, scale]]
        near = near_kink(tau, nu)
        _coefficients(scores, self._kinds, self.weights, self.shift, tau, nu, near, signed, coefficients)
        return LossValue(*self.risks(found, corrections, nu), coefficients)

    def _roots(self, scores: Floats, nu: float) -> tuple[float, float]:
        """Find tau and tau0; NaN if a margin of any rank is not finite. Collective."""
        a, smooth, exact = self.shift, self._smooth, self._exact
        if nu == 0:
            tau0 = find_position(exact, scores, a, self.comm)
            exact.keep_root()
            return tau0, tau0
        smooth.start(a, nu, SLACK * min(nu, a))
        exact.start(a, 0.0, SLACK * self.n)
        find_roots([smooth, exact], scores, self.comm)
        smooth.keep_root()
        exact.keep_root()
        return smooth.root, exact.root


# fastmath=False is given, since Numba would otherwise inline this function with the fastmath of its caller. Then equal
# scores would no longer give equal t.
@njit(fastmath=False)
def _hinge_argument(tau, score, kind, shift):  # type: ignore[no-untyped-def]
    """Return t of a row: tau - s on P, s + shift - tau on N."""
    return score + shift - tau if kind == NEGATIVE else tau - score


@njit(error_model="numpy", fastmath=False)
def _ramp(t, nu):  # type: ignore[no-untyped-def]
    """Return beta of a row."""
    beta = t / (nu if nu > 0.0 else LEAST)
    beta = beta if beta > 0.0 else 0.0
    return beta if beta < 1.0 else 1.0


@njit(error_model="numpy", fastmath={"reassoc", "nsz"})
def _sums(scores, kinds, weights, shift, tau, tau0, nu, near):  # type: ignore[no-untyped-def]
    """Return this rank's contribution to a `Balance` as an array of its nine numbers, in their order."""
    pos = pos_near = pos_near_total = neg = neg_near = neg_near_total = interior = huber = hinge = 0.0
    for i in range(len(scores)):
        kind = kinds[i]
        t, t0 = _hinge_argument(tau, scores[i], kind, shift), _hinge_argument(tau0, scores[i], kind, shift)
        beta = _ramp(t, nu)
        in_pos = (1.0 if weights is None else weights[i]) if kind == POSITIVE else 0.0
        in_neg = (1.0 if weights is None else weights[i]) if kind == NEGATIVE else 0.0
        close = 1.0 if abs(t) <= near else 0.0
        pos += in_pos * beta
        neg += in_neg * beta
        pos_near += in_pos * close
        neg_near += in_neg * close
        pos_near_total += in_pos * close * beta
        neg_near_total += in_neg * close * beta
        counted = in_pos + in_neg
        interior += counted if 0.0 < beta < 1.0 else 0.0
        huber += counted * beta * (t - 0.5 * nu * beta)
        hinge += counted * (t0 if t0 > 0.0 else 0.0)
    return np.array([pos, pos_near, pos_near_total, neg, neg_near, neg_near_total, interior, huber, hinge])


@njit(error_model="numpy")
def _coefficients(scores, kinds, weights, shift, tau, nu, near, corrections, out):  # type: ignore[no-untyped-def]
    """Set out (n_local,) to the coefficients: beta after the correction of each row's class.

    corrections : (2, 3), the [share, goal, scale] of P and of N, where scale also has the factor -2/n or 2/n.
    """
    for i in range(len(scores)):
        kind = kinds[i]
        t = _hinge_argument(tau, scores[i], kind, shift)
        beta = _ramp(t, nu)
        share, goal, scale = corrections[0] if kind == POSITIVE else corrections[1]
        moved = beta + share * (goal - beta)
        value = scale * (moved if abs(t) <= near else beta)
        out[i] = weight_of(weights, i) * value if kind != LEFT_OUT else 0.0
