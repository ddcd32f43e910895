"""After a run, compare its model with a quick ROCArea model of the same rows.

A proof says that the convex risk of a measure is near its minimum. It does not say that the model has a better value of
this measure than another model. So after a training for a measure other than ROCArea, a ROCArea model is trained on a
sample of the rows; its lambda is chosen on folds of the sample, as `--lambda auto` does it. Both models are then
compared on rows on which neither was trained:

- If there are test rows, the run's own model and the ROCArea model are compared on them.
- If not, a third of the sample is held out. Since the run's own model was trained on these rows, too, a second model
  for its measure is trained on the rest of the sample, like the ROCArea model. If this does not end in time, the run's
  own model is compared instead: it has an advantage, since it was trained on the held-out rows.

A check may take a tenth of the run's seconds, but always at least `LEAST_SECONDS`. A hash of the row numbers draws the
sample and its parts, so that they do not depend on which rank holds which rows. Each rank keeps its rows of the sample.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.errors import InputError
from distsms.matrix.augmented import with_bias
from distsms.matrix.base import Features
from distsms.measures import Measure
from distsms.metrics.differences import JudgedRows
from distsms.optim.objective import Objective
from distsms.optim.result import Result, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import choose_step, make_vectors
from distsms.selection.choice import means
from distsms.selection.lambda_search import DEFAULT, GRID, moderate_choice, number_of_folds, search
from distsms.selection.left_out import CAN_BE_VACUOUS
from distsms.selection.path import Problem
from distsms.training.objectives import make_losses
from distsms.training.quick_check import LIBRARIES, ROCAREA, QuickCheck, judge
from distsms.utils.hashing import row_keys
from distsms.utils.typing import Floats, Labels

SHARE, LEAST_SECONDS = 0.1, 2.0
LEAST_ROWS, MOST_ROWS = 2000, 10**6
"""The smallest and the largest expected number of rows of a sample. The smallest holds even if time is short."""
LEAST_BYTES = 2**26
"""Without a memory limit, a sample may take a tenth of all rows' bytes, or this many on each rank if that is more."""
EVALUATIONS = 150
"""The estimated number of evaluations of the ROCArea models, from which the size of the sample follows."""
_DRAW, _DIVIDE = 1, 2
"""The seeds of the hashes that draw the sample, and divide it."""
HELD_OUT = 3
"""One in this many rows of a sample is held out."""


class _OutOfTime(Exception):
    """The check has no time left for its ROCArea model."""


def check(*, hold_out: bool, **run: Any) -> QuickCheck:
    """Check the model of one run; the parameters are those of `Checker` and of `Checker.run`. **Collective.**"""
    return Checker(**run).run(hold_out)


