"""After a run, compare its model with a quick ROCArea model of the same rows.

A proof says that the convex risk of a measure is near its minimum. It does not say that the model has a better value of
this measure than another model. So after a training for a measure other than ROCArea, a ROCArea model is trained on a
sample of the rows; its lambda is chosen on rows of the sample. Both models are then compared on rows on which neither
was trained:

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.errors import InputError
from distsms.matrix.augmented import WithBias
from distsms.matrix.base import Features
from distsms.measures import Measure
from distsms.metrics.confidence import Interval
from distsms.metrics.differences import JudgedRows, difference
from distsms.metrics.ranking import measure_value, rocarea
from distsms.optim.objective import Objective
from distsms.optim.result import Result, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import choose_step, make_vectors
from distsms.training.objectives import make_losses
from distsms.training.verdict import why_chance
from distsms.utils.hashing import row_keys
from distsms.utils.typing import Floats, Labels

SHARE, LEAST_SECONDS = 0.1, 1.0
LEAST_ROWS, MOST_ROWS = 2000, 10**6
"""The smallest and the largest expected number of rows of a sample. The smallest holds even if time is short."""
LEAST_BYTES = 2**26
"""Without a memory limit, a sample may take a tenth of all rows' bytes, or this many on each rank if that is more."""
LIBRARIES = 16 * 2**20
"""Bytes that a check takes besides its sample, for compiled code and SciPy's line search (measured)."""
EVALUATIONS = 100
"""The estimated number of evaluations of the ROCArea models, from which the size of the sample follows."""
TENTHS, PATIENCE = 10, 2
"""At most TENTHS lambdas are tried, each a tenth of the lambda before it. The search ends earlier if PATIENCE of them
in a row are not better than the best one.
"""
ROCAREA = Measure.parse("rocarea")
_DRAW, _DIVIDE = 1, 2
"""The seeds of the hashes that draw the sample, and divide it."""
HELD_OUT, CHOOSING = 2, 2
"""A sample has six parts. Those with numbers below HELD_OUT are held out; on part CHOOSING lambda is chosen."""


@dataclass(frozen=True)
class Contest:
    """How two models compare on the same rows.

    Attributes
    ----------
    on : str
        A text for users that says which rows these are.
    measure : str
        The measure of the run. If it has a K, and these rows are a part of all rows, K is reduced in proportion.
    ours, theirs : dict
        ROCArea and that measure of the run's model and of the ROCArea model; keys are "rocarea" and "measure".
    gains : dict of Interval
        By how much the ROCArea model is better, with the same keys.
    useful : bool
        Whether the ROCArea model ranks these rows better than chance.
    """

    on: str
    measure: str
    ours: dict[str, float]
    theirs: dict[str, float]
    gains: dict[str, Interval]
    useful: bool

    def as_json(self) -> dict[str, Any]:
        """Return the attributes, ready for JSON."""
        gains = {name: finite(interval.as_json()) for name, interval in self.gains.items()}
        return vars(self) | {"ours": finite(self.ours), "theirs": finite(self.theirs), "gains": gains}


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with None in place of numbers that are not finite, which JSON does not have. Local."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


