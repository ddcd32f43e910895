"""The solvers, one module each. A new one is a module with a `Solver` and a line in `SOLVERS`.

A solver sees a `Problem` and vectors; of the data, the loss and the ranks it knows nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# name -> module that defines `Solver`; loaded when it is asked for, so that PETSc starts only where it is used
SOLVERS = {"lmvm": "distsms.solvers.tao"}


class Problem(Protocol):
    """A smooth function to minimize, and whoever watches over it."""

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """The function at w (p,) and its gradient (p,). May raise to end the solve: the exception leaves `run`."""

    def iterated(self) -> bool:
        """Told after each iteration, at its last evaluation; True asks the solver to return from `run`."""


class Outcome(Enum):
    """Why `Solver.run` returned."""

    PAUSED = "asked to"
    FAILED = "no further progress"


class Solver(Protocol):
    """One minimization, that can be paused, have its function changed, and go on."""

    def __init__(self, problem: Problem, w: Floats, history: int, options: Sequence[str]) -> None: ...

    def run(self) -> tuple[Outcome, str]:
        """Minimize from the present point on, until asked to return or unable to go on (then: why, in words)."""

    def restart(self, w: Floats) -> None:
        """Go on from w (p,) with nothing remembered."""

    def close(self) -> None:
        """Free what the solver holds."""


def make_solver(name: str, *args: Any) -> Solver:
    """The solver called `name`; see `Solver` for the arguments."""
    return importlib.import_module(SOLVERS[name]).Solver(*args)
