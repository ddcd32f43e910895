"""The opening of a run on wide data: dual coordinate ascent.

Each row has a dual variable. Together they are a plane with one coefficient c_i for each row and a constant d, so that

    min J >= D = d - ||r||^2 / (2 lambda),    r = X'c,    w = -r / lambda

and the largest D is min J, but for ROCArea, where it may be below (`distsms.optim.dual_variables`). The method visits
the rows in random order, and maximizes D over one variable at a time, which changes w by a multiple of x_i. Where rows
are few beside the columns, some passes, each about as long as an evaluation, come close to the minimum. With several
ranks, the root gathers the rows, if they are not too large, and does this alone. The run begins with w and a plane that
is computed anew; the solver goes on where the gap falls too slowly, or ROCArea's dual is exhausted.

See Hsieh et al., ICML 2008; Yu, Huang & Lin, Machine Learning 85, 2011; Shalev-Shwartz & Zhang, JMLR 14, 2013.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.matrix.base import RowEntries
from distsms.optim.course import Watcher
from distsms.optim.dual_variables import TINY, DualPlane, Multipliers, Probabilities
from distsms.optim.objective import Objective
from distsms.optim.proof import TOLERATED
from distsms.optim.result import State
from distsms.optim.rows import EPS, RowSizes
from distsms.optim.settings import GATHERED, Settings, ascends

MULTIPLES, NEAR = 10, 0.05
"""The limits of the search for the best multiple of w: evaluations of the loss, and the share of the target."""
UNCHECKED, FALL = 10, 0.1
"""J and the bound are computed after so many passes, or if the gap is expected to be below half of the target: its
estimate is too high, since it falls during the pass, as in the pass before, but at most to this share.
"""
ROUNDING = 0.02
"""The opening subtracts this share of the target from its bounds, since the proof subtracts what rounding may do."""
TOGETHER, BLOCKS = 16, 2**12
"""So many rows are visited one after the other as they lie in memory, which takes half the time where the rows exceed
the caches, and no more passes; fewer where there would be less than `BLOCKS` such blocks, which come in random order.
"""
OF_PLANES = 0.5
"""With full memory for planes, work on one of their numbers takes this share of what a visited entry takes: then an
evaluation by the solver takes 13 passes on text with a quarter as many columns as entries.
"""
LEAST = 3
"""A run that may take no more evaluations has no opening, unless the risk is smooth by itself."""


class Opened(NamedTuple):
    """What the opening reached: slices of the best w and of a plane <r, w> + d below R, and what it took."""

    w: Floats
    r: Floats
    plane: DualPlane  # with r = X'c
    evaluations: int
    seconds: float
    final: bool  # the evaluation at w probably ends the run, by a proof, a limit or since it was asked to stop


def is_usual(objective: Objective, settings: Settings) -> bool:
    """Return whether a run has one of the usual solvers and problems, for which a start was found to pay. Local."""
    loss = objective.losses[0]
    usual = settings.traits.movable and settings.bundle_steps and settings.c_mu is None and not settings.solver_options
    # The starts know no other regularizer than lambda/2 ||w||^2, and cannot go on without the rows of a rank that dies.
    usual &= len(objective.losses) == 1 and not settings.l1 and not objective.comm.failures
    return usual and loss.family.smooth and loss.nonnegative and loss.planes_up_to == np.inf and settings.zero_plane


def suits(objective: Objective, settings: Settings) -> bool:
    """Return whether a run from w = 0 has an opening: none with checkpoints, or rows out of memory. **Collective.**"""
    loss, features = objective.losses[0], objective.features
    least = 1 if loss.family.smooth_by_itself else LEAST
    possible = is_usual(objective, settings) and loss.family.has_dual and settings.checkpoint_every is None
    if not (possible and settings.max_evaluations > least):
        return False
    n, unseen = objective.comm.sum(np.array([features.shape[0], np.sum(~features.rows_in_memory())], float))
    return not unseen and ascends(n, objective.p, loss.family)


def ascend(objective: Objective, settings: Settings, watch: Watcher) -> Opened | None:
    """Maximize D from q = 0. None: rows cannot be visited or gathered, or a number is not finite. **Collective.**"""
    begun = time.perf_counter()
    with objective.clock.phase("rows"):
        available, rows = gathered_rows(objective.features.row_entries(), objective.comm)
    return _Ascent(objective, settings, watch, rows, begun).run() if available else None


def gathered_rows(rows: RowEntries | None, comm: Communicator) -> tuple[bool, RowEntries | None]:
    """Return whether the root has got the rows of all ranks, and, on the root, these rows. **Collective.**"""
    if comm.size == 1:
        return rows is not None, rows
    arrays: list[NDArray[Any] | None] = [] if rows is None else [rows.columns, rows.values, rows.row_factors]
    kinds = rows and [None if array is None else array.dtype.str for array in arrays]
    sizes = [(len(array), array.nbytes) for array in arrays[:2] if array is not None]
    count, size = max(sizes, default=(0, 0))[0], sum(nbytes for _, nbytes in sizes)
    of_ranks = comm.allgather((kinds, count, size, 0 if rows is None else len(rows.begins)))
    present = [other[0] for other in of_ranks if other[3]]  # ranks without rows need not agree
    if rows is None or any(other[0] is None for other in of_ranks) or sum(other[2] for other in of_ranks) > GATHERED:
        return False, None
    if any(kind != present[0] for kind in present):
        return False, None
    if not len(rows.begins):
        arrays = [None if kind is None else np.empty(0, kind) for kind in present[0]]
    before = sum(other[1] for other in of_ranks[: comm.rank])
    columns, values, factors = (None if array is None else comm.gather_rows(array) for array in arrays)
    begins, ends = comm.gather_rows(rows.begins + before), comm.gather_rows(rows.ends + before)
    if begins is None or ends is None:
        return True, None
    return True, RowEntries(columns, values, begins, ends, rows.column_factors, factors, rows.constant)


def random_order(n: int, random: np.random.Generator) -> NDArray[np.intp]:
    """Return the order (n,) of the visits of a pass: blocks of rows in random order."""
    size = min(TOGETHER, 1 + n // BLOCKS)
    blocks = random.permutation(-(-n // size))
    order = (blocks[:, None] * size + np.arange(size)).ravel()
    return order[order < n]


class _Ascent:
    """The ascent on each rank. The root has all rows, visits them and keeps w; others take part in evaluations."""

    def __init__(
        self, objective: Objective, settings: Settings, watch: Watcher, rows: RowEntries | None, begun: float
    ) -> None:
        self._objective, self._settings = objective, settings
        self._watch, self._rows = watch, rows
        self._comm, self._loss = objective.comm, objective.losses[0]
        with objective.clock.phase("loss"):
            kind = Probabilities if self._loss.family.smooth_by_itself else Multipliers
            self._dual = kind(self._loss, settings.lam)
        entries = self._comm.sum(np.array([float(objective.features.nnz)]))[0]
        of_planes = settings.planes_within(objective.vectors.longest) * objective.p
        self._worth = 1.0 + OF_PLANES * of_planes / max(entries, 1.0)
        self._w = np.zeros(objective.p if self._dual.count else 0)
        self._random = np.random.default_rng(0)
        self._evaluations = 0
        self._estimate, self._ratio = math.inf, 1.0  # of the gap, and what the gap was as a share of it
        self._J, self._bound, self._best = self._loss.R_at_zero, -math.inf, np.zeros(objective.vectors.length)
        self._gaps: list[tuple[int, float]] = []  # with the passes before
        self._highest: tuple[Floats, DualPlane] | None = None  # r of the best plane, and the plane
        self._begun, loading = begun, time.perf_counter()
        if rows is not None:  # load the compiled loop, or compile it, which does not count
            self._dual.visit(rows, np.empty(0, np.intp), True, self._w)
        self._watching = time.perf_counter() - loading

    def run(self) -> Opened | None:
        settings, passes, sizes = self._settings, 0, None
        while True:
            new_passes = self._pass_until_due()
            if new_passes < 0:
                return None
            plane, r = self._plane()
            sizes = sizes or self._dual.row_sizes(self._rows)  # which the first pass has found
            if not math.isfinite(plane.d):
                return None
            w, late = r / -settings.lam, self._seconds() >= settings.time_limit
            if self._evaluations + 2 > settings.max_evaluations:
                return Opened(w, r, plane, self._evaluations, self._seconds(), True)
            stop = self._check(plane, r, w, late, sizes)
            if self._highest is None:
                return None
            passes, gap = passes + new_passes, self._J - self._bound
            self._gaps.append((passes, gap))
            target = settings.target(self._J)
            final = target >= gap or self._evaluations + 1 >= settings.max_evaluations
            if stop or final or self._dual.exhausted or self._dual.slow(self._gaps, target, self._worth):
                # The sizes of the rows bound rounding errors if that weakens the proof by no more than `TOLERATED`.
                if sizes.loss_of_proof(self._loss.R_at_zero, settings.lam) <= TOLERATED * target:
                    self._objective.row_sizes = sizes
                r, plane = self._highest
                return Opened(self._best, r, plane, self._evaluations, self._seconds(), final or stop)

    def _seconds(self) -> float:
        return time.perf_counter() - self._begun - self._watching

    def _pass_until_due(self) -> int:
        """Make passes on the root until J and the bound shall be computed. Return their number; -1 if one failed."""
        settings, passes = self._settings, 0
        with self._objective.clock.phase("passes"):
            while self._rows is not None and passes < (UNCHECKED if self._gaps else self._dual.unchecked):
                before, order = self._estimate, random_order(self._dual.count, self._random)
                self._estimate = self._dual.visit(self._rows, order, before == math.inf, self._w)  # at first it is inf
                passes += 1
                if not math.isfinite(self._estimate):
                    passes = -1
                    break
                fall = self._estimate / before if before > 0.0 else 1.0
                expected = self._ratio * self._estimate * min(1.0, max(FALL, fall))
                due = 0.5 * settings.target(self._J) >= expected
                last = self._evaluations + passes + 1 >= settings.max_evaluations
                late = self._seconds() >= settings.time_limit or self._objective.stop_wanted()
                if due or last or late:
                    break
            passes = int(self._comm.broadcast(np.array([float(passes)]))[0])
        self._evaluations += max(passes, 0)
        self._objective.evaluations += max(passes, 0)
        return passes

    def _plane(self) -> tuple[DualPlane, Floats]:
        objective = self._objective
        with objective.clock.phase("loss"):
            plane = self._dual.plane()
        buffer = objective.vectors.buffer(1)
        with objective.clock.phase("gradient X'c"):
            objective.features.transposed_times(plane.c, buffer[:-1])
            buffer[-1] = 0.0
        with objective.clock.phase(objective.vectors.inward):
            (r, *_), _ = objective.vectors.sum_buffer(buffer)
        return plane, r

    def _check(self, plane: DualPlane, r: Floats, w: Floats, late: bool, sizes: RowSizes) -> bool:
        """Compute J at a slice of w, and the plane's bound, if both are finite; return whether the run has to stop."""
        objective = self._objective
        with objective.clock.phase(objective.vectors.outward):
            W = objective.vectors.replicate(1, [w] if objective.vectors.runs_solver else None)
        with objective.clock.phase("margins X w"):
            s = objective.features.margins(W[0])
        if self._rows is not None:
            self._w = W[0].copy()  # without the rounding errors of the passes
        self._evaluations += 1
        objective.evaluations += 1
        flag = objective.stop_wanted() or (late and self._comm.is_root)
        inner, stop = self._comm.sum(np.array([plane.c @ s, float(flag)])).tolist()
        omega = -0.5 * inner  # <r, w> = -lambda ||w||^2
        with objective.clock.phase("loss"):
            theta, J, R = self._best_multiple(omega, s)
        # Rounding of r and of d, and of <r, w>, which is at most as much as that of r.
        of_sizes = 2 * sizes.loss_of_proof(max(omega, 0.0), self._settings.lam) + EPS * self._loss.additions
        bound = plane.d - omega - max(ROUNDING * self._settings.target(J), of_sizes)
        if not math.isfinite(J - bound):
            self._highest = None
            return True
        if J <= self._J:
            self._J, self._best = J, w if theta == 1 else theta * w
        if bound > self._bound or self._highest is None:
            self._bound, self._highest = bound, (r, plane)
        if self._dual.multiples:
            ratio = min(1.0, (J - self._bound) / max(self._estimate, TINY))
            self._ratio = float(self._comm.broadcast(np.array([ratio]))[0])
        if objective.vectors.runs_solver:
            seconds = self._seconds()
            state = State(
                evaluation=self._evaluations,
                seconds=seconds,
                J=J,
                lower_bound=self._bound,
                gap=self._J - self._bound,
                best_J=self._J,
                J_mu=J,
                R=R,
                nu=0.0,
                smoothing_gap=0.0,
                optimization_gap=J - plane.d + omega,
            )
            self._watch(state, self._best)
            self._watching += self._seconds() - seconds
        return stop > 0

    def _best_multiple(self, omega: float, s: Floats) -> tuple[float, float, float]:
        """Return theta >= 1, J and R at theta w, where w has the scores s and lambda/2 ||w||^2 is omega."""

        def tangent(theta: float) -> tuple[float, float, float]:
            value = self._loss.evaluate(theta * s, 0.0)
            slope = float(self._comm.sum(np.array([value.coefficients @ s]))[0]) if self._dual.multiples else 0.0
            return value.R, slope, theta

        # theta minimizes J; R is above its tangents on both sides of the minimum (Franc & Sonnenburg, JMLR 10, 2009).
        left, right = tangent(1.0), None
        best = omega + left[0], 1.0, left[0]
        for _ in range(MULTIPLES if self._dual.multiples else 0):
            R, slope, at = left
            theta = -slope / (2 * omega) if omega > 0 else math.inf
            if not 1 < theta < math.inf:
                break
            if right is None:
                theta = min(theta, 2 * at)
            else:
                crossing = (R - slope * at - right[0] + right[1] * right[2]) / max(right[1] - slope, TINY)
                theta = min(theta, max(crossing, -right[1] / (2 * omega)))
            if best[0] - (omega * theta * theta + R + slope * (theta - at)) <= NEAR * self._settings.target(best[0]):
                break
            new = tangent(theta)
            best = min(best, (omega * theta * theta + new[0], theta, new[0]))
            left, right = (new, right) if 2 * omega * theta + new[1] < 0 else (left, new)
        J, theta, R = best
        return theta, J, R
