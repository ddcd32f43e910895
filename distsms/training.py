"""Minimizing J to a proved gap: the smoothing width, stopping by proof, limits, and the course of a run.

Smoothing costs at most kappa nu in R. The paper fixes nu (`c_mu`); by default the width starts wide, where J_mu is
easy, and shrinks when what smoothing costs at the present w matters more than what is left to optimize there. The
solver keeps its memory across the change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from distsms.certificate import Certificate
from distsms.clock import Clock
from distsms.errors import InputError
from distsms.losses import Loss
from distsms.objective import Evaluation, Objective, Request
from distsms.pace import Pace
from distsms.regularizer import SquaredNorm
from distsms.result import Result, State, Status
from distsms.settings import Settings
from distsms.snapshot import Snapshot
from distsms.solvers import Outcome, Planes, Problem, Scaled, solver_class
from distsms.vectors import NOT_SPREADABLE, Vectors

Floats = NDArray[np.float64]
Watcher = Callable[[State, Floats], None]
Keeper = Callable[[Snapshot], None]

START_COST = 0.02  # the first width may cost this much of R; several times more or less takes longer
SHRINK = 0.3
LEVEL = 0.3  # a step of the bundle aims at this share of the gap above the lower bound
EVALUATIONS_BETWEEN_SHRINKS = 5
PATIENCE, LITTLE = 500, 1e-3  # a run whose gap has not narrowed by this share in so many evaluations is at its end
FLOOR_SHARE = 1e-3  # a fixed width is at its floor when less than this share of the target is left to optimize


KEPT = ("nu", "starts", "count", "count_at_shrink", "count_then", "gap_then", "seconds")
BEST = tuple(name for name in Evaluation._fields if name not in ("w", "gradient", "r"))
"""What a snapshot has of a run itself, and of its best evaluation besides w."""


class Evaluator(Protocol):
    """What a run asks, on the ranks that step: an `Objective`, or one of several solves' share of it."""

    @property
    def vectors(self) -> Vectors: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def losses(self) -> Sequence[Loss]: ...
    @property
    def stop_requested(self) -> bool: ...
    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]: ...
    def rounding(self, evaluation: Evaluation, dual: Floats, regularizer: SquaredNorm) -> float: ...


