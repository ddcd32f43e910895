"""Several solves side by side: each is a coroutine (a greenlet) that runs until it requests an evaluation, and one pass
over the data answers all requests. Their order is the same on every rank, so that collective calls match.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distsms.base.errors import InputError
from distsms.base.timing import Clock
from distsms.losses.base import Loss
from distsms.optim.objective import Evaluation, Objective, Request
from distsms.parallel.vectors import Vectors

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise InputError(
        f"training several models at the same time needs the package greenlet ({error}): pip install greenlet",
        everywhere=True,
    ) from error


class BatchedSolve:
    """The objective for one of several solves and its loss, an `Evaluator`. Only evaluations share passes."""

    def __init__(self, objective: Objective, number: int) -> None:
        self._objective, self._number = objective, number
        self.losses: Sequence[Loss] = [objective.losses[number]]
        self.vectors: Vectors = objective.vectors
        self.clock: Clock = objective.clock
        # The passes of these are not shared with other solves.
        self.plane_errors = partial(objective.plane_errors, number)
        self.rounding = partial(objective.rounding, loss=number)
        self.exact_risk = partial(objective.exact_risk, loss=number)
        self.assessment = partial(objective.assessment, loss=number)
        self.curvature = objective.curvature

    @property
    def stop_requested(self) -> bool:
        return self._objective.stop_requested

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """Return what `Objective.evaluate` returns. The other solves run while this one waits."""
        hub: Any = getcurrent().parent
        return [hub.switch(request._replace(loss=self._number)) for request in requests]


def solve_batched(objective: Objective, solves: Sequence[Callable[[BatchedSolve], None]], at_once: int) -> int:
    """Run solves[i] on the `BatchedSolve` of loss i, `at_once` at a time; return the passes. **Collective.**"""
    if not objective.vectors.runs_solver:
        objective.serve()
        return 0
    waiting, asking, passes = deque(enumerate(solves)), dict[greenlet, Request](), 0

    def resume(solve: greenlet, answer: Any) -> None:
        request = solve.switch(answer)
        if solve.dead:
            asking.pop(solve, None)
        else:
            asking[solve] = request

    try:
        while waiting or asking:
            while waiting and len(asking) < at_once:
                number, solve = waiting.popleft()
                resume(greenlet(solve), BatchedSolve(objective, number))
            if asking:
                answers = objective.evaluate(list(asking.values()))
                passes += 1
                for pending, answer in zip(list(asking), answers, strict=True):
                    resume(pending, answer)
    finally:
        for pending in asking:
            pending.throw()  # end the coroutine, so that its memory is freed now
    objective.release()
    return passes
