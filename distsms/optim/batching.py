"""Several solves side by side, whose evaluations meet in one pass over the data.

A solver owns its thread of control: TAO asks for J from inside its own loop. So each solve is a coroutine of its own (a
greenlet). It runs until it asks for an evaluation; when all of them have asked, the objective answers all at once, X
times a matrix and X' times a matrix, and each goes on with its own answer. Nothing runs at the same time as anything
else, and in which order is the same on every rank that steps: collectives meet as they do with one solve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from distsms.errors import InputError
from distsms.losses.registry import Loss
from distsms.optim.objective import Evaluation, Objective, Request
from distsms.parallel.vectors import Vectors
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise InputError(f"solves side by side want greenlet: {error}. pip install greenlet", everywhere=True) from error


class BatchedSolve:
    """One solve's place: the objective of one of its losses, for a `Solve`. On the ranks that step."""

    def __init__(self, objective: Objective, number: int) -> None:
        self._objective, self._number = objective, number
        self.losses: Sequence[Loss] = [objective.losses[number]]
        self.vectors: Vectors = objective.vectors
        self.clock: Clock = objective.clock

    @property
    def stop_requested(self) -> bool:
        """See `Objective`."""
        return self._objective.stop_requested

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """As `Objective.evaluate`; the other solves go on meanwhile."""
        hub: Any = getcurrent().parent
        return [hub.switch(request._replace(loss=self._number)) for request in requests]

    def plane_errors(self) -> tuple[Floats, float]:
        """As `Objective.plane_errors`."""
        return self._objective.plane_errors(self._number)

    def rounding(self, evaluation: Evaluation) -> float:
        """As `Objective.rounding`; a pass of its own."""
        return self._objective.rounding(evaluation, self._number)

    def assessment(self, w: Floats) -> Any:
        """As `Objective.assessment`; a pass of its own."""
        return self._objective.assessment(w, self._number)


def solve_batched(objective: Objective, solves: Sequence[Callable[[BatchedSolve], None]], at_once: int) -> int:
    """Run solves[i](seat) for each loss i of the objective; returns the number of passes that answered them.

    at_once : how many may be under way; a next one begins when one ends.  Collective; the solves run on the
    ranks that step, and the others, which return 0, serve them. What a solve raises ends all of them.
    """
    if not objective.vectors.runs_solver:
        objective.serve()
        return 0
    waiting, asking, passes = deque(enumerate(solves)), dict[greenlet, Request](), 0

    def go_on(one: greenlet, told: Any) -> None:
        request = one.switch(told)
        if one.dead:
            asking.pop(one, None)
        else:
            asking[one] = request

    try:
        while waiting or asking:
            while waiting and len(asking) < at_once:
                number, solve = waiting.popleft()
                go_on(greenlet(solve), BatchedSolve(objective, number))
            if asking:
                answers = objective.evaluate(list(asking.values()))
                passes += 1
                for one, answer in zip(list(asking), answers, strict=True):
                    go_on(one, answer)
    finally:
        for one in asking:
            one.throw()  # so that what they hold is freed now
    objective.release()
    return passes
