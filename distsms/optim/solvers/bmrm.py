"""BMRM, cutting planes on the exact risk (JMLR, Algorithm 1, (8), (9); BMRM 2007, Algorithms 1 and 2, section 5).

    w_k = argmin_w  Omega(w) + max_{i <= k} [ <r_i, w> + d_i ]  =  -(1/lam) sum_i alpha_i r_i

The planes also prove the gap of the run (`distsms.optim.planes`), so the solver only evaluates at their minimizer. The
variant LineSearch has two planes, the mixture of all old ones and the newest.
"""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.result import Snapshot
from distsms.optim.solvers import base
from distsms.optim.solvers.base import PlaneUse, Traits

REPEATS, HAIR = 20, 4 * float(np.finfo(float).eps)
"""The solver ends if this many planes in a row did not raise the minimum of the model by a share of it that exceeds
`HAIR`. In exact arithmetic each plane raises it, unless it is that of J already; with rounding it then goes up or down.
"""


class Solver(base.Solver):
    """BMRM on a `Problem`: a step is an evaluation, one pass over the k planes, 8 k p bytes, and the program."""

    traits = Traits(smooth=False, planes=PlaneUse.MODEL, vectors=1, l1=True)

    def restart(self, w: Floats) -> None:
        self._w = w

    def run(self) -> str:
        highest, repeats = -np.inf, 0
        while True:
            self._problem.value_and_gradient(self._w)
            if self._problem.iterated():
                return ""
            self._w, least = self._problem.model_minimum()
            repeats = 0 if least - HAIR * abs(least) > highest else repeats + 1
            highest = max(highest, least)
            if repeats == REPEATS:
                return f"{REPEATS} new planes have not raised the lower bound; rounding errors limit it"

    def memory(self) -> Snapshot:
        return Snapshot()  # the problem stores the planes

    def recall(self, memory: Snapshot) -> None:
        self._w, _ = self._problem.model_minimum()


class LineSearch(Solver):
    """BMRM with a line search in place of the quadratic program (BMRM 2007, Algorithm 2). It stores two planes."""

    traits = Traits(smooth=False, planes=PlaneUse.PAIR, vectors=1, l1=True)