class _Finished(Exception):
    """Leaves the solver from inside an evaluation, once the run is over."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


def train(
    objective: Objective,
    settings: Settings,
    w: Floats | None = None,
    watch: Watcher = lambda state, w: None,
    keep: Keeper = lambda snapshot: None,
    snapshot: Snapshot | None = None,
) -> Result:
    """Minimize J over all ranks' rows from w (p,), by default 0. Collective; the settings are the same on every rank.

    watch : called after every evaluation, on each rank that steps (see `distsms.vectors`), with the state and this
    rank's slice of the best w so far, not to be changed. The run's seconds, and its time limit, do not count what
    watching takes.
    keep : called likewise with a snapshot of the run, every `settings.checkpoint_every` seconds and when it ends.
    snapshot : what `keep` had from a run of the same problem, solver and smoothing, on any number of ranks; this one
    goes on from there, not from w. Evaluations and seconds add up; the time limit is for this one alone.
    Raises InputError if the solver needs a smoothed risk and the loss has none, or whole vectors, and they are spread.
    Memory beyond the data: `Settings.vectors_held` on each rank that steps, two vectors (p,) on each.
    """
    comm, vectors = objective.comm, objective.vectors
    scale = scale_of(objective, settings)
    found = None
    if vectors.steps:
        start = np.zeros(vectors.length) if w is None else np.array(vectors.part(w), float)
        found = minimize(objective, settings, start, scale, watch, keep, snapshot)
        objective.release()
    else:
        objective.serve()
    best = vectors.everywhere(found.w if found else None)
    return replace(comm.bcast(found and replace(found, w=np.empty(0))), w=best)


def minimize(
    objective: Evaluator,
    settings: Settings,
    start: Floats,
    scale: Floats | None = None,
    watch: Watcher = lambda state, w: None,
    keep: Keeper = lambda snapshot: None,
    snapshot: Snapshot | None = None,
) -> Result:
    """As `train`, on the ranks that step, while the others serve: of slices, w in the result too.

    scale : from `scale_of`.
    """
    return _Course(objective, settings, watch, keep, scale).run(start, snapshot)


class _Course:
    """One run, on each rank that steps: what the solver sees as its problem, and who decides when it is over.

    All vectors are slices; all numbers, and so all decisions, are the same on each of these ranks.
    """

    def __init__(
        self, objective: Evaluator, settings: Settings, watch: Watcher, keep: Keeper, scale: Floats | None
    ) -> None:
        self.scale = 1.0 if scale is None else scale
        self.objective, self.settings, self.watch, self.keep = objective, settings, watch, keep
        self.vectors, self.dot = objective.vectors, objective.vectors.dot
        loss = objective.losses[0]
        self.regularizer = SquaredNorm(settings.lam)
        self.certificate = _certificate(self.vectors, self.regularizer, loss.nonnegative, settings)
        self.smooth = settings.traits.smooth
        self.adaptive = self.smooth and settings.c_mu is None
        if not self.smooth:
            self.nu = 0.0
        elif settings.c_mu is None:
            self.nu = START_COST / loss.smoothing_cost()
        else:
            self.nu = loss.paper_width(settings.c_mu, settings.target(1.0))
        self.helped = self.adaptive and settings.bundle_steps and settings.traits.movable
        self.pace = Pace()
        self.narrower = self.ahead = False  # why the solver was asked to pause
        self.best: Evaluation | None = None
        self.last: Evaluation | None = None
        self.count = self.count_at_shrink = self.count_then = 0
        self.gap_then, self.starts = np.inf, 1
        self.start = time.perf_counter()
        self.seconds = self.watching = 0.0
        self.seconds_before = self.seconds_kept = 0.0  # at this start of the run, and at the last snapshot
        self.solver: Any = None

    # What the solver sees

    @property
    def holders(self) -> Any:
        """Who holds the vectors; asking starts MPI, where it is installed."""
        return self.vectors.holders

    @property
    def strong_convexity(self) -> float:
        """lambda, since the risk is convex."""
        return self.regularizer.lam

    def model_minimum(self) -> tuple[Floats, float]:
        """Where the planes so far put the minimum of J, and its value."""
        return self.certificate.minimum()

    def value_and_gradient(self, w: Floats) -> tuple[float, Floats]:
        """J_mu (at nu = 0, J) and its gradient at w. Raises _Finished at the run's end."""
        evaluation = self._evaluate(w, self.nu)
        self.pace.solver_evaluated(self.gap)
        return evaluation.J_mu, evaluation.gradient

    def _evaluate(self, w: Floats, nu: float) -> Evaluation:
        """J and J_nu at w; counts, certifies, records. Raises _Finished at the run's end."""
        evaluation = self.objective.evaluate([Request(w, nu, self.regularizer)])[0]
        short = evaluation.without_slopes()
        if nu == self.nu:  # asked for by the solver
            self.last = short
        finite = np.isfinite([evaluation.J, evaluation.J_mu, evaluation.optimization_gap, evaluation.d]).all()
        if not finite:
            raise _Finished(
                Status.NONFINITE, f"at evaluation {self.count + 1}, where ||w|| = {np.sqrt(self.dot(w, w)):.3g}"
            )
        self.count += 1
        if self.best is None or evaluation.J <= self.best.J:  # at the same w, the one of the present width
            self.best = short
        with self.objective.clock.phase("certificate"):
            self.certificate.add(evaluation.r, evaluation.d)
        self.seconds = float(self.vectors.agreed(np.array([self._seconds()]))[0])
        self._be_watched(evaluation)
        self._check_limits()
        every = self.settings.checkpoint_every
        if every is not None and self.seconds - self.seconds_kept >= every:
            self._keep()
        return evaluation

    def iterated(self) -> bool:
        """Whether the solver should pause, for a narrower width or a better point. May raise _Finished."""
        assert self.last is not None and self.best is not None
        self.narrower = self._narrower_wanted()
        if self.helped and self.pace.trial_due:
            before = self.best
            self.pace.trial(self._bundle_step)
            self.ahead = self.best is not before and self.best.J < self.last.J
        return self.narrower or self.ahead

    def _bundle_step(self) -> float:
        """Evaluate J where the bundle of planes suggests; the gap after it."""
        assert self.best is not None
        with self.objective.clock.phase("certificate"):
            w = self.certificate.level_point(self.best.w, self.best.J, LEVEL)
        self._evaluate(w, 0.0)
        return self.gap

    def _narrower_wanted(self) -> bool:
        """Whether smoothing costs too much where the solver is. Raises _Finished at the floor of a fixed width."""
        assert self.last is not None and self.best is not None
        if not self.smooth:
            return False
        smoothing, optimization = self.last.smoothing_gap, self.last.optimization_gap
        target = self.settings.target(self.best.J)
        if not self.adaptive:
            if optimization < FLOOR_SHARE * target:
                self._check_floor(smoothing)
            return False
        return (
            smoothing > target / 2
            and optimization < 10 * max(smoothing, target)
            and self.count - self.count_at_shrink >= EVALUATIONS_BETWEEN_SHRINKS
        )

    def _check_floor(self, smoothing: float) -> None:
        """Raise _Finished if a fixed width alone keeps the gap above the target."""
        assert self.best is not None
        if not self.adaptive and smoothing > self.settings.target(self.best.J) / 2:
            raise _Finished(Status.FLOOR, f"nu = {self.nu:.3g} costs {smoothing:.3g}; a smaller --c-mu gets further")

    # The run

    def run(self, w: Floats, snapshot: Snapshot | None) -> Result:
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
            if self.best is not None:
                self._check_limits()
            self._solve()
        except _Finished as finished:
            self._keep()
            return self._result(finished.status, finished.detail, w)
        finally:
            self.solver.close()

    def _solve(self) -> NoReturn:
        failures = 0
        while True:
            before = self.gap
            outcome, why = self.solver.run()
            assert self.best is not None and self.last is not None
            paused = outcome is Outcome.PAUSED
            if not paused and self.helped:
                self.pace.rescue(self._bundle_step)
            if self.narrower if paused else self._smoothing_matters():
                self._shrink()
                failures = 0
            elif not paused:
                failures = 1 if before > self.gap else failures + 1
                if failures > 1:
                    raise _Finished(Status.STALLED, why)
            if not paused:
                self._check_proof()
                self.solver.restart(self.best.w / self.scale)
            elif self.ahead:
                self.solver.move(self.best.w / self.scale)
            self.ahead = False

    def _scaled(self) -> Problem:
        if isinstance(self.scale, float):
            return self
        return Scaled(self, self.scale, self.vectors.least(self.scale))

    # Snapshots

    def _keep(self) -> None:
        """Have a snapshot kept, if that is wanted, and there is something to keep."""
        if self.settings.checkpoint_every is None or self.best is None:
            return
        with self.objective.clock.phase("checkpoint"):
            numbers = {name: getattr(self, name) for name in KEPT}
            best = {name: getattr(self.best, name) for name in BEST}
            kept = Snapshot(numbers, {}, {"w": [self.best.w]}).joined(Snapshot(best).under("best"))
            kept = kept.joined(self.certificate.snapshot().under("certificate"))
            kept = kept.joined(self.pace.snapshot().under("pace"))
            self.keep(kept.joined(self.solver.memory().under("solver")))
        self.seconds_kept = self.seconds

    def _restore(self, snapshot: Snapshot) -> None:
        """Be where a run was when it was kept; the width, where it is fixed, is this run's own."""
        nu = self.nu
        for name in KEPT:
            setattr(self, name, snapshot.numbers[name])
        self.nu = self.nu if self.adaptive else nu
        self.starts += 1
        self.seconds_before = self.seconds_kept = self.seconds
        numbers = snapshot.part("best").numbers
        nothing = np.empty(0)
        self.best = Evaluation(w=snapshot.vectors["w"][0], gradient=nothing, r=nothing, **numbers)
        self.certificate.restore(snapshot.part("certificate"))
        self.pace.restore(snapshot.part("pace"))
        self.solver.restart(self.best.w / self.scale)
        self.solver.recall(snapshot.part("solver"))

    def _smoothing_matters(self) -> bool:
        assert self.last is not None and self.best is not None
        return self.adaptive and self.last.smoothing_gap > self.settings.target(self.best.J) / 4

    def _shrink(self) -> None:
        self.nu *= SHRINK
        self.count_at_shrink = self.count

    @property
    def gap(self) -> float:
        return max(0.0, self.best.J - self.certificate.lower_bound) if self.best else np.inf

    def _check_limits(self) -> None:
        assert self.best is not None
        if self.gap <= self.settings.target(self.best.J):
            self._check_proof()
        if self.objective.stop_requested:
            raise _Finished(Status.STOPPED)
        if self.seconds - self.seconds_before >= self.settings.time_limit:
            raise _Finished(Status.TIME)
        if self.count >= self.settings.max_evaluations:
            raise _Finished(Status.LIMIT)
        if self.smooth and not self._progresses():
            self._check_proof()
            self._check_floor(self.last.smoothing_gap if self.last else 0.0)
            raise _Finished(Status.STALLED, f"{PATIENCE} evaluations have not narrowed the gap")

    def _progresses(self) -> bool:
        """Whether the gap has become a little smaller during the last evaluations: at rounding it does not.

        Cutting planes need no such limit, since each one raises the minimum of the model: see `solvers.bmrm`.
        """
        if self.gap < (1 - LITTLE) * self.gap_then:
            self.gap_then, self.count_then = self.gap, self.count
        return self.count - self.count_then < PATIENCE

    def _proof(self) -> tuple[float, float]:
        """(lower bound, what rounding can have done to the gap), of the present mixture of planes: one more pass."""
        assert self.best is not None
        dual, bound = self.certificate.minimum()
        return bound, self.objective.rounding(self.best, dual, self.regularizer)

    def _check_proof(self) -> None:
        """Raise _Finished if the gap is proved, or if rounding alone takes half of the target."""
        assert self.best is not None
        (bound, rounding), target = self._proof(), self.settings.target(self.best.J)
        if max(0.0, self.best.J - bound) + rounding <= target:
            raise _Finished(Status.PROVED)
        if not rounding <= target / 2:
            hint = "centre or scale columns of large values, or ask for a larger gap"
            raise _Finished(Status.ROUNDING, f"they may change the gap by {rounding:.3g}; {hint}")

    def _seconds(self) -> float:
        """Since the run's first start, without what watching took or what came between, by this rank's own clock."""
        return self.seconds_before + time.perf_counter() - self.start - self.watching

    def _be_watched(self, evaluation: Evaluation) -> None:
        assert self.best is not None
        state, paused = self._state(evaluation), time.perf_counter()
        self.watch(state, self.best.w)
        self.watching += time.perf_counter() - paused

    def _state(self, e: Evaluation) -> State:
        assert self.best is not None
        return State(
            self.count,
            self.seconds,
            e.J,
            self.certificate.lower_bound,
            self.gap,
            self.best.J,
            e.J_mu,
            e.R,
            e.nu,
            e.smoothing_gap,
            e.optimization_gap,
        )

    def _result(self, status: Status, detail: str, w: Floats) -> Result:
        best = self.best
        if best is not None:
            proved, rounding = self._proof()
            bound, gap = proved - rounding, max(0.0, best.J - proved) + rounding
        else:
            bound, gap = self.certificate.lower_bound, np.inf
        return Result(
            w=best.w if best else w,
            status=status,
            detail=detail,
            J=best.J if best else np.nan,
            R=best.R if best else np.nan,
            lower_bound=bound,
            gap=gap,
            J_at_zero=self.objective.losses[0].at_zero(),
            nu=self.nu,
            evaluations=self.count,
            seconds=self._seconds(),
            starts=self.starts,
        )


