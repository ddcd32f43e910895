"""The function that a solver minimizes, and the decision when the solver has to pause."""

from __future__ import annotations

from typing import Any

from distsms.base.typing import Floats
from distsms.optim.course import Course
from distsms.optim.curvature import pays
from distsms.optim.evaluation import Evaluation
from distsms.optim.level_steps import LevelStepSchedule
from distsms.optim.settings import Settings
from distsms.parallel.vectors import Vectors

STUCK = 50
"""After this many evaluations without progress, the run takes level steps (see `distsms.optim.level_steps`) in place of
the solver for a while.
"""


class SmoothedProblem:
    """J_mu, its gradient and the model of planes: a `distsms.optim.solvers.base.Problem`.

    The solver is asked to pause since the smoothing has to become narrower (`too_wide`), since a level step found a
    better point (`found_better`), since there was no progress for `patience` evaluations (`stuck`), or since the
    curvature shall be estimated (`curvature_due`). That is first so after `curvature_at` evaluations, or never if it is
    0; then `latest` is the solver's last evaluation with its gradient. `can_rescue` says whether level steps are taken
    if the solver cannot continue, and `eager` is for the `LevelStepSchedule`.
    """

    def __init__(
        self, course: Course, vectors: Vectors, settings: Settings, curvature_at: int = 0, eager: bool = False
    ) -> None:
        self._course, self._vectors, self._traits = course, vectors, settings.traits
        self.dot, self.strong_convexity = vectors.dot, settings.lam  # the risk is convex
        self.l1 = settings.l1
        self.level_steps = LevelStepSchedule(eager)
        self.can_rescue = settings.bundle_steps and settings.c_mu is None
        self._tries = self.can_rescue and settings.traits.movable
        self.too_wide = self.found_better = self.stuck = False
        self.patience = STUCK
        self.curvature_at, self.curvature_due = curvature_at, False
        self.latest: Evaluation | None = None
        self._at_start: Evaluation | None = None

    @property
    def holders(self) -> Any:
        """The communicator of the ranks that hold the vectors. Reading this starts MPI, if MPI is installed."""
        return self._vectors.mpi_comm

    def model_minimum(self) -> tuple[Floats, float]:
        """Return where the model of planes has its minimum, and its value there."""
        return self._course.proof.planes.minimum()

    def evaluate_start(self, w: Floats) -> None:
        """Evaluate J_mu where the solver will begin, before there is one. Raises StopRun at the end of the run."""
        self._at_start = self._course.evaluate(w, self._course.smoothing.nu)

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """Evaluate J_mu (at nu = 0, J) and the gradient of J_mu - l1 ||w||_1 at a slice of w.

        Raises StopRun at the end of the run.
        """
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
        """Take level steps as long as each narrows the gap a little, then change `patience`.

        `patience` becomes twice the number of evaluations without progress, so that hopeless rescues become rare.
        """
        self.level_steps.rescue(self._course.level_step)
        self.patience = max(STUCK, 2 * self._course.without_progress)

    def variables(self, w: Floats) -> Floats:
        """Return w; see `Scaled.variables`."""
        return w

    def begin_at(self, evaluation: Evaluation) -> None:
        """Give the solver this evaluation where it begins, in place of another one, if the function is the same."""
        if evaluation.nu == self._course.smoothing.nu:
            self._at_start = evaluation

    def resumed(self) -> None:
        """Forget the reasons for the pause. To be called before the solver continues."""
        self.found_better = self.stuck = False
