"""The course of a run: the function that its solver minimizes, and when the solver has to pause. Each evaluation is
counted, timed, added to the proof, reported, and checked against limits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.optim.curvature import pays
from distsms.optim.objective import Evaluation, Evaluator, Request
from distsms.optim.proof import NONE_YET, Proof
from distsms.optim.result import Snapshot, State, Status, StopRun
from distsms.optim.settings import Settings

START_COST = 0.02  # the first width lowers R by at most this; runs take longer with a much larger or smaller value
SHRINK = 0.3
EVALUATIONS_BETWEEN_SHRINKS = 5
# With a fixed width, the run checks whether it can end if the optimization gap is below this share of the target.
FLOOR_SHARE = 1e-3


class SmoothingSchedule:
    """The width nu of the smoothing, fixed as in the paper (`c_mu`), or `adaptive`: it starts large, since J_mu is then
    easy to minimize, and is reduced when smoothing, by at most kappa nu, contributes more to the gap than optimization
    does. nu is 0 for the exact risk, and where that is smooth by itself.
    """

    def __init__(self, loss: Loss, settings: Settings) -> None:
        smooth, c_mu = settings.traits.smooth and not loss.family.smooth_by_itself, settings.c_mu
        self.adaptive, self._fixed = smooth and c_mu is None, smooth and c_mu is not None
        self.nu, self._count_at_shrink = 0.0, 0
        if smooth:
            self.nu = START_COST / loss.kappa if c_mu is None else loss.paper_width(c_mu, settings.target(1.0))

    def too_wide(self, last: Evaluation, target: float, count: int) -> bool:
        """Return whether the width has to be reduced. Raises StopRun if a fixed width makes the target unreachable."""
        smoothing, optimization = last.smoothing_gap, last.optimization_gap
        if optimization < FLOOR_SHARE * target:
            self.check_floor(last, target)
        return (
            self.adaptive
            and smoothing > target / 2
            and optimization < 10 * max(smoothing, target)
            and count - self._count_at_shrink >= EVALUATIONS_BETWEEN_SHRINKS
        )

    def check_floor(self, last: Evaluation, target: float) -> None:
        """Raise StopRun if a fixed width alone keeps the gap above the target."""
        if self._fixed and last.smoothing_gap > target / 2:
            share = f"smoothing with nu = {self.nu:.3g} adds {last.smoothing_gap:.3g} to the gap"
            raise StopRun(Status.FLOOR, f"{share}; a smaller c_mu adds less")

    def matters(self, last: Evaluation, target: float) -> bool:
        """Return whether to reduce the width and restart a solver that can make no further progress."""
        return self.adaptive and last.smoothing_gap > target / 4

    def shrink(self, count: int) -> None:
        self.nu *= SHRINK
        self._count_at_shrink = count

    def numbers(self) -> dict[str, Any]:
        return {"nu": self.nu, "count_at_shrink": self._count_at_shrink}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        self._count_at_shrink = numbers["count_at_shrink"]
        if self.adaptive:
            self.nu = numbers["nu"]


# The gain of an evaluation is the decrease of log(gap).
FIRST = 5  # number of evaluations of the solver before the first trial, and before the next if a trial paid
SMALL, LATEST = 0.2, 50  # the first trial waits for this share of the first gap, or for this many evaluations
LONGEST = 10  # the number of steps in a trial; it is doubled each time that a trial is ended by it
GROWTH = 2.0  # if a trial did not pay, the number of evaluations before the next is multiplied by this
WORTH = 1.5  # a level step pays if it gains this many times the mean gain of the solver's evaluations
RECENT, STALLED = 5, 0.2  # the solver has stalled if its last 5 evaluations gained less than 0.2 of its mean gain
# If the solver has stalled, a trial continues in spite of this many steps in a row that do not pay, since the bundle
# may need some planes first. If the solver had many evaluations since the last trial, the number is larger.
UNPAID = 3
REPEATS, HARDLY = 20, 1e-4  # UNPAID, and the gain above which a step pays, if the solver cannot continue
OF_SCHEDULE = ("gap", "first_gap", "longest", "interval", "since")
"""The attributes of `LevelStepSchedule` that a snapshot contains."""


class LevelStepSchedule:
    """Decides when level steps, evaluations at `Planes.level_point`, take the place of the solver's: they need a
    fraction of those with many more columns than rows or similar rows, else many times as many. So trials decide, the
    first when the gap is small, later ones ever more rarely. If `eager`, also while the solver has not stalled.
    """

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self.gap, self.first_gap, self.longest = np.inf, np.inf, LONGEST
        self._gains: list[float] = []  # the gain of each evaluation of the solver
        self.interval, self.since = float(FIRST), 0

    def solver_evaluated(self, gap: float) -> None:
        if np.isfinite(self.gap):
            self._gains.append(_gain(self.gap, gap))
        else:
            self.first_gap = gap
        self.gap = gap
        self.since += 1

    def snapshot(self) -> Snapshot:
        return Snapshot({name: getattr(self, name) for name in OF_SCHEDULE}, {"gains": np.array(self._gains)})

    def restore(self, snapshot: Snapshot) -> None:
        for name in OF_SCHEDULE:  # checkpoints of version 0.1.0 have neither the first gap nor the longest trial
            setattr(self, name, snapshot.numbers.get(name, getattr(self, name)))
        self._gains = snapshot.tables["gains"].tolist()

    @property
    def trial_due(self) -> bool:
        begun = self.gap <= SMALL * self.first_gap or len(self._gains) >= LATEST
        due = begun and self.since >= self.interval and bool(self._gains)
        return due and (self._eager or self._stalled)

    @property
    def _stalled(self) -> bool:
        """Whether the solver's last evaluations gained much less than those before."""
        return bool(np.mean(self._gains[-RECENT:]) < STALLED * np.mean(self._gains))

    def trial(self, step: Callable[[], float]) -> None:
        """Take level steps, each by `step`, which returns the gap after it, as long as they pay, but not too many."""
        mean = float(np.mean(self._gains))
        patience = max(UNPAID, int(self.interval) // 2) if self._stalled else 0
        paid, to_the_end = self._steps(step, WORTH * mean, patience, self.longest + patience)
        self.longest = 2 * self.longest if to_the_end else LONGEST
        self.interval, self.since = FIRST if paid else GROWTH * self.interval, 0

    def rescue(self, step: Callable[[], float]) -> None:
        """Take level steps as long as they gain anything. To be called if the solver cannot continue."""
        self._steps(step, HARDLY, REPEATS)

    def _steps(
        self, step: Callable[[], float], least: float, patience: int, longest: float = np.inf
    ) -> tuple[int, bool]:
        """Step until more than `patience` in a row gain at most `least`; return how many gained, and if to the end."""
        taken = paid = failures = 0
        while failures <= patience and taken < longest:
            before, self.gap = self.gap, step()
            gain = _gain(before, self.gap)
            paid, failures = (paid + 1, 0) if gain > least else (paid, failures + 1)
            taken += 1
        return paid, failures <= patience


def _gain(before: float, after: float) -> float:
    return float(np.log(before / after)) if after > 0 else np.inf


Watcher = Callable[[State, Floats], None]

LEVEL = 0.3
"""The level at which a level step aims: the lower bound plus this share of the gap."""
PATIENCE, LITTLE = 500, 1e-3
"""A run ends if `PATIENCE` evaluations have not reduced the gap by the share `LITTLE` (0.1 %)."""
OF_EVALUATION = tuple(name for name in State._fields if name in Evaluation._fields)
"""What a state takes from its evaluation."""
STUCK = 50
"""After this many evaluations without progress, the run takes level steps in place of the solver for a while."""
KEPT = ("count", "count_then", "gap_then", "seconds", "patience")
"""The attributes of `Course` that a snapshot contains."""


class Course:
    """The course of one run, on each rank that runs the solver; `evaluated` follows evaluations.

    It is the `Problem` of the solver: J_mu, its gradient and the model of planes. The solver is asked to pause if the
    smoothing has to narrow (`too_wide`), a level step was better (`found_better`), there was no progress for `patience`
    evaluations (`stuck`), or the curvature shall be estimated after `curvature_at` of them (`curvature_due`).
    """

    def __init__(
        self, objective: Evaluator, settings: Settings, watch: Watcher, evaluated: Callable[[], None], curvature_at: int
    ) -> None:
        self._objective, self._settings, loss = objective, settings, objective.losses[0]
        self._watch, self._evaluated = watch, evaluated
        self.proof, self.smoothing = Proof(objective, settings), SmoothingSchedule(loss, settings)
        self.last = NONE_YET  # the solver's last evaluation, without gradients
        self.count = 0  # of evaluations, with those before the run was resumed
        self.count_then, self.gap_then = 0, np.inf  # when the gap was last reduced by the share `LITTLE`
        self.seconds = self.seconds_before = 0.0  # in all, and before the run was last resumed
        self._watching = 0.0  # the seconds in `watch`, which do not count
        self._start = time.perf_counter()
        self.dot, self.l1 = objective.vectors.dot, settings.l1
        self.strong_convexity = settings.lam  # the risk is convex
        self.level_steps = LevelStepSchedule(objective.vectors.p > loss.n and not loss.family.smooth_by_itself)
        # whether level steps are taken if the solver cannot continue
        self.can_rescue = settings.bundle_steps and settings.c_mu is None
        self.too_wide = self.found_better = self.stuck = False
        self.patience = STUCK
        self.curvature_at, self.curvature_due = curvature_at, False
        self.latest: Evaluation | None = None  # the solver's last one with its gradient, if the curvature matters
        self.at_start: Evaluation | None = None  # where the solver begins, if it need not be evaluated again

    def begin(self, spent: float = 0.0) -> None:
        """Start the clock, at so many seconds. Raises StopRun if a resumed run has reached target or limit."""
        self._start = time.perf_counter() - spent
        if np.isfinite(self.proof.best.J):
            self._check_limits()

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

    @property
    def holders(self) -> Any:
        """The communicator of the ranks that hold the vectors. Reading this starts MPI, if MPI is installed."""
        return self._objective.vectors.mpi_comm

    def model_minimum(self) -> tuple[Floats, float]:
        return self.proof.planes.minimum()

    def variables(self, w: Floats) -> Floats:
        return w

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """Evaluate J_mu (at nu = 0, J) and the gradient of J_mu - l1 ||w||_1. Raises StopRun at the end of the run."""
        evaluation, self.at_start = self.at_start or self.evaluate(w, self.smoothing.nu), None
        self.level_steps.solver_evaluated(self.proof.gap)
        if self.curvature_at:
            self.latest = evaluation._replace(w=w.copy(), gradient=evaluation.gradient.copy())
        return evaluation.J_mu, evaluation.gradient

    def iterated(self) -> bool:
        """Return whether the solver should pause. May take level steps, and raise StopRun."""
        proof, traits = self.proof, self._settings.traits
        self.too_wide = self.smoothing.too_wide(self.last, proof.target, self.count)
        if self.can_rescue and traits.movable and self.level_steps.trial_due:
            before = proof.best
            self.level_steps.trial(self.level_step)
            self.found_better = proof.best is not before and proof.best.J < self.last.J
        self.stuck = self.can_rescue and traits.smooth and self.without_progress >= self.patience
        self.curvature_due = 0 < self.curvature_at <= self.count and pays(self.count, proof.gap, proof.target)
        return self.too_wide or self.found_better or self.stuck or self.curvature_due

    def rescue(self) -> None:
        """Take level steps as long as each narrows the gap a little, then double `patience`."""
        self.level_steps.rescue(self.level_step)
        self.patience = max(STUCK, 2 * self.without_progress)

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
        begun = time.perf_counter()
        yield
        self._watching += time.perf_counter() - begun

    def snapshot(self) -> Snapshot:
        numbers = {name: getattr(self, name) for name in KEPT} | self.smoothing.numbers()
        return Snapshot(numbers).joined(self.proof.snapshot()).joined(self.level_steps.snapshot().under("pace"))

    def restore(self, snapshot: Snapshot) -> None:
        for name in KEPT:
            setattr(self, name, snapshot.numbers[name])
        self.seconds_before = self.seconds
        self.smoothing.restore(snapshot.numbers)
        self.proof.restore(snapshot)
        self.level_steps.restore(snapshot.part("pace"))

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
        if not settings.traits.smooth:  # cutting planes need no such limit, since each raises the minimum of the model
            return
        if proof.gap < (1 - LITTLE) * self.gap_then:
            self.gap_then, self.count_then = proof.gap, self.count
        if self.without_progress >= PATIENCE:
            proof.check(at_end=True)
            self.smoothing.check_floor(self.last, proof.target)
            raise StopRun(Status.STALLED, f"{PATIENCE} evaluations have not narrowed the gap")

    def _report(self, e: Evaluation) -> None:
        state = State(
            evaluation=self.count,
            seconds=self.seconds,
            lower_bound=self.proof.planes.lower_bound,
            gap=self.proof.gap,
            best_J=self.proof.best.J,
            **{name: getattr(e, name) for name in OF_EVALUATION},
        )
        with self.not_counted():
            self._watch(state, self.proof.best.w)
