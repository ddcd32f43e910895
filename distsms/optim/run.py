"""The course of a run: evaluations, the solver's starts and pauses, limits, and what is kept to go on from.

The run ends by proof, or at a limit. The solver keeps its memory when the smoothing width changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from distsms.optim.gap import NONE_YET, GapTracker
from distsms.optim.level_steps import LevelStepSchedule
from distsms.optim.objective import Evaluation, Evaluator, Request
from distsms.optim.result import Result, State, Status, StopRun
from distsms.optim.settings import Settings
from distsms.optim.smoothing import SmoothingSchedule
from distsms.optim.solvers.base import Outcome, Problem, Scaled, solver_class
from distsms.optim.state import Snapshot
from distsms.utils.typing import Floats

Watcher = Callable[[State, Floats], None]
Keeper = Callable[[Snapshot], None]

LEVEL = 0.3  # a step of the bundle aims at this share of the gap above the lower bound
STUCK = 50  # so many evaluations without that, and the bundle takes over for a while
PATIENCE, LITTLE = 500, 1e-3  # a run whose gap has not narrowed by this share in so many evaluations is at its end
KEPT = ("starts", "count", "count_then", "gap_then", "patience", "seconds")
"""What a snapshot has of a run itself."""


class TrainingRun:
    """One run, on each rank that steps: what the solver sees as its problem, and who decides when it is over.

    All vectors are slices; all numbers, and so all decisions, are the same on each of these ranks.
    """

    def __init__(
        self,
        objective: Evaluator,
        settings: Settings,
        scale: Floats | None = None,
        watch: Watcher = lambda state, w: None,
        keep: Keeper = lambda snapshot: None,
    ) -> None:
        """scale : from `training.scale_of`.  watch, keep : see `training.train`."""
        self.scale = 1.0 if scale is None else scale
        self.objective, self.settings, self.watch, self.keep = objective, settings, watch, keep
        self.vectors, self.dot = objective.vectors, objective.vectors.dot
        self.proof, self.width, self.pace = (
            GapTracker(objective, settings),
            SmoothingSchedule(objective.losses[0], settings),
            LevelStepSchedule(),
        )
        self.rescued = settings.bundle_steps and settings.c_mu is None
        self.helped = self.rescued and settings.traits.movable
        self.narrower = self.ahead = self.stuck = False  # why the solver was asked to pause
        self.patience = STUCK
        self.last = NONE_YET  # of the solver
        self.count = self.count_then = 0
        self.gap_then, self.starts = np.inf, 1
        self.start = time.perf_counter()
        self.seconds = self.watching = 0.0
        self.seconds_before = self.seconds_kept = 0.0  # at this start of the run, and at the last snapshot
        self.solver: Any = None

    # What the solver sees

    @property
    def holders(self) -> Any:
        """Who holds the vectors; asking starts MPI, where it is installed."""
        return self.vectors.mpi_comm

    @property
    def strong_convexity(self) -> float:
        """lambda, since the risk is convex."""
        return self.settings.lam

    def model_minimum(self) -> tuple[Floats, float]:
        """Where the planes so far put the minimum of J, and its value."""
        return self.proof.certificate.minimum()

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """J_mu (at nu = 0, J) and its gradient at w. Raises Finished at the run's end."""
        evaluation = self._evaluate(w, self.width.nu)
        self.pace.solver_evaluated(self.proof.gap)
        return evaluation.J_mu, evaluation.gradient

    def iterated(self) -> bool:
        """Whether the solver should pause, for a narrower width or a better point. May raise Finished."""
        self.narrower = self.width.too_wide(self.last, self.proof.target, self.count)
        if self.helped and self.pace.trial_due:
            before = self.proof.best
            self.pace.trial(self._bundle_step)
            self.ahead = self.proof.best is not before and self.proof.best.J < self.last.J
        self.stuck = self.rescued and self.settings.traits.smooth and self.count - self.count_then >= self.patience
        return self.narrower or self.ahead or self.stuck

    # The run

    def run(self, w: Floats, snapshot: Snapshot | None = None) -> Result:
        """From w, or from a snapshot, to the end, while the others serve; w in the result is a slice."""
        settings, longest = self.settings, self.vectors.longest
        self.solver = solver_class(settings.solver)(
            self._scaled(),
            w / self.scale,
            settings.history_within(longest),
            settings.solver_options,
            settings.remembered_within(longest),
        )
        try:
            if snapshot is not None:
                self._restore(snapshot)
            self.start = time.perf_counter()  # what loading PETSc took is not the run's
            if self.count:
                self._check_limits()
            self._solve()
        except StopRun as finished:
            self._keep()
            return self._result(finished, w)
        finally:
            self.solver.close()

    def _solve(self) -> NoReturn:
        failures = 0
        while True:
            before = self.proof.gap
            outcome, why = self.solver.run()
            paused = outcome is Outcome.PAUSED
            if self.rescued and (self.stuck or not paused):
                self.pace.rescue(self._bundle_step)
                self.patience = max(STUCK, 2 * (self.count - self.count_then))
            if self.narrower if paused and not self.stuck else self.width.matters(self.last, self.proof.target):
                self.width.shrink(self.count)
                failures = 0
            elif not paused:
                failures = 1 if before > self.proof.gap else failures + 1
                if failures > 1:
                    self.proof.check(at_end=True)
                    raise StopRun(Status.STALLED, why)
            if not paused:
                self.proof.check(at_end=failures > 0)
            if self.stuck or not paused:
                self.solver.restart(self.proof.best.w / self.scale)
            elif self.ahead:
                self.solver.move(self.proof.best.w / self.scale)
            self.ahead = self.stuck = False

    def _scaled(self) -> Problem:
        if isinstance(self.scale, float):
            return self
        return Scaled(self, self.scale, self.vectors.minimum(self.scale))

    def _evaluate(self, w: Floats, nu: float) -> Evaluation:
        """J and J_nu at w; counts, certifies, records. Raises Finished at the run's end."""
        e = self.objective.evaluate([Request(w, nu, self.proof.regularizer)])[0]
        if nu == self.width.nu:  # asked for by the solver
            self.last = e.without_slopes()
        if not np.isfinite([e.J, e.J_mu, e.optimization_gap, e.d]).all():
            where = f"at evaluation {self.count + 1}, where ||w|| = {np.sqrt(self.dot(w, w)):.3g}"
            raise StopRun(Status.NONFINITE, where)
        self.count += 1
        self.proof.add(e)
        self.seconds = float(self.vectors.root_values(np.array([self._seconds()]))[0])
        self._be_watched(e)
        self._check_limits()
        every = self.settings.checkpoint_every
        if every is not None and self.seconds - self.seconds_kept >= every:
            self._keep()
        return e

    def _bundle_step(self) -> float:
        """Evaluate J where the bundle of planes suggests; the gap after it."""
        self._evaluate(self.proof.level_point(LEVEL), 0.0)
        return self.proof.gap

    def _check_limits(self) -> None:
        if self.proof.gap <= self.proof.target or self.proof.hopeless:
            self.proof.check()
        if self.objective.stop_requested:
            raise StopRun(Status.STOPPED)
        if self.seconds - self.seconds_before >= self.settings.time_limit:
            raise StopRun(Status.TIME)
        if self.count >= self.settings.max_evaluations:
            raise StopRun(Status.LIMIT)
        if self.settings.traits.smooth and not self._progresses():
            self.proof.check(at_end=True)
            self.width.check_floor(self.last, self.proof.target)
            raise StopRun(Status.STALLED, f"{PATIENCE} evaluations have not narrowed the gap")

    def _progresses(self) -> bool:
        """Whether the gap has become a little smaller during the last evaluations: at rounding it does not.

        Cutting planes need no such limit, since each one raises the minimum of the model: see `solvers.bmrm`.
        """
        if self.proof.gap < (1 - LITTLE) * self.gap_then:
            self.gap_then, self.count_then = self.proof.gap, self.count
        return self.count - self.count_then < PATIENCE

    # Snapshots

    def _keep(self) -> None:
        """Have a snapshot kept, if that is wanted, and there is something to keep."""
        if self.settings.checkpoint_every is None or not self.count:
            return
        with self.objective.clock.phase("checkpoint"):
            kept = Snapshot({name: getattr(self, name) for name in KEPT} | self.width.numbers())
            kept = kept.joined(self.proof.snapshot()).joined(self.pace.snapshot().under("pace"))
            self.keep(kept.joined(self.solver.memory().under("solver")))
        self.seconds_kept = self.seconds

    def _restore(self, snapshot: Snapshot) -> None:
        """Be where a run was when it was kept."""
        for name in KEPT:
            setattr(self, name, snapshot.numbers[name])
        self.starts += 1
        self.seconds_before = self.seconds_kept = self.seconds
        self.width.restore(snapshot.numbers)
        self.proof.restore(snapshot)
        self.pace.restore(snapshot.part("pace"))
        self.solver.restart(self.proof.best.w / self.scale)
        self.solver.recall(snapshot.part("solver"))

    # What is told

    def _seconds(self) -> float:
        """Since the run's first start, without what watching took or what came between, by this rank's own clock."""
        return self.seconds_before + time.perf_counter() - self.start - self.watching

    def _be_watched(self, e: Evaluation) -> None:
        best, bounds = self.proof.best, (self.proof.certificate.lower_bound, self.proof.gap)
        others = e.J_mu, e.R, e.nu, e.smoothing_gap, e.optimization_gap
        state, paused = State(self.count, self.seconds, e.J, *bounds, best.J, *others), time.perf_counter()
        self.watch(state, best.w)
        self.watching += time.perf_counter() - paused

    def _result(self, finished: StopRun, w: Floats) -> Result:
        best, bound, gap = self.proof.best, self.proof.certificate.lower_bound, np.inf
        if self.count:
            bound, gap, _ = self.proof.proved()
        return Result(
            w=best.w if self.count else w,
            status=finished.status,
            detail=finished.detail,
            J=best.J if self.count else np.nan,
            R=best.R,
            lower_bound=bound,
            gap=gap,
            J_at_zero=self.objective.losses[0].at_zero(),
            nu=self.width.nu,
            evaluations=self.count,
            seconds=self._seconds(),
            starts=self.starts,
        )
