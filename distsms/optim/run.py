"""A run starts, pauses and restarts the solver until the gap is proved or a limit is reached, and takes snapshots.
Ranks with the solver's vectors execute a `TrainingRun`; the others take part in its evaluations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from distsms.base.errors import EXIT_NONFINITE, EXIT_REQUEUE
from distsms.base.typing import Floats
from distsms.optim import curvature, stochastic
from distsms.optim.course import Course, Watcher
from distsms.optim.dual_ascent import Opened, ascend, suits
from distsms.optim.objective import Evaluator, Objective
from distsms.optim.planes import OPENING
from distsms.optim.result import Origin, Result, Snapshot, Status, StopRun
from distsms.optim.settings import Settings, curves, usual_pairs
from distsms.optim.solvers.base import Problem, Scaled, solver_class
from distsms.parallel.vectors import DistributedVectors

Keeper = Callable[[Snapshot], None]


def minimize(
    objective: Objective,
    settings: Settings,
    w: Floats | None = None,
    watch: Watcher = lambda state, w: None,
    keep: Keeper = lambda snapshot: None,
    snapshot: Snapshot | None = None,
) -> Result:
    """Minimize J over the rows of all ranks to a proved gap; the result is the same on every rank. **Collective.**

    Without a `w` (p,) or a snapshot, it begins at 0, or where an opening leads. On ranks with the solver, `watch` gets
    the `State` and a slice of the best w after every evaluation, and `keep` a `Snapshot` every
    `settings.checkpoint_every` seconds and at the end, with which any number of ranks continue the run; the time limit
    is for this call alone. Memory besides the data: `Settings.vectors_held`, and two or three vectors (p,) on a rank.
    """
    comm, vectors = objective.comm, objective.vectors
    result, opened, scale, curvature_at, spent = None, None, None, 0, 0.0
    settings.check_measure(objective.losses[0].family.name, objective.losses[0].family)
    objective.row_sizes = None
    objective.prove_to(settings.target)
    if w is None and snapshot is None:
        if suits(objective, settings):
            opened = ascend(objective, settings, watch)
        elif stochastic.suits(objective, settings):
            w, spent = stochastic.start(objective, settings)
    if opened is None or not opened.final:
        scale = objective.surviving(lambda: scale_of(objective, settings))
        curvature_at = objective.surviving(lambda: curvature_due_after(objective, settings))
    if vectors.runs_solver:
        start = np.zeros(vectors.length) if w is None else np.array(vectors.local_slice(w), float)
        result = TrainingRun(objective, settings, scale, watch, keep, curvature_at).run(start, snapshot, opened, spent)
        objective.release()
    else:
        objective.serve()

    def share() -> Result:
        best = vectors.allgather(result.w if result else None)
        mixture, of_opening = result and result.mixture, opened.plane.c if opened and settings.points else None
        shared = comm.bcast(result and replace(result, w=np.empty(0), mixture=None))
        return replace(shared, w=best, mixture=mixture, opening=of_opening)

    return objective.surviving(share)


def scale_of(objective: Objective, settings: Settings) -> Floats | None:
    """Return a slice of the factors from the solver's variables to w, or None if it works on w. **Collective.**"""
    exponent = settings.scaling_of(objective.p)
    if not (settings.traits.scaled and exponent):
        return None
    with objective.clock.phase("scaling"):
        moments = objective.second_moments() + settings.lam
        return np.where(np.isfinite(moments), moments, 1.0) ** -exponent


