"""The solvers, one module each. A new one is a module with a `Solver` and a line in `SOLVERS`.

A solver sees a `Problem` and vectors; of the data, the loss and the ranks it knows nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from distsms.errors import InputError

if TYPE_CHECKING:  # the command line knows the solvers' names, and numpy is not to be loaded for that
    from distsms.optim.state import Snapshot
    from distsms.utils.typing import Floats


# name -> module and class; loaded when it is asked for, so that PETSc starts only where it is used
SOLVERS = {
    "lmvm": "distsms.optim.solvers.tao:Solver",
    "lbfgs": "distsms.optim.solvers.lbfgs:Solver",
    "agm": "distsms.optim.solvers.agm:Solver",
    "bmrm": "distsms.optim.solvers.bmrm:Solver",
    "bmrm-linesearch": "distsms.optim.solvers.bmrm:LineSearch",
}


class Problem(Protocol):
    """A function to minimize, the model that its evaluations build up, and whoever watches over both.

    Vectors w (p,) may be spread over processes: then each has a slice of its own length, all run the same solver in
    lock-step, and all it does but `dot` is entry by entry.
    """

    @property
    def holders(self) -> Any:
        """mpi4py's communicator of the processes that hold a slice of each vector; None: this one holds them whole."""

    def dot(self, a: Floats, b: Floats) -> float:
        """Inner product of two vectors. Collective among the holders."""

    @property
    def strong_convexity(self) -> float:
        """sigma >= 0 such that the function less sigma/2 ||w||^2 is still convex."""

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """The function at w (p,) and its gradient (p,), a subgradient where it has kinks; adds a plane to the model.

        May raise to end the solve: the exception leaves `run`.
        """

    def iterated(self) -> bool:
        """Told after each iteration, at its last evaluation; True asks the solver to return from `run`."""

    def model_minimum(self) -> tuple[Floats, float]:
        """Where the model has its minimum, (p,), and the value there: the next point of a cutting-plane method."""


class Scaled:
    """A problem in the variables u = w / scale: the same function, over other coordinates.

    scale : (p,) positive, none below `least`. What the model knows stays in terms of w: the solver does not ask for it.
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
    """What becomes of the planes that the evaluations yield."""

    PROOF = "they prove the gap only: as many as the user wants"
    MODEL = "they are the model that is minimized: all of them, as far as memory allows"
    PAIR = "the model is one aggregated plane and the newest"


class Traits(NamedTuple):
    """What a solver is made for, which the run around it has to know."""

    smooth: bool = True  # False: the exact risk is evaluated, nu = 0
    planes: Planes = Planes.PROOF
    history: bool = False  # whether it keeps `history` pairs of vectors
    options: bool = False  # whether it takes words of PETSc's command line
    vectors: int = 6  # that it holds at a time, besides the history
    scaled: bool = False  # whether it gains from variables of comparable curvature: see `Scaled`
    spreadable: bool = True  # whether vectors may be slices: see `Problem`
    movable: bool = False  # whether it has `move`: see `Movable`


class Solver(Protocol):
    """One minimization, that can be paused, have its function changed, and go on."""

    traits: ClassVar[Traits]

    def __init__(
        self, problem: Problem, w: Floats, history: int, options: Sequence[str], remembers: int = 0
    ) -> None: ...

    def run(self) -> tuple[Outcome, str]:
        """Minimize from the present point on, until asked to return or unable to go on (then: why, in words)."""

    def restart(self, w: Floats) -> None:
        """Go on from w (p,) with nothing remembered but what the problem's model knows."""

    def memory(self) -> Snapshot:
        """What another one of its kind needs to go on as this one would: at any time, also from inside an evaluation.

        Where that is pairs of vectors, the last `remembers` ones.
        """

    def recall(self, memory: Snapshot) -> None:
        """Go on from another one's memory, before the first `run`. The problem's model knows what it knew there."""

    def close(self) -> None:
        """Free what the solver holds."""


class Movable(Solver, Protocol):
    """A solver that keeps its memory when it is set elsewhere."""

    def move(self, w: Floats) -> None:
        """Go on from w (p,) when `run` is called next."""


def solver_class(name: str) -> Any:
    """The class of the solver called `name`, a `Solver`. Raises InputError if there is none."""
    if name not in SOLVERS:
        raise InputError(f"no solver is called {name!r}; there are {', '.join(SOLVERS)}")
    module, attribute = SOLVERS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
