"""The course of a run: each evaluation is counted, timed, added to the proof, reported, and checked against limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.dual_ascent import Opened
from distsms.optim.evaluation import Evaluation, Evaluator, Request
from distsms.optim.proof import NONE_YET, Proof
from distsms.optim.result import State, Status, StopRun
from distsms.optim.settings import Settings
from distsms.optim.smoothing import SmoothingSchedule

Watcher = Callable[[State, Floats], None]

LEVEL = 0.3
"""The level at which a level step aims: the lower bound plus this share of the gap."""
PATIENCE, LITTLE = 500, 1e-3
"""A run ends if `PATIENCE` evaluations have not reduced the gap by the share `LITTLE` (0.1 %)."""
KEPT = ("count", "count_then", "gap_then", "seconds")
"""The attributes of `Course` that a snapshot contains."""


class Course:
    """The course of one run, on each rank that runs the solver; `evaluated` is called after each evaluation that did
    not end it.

    `proof` has the best evaluation, the lower bound and the gap, `last` the solver's last evaluation without gradients,
    and `count` is the number of evaluations, with those before the run was resumed. `count_then` and `gap_then` are the
    number and the gap when the gap was last reduced by the share `LITTLE`; `seconds_before` is the part of `seconds`
    before the run was last resumed. Time spent in `watch` does not count.
    """

    def __init__(self, objective: Evaluator, settings: Settings, watch: Watcher, evaluated: Callable[[], None]) -> None:
        self._objective, self._settings = objective, settings
        self._watch, self._evaluated = watch, evaluated
        self.proof, self.smoothing = Proof(objective, settings), SmoothingSchedule(objective.losses[0], settings)
        self.last = NONE_YET
        self.count = self.count_then = 0
        self.gap_then = np.inf
        self.seconds = self.seconds_before = 0.0
        self._watching = 0.0
        self._start = time.perf_counter()

    def begin(self, spent: float = 0.0) -> None:
        """Start the clock, at so many seconds.

        Raises StopRun if the run was resumed and has already reached its target or a limit.
        """
        self._start = time.perf_counter() - spent
        if np.isfinite(self.proof.best.J):
            self._check_limits()

    def continue_from(self, opened: Opened) -> None:
        """Count what an opening took, and add its plane to the proof."""
        self.count = opened.evaluations
        # The first evaluation will bound the rounding errors more closely.
        self.proof.planes.add(opened.r, opened.d, np.inf)

    def evaluate(self, w: Floats, nu: float, by_solver: bool = True) -> Evaluation:
        """Evaluate J and J_mu of width nu at a slice of w. Raises StopRun if the run has to end."""
        e = self._objective.evaluate([Request(w, nu, self.proof.regularizer)])[0]
        if by_solver:
            self.last = e.without_slopes()
        if not np.isfinite([e.J, e.J_mu, e.optimization_gap, e.d]).all():
            norm = np.sqrt(self._objective.vectors.dot(w, w))
            raise StopRun(Status.NONFINITE, f"at evaluation {self.count + 1}, where ||w|| = {norm:.3g}")
        self.count += 1
        self.proof.add(e)
        self.seconds = float(self._objective.vectors.root_values(np.array([self.elapsed()]))[0])
        self._report(e)
        self._check_limits()
        self._evaluated()
        return e

    def level_step(self) -> float:
        """Evaluate J at the point that `Planes.level_point` proposes, and return the gap after that."""
        self.evaluate(self.proof.level_point(LEVEL), 0.0, by_solver=False)
        return self.proof.gap

    def evaluate_exactly(self) -> None:
        """Replace the upper end of the best J by J itself if that takes less than a tenth of the run; report it."""
        best = self.proof.best
        R = self._objective.exact_risk(best.w, self.count)
        if np.isfinite(R):
            R = min(R, best.R)  # above by rounding at most
            self.proof.best = best = best._replace(J=best.J - (best.R - R), R=R, width=0.0)
            self._report(best)

    @property
    def without_progress(self) -> int:
        """The number of evaluations since the gap was last reduced by the share `LITTLE`."""
        return self.count - self.count_then

    def elapsed(self) -> float:
        """Return the seconds of the run so far by this rank's clock, with those before the run was resumed."""
        return self.seconds_before + time.perf_counter() - self._start - self._watching

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Do something whose time does not count."""
        begun = time.perf_counter()
        yield
        self._watching += time.perf_counter() - begun

    def numbers(self) -> dict[str, Any]:
        """Return what `restore` needs, ready for JSON."""
        return {name: getattr(self, name) for name in KEPT} | self.smoothing.numbers()

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Set the state to that of an earlier run, which this run continues."""
        for name in KEPT:
            setattr(self, name, numbers[name])
        self.seconds_before = self.seconds
        self.smoothing.restore(numbers)

    def _check_limits(self) -> None:
        proof, settings = self.proof, self._settings
        if proof.gap <= proof.target or proof.hopeless:
            proof.check()
        if self._objective.stop_requested:
            raise StopRun(Status.STOPPED)
        if self.seconds - self.seconds_before >= settings.time_limit:
            raise StopRun(Status.TIME)
        if self.count >= settings.max_evaluations:
            raise StopRun(Status.LIMIT)
        if settings.traits.smooth and not self._progresses():
            proof.check(at_end=True)
            self.smoothing.check_floor(self.last, proof.target)
            raise StopRun(Status.STALLED, f"{PATIENCE} evaluations have not narrowed the gap")

    def _progresses(self) -> bool:
        """Return whether the last `PATIENCE` evaluations have reduced the gap by the share `LITTLE`.

        If not, rounding errors prevent further progress. Cutting-plane methods need no such limit, since each plane
        raises the minimum of the model: see `distsms.optim.solvers.bmrm`.
        """
        if self.proof.gap < (1 - LITTLE) * self.gap_then:
            self.gap_then, self.count_then = self.proof.gap, self.count
        return self.without_progress < PATIENCE

    def _report(self, e: Evaluation) -> None:
        state = State(
            evaluation=self.count,
            seconds=self.seconds,
            J=e.J,
            lower_bound=self.proof.planes.lower_bound,
            gap=self.proof.gap,
            best_J=self.proof.best.J,
            J_mu=e.J_mu,
            R=e.R,
            nu=e.nu,
            smoothing_gap=e.smoothing_gap,
            optimization_gap=e.optimization_gap,
            width=e.width,
        )
        with self.not_counted():
            self._watch(state, self.proof.best.w)
