"""A change of variables in which the risk is curved about equally in all directions: for ROCArea with few columns.

Where lambda is small, J is flat along some directions and steep along others. L-BFGS then needs many evaluations until
the gradient is so small that it proves the gap, although J hardly falls meanwhile. With few columns, the matrix H of
second derivatives of J_mu can be estimated from a sample of rows (`distsms.optim.second_derivatives`). The solver then
works on u = L'w, where LL' = H, and starts anew. In u, the second derivatives are nearly those of ||u||^2 / 2. An
inexact H makes the solver slower, but nothing wrong: function, gradient and proof stay those of J.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.objective import Objective
from distsms.optim.second_derivatives import SAMPLE, add_squares
from distsms.optim.settings import Settings, curves
from distsms.optim.solvers.base import Problem
from distsms.parallel.vector_placement import RootVectors

FIRST, GROWTH, DEAREST = 5, 2, 30.0
"""H is estimated after so many evaluations, or after as many as take the same time, and again after `GROWTH` times as
many. It is not if it takes as long as more than `DEAREST` evaluations.
"""
MORE, LATEST = 10.0, 20
"""It is estimated only if so many more evaluations are expected, or if so many have been made, whatever is expected."""
OF_ROW, OF_PRODUCT = 10.0, 0.3
"""What a row and a multiplication for H take, as multiples of the time for one entry in an evaluation; measured."""


def due_after(objective: Objective, settings: Settings) -> int:
    """Return after how many evaluations H shall first be estimated; 0: not at all. **Collective.**"""
    loss, p = objective.losses[0], objective.p
    possible = loss.family.has_curvature and settings.traits.movable and settings.bundle_steps and settings.c_mu is None
    possible &= not (settings.l1 or settings.solver_options or objective.comm.failures)
    if not (possible and isinstance(objective.vectors, RootVectors)):
        return 0
    features = objective.features
    entries = float(objective.comm.sum(np.array([float(features.nnz)]))[0])
    if not curves(loss.n, p, entries):
        return 0
    if not objective.rows_are_in_memory():
        return 0
    share = min(1.0, 2 * SAMPLE * objective.comm.size / loss.n)
    cost = share * (OF_ROW * loss.n + OF_PRODUCT * entries**2 / loss.n) + OF_PRODUCT * p**3 / 3
    evaluations = cost / (entries + OF_ROW * loss.n)
    if evaluations > DEAREST:
        return 0
    rows = features.row_entries(np.empty(0, np.intp))
    if rows is not None:  # compile the loop, or load it, before the seconds of the run count
        add_squares(rows, np.empty(0), np.zeros(p), np.zeros((p, p)))
    return max(FIRST, math.ceil(evaluations))


def pays(evaluations: int, gap: float, target: float) -> bool:
    """Return whether many more evaluations are expected, if the gap, 1 at first, falls on as it did."""
    fallen = -math.log(gap) if 0 < gap < 1 else 0.0
    return evaluations >= LATEST or evaluations * math.log(max(gap / target, 1.0)) > MORE * fallen


class Preconditioned:
    """The same problem as a function of u = L'w: a `distsms.optim.solvers.base.Problem`. Whole vectors only, and no l1.

    L (p, p) is lower triangular, and LL' is about the matrix of second derivatives. Each evaluation takes two products
    with such a matrix.
    """

    l1 = 0.0

    def __init__(self, problem: Problem, L: Floats) -> None:
        self._problem, self._L, self._inverse = problem, L, np.linalg.inv(L)
        self.dot, self.strong_convexity = problem.dot, problem.strong_convexity / float(np.sum(L**2))

    @property
    def holders(self) -> Any:
        return self._problem.holders

    def value_and_gradient(self, u: Floats) -> tuple[float, Floats]:
        """See `Problem`; u and the gradient are (p,)."""
        value, gradient = self._problem.value_and_gradient(u @ self._inverse)
        return value, self._inverse @ gradient

    def iterated(self) -> bool:
        return self._problem.iterated()

    def model_minimum(self) -> tuple[Floats, float]:
        w, value = self._problem.model_minimum()
        return self.variables(w), value

    def variables(self, w: Floats) -> Floats:
        """Return u, (p,)."""
        return w @ self._L
