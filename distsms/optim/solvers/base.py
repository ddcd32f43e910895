"""The interfaces `Solver` and `Problem`, and the table of all solvers.

A solver is given a `Problem`, the function to minimize, and vectors. It knows nothing of the data, the loss or the
ranks. To add a solver, write a module with a class that derives from `Solver`, and add a line to `SOLVERS`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from distsms.base.errors import InputError
from distsms.base.wording import format_value

if TYPE_CHECKING:  # --help names the solvers, and must not load NumPy
    from distsms.base.typing import Floats
    from distsms.optim.result import Snapshot


SOLVERS = {  # imported only when they are used, so that PETSc is not loaded without need
    "lmvm": "distsms.optim.solvers.tao:Solver",
    "lbfgs": "distsms.optim.solvers.lbfgs:Solver",
    "agm": "distsms.optim.solvers.agm:Solver",
    "bmrm": "distsms.optim.solvers.bmrm:Solver",
    "bmrm-linesearch": "distsms.optim.solvers.bmrm:LineSearch",
}

WIDE = 2**17
"""From so many columns on, vectors of models that are trained together would push each other out of the caches."""


class Problem(Protocol):
    """A function to minimize, and the model of planes that its evaluations build up.

    Vectors w (p,) may be distributed over processes. Then each process has a slice, and all processes run the same
    solver in lock-step. So a solver may only use operations on each entry of vectors, and `dot`.
    """

    @property
    def holders(self) -> Any:
        """The mpi4py communicator of the processes that hold slices of vectors; None if vectors are not distributed."""

    def dot(self, a: Floats, b: Floats) -> float:
        """Return the inner product of two vectors. **Collective** among the holders."""

    @property
    def strong_convexity(self) -> float:
        """A number sigma >= 0 such that the function minus sigma/2 ||w||^2 is still convex."""

    @property
    def l1(self) -> float | Floats:
        """A number or a vector (p,) of numbers l >= 0: the function is a smooth one plus the sum of l_j |w_j|."""

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """Return the function at w (p,) and its gradient (p,), or a subgradient, and add a plane to the model. The
        gradient, without that of the sum of l_j |w_j|, is the caller's, who must not change w afterwards. `Solver.run`
        lets exceptions pass.
        """

    def iterated(self) -> bool:
        """Note that an iteration has ended with the last evaluation; True asks the solver to return from `run`."""

    def model_minimum(self) -> tuple[Floats, float]:
        """Return the minimizer of the model, (p,), for a cutting-plane method, and the model's value there."""

    def variables(self, w: Floats) -> Floats:
        """Return the solver's variables at the w of the function J, (p,)."""


class OtherVariables(ABC):
    """A problem as a function of other variables u. Its model stays in terms of w."""

    l1: float | Floats = 0.0

    def __init__(self, problem: Problem, strong_convexity: float) -> None:
        self._problem, self.strong_convexity = problem, strong_convexity
        self.dot, self.iterated = problem.dot, problem.iterated

    @property
    def holders(self) -> Any:
        return self._problem.holders

    @abstractmethod
    def value_and_gradient(self, u: Floats) -> tuple[float, Floats]: ...

    @abstractmethod
    def variables(self, w: Floats) -> Floats: ...

    def model_minimum(self) -> tuple[Floats, float]:
        w, value = self._problem.model_minimum()
        return self.variables(w), value


class Scaled(OtherVariables):
    """The same problem as a function of u = w / scale, with positive factors (p,); `least` is that of all processes."""

    def __init__(self, problem: Problem, scale: Floats, least: float) -> None:
        super().__init__(problem, problem.strong_convexity * min(1.0, least) ** 2)
        self._scale, self.l1 = scale, problem.l1 and scale * problem.l1

    def value_and_gradient(self, u: Floats) -> tuple[float, Floats]:
        value, gradient = self._problem.value_and_gradient(self._scale * u)
        gradient *= self._scale  # it is the caller's, and no copy is needed
        return value, gradient

    def variables(self, w: Floats) -> Floats:
        return w / self._scale


class PlaneUse(Enum):
    """What the planes of the evaluations are used for."""

    PROOF = "they prove the gap only; a setting says how many are kept"
    MODEL = "the solver minimizes their maximum; all are kept, as far as memory allows"
    PAIR = "the solver minimizes the maximum of the newest plane and of one mixture of all older planes"


class Traits(NamedTuple):
    """The properties of a solver that the run has to know."""

    smooth: bool = True  # False: the exact risk is evaluated, nu = 0
    planes: PlaneUse = PlaneUse.PROOF
    history: int = 0  # how many vectors it holds for each pair of vectors in its history; 0 if it has no history
    copies: int = 0  # how many more for each pair that `memory` returns, which are held only if there are snapshots
    options: bool = False  # whether it takes options of PETSc's command line
    vectors: int = 6  # how many vectors it holds at a time, without the history
    scaled: bool = False  # whether it is faster if all variables have a similar curvature: see `Scaled`
    # whether it has `move(w)`, after which the next `run` starts at w (p,), with everything remembered
    movable: bool = False
    l1: bool = False  # whether it minimizes functions with a sum of l_j |w_j|: see `Problem`


class Solver(ABC):
    """One minimization, which starts at w (p,) and can be paused, and continued after its function has changed.

    It keeps so many pairs of vectors in its `history`, and `remembers` of them a second time for `memory`, if its
    traits say so; `options` are those of PETSc's command line.
    """

    traits: ClassVar[Traits]

    def __init__(
        self, problem: Problem, w: Floats, history: int = 0, options: Sequence[str] = (), remembers: int = 0
    ) -> None:
        self._problem, self._history = problem, history
        self.restart(w)

    @abstractmethod
    def run(self) -> str:
        """Minimize until the problem asks for a pause, and return "", or why no further progress is possible."""

    @abstractmethod
    def restart(self, w: Floats) -> None:
        """Make the next `run` start at w (p,), with nothing remembered from earlier runs."""

    @abstractmethod
    def memory(self) -> Snapshot:
        """Return the state with which another solver of this class can continue, at any time."""

    @abstractmethod
    def recall(self, memory: Snapshot) -> None:
        """Set the state to another solver's memory. Called before the first `run`, after the problem was restored."""

    def close(self) -> None:  # noqa: B027 - most solvers hold nothing that has to be freed
        """Free what the solver holds."""


def solver_class(name: str) -> Any:
    """Return the class of the solver called `name`, a `Solver`. Raises InputError if there is none."""
    if name not in SOLVERS:
        raise InputError(f"no solver is called {format_value(name)}; there are {', '.join(SOLVERS)}")
    module, attribute = SOLVERS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
