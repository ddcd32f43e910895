"""The risk of the error rate, Delta = (b + c) / n with b missed positives and c false positives.

This risk is a sum over rows: each row may be labeled either way, independently of the others (Joachims 2005, section
5). So the maximum over all labelings is taken term by term, and nothing has to be sorted:

    R(w) = max_z [ Delta(z, y) + 1/n sum_i s_i (z_i - y_i) ] = 2/n sum_i max(0, t_i),   t_i = 1/2 - y_i s_i

With weights a_i, sums over rows are sums of a_i times their terms, and n is A.

This is the hinge loss of the linear SVM in another scale. With u = 2 w, the objective lambda/2 ||w||^2 + R(w) equals
the SVM's objective (lambda/4)/2 ||u||^2 + 1/n sum_i max(0, 1 - y_i <u, x_i>). The convex hull of all labelings is the
box [0, 1]^n, and Delta is linear on it. So smoothing with the prox term 1/2 ||beta||^2 gives the Huber hinge of width
nu = mu n / 2. This is the smoothing of PRBEP without the constraint sum_P beta = sum_N beta.

    beta_i = clip(t_i / nu, 0, 1),   coefficients c_i = -2/n y_i beta_i,   d = 1/n sum_i beta_i.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.typing import Floats
from distsms.losses.base import Cost, Loss, LossValue, huber, ramp
from distsms.losses.gather import weighted_sum
from distsms.parallel.communicator import Communicator


class ErrorRate(Loss):
    """The risk of the error rate; see the module's docstring.

    An evaluation takes O(n_local) time and one Allreduce of three numbers.
    """

    family = measures.ERROR_RATE
    nonnegative = True

    def __init__(self, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> None:
        super().__init__(labels, weights, comm)
        self.calls_positive = None
        self._y: Floats = self.positive.astype(float) - self.negative  # (n_local,), 0 for rows that are left out

    def smoothing_cost(self) -> float:
        """Return mu D / nu = 2/n * n/2 = 1."""
        return 1.0

    def at_zero(self) -> float:
        """Return 1: every row has t = 1/2."""
        return 1.0

    @classmethod
    def paper_width(cls, c_mu: float, epsilon: float) -> float:
        """Return nu = mu n / 2 = c_mu epsilon, since D = n / 2."""
        return c_mu * epsilon

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        """Return the cost of a pass over each rank's own rows and of a sum of three numbers."""
        n_local = (n_pos + n_neg) / size
        return Cost(0.0 if size == 1 else 48.0, 5.0 * n_local, held_by_each=40.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`. **Collective.**"""
        sums, coefficients = np.full(3, np.nan), np.zeros(len(scores))
        if np.isfinite(scores).all():
            t = np.where(self._y, 0.5 - self._y * scores, 0.0)  # at t = 0 a row adds nothing
            beta = ramp(t, nu)
            sums[:] = [weighted_sum(terms, self.weights) for terms in (np.maximum(t, 0.0), huber(t, beta, nu), beta)]
            coefficients = -2.0 / self.A * self._y * (beta if self.weights is None else self.weights * beta)
        self.comm.sum(sums)
        if np.isnan(sums).any():
            coefficients[:] = 0.0
        R, R_mu, d = map(float, sums / self.A)
        return LossValue(2.0 * R, 2.0 * R_mu, d, coefficients)