class Checker:
    """Checks the model of one run on a sample of its rows. Creating it is **collective**.

    Parameters
    ----------
    block : DataBlock
        This rank's training rows.
    measure : Measure
        The measure of the run, which is not ROCArea.
    settings : Settings
        The settings of the run.
    bias : float or None
        The value of the constant feature of the run.
    seconds, evaluations : float, int
        How long the run took.
    w : ndarray of shape (p,), or with a bias (p + 1,)
        The coefficients that the run found.
    comm : Communicator
        The ranks.
    memory : float, optional
        The bytes that a rank has for the check, as `reserve` returned them.
    stop_wanted : callable
        As for `Objective`; it ends the check.
    """

    def __init__(
        self,
        block: DataBlock,
        measure: Measure,
        settings: Settings,
        bias: float | None,
        seconds: float,
        evaluations: int,
        w: Floats,
        comm: Communicator,
        memory: float | None = None,
        stop_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._measure, self._bias, self._w, self._comm = measure, bias, w, comm
        self._settings = replace(settings, checkpoint_every=None, time_limit=math.inf)
        self._begun = time.monotonic()
        end = self._begun + max(LEAST_SECONDS, SHARE * seconds)
        self._late = lambda: stop_wanted() or time.monotonic() > end
        counted = block.counted
        counts = [np.count_nonzero(counted), block.features.nnz, len(counted), block.features.nbytes]
        n, nnz, rows, held = map(int, comm.sum(np.array(counts)))
        room = (memory - LIBRARIES) * comm.size if memory else max(held / 10, LEAST_BYTES * comm.size)
        an_evaluation = seconds / max(evaluations, 1) / max(n, 1)
        by_time = (end - self._begun) / max(an_evaluation * (EVALUATIONS + evaluations), 1e-300)
        self._n, wanted = n, min(MOST_ROWS, max(by_time, LEAST_ROWS), room / (40 * nnz / max(rows, 1) + 100))
        number = block.first_row + np.arange(len(counted))
        drawn = counted & (row_keys(number, _DRAW) / 2.0**64 < wanted / max(n, 1))
        with comm.fail_together():
            features = block.features.take(drawn)
        self._rows = number[drawn]
        self._block = replace(block, features=features, labels=block.labels[drawn], weights=_some(block.weights, drawn))
        self._held_out = row_keys(self._rows, _DIVIDE) % np.uint64(HELD_OUT) == 0

    def run(self, hold_out: bool) -> QuickCheck:
        """Train the ROCArea model and, with `hold_out`, compare it on held-out rows. **Collective.**"""
        try:
            found = self._run(hold_out)
        except _OutOfTime:
            found = QuickCheck(np.empty(0), why="it did not end in its time")
        return replace(found, seconds=float(self._comm.maximum(np.array([time.monotonic() - self._begun]))[0]))

    def _run(self, hold_out: bool) -> QuickCheck:
        labels, comm, features = self._block.labels, self._comm, self._block.features
        out = self._held_out & hold_out
        training = ~out
        n_folds = number_of_folds(*(self._count(training & (labels == sign)) for sign in (1, -1)))
        if n_folds < 2:
            return QuickCheck(np.empty(0), why="the sample has too few rows")
        lam = self._choose_lambda(training, n_folds)
        w = self._solve(ROCAREA, self._quick(lam), training).w
        scores, n = features.margins(w), self._count(training)
        weights = self._block.weights if self._block.weighted else None
        own = scores[training], labels[training], _some(weights, training)
        threshold, beta = self._best_threshold(*own), math.nan
        if self._measure.family in CAN_BE_VACUOUS:
            beta = least_beta(own[0], own[1], comm, own[2])
        found = QuickCheck(w, lam, threshold, n, least_beta=beta)
        if not hold_out:
            return found
        of_run, on = self._retrained(training), f"trained neither (for that, both were trained on {n:,} others)"
        if of_run is None:
            of_run, on = self._w, "trained this one, but not the ROCArea model"
        both = scores[out], self._with_bias().margins(of_run)[out]
        judged = JudgedRows(labels[out], self._rows[out], both, (found.threshold, 0.0), _some(weights, out))
        n_out = self._count(out)
        return replace(
            found, contest=judge(f"{n_out:,} rows that {on}", self._measure.on_part(n_out / self._n), judged, comm)
        )

    def _choose_lambda(self, training: NDArray[np.bool_], n_folds: int) -> float:
        """Return the lambda that `--lambda auto` would take for ROCArea on these rows. **Collective.**"""
        weights = self._block.weights
        used = np.where(training, 1.0 if weights is None else weights, 0.0)
        settings, rows = self._quick(DEFAULT), replace(self._block, weights=used)
        step = self._step(rows.features)
        found = search(rows, Problem("rocarea", GRID, n_folds, 0, settings, step=step), self._comm, self._late)
        if not means(found.points, "rocarea"):
            raise _OutOfTime
        both = moderate_choice(found.points, "rocarea")
        return both[1].lam if both else DEFAULT

    def _step(self, features: Features) -> str:
        return choose_step("auto", features.shape[1], self._comm.size)[0]

    def _retrained(self, training: NDArray[np.bool_]) -> Floats | None:
        """Train for the run's measure on these rows; return w, or None if there is no proof in time. **Collective.**"""
        n = self._count(training)
        try:
            found = self._solve(self._measure.on_part(n / self._n), self._settings, training)
        except (_OutOfTime, InputError):
            return None
        return found.w if found.status is Status.PROVED else None

    def _solve(self, measure: Measure, settings: Settings, training: NDArray[np.bool_]) -> Result:
        """Train on some rows of the sample. **Collective.** Raises `_OutOfTime`."""
        features = self._block.features if measure == ROCAREA else self._with_bias()
        _, (loss,) = make_losses(self._block, measure, "auto", self._comm, [training])
        vectors = make_vectors(self._step(features), features.shape[1], self._comm)
        weights = self._block.weights
        try:
            found = minimize(Objective(features, [loss], self._comm, self._late, None, vectors, weights), settings)
        finally:
            vectors.close()
        if found.status in (Status.STOPPED, Status.NONFINITE):
            raise _OutOfTime
        return found

    def _with_bias(self) -> Features:
        return with_bias(self._block.features, self._bias)

    def _quick(self, lam: float) -> Settings:
        solver = "lmvm" if self._settings.solver == "lmvm" else "lbfgs"  # lmvm only if PETSc is loaded already
        return Settings(lam, solver=solver, max_evaluations=200)

    def _count(self, rows: NDArray[np.bool_]) -> int:
        return int(self._comm.sum(np.array([np.count_nonzero(rows)]))[0])

    def _best_threshold(self, scores: Floats, labels: Labels, weights: Floats | None = None) -> float:
        """Return the threshold at which scores are best for the error rate or F-beta; 0 for others. **Collective.**"""
        if self._measure.family not in ("error-rate", "f-beta"):
            return 0.0
        scores, positive, weights = _falling(scores, labels, weights, self._comm)
        tp, called = np.cumsum(positive * weights), np.cumsum(weights)
        errors, n_pos = called - 2 * tp, tp[-1]  # the number of errors minus n_pos
        beta = self._measure.beta
        merit = -errors if beta is None else tp / (called + beta**2 * n_pos)
        last = np.append(scores[1:] < scores[:-1], True)  # True for the last row of each run of equal scores
        at = int(np.argmax(np.where(last, merit, -np.inf)))
        return float(scores[at] if at + 1 == len(scores) else scores[at] / 2 + scores[at + 1] / 2)


def least_beta(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Return `QuickCheck.least_beta` for these scores, (n_local,) on this rank. **Collective.**"""
    scores, positive, weights = _falling(scores, labels, weights, comm)
    mean = np.average(scores[positive], weights=weights[positive])
    K, sums = (np.cumsum(values[~positive]) for values in (weights, weights * scores))
    below = sums < mean * K
    return float(K[np.argmax(below)] / K[-1]) if below[-1] else math.nan


def _falling(
    scores: Floats, labels: Labels, weights: Floats | None, comm: Communicator
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Return scores, whether rows are positive, and weights, of all ranks, by falling score. **Collective.**"""
    counts = comm.allgather(len(scores))
    weights = np.ones(len(scores)) if weights is None else weights
    scores, labels, weights = (comm.allgather_rows(array, counts) for array in (scores, labels, weights))
    order = np.argsort(-scores, kind="stable")
    return scores[order], labels[order] > 0, weights[order]


def _some(weights: Floats | None, rows: NDArray[np.bool_]) -> Floats | None:
    """Return the weights of some rows; None if there are none."""
    return None if weights is None else weights[rows]