def scale_of(objective: Objective, settings: Settings) -> Floats | None:
    """What the solver's variables are multiplied by to give w, a slice; None if its variables are w. Collective.

    Raises InputError if the solver needs a smoothed risk and the loss has none, or whole vectors, and they are spread.
    """
    settings.check_measure(objective.losses[0].name, objective.losses[0].smooth)
    if objective.vectors.longest < objective.p and not settings.traits.spreadable:
        raise InputError(NOT_SPREADABLE, everywhere=True)
    if not (settings.traits.scaled and settings.scaling):
        return None
    with objective.clock.phase("scaling"):
        moments = objective.second_moments()
        return np.where((moments > 0) & np.isfinite(moments), moments, 1.0) ** -settings.scaling


def _certificate(vectors: Vectors, regularizer: SquaredNorm, nonnegative: bool, settings: Settings) -> Certificate:
    """The planes of a run, as its solver needs them."""
    zero, planes = nonnegative and settings.zero_plane, settings.planes_within(vectors.longest)
    pair = settings.traits.planes is Planes.PAIR
    made = Certificate(vectors.length, regularizer, zero and not pair, planes, vectors.dots, vectors.agreed)
    if zero and pair:  # BMRM 2007, Algorithm 2: the first plane of the mixture, rather than one that stays
        made.add(np.zeros(vectors.length), 0.0)
    return made
