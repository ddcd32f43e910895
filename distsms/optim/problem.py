"""The smoothed objective as a solver sees it, and when the solver is asked to pause."""

from __future__ import annotations

from typing import Any

from distsms.optim.course import Course
from distsms.optim.level_steps import LevelStepSchedule
from distsms.optim.settings import Settings
from distsms.parallel.vectors import Vectors
from distsms.utils.typing import Floats

STUCK = 50
"""After so many evaluations without progress the bundle's level steps take over for a while."""


class SmoothedProblem:
    """J_mu, its gradient and the model of planes: a `distsms.optim.solvers.base.Problem`.

    Parameters
    ----------
    course : Course
        Evaluates.
    vectors : Vectors
        Where the solver's vectors live.
    settings : Settings
        Of the run.

    Attributes
    ----------
    level_steps : LevelStepSchedule
        When the bundle evaluates in place of the solver.
    rescued : bool
        Whether level steps help where the solver cannot go on.
    narrower, ahead, stuck : bool
        Why the solver was asked to pause: the smoothing is too wide; a level step found a better point; the solver has
        made no progress for `patience` evaluations.
    """

    def __init__(self, course: Course, vectors: Vectors, settings: Settings) -> None:
        self._course, self._vectors, self._traits = course, vectors, settings.traits
        self.dot, self.strong_convexity = vectors.dot, settings.lam  # the risk is convex
        self.level_steps = LevelStepSchedule()
        self.rescued = settings.bundle_steps and settings.c_mu is None
        self._tries = self.rescued and settings.traits.movable
        self.narrower = self.ahead = self.stuck = False
        self.patience = STUCK

    @property
    def holders(self) -> Any:
        """The communicator of the ranks that hold the vectors; asking for it starts MPI, where it is installed."""
        return self._vectors.mpi_comm

    def model_minimum(self) -> tuple[Floats, float]:
        """Return where the model of planes has its minimum, and its value there."""
        return self._course.gap.certificate.minimum()

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """Evaluate J_mu (at nu = 0, J) and its gradient at a slice of w. Raises StopRun at the end of the run."""
        evaluation = self._course.evaluate(w, self._course.smoothing.nu)
        self.level_steps.solver_evaluated(self._course.gap.gap)
        return evaluation.J_mu, evaluation.gradient

    def iterated(self) -> bool:
        """Return whether the solver should pause. May take level steps, and raise StopRun."""
        course = self._course
        gap = course.gap
        self.narrower = course.smoothing.too_wide(course.last, gap.target, course.count)
        if self._tries and self.level_steps.trial_due:
            before = gap.best
            self.level_steps.trial(course.level_step)
            self.ahead = gap.best is not before and gap.best.J < course.last.J
        self.stuck = self.rescued and self._traits.smooth and course.without_progress >= self.patience
        return self.narrower or self.ahead or self.stuck

    def rescue(self) -> None:
        """Let the bundle take level steps as long as they gain a little; then be as patient as they were many."""
        self.level_steps.rescue(self._course.level_step)
        self.patience = max(STUCK, 2 * self._course.without_progress)

    def resumed(self) -> None:
        """Forget why the solver paused: it goes on from the best point."""
        self.ahead = self.stuck = False
