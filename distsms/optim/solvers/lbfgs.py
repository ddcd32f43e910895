"""L-BFGS of SciPy (L-BFGS-B without bounds), which takes the place of LMVM if PETSc is not installed.

It is the same kind of method as `lmvm`, but its history is lost at every pause, since SciPy's memory cannot be kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from distsms.optim.solvers.base import Outcome, Problem, Traits
from distsms.optim.state import Snapshot
from distsms.utils.typing import Floats

ENDLESS = 2**31 - 1


class _Paused(Exception):
    """Raised in SciPy's callback to end the minimization after an iteration."""


class Solver:
    """SciPy's L-BFGS on a `Problem`; `options` and `remembers` are not used.

    Notes
    -----
    The pairs of the history take 16 history p bytes; the method needs about 10 vectors more. SciPy's tolerances are
    switched off: SciPy stops when the problem asks for a pause, or when its line search fails.
    """

    traits = Traits(history=True, vectors=16, scaled=True, spreadable=False)

    def __init__(
        self, problem: Problem, w: Floats, history: int, options: Sequence[str] = (), remembers: int = 0
    ) -> None:
        self._problem, self._w, self._history = problem, w, history

    def run(self) -> tuple[Outcome, str]:
        """See `base.Solver.run`."""
        from scipy.optimize import minimize

        options = {"maxcor": self._history, "maxiter": ENDLESS, "maxfun": ENDLESS, "ftol": 0.0, "gtol": 0.0}
        evaluate, method = self._problem.value_and_gradient, "L-BFGS-B"
        try:
            found = minimize(evaluate, self._w, jac=True, method=method, callback=self._iterated, options=options)
        except _Paused:
            return Outcome.PAUSED, ""
        return Outcome.FAILED, f"L-BFGS-B: {found.message}"

    def _iterated(self, w: Floats) -> None:
        self._w = w.copy()
        if self._problem.iterated():
            raise _Paused

    def restart(self, w: Floats) -> None:
        """See `base.Solver.restart`."""
        self._w = w

    def memory(self) -> Snapshot:
        """See `base.Solver.memory`: the present point."""
        return Snapshot({}, {}, {"points": [self._w]})

    def recall(self, memory: Snapshot) -> None:
        """See `base.Solver.recall`."""
        (self._w,) = memory.vectors["points"]

    def close(self) -> None:
        """Nothing to free."""
