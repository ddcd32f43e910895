"""The solvers, one module each. A new one is a module with a `Solver` and a line in `SOLVERS`.

A solver sees a `Problem` and vectors; of the data, the loss and the ranks it knows nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

from distsms.errors import InputError

if TYPE_CHECKING:  # the command line knows the solvers' names, and numpy is not to be loaded for that
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"

# name -> module and class; loaded when it is asked for, so that PETSc starts only where it is used
SOLVERS = {
    "lmvm": "distsms.solvers.tao:Solver",
    "lbfgs": "distsms.solvers.lbfgs:Solver",
    "agm": "distsms.solvers.agm:Solver",
    "bmrm": "distsms.solvers.bmrm:Solver",
    "bmrm-linesearch": "distsms.solvers.bmrm:LineSearch",
}


class Problem(Protocol):
    """A function to minimize, the model that its evaluations build up, and whoever watches over both."""

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

    scale : (p,) positive. What the model knows stays in terms of w, since the solver does not ask for it.
    """

    def __init__(self, problem: Problem, scale: Floats) -> None:
        self._problem, self._scale = problem, scale
        self.strong_convexity = problem.strong_convexity * float(scale.min(initial=1.0)) ** 2

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
    scaled: bool = False  # whether it gains from variables of comparable curvature: see `Scaled`


class Solver(Protocol):
    """One minimization, that can be paused, have its function changed, and go on."""

    traits: ClassVar[Traits]

    def __init__(self, problem: Problem, w: Floats, history: int, options: Sequence[str]) -> None: ...

    def run(self) -> tuple[Outcome, str]:
        """Minimize from the present point on, until asked to return or unable to go on (then: why, in words)."""

    def restart(self, w: Floats) -> None:
        """Go on from w (p,) with nothing remembered but what the problem's model knows."""

    def close(self) -> None:
        """Free what the solver holds."""


def solver_class(name: str) -> Any:
    """The class of the solver called `name`, a `Solver`. Raises InputError if there is none."""
    if name not in SOLVERS:
        raise InputError(f"no solver is called {name!r}; there are {', '.join(SOLVERS)}")
    module, attribute = SOLVERS[name].split(":")
    return getattr(importlib.import_module(module), attribute)
