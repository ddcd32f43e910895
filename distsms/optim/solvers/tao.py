"""LMVM, TAO's limited-memory variable metric method (JMLR, section 5.2); the only module that imports petsc4py. It runs
on the processes that hold the vectors, each of which starts PETSc with MPI_COMM_SELF, not collectively.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from distsms.base.errors import InputError
from distsms.base.program import NO_WORKING_FOLDER, has_working_folder
from distsms.base.typing import Floats
from distsms.optim.result import Snapshot
from distsms.optim.solvers import base
from distsms.optim.solvers.base import Problem, Scaled, Traits
from distsms.parallel.communicator import self_communicator

CONTINUE, CONVERGED_USER, IDLE = 0, 8, -8  # TaoConvergedReason; petsc4py 3.26 has no names for them any more
REASONS = {
    -2: "iteration limit of TAO",
    -4: "not a number in TAO",
    -5: "evaluation limit of TAO",
    -6: "line search failed",
    -7: "trust region failed",
    IDLE: "the gradient is zero, or an option of TAO ended the minimization",
}

NOT_INSTALLED = "petsc4py is not installed"
"""Why lmvm cannot run where nobody has wanted it: nothing is broken then."""


def lacking(load: bool = True) -> str:
    """Return why lmvm cannot run in this process, or "". The answer is certain only with `load`, which takes 0.2 s."""
    if not has_working_folder():
        return f"{NO_WORKING_FOLDER}, where PETSc looks for its options"
    try:
        import petsc4py  # by itself, so that an error names it
        import petsc4py.lib

        if load:
            petsc4py.lib.ImportPETSc()
    except ModuleNotFoundError as error:
        return NOT_INSTALLED if error.name == "petsc4py" else f"petsc4py cannot be imported: {error}"
    except Exception as error:  # an incomplete or incompatible installation may raise anything
        remedy = f". If it was built for another major version of NumPy than {np.__version__}, install that version:"
        remedy += " the petsc4py of Debian 12 and Ubuntu 24.04 needs pip install 'numpy<2'"
        return f"petsc4py cannot be imported: {error}{remedy if 'numpy' in str(error) else ''}"
    return ""


@functools.cache  # asking for the library again would take as long as some evaluations of few rows
def _petsc() -> Any:
    if why := lacking():
        raise InputError(f"lmvm cannot run: {why}. The solver lbfgs does not need petsc4py")
    import petsc4py

    # PETSc's signal handlers would turn a closed pipe or a hang-up into an abort.
    petsc4py.init(["distsms", "-no_signal_handler"], comm=self_communicator())
    from petsc4py import PETSc

    return PETSc


def version() -> str:
    """Return the version of petsc4py without loading PETSc."""
    if why := lacking(load=False):
        return f"not usable: {why} (needed by lmvm only)"
    import petsc4py

    return petsc4py.__version__


def _called_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that PETSc calls: a garbage collection would lose its exception, and crash Python 3.13."""

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        try:
            return function(*args)
        except BaseException:
            gc.disable()  # until `run` ends
            raise

    return guarded


class Solver(base.Solver):
    """TAO's LMVM on a `Problem`. Building and closing it is **collective** among the holders of the vectors. Pairs take
    24 history p bytes, `remembers` points 16 p each. Options such as "-tao_ls_type" apply to this process from now on.
    """

    traits = Traits(history=3, copies=2, options=True, vectors=23, scaled=True, movable=True)  # measured: PETSc 3.18

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
            "tao_lmvm_recycle": "1",  # keep the history over a pause and a change of the smoothing width
            # These control how the initial diagonal of the Hessian approximation is updated. PETSc's defaults are 1 and
            # 0.125; scripts/experiments/trainings.py compares them with these values.
            "tao_lmvm_mat_lmvm_alpha": "0.8",
            "tao_lmvm_mat_lmvm_theta": "0.4",
        }
        self._defaults = {key: value for key, value in self._defaults.items() if not database.hasName(key)}
        try:
            self._create(w)
        except self._petsc.Error as error:
            raise InputError(f"PETSc does not accept the options {' '.join(options)}: {error}") from error

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
        """Set options of TAO that take precedence over the user's. PETSc's database keeps the user's options."""
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
        w = x.array_r if isinstance(self._problem, Scaled) else x.array_r.copy()  # `Scaled` makes an array of its own
        value, gradient.array[:] = self._problem.value_and_gradient(w)
        return value

    @_called_back
    def _converged(self, tao: Any) -> int:
        if self._recalled:
            self._record.append(self._recalled.popleft())
            self._x.array[:], self._gradient.array[:] = self._record[-1]
            return CONTINUE if self._recalled else CONVERGED_USER
        if not self._evaluated:  # with a zero gradient, TAO would continue without ever evaluating
            return IDLE
        self._evaluated = False
        if self._record.maxlen:
            self._record.append((self._x.array_r.copy(), self._gradient.array_r.copy()))
        return CONVERGED_USER if self._problem.iterated() else CONTINUE  # with None, TAO would use its own test

    def run(self) -> str:
        self._evaluated, collected = False, gc.isenabled()
        try:
            self._tao.solve()
        except self._petsc.Error as error:  # for example, the line search computed 0 times infinity
            # The cause is an exception of our function. Older versions of petsc4py let it pass unchanged.
            if error.__cause__ is not None:
                raise error.__cause__ from None
            return f"TAO gave up with PETSc's error {error.ierr}"
        finally:
            if collected:
                gc.enable()
        reason = int(self._tao.getConvergedReason())
        if reason == CONVERGED_USER:
            return ""
        return REASONS.get(reason, f"TAO's reason {reason}")

    def restart(self, w: Floats) -> None:
        self.close()
        self._create(w)
        self._record.clear()

    def memory(self) -> Snapshot:
        points, gradients = zip(*self._record, strict=True) if self._record else ((), ())
        return Snapshot({}, {}, {"points": points, "gradients": gradients})

    def recall(self, memory: Snapshot) -> None:
        """See `base.Solver.recall`: TAO takes unit steps to the remembered points, which build the same matrix."""
        self._recalled.extend(zip(memory.vectors["points"], memory.vectors["gradients"], strict=True))
        if not self._recalled:
            return
        last = self._recalled[-1][0]
        line_search = self._petsc.Options().getString("tao_ls_type", "more-thuente")
        self._configure({"tao_ls_type": "unit"})
        try:
            self._tao.solve()
        except self._petsc.Error:
            self._recalled.clear()
            self.restart(last)
        self._configure({"tao_ls_type": line_search})

    def move(self, w: Floats) -> None:
        self._x.array[:] = w

    def close(self) -> None:
        """Destroy the PETSc objects now rather than when Python collects garbage."""
        for petsc_object in (self._tao, self._gradient, self._x):
            petsc_object.destroy()
