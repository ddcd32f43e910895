"""LMVM, TAO's limited-memory variable metric method (JMLR, section 5.2); the only module that imports petsc4py.

It runs on the processes that hold the vectors: one that has them whole, or all with a slice each. No other rank loads
PETSc. PETSc's own world is each process alone, so that starting it is no collective; its objects live on the holders.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from distsms.errors import InputError
from distsms.optim.solvers.base import Outcome, Problem, Traits
from distsms.optim.state import Snapshot
from distsms.parallel.communicator import self_communicator
from distsms.utils.typing import Floats

CONTINUE, CONVERGED_USER, IDLE = 0, 8, -8  # TaoConvergedReason; petsc4py 3.26 has no names for them any more
REASONS = {
    -2: "iteration limit of TAO",
    -4: "not a number in TAO",
    -5: "evaluation limit of TAO",
    -6: "line search failed",
    -7: "trust region failed",
    IDLE: "the gradient is zero, or a TAO option ended it",
}


def lacking(load: bool = True) -> str:
    """Why lmvm cannot run in this process, in words; nothing where it can. Starts neither PETSc nor MPI.

    load : whether to load PETSc's library, without which one cannot tell; 0.2 s, which are saved when it is used.
    """
    try:
        import petsc4py.lib

        if load:
            petsc4py.lib.ImportPETSc()
    except Exception as error:  # whatever an incomplete or incompatible one raises
        remedy = f". If it was built for another major version than numpy {np.__version__}, install that one: for the"
        remedy += " petsc4py of Debian 12 and Ubuntu 24.04, pip install 'numpy<2'"
        return f"petsc4py cannot be imported: {error}{remedy if 'numpy' in str(error) else ''}"
    return ""


def _petsc() -> Any:
    if why := lacking():
        raise InputError(f"lmvm cannot run: {why}. The solver lbfgs does without petsc4py")
    import petsc4py

    # Its signal handlers would turn a closed pipe or a hang-up into an abort.
    petsc4py.init(["distsms", "-no_signal_handler"], comm=self_communicator())
    from petsc4py import PETSc

    return PETSc


def version() -> str:
    """petsc4py's version, without loading PETSc."""
    if why := lacking(load=False):
        return f"not usable: {why} (needed by lmvm only)"
    import petsc4py

    return petsc4py.__version__


