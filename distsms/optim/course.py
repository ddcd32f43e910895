"""The evaluations of a run: each one is counted, timed, added to the proof, watched, and checked against the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from distsms.optim.gap import NONE_YET, GapTracker
from distsms.optim.objective import Evaluation, Evaluator, Request
from distsms.optim.result import State, Status, StopRun
from distsms.optim.settings import Settings
from distsms.optim.smoothing import SmoothingSchedule
from distsms.utils.typing import Floats

Watcher = Callable[[State, Floats], None]

LEVEL = 0.3
"""A level step aims this share of the gap above the lower bound."""
PATIENCE, LITTLE = 500, 1e-3
"""A run ends if its gap has not narrowed by a share of `LITTLE` in `PATIENCE` evaluations."""
KEPT = ("count", "count_then", "gap_then", "seconds")
"""What a snapshot has of these attributes."""


class Course:
    """The course of one run, on each rank that runs the solver.

    Parameters
    ----------
    objective : Evaluator
        J of the rows of all ranks.
    settings : Settings
        The target and the limits.
    watch : callable
        See `distsms.optim.run.minimize`.
    evaluated : callable
        Called after each evaluation that did not end the run.

    Attributes
    ----------
    gap : GapTracker
        What is proved.
    smoothing : SmoothingSchedule
        The width nu of the smoothing.
    last : Evaluation
        The solver's last evaluation, without gradients.
    count : int
        The number of evaluations, of all starts of the run.
    count_then, gap_then : int, float
        The evaluation at which the gap had last narrowed by a share of `LITTLE`, and the gap there.
    seconds, seconds_before : float
        The seconds of all starts, up to the last evaluation; and those of the starts before this one. Time spent in
        `watch` is not counted.
    """

    def __init__(self, objective: Evaluator, settings: Settings, watch: Watcher, evaluated: Callable[[], None]) -> None:
        self._objective, self._settings, self._watch, self._evaluated = objective, settings, watch, evaluated
        self.gap, self.smoothing = GapTracker(objective, settings), SmoothingSchedule(objective.losses[0], settings)
        self.last = NONE_YET
        self.count = self.count_then = 0
        self.gap_then = np.inf
        self.seconds = self.seconds_before = 0.0
        self._watching = 0.0
        self._start = time.perf_counter()

    def begin(self) -> None:
        """Start the clock; a run that goes on may be at its end already. Raises StopRun then."""
        self._start = time.perf_counter()
        if self.count:
            self._check_limits()

    def evaluate(self, w: Floats, nu: float) -> Evaluation:
        """Evaluate J and J_nu at a slice of w. Raises StopRun at the end of the run."""
        e = self._objective.evaluate([Request(w, nu, self.gap.regularizer)])[0]
        if nu == self.smoothing.nu:  # the solver asked for it
            self.last = e.without_slopes()
        if not np.isfinite([e.J, e.J_mu, e.optimization_gap, e.d]).all():
            norm = np.sqrt(self._objective.vectors.dot(w, w))
            raise StopRun(Status.NONFINITE, f"at evaluation {self.count + 1}, where ||w|| = {norm:.3g}")
        self.count += 1
        self.gap.add(e)
        self.seconds = float(self._objective.vectors.root_values(np.array([self.elapsed()]))[0])
        self._report(e)
        self._check_limits()
        self._evaluated()
        return e

    def level_step(self) -> float:
        """Evaluate J where the bundle of planes suggests, and return the gap after it."""
        self.evaluate(self.gap.level_point(LEVEL), 0.0)
        return self.gap.gap

    @property
    def without_progress(self) -> int:
        """The number of evaluations since the gap has last narrowed a little."""
        return self.count - self.count_then

    def elapsed(self) -> float:
        """Return the seconds since the first start of the run, by this rank's own clock."""
        return self.seconds_before + time.perf_counter() - self._start - self._watching

    def numbers(self) -> dict[str, Any]:
        """Return what `restore` needs, ready for JSON."""
        return {name: getattr(self, name) for name in KEPT} | self.smoothing.numbers()

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Go on from where another run was."""
        for name in KEPT:
            setattr(self, name, numbers[name])
        self.seconds_before = self.seconds
        self.smoothing.restore(numbers)

    def _check_limits(self) -> None:
        gap, settings = self.gap, self._settings
        if gap.gap <= gap.target or gap.hopeless:
            gap.check()
        if self._objective.stop_requested:
            raise StopRun(Status.STOPPED)
        if self.seconds - self.seconds_before >= settings.time_limit:
            raise StopRun(Status.TIME)
        if self.count >= settings.max_evaluations:
            raise StopRun(Status.LIMIT)
        if settings.traits.smooth and not self._progresses():
            gap.check(at_end=True)
            self.smoothing.check_floor(self.last, gap.target)
            raise StopRun(Status.STALLED, f"{PATIENCE} evaluations have not narrowed the gap")

    def _progresses(self) -> bool:
        """Return whether the gap has narrowed a little during the last evaluations; at rounding it does not.

        Cutting planes need no such limit, since each one raises the minimum of the model: see `solvers.bmrm`.
        """
        if self.gap.gap < (1 - LITTLE) * self.gap_then:
            self.gap_then, self.count_then = self.gap.gap, self.count
        return self.without_progress < PATIENCE

    def _report(self, e: Evaluation) -> None:
        best, bounds = self.gap.best, (self.gap.certificate.lower_bound, self.gap.gap)
        others = e.J_mu, e.R, e.nu, e.smoothing_gap, e.optimization_gap
        state, paused = State(self.count, self.seconds, e.J, *bounds, best.J, *others), time.perf_counter()
        self._watch(state, best.w)
        self._watching += time.perf_counter() - paused