class TrainingRun:
    """One run, which can run once, on each rank with the solver; vectors are slices, and `scale` is of `scale_of`."""

    def __init__(
        self,
        objective: Evaluator,
        settings: Settings,
        scale: Floats | None = None,
        watch: Watcher = lambda state, w: None,
        keep: Keeper = lambda snapshot: None,
        curvature_at: int = 0,
    ) -> None:
        self._objective, self._settings = objective, settings
        self._keep, self._scale = keep, scale
        self._course = Course(objective, settings, watch, self._keep_if_due, curvature_at)
        self._of_solver: Problem = self._course
        if scale is not None:
            self._of_solver = Scaled(self._course, scale, objective.vectors.minimum(scale))
        self._starts, self._seconds_kept = 1, 0.0
        self._ways_before = Counter(objective.losses[0].ways)  # of other runs with this loss
        self._solver: Any = None
        self._turned = False  # whether the solver works in the variables of `distsms.optim.curvature`

    def run(
        self, w: Floats, snapshot: Snapshot | None = None, opened: Opened | None = None, spent: float = 0.0
    ) -> Result:
        """Return the result of a run from a slice of w, found in `spent` seconds, a snapshot or an opening."""
        course = self._course
        try:
            if opened is None:
                self._make_solver(w)
                if snapshot is not None:
                    self._restore(snapshot)
                course.begin(spent)  # the clock starts only now, so that the time for loading PETSc does not count
            else:
                w = opened.w
                course.begin(opened.seconds)
                course.count = opened.evaluations
                # The first evaluation will bound the rounding errors more closely.
                course.proof.planes.add(opened.r, opened.plane.d, np.inf, Origin(w[:0], OPENING))
                # This often proves the gap, and then no solver is needed.
                course.at_start = course.evaluate(w, course.smoothing.nu)
                with course.not_counted():
                    self._make_solver(w)
            self._solve()
        except StopRun as end:
            self._keep_snapshot()
            if course.proof.best.width > 0 and end.status.exit_code not in (EXIT_REQUEUE, EXIT_NONFINITE):
                course.evaluate_exactly()
            return self._result(end, w)
        finally:
            if self._solver is not None:
                self._solver.close()
            vars(self).clear()  # run and solver refer to each other; so their vectors are freed now, and not by chance

    def _make_solver(self, w: Floats) -> None:
        settings, loss, vectors = self._settings, self._objective.losses[0], self._objective.vectors
        usual = usual_pairs(vectors.p, loss.n, loss.family.history)
        self._solver = solver_class(settings.solver)(
            self._of_solver,
            self._of_solver.variables(w),
            settings.history_within(vectors.longest, usual),
            settings.solver_options,
            settings.remembered_within(vectors.longest, usual),
        )

    def _solve(self) -> NoReturn:
        course, proof, failures = self._course, self._course.proof, 0
        while True:
            # 1) The solver, until it pauses or fails; then perhaps level steps in its place.
            before = proof.gap
            why = self._solver.run()
            paused = not why
            if course.can_rescue and (course.stuck or not paused):
                course.rescue()
            # 2) A narrower smoothing, or the end if nothing helps.
            can_continue = paused and not course.stuck  # the solver paused only because it was asked to
            if course.too_wide if can_continue else course.smoothing.matters(course.last, proof.target):
                course.smoothing.shrink(course.count)
                failures = 0
            elif not paused:
                failures = 1 if before > proof.gap else failures + 1
                if failures > 1:
                    proof.check(at_end=True)
                    raise StopRun(Status.STALLED, why)
            if not paused:
                proof.check(at_end=failures > 0)
            # 3) Where the solver goes on.
            if not can_continue:
                self._solver.restart(self._of_solver.variables(proof.best.w))
            elif course.found_better:
                self._solver.move(self._of_solver.variables(proof.best.w))
            elif course.curvature_due:
                self._precondition()
            course.found_better = course.stuck = False

    def _precondition(self) -> None:
        """Let the solver start anew in variables in which the curvature is about equal, where it is now."""
        objective, course, settings = self._objective, self._course, self._settings
        here, p = course.latest, objective.vectors.p
        assert here is not None
        sums = objective.curvature(here.w, here.nu)
        moments = np.zeros(p)
        if self._scale is not None:
            moments = self._scale ** (-1 / settings.scaling_of(p)) - settings.lam
        L = curvature.factor(sums, p, settings.lam, moments)
        course.curvature_at = 0 if L is None else curvature.GROWTH * course.count
        if L is not None:
            self._of_solver, self._turned = curvature.Preconditioned(course, L), True
            self._solver.close()
            self._make_solver(here.w)
            if here.nu == course.smoothing.nu:  # the function is the same
                course.at_start = here

    def _keep_if_due(self) -> None:
        every = self._settings.checkpoint_every
        if every is not None and self._course.seconds - self._seconds_kept >= every:
            self._keep_snapshot()

    def _keep_snapshot(self) -> None:
        course = self._course
        if self._settings.checkpoint_every is None or not course.count:
            return
        with self._objective.clock.phase("checkpoint"):
            snapshot = Snapshot({"starts": self._starts, "ways": self._ways_of_run()}).joined(course.snapshot())
            # What the solver remembers is of no use without the matrix. A resumed run estimates that anew.
            memory = Snapshot({"turned": True}) if self._turned else self._solver.memory().under("solver")
            self._keep(snapshot.joined(memory))
        self._seconds_kept = course.seconds

    def _restore(self, snapshot: Snapshot) -> None:
        course = self._course
        course.restore(snapshot)
        self._starts, self._seconds_kept = snapshot.numbers["starts"] + 1, course.seconds
        self._ways_before.subtract(snapshot.numbers.get("ways", {}))
        self._solver.restart(self._of_solver.variables(course.proof.best.w))
        if not snapshot.numbers.get("turned"):
            self._solver.recall(snapshot.part("solver"))

    def _ways_of_run(self) -> dict[str, int]:
        ways = Counter(self._objective.losses[0].ways)
        ways.subtract(self._ways_before)
        return dict(+ways)

    def _result(self, end: StopRun, w: Floats) -> Result:
        course, at_zero = self._course, self._objective.losses[0].R_at_zero
        best, planes = course.proof.best, course.proof.planes
        bound, gap, _ = course.proof.proved() if course.count else (planes.lower_bound, np.inf, 0.0)
        return Result(
            w=best.w if course.count else w,
            status=end.status,
            detail=end.detail,
            J=best.J if course.count else np.nan,
            R=best.R,
            lower_bound=bound,
            gap=gap,
            J_at_zero=at_zero,
            nu=course.smoothing.nu,
            evaluations=course.count,
            seconds=course.elapsed(),
            starts=self._starts,
            width=best.width,
            ways=self._ways_of_run(),
            l1_limit=planes.l1_limit(at_zero),
            slope_at_zero=planes.slope_at_zero(at_zero),
            mixture=None if planes.origins is None else planes.origins.mixture(),
        )


def curvature_due_after(objective: Objective, settings: Settings) -> int:
    """Return after how many evaluations H shall first be estimated; 0: not at all. **Collective.**"""
    loss, p = objective.losses[0], objective.p
    possible = loss.family.has_curvature and settings.traits.movable and settings.bundle_steps and settings.c_mu is None
    possible &= not (settings.l1 or settings.solver_options or objective.comm.failures)
    if not possible or isinstance(objective.vectors, DistributedVectors):
        return 0
    features = objective.features
    entries = float(objective.comm.sum(np.array([float(features.nnz)]))[0])
    if not curves(loss.n, p, entries):
        return 0
    streamed = objective.comm.sum(np.array([float(np.sum(~features.rows_in_memory()))]))[0]
    evaluations = curvature.evaluations_worth(loss.n, p, entries, objective.comm.size)
    if streamed or evaluations > curvature.DEAREST:
        return 0
    rows = features.row_entries(np.empty(0, np.intp))
    if rows is not None:  # compile the loop, or load it, before the seconds of the run count
        curvature.add_squares(rows, np.empty(0), np.zeros(p), np.zeros((p, p)))
    return max(curvature.FIRST, math.ceil(evaluations))