@dataclass(frozen=True)
class QuickCheck:
    """A quick ROCArea model, and how it compares with the model of a run.

    Attributes
    ----------
    w : ndarray of shape (p,)
        Its coefficients for rows as training sees them; empty if there is no such model.
    lam, threshold : float
        Its lambda, and the threshold that is best for the measure of the run, by the scores of its training rows.
    rows : int
        How many rows of the sample it was trained on.
    seconds : float
        What the check took.
    contest : Contest or None
        The comparison. It is None until the caller compares the models on test rows, or for the reason in `why`.
    why : str
        Why there is no ROCArea model, or no comparison.
    """

    w: Floats
    lam: float = math.nan
    threshold: float = 0.0
    rows: int = 0
    seconds: float = 0.0
    contest: Contest | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return what a model file says of the check."""
        if self.why:
            return {"why": self.why, "seconds": self.seconds}
        known = {"lambda": self.lam, "rows": self.rows, "seconds": self.seconds}
        return known | (self.contest.as_json() if self.contest else {})


def judge(on: str, measure: Measure, judged: JudgedRows, comm: Communicator) -> Contest:
    """Compare the ROCArea model, which is the first one in `judged`, with the run's own model. **Collective.**

    Parameters
    ----------
    on : str
        A text for users that says which rows these are.
    measure : Measure
        What the run was asked for, with a K for these rows.
    judged : JudgedRows
        The rows that count.
    """
    labels, measures = judged.labels, {"rocarea": ROCAREA, "measure": measure}
    theirs, ours = (
        {name: measure_value(each, scores, labels, at, comm) for name, each in measures.items()}
        for scores, at in zip(judged.scores, judged.thresholds, strict=True)
    )
    gains = {name: difference(each, judged, comm) for name, each in measures.items()}
    useful = not why_chance(judged.scores[0], labels, theirs["rocarea"], comm)
    return Contest(on, measure.name, ours, theirs, gains, useful)


def reserve(memory: float, least: float) -> float | None:
    """Return how many of the `memory` bytes of a rank to keep for a check, or None if there are too few. Local.

    `least` is the smallest number of bytes with which the rank can train.
    """
    wanted = LIBRARIES + memory / 20
    return wanted if least + wanted <= memory else None


class _OutOfTime(Exception):
    """The check has no time left for its ROCArea model."""


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
        self._block = replace(block, features=features, labels=block.labels[drawn], weights=None)
        self._part = row_keys(self._rows, _DIVIDE) % np.uint64(6)

    def run(self, hold_out: bool) -> QuickCheck:
        """Train the ROCArea model and, with `hold_out`, compare it on held-out rows. **Collective.**"""
        try:
            found = self._run(hold_out)
        except _OutOfTime:
            found = QuickCheck(np.empty(0), why="it did not end in its time")
        return replace(found, seconds=float(self._comm.maximum(np.array([time.monotonic() - self._begun]))[0]))

    def _run(self, hold_out: bool) -> QuickCheck:
        labels, comm, features = self._block.labels, self._comm, self._block.features
        out = (self._part < HELD_OUT) & hold_out
        training = ~out
        choosing = (self._part == CHOOSING) & training
        if not min(
            self._count(part & (labels == sign)) for part in (choosing, training & ~choosing) for sign in (1, -1)
        ):
            return QuickCheck(np.empty(0), why="the sample has too few rows")
        lam, start = self._choose_lambda(training & ~choosing, choosing)
        try:
            w = self._solve(ROCAREA, self._quick(lam, 1e-3), training, start).w
        except _OutOfTime:
            w = start
        scores, n = features.margins(w), self._count(training)
        found = QuickCheck(w, lam, self._best_threshold(scores[training], labels[training]), n)
        if not hold_out:
            return found
        own, on = self._retrained(training), f"trained neither (for that, both were trained on {n:,} others)"
        if own is None:
            own, on = self._w, "trained this one, but not the ROCArea model"
        both = scores[out], self._with_bias().margins(own)[out]
        judged = JudgedRows(labels[out], self._rows[out], both, (found.threshold, 0.0))
        n_out = self._count(out)
        return replace(found, contest=judge(f"{n_out:,} rows that {on}", self._at(n_out), judged, comm))

    def _choose_lambda(self, fitting: NDArray[np.bool_], choosing: NDArray[np.bool_]) -> tuple[float, Floats]:
        """Return the lambda with the best ROCArea on the rows `choosing`, and the w trained at it. **Collective.**

        The largest lambda is about the mean squared length of the rows. Larger ones would not help: min J is at least
        1 - D^2 / (2 lambda), where D is the distance between the means of the classes, so J hardly falls below J(0).
        """
        features, labels, comm = self._block.features, self._block.labels, self._comm
        squares, rows = comm.sum(np.array([features.columns().squares.sum(), len(labels)]))
        lam = 10.0 ** round(math.log10(squares / rows)) if 0 < squares < math.inf else 1.0
        best, chosen, w, worse = 0.5, (lam, np.zeros(features.shape[1])), None, 0
        for _ in range(TENTHS):
            try:
                w = self._solve(ROCAREA, self._quick(lam, 1e-2), fitting, w).w
            except _OutOfTime:
                if best == 0.5:
                    raise
                break
            area = rocarea(features.margins(w)[choosing], labels[choosing], comm)
            if area > best:
                best, chosen, worse = area, (lam, w), 0
            elif best > 0.5 and (worse := worse + 1) == PATIENCE:
                break
            lam /= 10
        return chosen

    def _retrained(self, training: NDArray[np.bool_]) -> Floats | None:
        """Train for the run's measure on these rows; return w, or None if there is no proof in time. **Collective.**"""
        n = self._count(training)
        try:
            found = self._solve(self._at(n), self._settings, training, None)
        except (_OutOfTime, InputError):
            return None
        return found.w if found.status is Status.PROVED else None

    def _solve(self, measure: Measure, settings: Settings, training: NDArray[np.bool_], start: Floats | None) -> Result:
        """Train on some rows of the sample. **Collective.** Raises `_OutOfTime`."""
        features = self._block.features if measure == ROCAREA else self._with_bias()
        _, (loss,) = make_losses(self._block, measure, "auto", self._comm, [training])
        step, _ = choose_step("auto", features.shape[1], self._comm.size)
        vectors = make_vectors(step, features.shape[1], self._comm)
        try:
            found = minimize(Objective(features, [loss], self._comm, self._late, None, vectors), settings, start)
        finally:
            vectors.close()
        if found.status in (Status.STOPPED, Status.NONFINITE):
            raise _OutOfTime
        return found

    def _with_bias(self) -> Features:
        return WithBias(self._block.features, self._bias) if self._bias else self._block.features

    @staticmethod
    def _quick(lam: float, epsilon: float) -> Settings:
        return Settings(lam, epsilon, solver="lbfgs", max_evaluations=200)

    def _at(self, n: int) -> Measure:
        """Return the measure asked for, with K in the same proportion to n rows as to all rows. Local."""
        if self._measure.k is None:
            return self._measure
        k = max(1, round(self._measure.k * n / self._n))
        return Measure.parse(f"{self._measure.family.removesuffix('k')}{k}")

    def _count(self, rows: NDArray[np.bool_]) -> int:
        return int(self._comm.sum(np.array([np.count_nonzero(rows)]))[0])

    def _best_threshold(self, scores: Floats, labels: Labels) -> float:
        """Return the threshold at which scores are best for the error rate or F-beta; 0 for others. **Collective.**"""
        if self._measure.family not in ("error-rate", "f-beta"):
            return 0.0
        counts = self._comm.allgather(len(scores))
        scores, labels = (self._comm.allgather_rows(array, counts) for array in (scores, labels))
        order = np.argsort(-scores, kind="stable")
        scores, positive = scores[order], labels[order] > 0
        tp, called = np.cumsum(positive), np.arange(1, len(scores) + 1)
        errors, n_pos = called - 2 * tp, tp[-1]  # the number of errors minus n_pos
        beta = self._measure.beta
        merit = -errors if beta is None else tp / (called + beta**2 * n_pos)
        last = np.append(scores[1:] < scores[:-1], True)  # True for the last row of each run of equal scores
        at = int(np.argmax(np.where(last, merit, -np.inf)))
        return float(scores[at] if at + 1 == len(scores) else scores[at] / 2 + scores[at + 1] / 2)
