"""LMVM, TAO's limited-memory variable metric method (JMLR, section 5.2); the only module that imports petsc4py.

It runs on the process that holds the vectors whole, with that process alone as PETSc's world: no other rank loads
PETSc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distsms.comm import alone
from distsms.errors import InputError
from distsms.solvers import Floats, Outcome, Problem, Traits

CONTINUE, CONVERGED_USER, IDLE = 0, 8, -8  # TaoConvergedReason; petsc4py 3.26 has no names for them any more
REASONS = {
    -2: "iteration limit of TAO",
    -4: "not a number in TAO",
    -5: "evaluation limit of TAO",
    -6: "line search failed",
    -7: "trust region failed",
    IDLE: "the gradient is zero, or a TAO option ended it",
}


def _petsc() -> Any:
    try:
        import petsc4py
    except ImportError as error:
        raise InputError(f"lmvm needs PETSc's Python package, petsc4py: {error}. The solver lbfgs does not") from error
    # Its signal handlers would turn a closed pipe or a hang-up into an abort.
    petsc4py.init(["distsms", "-no_signal_handler"], comm=alone())
    from petsc4py import PETSc

    return PETSc


def version() -> str:
    """petsc4py's version, without initializing PETSc or MPI."""
    try:
        import petsc4py
    except ImportError as error:
        return f"not usable: {error} (needed by `train` only)"
    return petsc4py.__version__


class Solver:
    """TAO's LMVM on a `Problem`, from w (p,), which is copied.

    history : how many pairs of steps and gradient changes the method keeps; 16 history p bytes.
    options : words of PETSc's command line ("-tao_ls_type", "armijo", ...); they hold for this process from here on,
    and PETSc names those that nothing asked for when the process ends.
    TAO's own tolerances are off: it stops when the problem asks, or when its line search fails.
    """

    traits = Traits(history=True, options=True, scaled=True)

    def __init__(self, problem: Problem, w: Floats, history: int, options: Sequence[str]) -> None:
        self._petsc, self._problem = _petsc(), problem
        database = self._petsc.Options()
        if options:
            database.insertString(" ".join([*options, "-options_left"]))
        self._defaults = {
            "tao_lmvm_mat_lmvm_hist_size": str(history),
            "tao_lmvm_recycle": "1",  # the history survives a pause and a change of the smoothing width
            # How the diagonal that the method starts from is learnt (PETSc's own: 1 and 0.125); see `scripts/sweep`.
            "tao_lmvm_mat_lmvm_alpha": "0.8",
            "tao_lmvm_mat_lmvm_theta": "0.4",
        }
        self._defaults = {key: value for key, value in self._defaults.items() if not database.hasName(key)}
        try:
            self._create(w)
        except self._petsc.Error as error:
            raise InputError(f"PETSc refuses its options ({' '.join(options)}): {error}") from error

    def _create(self, w: Floats) -> None:
        PETSc = self._petsc
        self._x = PETSc.Vec().createSeq(len(w), comm=PETSc.COMM_SELF)
        self._x.array[:] = w
        self._gradient = self._x.duplicate()
        self._tao = PETSc.TAO().create(PETSc.COMM_SELF)
        self._tao.setType("lmvm")
        self._tao.setObjectiveGradient(self._evaluate, self._gradient)
        self._tao.setSolution(self._x)
        database = PETSc.Options()
        for key, value in self._defaults.items():
            database.setValue(key, value)
        self._tao.setFromOptions()
        self._tao.setConvergenceTest(self._converged)
        self._tao.setUp()
        for key in self._defaults:
            database.delValue(key)

    def _evaluate(self, tao: Any, x: Any, gradient: Any) -> float:
        self._evaluated = True
        value, gradient.array[:] = self._problem.value_and_gradient(x.array_r.copy())
        return value

    def _converged(self, tao: Any) -> int:
        if not self._evaluated:  # where the gradient is zero, TAO would go on without ever asking for another point
            return IDLE
        self._evaluated = False
        return CONVERGED_USER if self._problem.iterated() else CONTINUE  # None would stand for TAO's own test

    def run(self) -> tuple[Outcome, str]:
        """See `solvers.Solver.run`."""
        self._evaluated = False
        try:
            self._tao.solve()
        except self._petsc.Error as error:  # of its line search, say: a step of 0 times infinity
            return Outcome.FAILED, f"TAO gave up with PETSc's error {error.ierr}"
        reason = int(self._tao.getConvergedReason())
        if reason == CONVERGED_USER:
            return Outcome.PAUSED, ""
        return Outcome.FAILED, REASONS.get(reason, f"TAO's reason {reason}")

    def restart(self, w: Floats) -> None:
        """See `solvers.Solver.restart`."""
        self.close()
        self._create(w)

    def close(self) -> None:
        """Destroy the PETSc objects now rather than when Python's garbage collector comes round."""
        for thing in (self._tao, self._gradient, self._x):
            thing.destroy()
