"""What a solver is, and what it is given: the protocols `Solver` and `Problem`, and the table of all solvers.

A solver sees a `Problem` and vectors. It knows nothing of the data, the loss or the ranks. A new solver is a module
with a class that follows `Solver`, and a line in `SOLVERS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from distsms.errors import InputError

if TYPE_CHECKING:  # --help names the solvers, and must not load NumPy
    from distsms.optim.state import Snapshot
    from distsms.utils.typing import Floats


# name -> module and class, which is imported when it is needed: PETSc is loaded only where it is used
SOLVERS = {
    "lmvm": "distsms.optim.solvers.tao:Solver",
    "lbfgs": "distsms.optim.solvers.lbfgs:Solver",
    "agm": "distsms.optim.solvers.agm:Solver",
    "bmrm": "distsms.optim.solvers.bmrm:Solver",
    "bmrm-linesearch": "distsms.optim.solvers.bmrm:LineSearch",
}


class Problem(Protocol):
    """A function to minimize, and the model of planes that its evaluations build up.

    Vectors w (p,) may be spread over processes. Then each process has a slice of its own length, all run the same
    solver in lock-step, and the solver's operations are entry by entry but for `dot`.
    """

    @property
    def holders(self) -> Any:
        """mpi4py's communicator of the processes that hold slices of vectors; None if this one holds them whole."""

    def dot(self, a: Floats, b: Floats) -> float:
        """Return the inner product of two vectors. **Collective** among the holders."""

    @property
    def strong_convexity(self) -> float:
        """A number sigma >= 0 such that the function minus sigma/2 ||w||^2 is still convex."""

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """Return the function at w (p,) and its gradient (p,), or a subgradient, and add a plane to the model.

        May raise an exception that ends the run: it must leave `Solver.run`.
        """

    def iterated(self) -> bool:
        """Note that an iteration has ended with the last evaluation; True asks the solver to return from `run`."""

    def model_minimum(self) -> tuple[Floats, float]:
        """Return where the model has its minimum, (p,), and the value there: a cutting-plane method goes there next."""


class Scaled:
    """A problem in the variables u = w / scale: the same function over other coordinates.

    Parameters
    ----------
    problem : Problem
        The function of w; its model stays in terms of w.
    scale : ndarray of shape (p,)
        Positive factors.
    least : float
        The smallest of them, over all processes.
    """

    def __init__(self, problem: Problem, scale: Floats, least: float) -> None:
        self._problem, self._scale = problem, scale
        self.dot = problem.dot
        self.strong_convexity = problem.strong_convexity * min(1.0, least) ** 2

    @property
    def holders(self) -> Any:
        """See `Problem`."""
        return self._problem.holders

    def value_and_gradient(self, u: Floats) -> tuple[float, Floats]:
        """See `Problem`; u and the gradient are (p,)."""
        value, gradient = self._problem.value_and_gradient(self._scale * u)
        return value, self._scale * gradient

    def iterated(self) -> bool:
        """See `Problem`."""
        return self._problem.iterated()

    def model_minimum(self) -> tuple[Floats, float]:
        """See `Problem`."""
        w, value = self._problem.model_minimum()
        return w / self._scale, value


class Outcome(Enum):
    """Why `Solver.run` returned."""

    PAUSED = "asked to"
    FAILED = "no further progress"


class Planes(Enum):
    """What the planes of the evaluations are used for."""

    PROOF = "they prove the gap only; the user says how many are kept"
    MODEL = "they are the model that is minimized; all are kept, as far as memory allows"
    PAIR = "the model is one aggregated plane and the newest"


class Traits(NamedTuple):
    """The properties of a solver that the run has to know."""

    smooth: bool = True  # False: the exact risk is evaluated, nu = 0
    planes: Planes = Planes.PROOF
    history: bool = False  # whether it keeps `history` pairs of vectors
    options: bool = False  # whether it takes options of PETSc's command line
    vectors: int = 6  # how many it holds at a time, besides the history
    scaled: bool = False  # whether it gains from variables of similar curvature: see `Scaled`
    spreadable: bool = True  # whether vectors may be slices: see `Problem`
    movable: bool = False  # whether it has `move`: see `Movable`


class Solver(Protocol):
    """One minimization, which can be paused, and go on after its function has changed.

    Parameters
    ----------
    problem : Problem
        The function.
    w : ndarray of shape (p,)
        Where the solver starts.
    history : int
        How many pairs of vectors it keeps, if its traits say that it keeps any.
    options : sequence of str
        Options of PETSc's command line.
    remembers : int
        How many pairs are kept for `memory`.
    """

    traits: ClassVar[Traits]

    def __init__(
        self, problem: Problem, w: Floats, history: int, options: Sequence[str], remembers: int = 0
    ) -> None: ...

    def run(self) -> tuple[Outcome, str]:
        """Minimize until asked to return, or unable to go on; then the reason is returned, too."""

    def restart(self, w: Floats) -> None:
        """Go on from w (p,) and forget everything but the problem's model."""

    def memory(self) -> Snapshot:
        """Return what another solver of this class needs to go on as this one would.

        May be called at any time, also inside an evaluation. Of pairs of vectors, the last `remembers` are returned.
        """

    def recall(self, memory: Snapshot) -> None:
        """Go on from another solver's memory, before the first `run`; the problem's model was restored before."""

    def close(self) -> None:
        """Free what the solver holds."""


class Movable(Solver, Protocol):
    """A solver that can be moved to another point and keeps its memory."""

    def move(self, w: Floats) -> None:
        """Go on from w (p,) when `run` is called next."""


def solver_class(name: str) -> Any:
    """Return the class of the solver called `name`, a `Solver`. Raises InputError if there is none."""
    if name not in SOLVERS:
        raise InputError(f"no solver is called {name!r}; there are {', '.join(SOLVERS)}")
    module, attribute = SOLVERS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
