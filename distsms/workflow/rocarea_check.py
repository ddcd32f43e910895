"""Compare models for another measure with quick ROCArea models of the same rows: that of a run, or those of a path.

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.hashing import row_keys
from distsms.base.measures import Measure, display_name
from distsms.base.typing import Floats, Labels
from distsms.matrix.augmented import with_bias
from distsms.matrix.base import Features
from distsms.metrics.confidence import LEVEL, Interval, folds_interval
from distsms.metrics.differences import JudgedRows
from distsms.optim.objective import Objective
from distsms.optim.result import Result, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import choose_step, make_vectors
from distsms.shards.dataset import DataBlock
from distsms.training.rows import make_losses
from distsms.workflow.choice import Point, means, values_of_folds
from distsms.workflow.lambda_search import DEFAULT, GRID, moderate_choice, number_of_folds, search
from distsms.workflow.path import PathRows, Problem
from distsms.workflow.quick_check import LIBRARIES, ROCAREA, QuickCheck, is_clear, judge

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


class Checker:
    """Checks the model of one run on a sample of its rows. Creating it is **collective**.

    `block` has this rank's training rows; `measure` is not ROCArea; `seconds` and `evaluations` say how long the run
    took, and w, (p,) or with a bias (p + 1,), is its result. `memory` is what a rank has for the check, if it is
    limited.
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
        self._measure, self._bias, self._w = measure, bias, w
        self._comm = comm
        self._settings = replace(settings, checkpoint_every=None, time_limit=math.inf)
        self._begun = time.monotonic()
        end = self._begun + max(LEAST_SECONDS, SHARE * seconds)
        self._late = lambda: stop_wanted() or time.monotonic() > end
        counted = block.counted
        counts = [np.count_nonzero(counted), block.features.nnz, len(counted), block.features.nbytes]
        n, nnz, *sizes = map(int, comm.sum(np.array(counts)))
        rows, nbytes = sizes
        # The sample has as many rows as the time and the memory allow.
        memory_of_all = (memory - LIBRARIES) * comm.size if memory else max(nbytes / 10, LEAST_BYTES * comm.size)
        by_memory = memory_of_all / (40 * nnz / max(rows, 1) + 100)
        seconds_of_row = seconds / max(evaluations, 1) / max(n, 1)
        by_time = (end - self._begun) / max(seconds_of_row * (EVALUATIONS + evaluations), 1e-300)
        expected = min(MOST_ROWS, max(by_time, LEAST_ROWS), by_memory)
        numbers = block.first_row + np.arange(len(counted))
        drawn = counted & (row_keys(numbers, _DRAW) / 2.0**64 < expected / max(n, 1))
        with comm.fail_together():
            features = block.features.take(drawn)
        self._n, self._rows = n, numbers[drawn]
        self._block = replace(block, features=features, labels=block.labels[drawn], weights=_some(block.weights, drawn))
        self._held_out = row_keys(self._rows, _DIVIDE) % np.uint64(HELD_OUT) == 0

    def run(self, hold_out: bool) -> QuickCheck:
        """Train the ROCArea model and, with `hold_out`, compare it on held-out rows. **Collective.**"""
        try:
            checked = self._run(hold_out)
        except _OutOfTime:
            checked = QuickCheck(np.empty(0), why="it did not end in its time")
        return replace(checked, seconds=float(self._comm.maximum(np.array([time.monotonic() - self._begun]))[0]))

    def _run(self, hold_out: bool) -> QuickCheck:
        block, comm = self._block, self._comm
        labels = block.labels
        out = self._held_out & hold_out
        training = ~out
        n_folds = number_of_folds((self._count(training & (labels > 0)), self._count(training & (labels < 0))))
        if n_folds < 2:
            return QuickCheck(np.empty(0), why="the sample has too few rows")
        # 1) Train the ROCArea model, and choose its threshold on its training rows.
        lam = self._choose_lambda(training, n_folds)
        w = self._solve(ROCAREA, self._quick(lam), training).w
        scores, n = block.features.margins(w), self._count(training)
        weights = block.weights if block.weighted else None
        training_weights = _some(weights, training)
        threshold = self._best_threshold(scores[training], labels[training], training_weights)
        beta = math.nan
        if self._measure.family.can_be_vacuous:
            beta = least_beta(scores[training], labels[training], comm, training_weights)
        checked = QuickCheck(w, lam, threshold, n, least_beta=beta)
        if not hold_out:
            return checked
        # 2) Compare it on the held-out rows with a model for the run's measure.
        w_of_run, trained = self._retrained(training), f"trained neither (for that, both were trained on {n:,} others)"
        if w_of_run is None:
            w_of_run, trained = self._w, "trained this one, but not the ROCArea model"
        both_scores = scores[out], self._with_bias().margins(w_of_run)[out]
        judged = JudgedRows(labels[out], self._rows[out], both_scores, (threshold, 0.0), _some(weights, out))
        n_out = self._count(out)
        measure = self._measure.on_part(n_out / self._n)
        return replace(checked, contest=judge(f"{n_out:,} rows that {trained}", measure, judged, comm))

    def _choose_lambda(self, training: NDArray[np.bool_], n_folds: int) -> float:
        """Return the lambda that `--lambda auto` would take for ROCArea on these rows. **Collective.**"""
        weights = self._block.weights
        training_weights = np.where(training, 1.0 if weights is None else weights, 0.0)
        rows = PathRows(replace(self._block, weights=training_weights), self._comm)
        step = self._step(self._block.features)
        problem = Problem("rocarea", GRID, n_folds, seed=0, settings=self._quick(DEFAULT), step=step)
        points = search(rows, problem, self._late).points
        if not means(points, "rocarea"):
            raise _OutOfTime
        moderate = moderate_choice(points, "rocarea")
        return moderate.chosen.lam if moderate else DEFAULT

    def _step(self, features: Features) -> str:
        return choose_step("auto", features.shape[1], self._comm.size)[0]

    def _retrained(self, training: NDArray[np.bool_]) -> Floats | None:
        """Train for the run's measure on these rows; return w, or None if there is no proof in time. **Collective.**"""
        n = self._count(training)
        try:
            result = self._solve(self._measure.on_part(n / self._n), self._settings, training)
        except (_OutOfTime, InputError):
            return None
        return result.w if result.status is Status.PROVED else None

    def _solve(self, measure: Measure, settings: Settings, training: NDArray[np.bool_]) -> Result:
        """Train on some rows of the sample. **Collective.** Raises `_OutOfTime`."""
        features = self._block.features if measure == ROCAREA else self._with_bias()
        _, (loss,) = make_losses(self._block, measure, "auto", self._comm, [training])
        vectors = make_vectors(self._step(features), features.shape[1], self._comm)
        weights = self._block.weights
        try:
            result = minimize(Objective(features, [loss], self._comm, self._late, None, vectors, weights), settings)
        finally:
            vectors.close()
        if result.status in (Status.STOPPED, Status.NONFINITE):
            raise _OutOfTime
        return result

    def _with_bias(self) -> Features:
        return with_bias(self._block.features, self._bias)

    def _quick(self, lam: float) -> Settings:
        solver = "lmvm" if self._settings.solver == "lmvm" else "lbfgs"  # lmvm only if PETSc is loaded already
        return Settings(lam, solver=solver, max_evaluations=200)

    def _count(self, rows: NDArray[np.bool_]) -> int:
        return int(self._comm.sum(np.array([np.count_nonzero(rows)]))[0])

    def _best_threshold(self, scores: Floats, labels: Labels, weights: Floats | None = None) -> float:
        """Return the threshold at which scores are best for the error rate or F-beta; 0 for others. **Collective.**"""
        if not self._measure.family.has_threshold:
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