def _called_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for PETSc to call. What it raises passes through PETSc, while no garbage is collected.

    A collection then would lose the exception, and Python 3.13 with petsc4py 3.22 crash for want of it.
    """

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except BaseException:
            gc.disable()  # until `run` ends
            raise

    return guarded


class Solver:
    """TAO's LMVM on a `Problem`, from w (p,), which is copied. Building and closing it is collective among the holders.

    history : how many pairs of steps and gradient changes the method keeps; PETSc takes 24 history p bytes for them.
    options : words of PETSc's command line ("-tao_ls_type", "armijo", ...); they hold for this process from here on,
    and PETSc names those that nothing asked for when the process ends.
    remembers : how many pairs are kept a second time, for `memory`; as many bytes each.
    TAO's own tolerances are off: it stops when the problem asks, or when its line search fails.
    """

    traits = Traits(history=True, options=True, vectors=23, scaled=True, movable=True)  # measured with PETSc 3.18

    def __init__(self, problem: Problem, w: Floats, history: int, options: Sequence[str], remembers: int = 0) -> None:
        self._petsc, self._problem = _petsc(), problem
        self._record: deque[tuple[Floats, Floats]] = deque(maxlen=remembers + 1 if remembers else 0)
        self._recalled: deque[tuple[Floats, Floats]] = deque()
        database = self._petsc.Options()
        self._comm = problem.holders or self._petsc.COMM_SELF
        if options:
            database.insertString(" ".join([*options, *(["-options_left"] if self._comm.rank == 0 else [])]))
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
        self._x = PETSc.Vec().create(self._comm)
        self._x.setSizes((len(w), None))
        self._x.setType("standard")
        self._x.array[:] = w
        self._gradient = self._x.duplicate()
        self._tao = PETSc.TAO().create(self._comm)
        self._tao.setType("lmvm")
        self._tao.setObjectiveGradient(self._evaluate, self._gradient)
        self._tao.setSolution(self._x)
        self._configure(self._defaults)
        self._tao.setConvergenceTest(self._converged)
        self._tao.setUp()

    def _configure(self, options: Mapping[str, str]) -> None:
        """Give TAO options over the user's, which stay what they are for others."""
        database = self._petsc.Options()
        users = {key: database.getString(key) for key in options if database.hasName(key)}
        for key, value in options.items():
            database.setValue(key, value)
        self._tao.setFromOptions()
        for key in options:
            database.delValue(key)
        for key, value in users.items():
            database.setValue(key, value)

    @_called_back
    def _evaluate(self, tao: Any, x: Any, gradient: Any) -> float:
        if self._recalled:
            return 0.0
        self._evaluated = True
        value, gradient.array[:] = self._problem.value_and_gradient(x.array_r.copy())
        return value

    @_called_back
    def _converged(self, tao: Any) -> int:
        if self._recalled:
            self._record.append(self._recalled.popleft())
            self._x.array[:], self._gradient.array[:] = self._record[-1]
            return CONTINUE if self._recalled else CONVERGED_USER
        if not self._evaluated:  # where the gradient is zero, TAO would go on without ever asking for another point
            return IDLE
        self._evaluated = False
        if self._record.maxlen:
            self._record.append((self._x.array_r.copy(), self._gradient.array_r.copy()))
        return CONVERGED_USER if self._problem.iterated() else CONTINUE  # None would stand for TAO's own test

    def run(self) -> tuple[Outcome, str]:
        """See `solvers.Solver.run`."""
        self._evaluated, collected = False, gc.isenabled()
        try:
            self._tao.solve()
        except self._petsc.Error as error:  # of its line search, say: a step of 0 times infinity
            if error.__cause__ is not None:  # what a function of ours raised, which older ones let through as it is
                raise error.__cause__ from None
            return Outcome.FAILED, f"TAO gave up with PETSc's error {error.ierr}"
        finally:
            if collected:
                gc.enable()
        reason = int(self._tao.getConvergedReason())
        if reason == CONVERGED_USER:
            return Outcome.PAUSED, ""
        return Outcome.FAILED, REASONS.get(reason, f"TAO's reason {reason}")

    def restart(self, w: Floats) -> None:
        """See `solvers.Solver.restart`."""
        self.close()
        self._create(w)
        self._record.clear()

    def memory(self) -> Snapshot:
        """See `solvers.Solver.memory`: the last points that TAO came to, with the gradients there."""
        points, gradients = zip(*self._record, strict=True) if self._record else ((), ())
        return Snapshot({}, {}, {"points": points, "gradients": gradients})

    def recall(self, memory: Snapshot) -> None:
        """See `solvers.Solver.recall`.

        TAO cannot be given the pairs of its matrix, but it can be led along its old way: by unit steps, which ask
        nothing of the function, each old point and gradient put in place of those that a step has led to.
        """
        self._recalled.extend(zip(memory.vectors["points"], memory.vectors["gradients"], strict=True))
        if not self._recalled:
            return
        last = self._recalled[-1][0]
        chosen = self._petsc.Options().getString("tao_ls_type", "more-thuente")
        self._configure({"tao_ls_type": "unit"})
        try:
            self._tao.solve()
        except self._petsc.Error:
            self._recalled.clear()
            self.restart(last)
        self._configure({"tao_ls_type": chosen})

    def move(self, w: Floats) -> None:
        """See `solvers.Movable.move`."""
        self._x.array[:] = w

    def close(self) -> None:
        """Destroy the PETSc objects now rather than when Python's garbage collector comes round."""
        for thing in (self._tao, self._gradient, self._x):
            thing.destroy()
