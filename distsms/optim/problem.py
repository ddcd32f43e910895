"""The function that a solver minimizes, and the decision when the solver has to pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.course import Course
from distsms.optim.curvature import pays
from distsms.optim.evaluation import Evaluation
from distsms.optim.result import Snapshot
from distsms.optim.settings import Settings
from distsms.parallel.vectors import Vectors

# The gain of an evaluation is the decrease of log(gap).
FIRST = 5  # number of evaluations of the solver before the first trial, and before the next if a trial paid
SMALL, LATEST = 0.2, 50  # the first trial waits for this share of the first gap, or for this many evaluations
LONGEST = 10  # the number of steps in a trial; it is doubled each time that a trial is ended by it
GROWTH = 2.0  # if a trial did not pay, the number of evaluations before the next is multiplied by this
WORTH = 1.5  # a level step pays if it gains this many times the mean gain of the solver's evaluations
RECENT, STALLED = 5, 0.2  # the solver has stalled if its last 5 evaluations gained less than 0.2 of its mean gain
# If the solver has stalled, a trial continues in spite of this many steps in a row that do not pay, since the bundle
# may need some planes first. If the solver had many evaluations since the last trial, the number is larger.
PATIENCE = 3
REPEATS, LITTLE = 20, 1e-4  # PATIENCE, and the gain above which a step pays, if the solver cannot continue


class LevelStepSchedule:
    """Decides when level steps, evaluations at `Planes.level_point`, take the place of the solver's: they need a
    fraction of those with many more columns than rows or similar rows, else many times as many. So trials decide, the
    first when the gap is small, later ones ever more rarely. If `eager`, also while the solver has not stalled.
    """

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self._gap, self._first_gap, self._longest = np.inf, np.inf, LONGEST
        self._gains: list[float] = []  # the gain of each evaluation of the solver
        self._interval, self._since = float(FIRST), 0

    def solver_evaluated(self, gap: float) -> None:
        if np.isfinite(self._gap):
            self._gains.append(_gain(self._gap, gap))
        else:
            self._first_gap = gap
        self._gap = gap
        self._since += 1

    def snapshot(self) -> Snapshot:
        numbers = {"gap": self._gap, "first_gap": self._first_gap, "longest": self._longest}
        numbers |= {"interval": self._interval, "since": self._since}
        return Snapshot(numbers, {"gains": np.array(self._gains)})

    def restore(self, snapshot: Snapshot) -> None:
        numbers = snapshot.numbers
        self._gap, self._interval, self._since = (numbers[name] for name in ("gap", "interval", "since"))
        self._first_gap = numbers.get("first_gap", np.inf)  # checkpoints of version 0.1.0 have neither
        self._longest = numbers.get("longest", LONGEST)
        self._gains = snapshot.tables["gains"].tolist()

    @property
    def trial_due(self) -> bool:
        begun = self._gap <= SMALL * self._first_gap or len(self._gains) >= LATEST
        due = begun and self._since >= self._interval and bool(self._gains)
        return due and (self._eager or self._stalled)

    @property
    def _stalled(self) -> bool:
        """Whether the solver's last evaluations gained much less than those before."""
        return bool(np.mean(self._gains[-RECENT:]) < STALLED * np.mean(self._gains))

    def trial(self, step: Callable[[], float]) -> None:
        """Take level steps, each by `step`, which returns the gap after it, as long as they pay, but not too many."""
        mean = float(np.mean(self._gains))
        patience = max(PATIENCE, int(self._interval) // 2) if self._stalled else 0
        paid, to_the_end = self._steps(step, WORTH * mean, patience, self._longest + patience)
        self._longest = 2 * self._longest if to_the_end else LONGEST
        self._interval, self._since = FIRST if paid else GROWTH * self._interval, 0

    def rescue(self, step: Callable[[], float]) -> None:
        """Take level steps as long as they gain anything. To be called if the solver cannot continue."""
        self._steps(step, LITTLE, REPEATS)

    def _steps(
        self, step: Callable[[], float], least: float, patience: int, longest: float = np.inf
    ) -> tuple[int, bool]:
        """Step until more than `patience` in a row gain at most `least`; return how many gained, and if to the end."""
        taken = paid = failures = 0
        while failures <= patience and taken < longest:
            before, self._gap = self._gap, step()
            gain = _gain(before, self._gap)
            paid, failures = (paid + 1, 0) if gain > least else (paid, failures + 1)
            taken += 1
        return paid, failures <= patience


def _gain(before: float, after: float) -> float:
    return float(np.log(before / after)) if after > 0 else np.inf


STUCK = 50
"""After this many evaluations without progress, the run takes level steps in place of the solver for a while."""


class SmoothedProblem:
    """J_mu, its gradient and the model of planes: a `Problem`; `eager` is for level steps. The solver is asked to pause
    if the smoothing has to narrow (`too_wide`), a level step was better (`found_better`), there was no progress for
    `patience` evaluations (`stuck`), or the curvature shall be estimated after `curvature_at` of them
    (`curvature_due`).
    """

    def __init__(
        self, course: Course, vectors: Vectors, settings: Settings, curvature_at: int = 0, eager: bool = False
    ) -> None:
        self._course, self._vectors, self._traits = course, vectors, settings.traits
        self.dot, self.strong_convexity = vectors.dot, settings.lam  # the risk is convex
        self.l1 = settings.l1
        self.level_steps = LevelStepSchedule(eager)
        # whether level steps are taken if the solver cannot continue
        self.can_rescue = settings.bundle_steps and settings.c_mu is None
        self._tries = self.can_rescue and settings.traits.movable
        self.too_wide = self.found_better = self.stuck = False
        self.patience = STUCK
        self.curvature_at, self.curvature_due = curvature_at, False
        self.latest: Evaluation | None = None  # the solver's last one with its gradient, if the curvature matters
        self._at_start: Evaluation | None = None

    @property
    def holders(self) -> Any:
        """The communicator of the ranks that hold the vectors. Reading this starts MPI, if MPI is installed."""
        return self._vectors.mpi_comm

    def model_minimum(self) -> tuple[Floats, float]:
        return self._course.proof.planes.minimum()

    def evaluate_start(self, w: Floats) -> None:
        """Evaluate J_mu where the solver will begin, before there is one. Raises StopRun at the end of the run."""
        self._at_start = self._course.evaluate(w, self._course.smoothing.nu)

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """Evaluate J_mu (at nu = 0, J) and the gradient of J_mu - l1 ||w||_1. Raises StopRun at the end of the run."""
        evaluation, self._at_start = self._at_start or self._course.evaluate(w, self._course.smoothing.nu), None
        self.level_steps.solver_evaluated(self._course.proof.gap)
        if self.curvature_at:
            self.latest = evaluation._replace(w=w.copy(), gradient=evaluation.gradient.copy())
        return evaluation.J_mu, evaluation.gradient

    def iterated(self) -> bool:
        """Return whether the solver should pause. May take level steps, and raise StopRun."""
        course = self._course
        proof = course.proof
        self.too_wide = course.smoothing.too_wide(course.last, proof.target, course.count)
        if self._tries and self.level_steps.trial_due:
            before = proof.best
            self.level_steps.trial(course.level_step)
            self.found_better = proof.best is not before and proof.best.J < course.last.J
        self.stuck = self.can_rescue and self._traits.smooth and course.without_progress >= self.patience
        self.curvature_due = 0 < self.curvature_at <= course.count and pays(course.count, proof.gap, proof.target)
        return self.too_wide or self.found_better or self.stuck or self.curvature_due

    def rescue(self) -> None:
        """Take level steps as long as each narrows the gap a little, then double `patience`."""
        self.level_steps.rescue(self._course.level_step)
        self.patience = max(STUCK, 2 * self._course.without_progress)

    def variables(self, w: Floats) -> Floats:
        return w

    def begin_at(self, evaluation: Evaluation) -> None:
        """Give the solver this evaluation where it begins, in place of another one, if the function is the same."""
        if evaluation.nu == self._course.smoothing.nu:
            self._at_start = evaluation

    def resumed(self) -> None:
        self.found_better = self.stuck = False