class FoldComparison(NamedTuple):
    """By how much quick ROCArea models are better on the folds than those of the path."""

    lam: float  # the lambda that the folds choose for the ROCArea models
    ours: float  # the mean over the folds of the path's models, each with the lambda that the other folds choose
    theirs: float  # that of the ROCArea models
    gain: Interval  # `theirs` minus `ours`, with an interval from the spread of the folds

    def as_json(self) -> dict[str, Any]:
        """Return the fields as path.json has them."""
        return self._asdict() | {"gain": self.gain.as_json()}

    def warning(self, measure: str, chance: bool) -> str:
        """Return a warning if the ROCArea models are clearly better, or the path's models are useless; otherwise "".

        `chance` says whether the path's model ranks no better than chance; by `measure` they were compared.
        """
        clear = is_clear(self.gain, self.ours, self.theirs)
        if not clear and not chance:
            return ""
        advice = f"Use the measure rocarea with lambda {self.lam:g} instead" if clear else "So they do not help, either"
        return (
            f"Quick ROCArea models have {display_name(measure)} {self.theirs:.3f} on the same folds instead of "
            f"{self.ours:.3f} ({self.gain.low:+.3f} to {self.gain.high:+.3f}, with {100 * LEVEL:g} % "
            f"confidence). {advice}"
        )


def compare_on_folds(
    rows: PathRows,
    problem: Problem,
    points: Sequence[Point],
    stop_wanted: Callable[[], bool],
    rule: str = "best",
) -> FoldComparison | None:
    """Train quick ROCArea models on the folds of a path, and compare them with its models. **Collective.**

    `points` are those of the path on the root, and `rule` is that by which it chooses. Returns the comparison on the
    root; None on the other ranks, and if it was stopped or has no folds to compare.
    """
    by = problem.select or problem.measure
    outcome = search(rows, replace(problem, measure="rocarea", select=by, bias=None), stop_wanted)
    if outcome.stopped or not rows.comm.is_root:
        return None
    ours, theirs = values_of_folds(points, by, rule), values_of_folds(outcome.points, by)
    if not ours or len(ours) != len(theirs):
        return None
    moderate = moderate_choice(outcome.points, by)
    lam = moderate.chosen.lam if moderate else DEFAULT
    gain = folds_interval((np.array(theirs) - ours).tolist(), LEVEL)
    return FoldComparison(lam, float(np.mean(ours)), float(np.mean(theirs)), gain)
