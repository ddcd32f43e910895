"""AGM, Nesterov's accelerated gradient method with an adaptive Lipschitz estimate (JMLR, section 5.5.3, Appendix A).

On f + Psi, with Psi = sigma/2 ||w||^2 + sum_j l_j |w_j| and S_t soft thresholding by t l_j, it is A(x_0, L_0, mu =
sigma) of Nesterov, Gradient methods for minimizing composite objective function, CORE 2007/76, (4.9):

    a^2 / (A + a) = 2 (1 + sigma A) / L,    y = (A x + a v) / (A + a),    T = S_1(L y - f'(y)) / (L + sigma)
    L is large enough when ||f'(T) - f'(y)||^2 <= L <f'(T) - f'(y), T - y>
    then x = T, A += a and v = S_A(x_0 - sum_i a_i f'(x_i)) / (1 + sigma A)
"""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.penalty import soft_threshold
from distsms.optim.result import Snapshot
from distsms.optim.solvers import base
from distsms.optim.solvers.base import Traits

RAISE = 2.0  # the paper's gamma_u: L is multiplied by this when it was too small
LOWER = 1.2  # the paper's gamma_d: L is divided by this after a step. With 2, the usual value, every other step fails
EPS = float(np.finfo(float).eps)
HUGE = 1e60
TRIALS = 100  # largest number of values of L in one step; L then grows by a factor of 2^100, more than ever needed


class Solver(base.Solver):
    """Nesterov's method on a `Problem`, where a trial of L takes two evaluations; a pause ends its momentum."""

    traits = Traits(l1=True)

    def restart(self, w: Floats) -> None:
        self._sigma = self._problem.strong_convexity
        self._L: float | None = None
        self._x, self._A, self._total = w, 0.0, w.copy()  # A: the sum of all a_i; total: x_0 - sum a_i f'(x_i)

    def run(self) -> str:
        if self._L is None:
            value, gradient = self._problem.value_and_gradient(self._x)
            norm2 = self._problem.dot(gradient, gradient)
            if not norm2 > 0:
                return "the gradient is zero where it starts"
            self._L = 0.5 * norm2 / abs(value) if value else 1.0  # if F >= 0, at most the gradient's Lipschitz constant
        while True:
            step = self._step(self._A, self._shrunk(self._total, self._A) / (1.0 + self._sigma * self._A))
            if step is None:
                return f"no step decreases the function beyond rounding (Lipschitz estimate {self._L:.3g})"
            self._x, a, slope = step
            if self._problem.iterated():
                self._A, self._total = 0.0, self._x.copy()
                return ""
            self._A += a
            self._total -= a * slope
            if self._sigma * self._A > HUGE:  # 1 + sigma A = sigma A within rounding, so both can be scaled down
                self._A, self._total = self._A / HUGE * 1e30, self._total / HUGE * 1e30
            self._L /= LOWER

    def _step(self, A: float, v: Floats) -> tuple[Floats, float, Floats] | None:
        """Return the next x, its a and f'(x), with L increased as needed; None if rounding dominates the step."""
        assert self._L is not None
        for _ in range(TRIALS):
            L, sigma, dot = self._L, self._sigma, self._problem.dot
            half = (1.0 + sigma * A) / L
            a = half + np.sqrt(half * half + 2.0 * half * A)
            y = (A * self._x + a * v) / (A + a)
            slope_y = self._slope(y)
            T = self._shrunk(L * y - slope_y) / (L + sigma)
            move = y - T
            if self._norm(move) <= 32 * EPS * self._norm(y):
                return None
            slope = self._slope(T)
            # L is large enough but for rounding, by which it would grow where f is linear.
            change, noise = slope - slope_y, 8 * EPS * (self._norm(slope) + L * self._norm(y))
            excess = dot(change, change) - L * dot(change, -move)
            if excess <= noise * (2 * self._norm(change) + L * self._norm(move)):
                return T, a, slope
            self._L *= RAISE
        return None

    def _shrunk(self, x: Floats, times: float = 1.0) -> Floats:
        return soft_threshold(x, times * self._problem.l1)

    def _slope(self, w: Floats) -> Floats:
        return self._problem.value_and_gradient(w)[1] - self._sigma * w

    def _norm(self, x: Floats) -> float:
        return float(np.sqrt(self._problem.dot(x, x)))

    def memory(self) -> Snapshot:
        return Snapshot({"L": self._L, "A": self._A}, {}, {"points": [self._x, self._total]})

    def recall(self, memory: Snapshot) -> None:
        self._L, self._A = memory.numbers["L"], memory.numbers["A"]
        self._x, self._total = memory.vectors["points"]
