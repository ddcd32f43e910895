"""Compare models for another measure with quick ROCArea models of the same rows: that of a run, or those of a path.

A ROCArea model is trained on a sample of the rows, whose folds choose its lambda. Without test rows a third of the
sample is held out, and a second model for the run's measure is trained on the rest; if this takes too long, the run's
own is compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import finite
from distsms.base.hashing import row_keys
from distsms.base.measures import SHOWN, Measure, display_name
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.matrix.augmented import with_bias
from distsms.matrix.base import Features
from distsms.metrics.confidence import LEVEL, Interval, folds_interval
from distsms.metrics.differences import JudgedRows, difference
from distsms.metrics.ranking import measure_value
from distsms.optim.objective import Objective
from distsms.optim.result import Result, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.vectors import choose_step, make_vectors
from distsms.shards.row_metadata import some
from distsms.training.fit import Fit
from distsms.training.rows import make_losses
from distsms.training.task import Distribution, Reserve
from distsms.workflow.auto_lambda import GRID, cross_validate, moderate_choice, number_of_folds
from distsms.workflow.choice import Point, means, values_of_folds
from distsms.workflow.path import PathRows, Problem
from distsms.workflow.requests import DEFAULT_LAMBDA
from distsms.workflow.verdict import ROCAREA, rounded_up, why_chance

LIBRARIES = 16 * 2**20
"""Bytes that a check takes besides its sample, for compiled code (measured)."""
RESERVE = Reserve(LIBRARIES, 1 / 20)
"""What a run leaves free for the check of its model, if memory is limited."""
CLEARLY_WORSE = CLEARLY_BETTER = 0.02
"""A model ranks clearly worse if its ROCArea is lower by this much, and a quick ROCArea model is clearly better at a
measure by this share of the larger value, if the interval of the difference excludes 0, too, as it does by chance in
one of forty checks of equal models.
"""
COMPARE = "and compare its model with logistic regression (distsms baseline)."


@dataclass(frozen=True)
class Contest:
    """How two models compare on the same rows."""

    on: str  # a text for users that says which rows these are
    measure: str  # that of the run; a K is reduced in proportion if these rows are a part of all rows
    ours: dict[str, float]  # "rocarea" and "measure" of the run's model
    theirs: dict[str, float]  # those of the ROCArea model
    gains: dict[str, Interval]  # by how much the ROCArea model is better, with the same keys
    useful: bool  # whether the ROCArea model ranks these rows better than chance

    def as_json(self) -> dict[str, Any]:
        """Return the attributes, ready for JSON."""
        gains = {name: finite(interval.as_json()) for name, interval in self.gains.items()}
        return vars(self) | {"ours": finite(self.ours), "theirs": finite(self.theirs), "gains": gains}


@dataclass(frozen=True)
class QuickCheck:
    """A quick ROCArea model, and how it compares with the model of a run."""

    w: Floats  # its coefficients for rows as training sees them; empty if there is no such model
    lam: float = math.nan
    threshold: float = 0.0  # that is best for the measure of the run on the rows that it was trained on
    rows: int = 0  # how many rows of the sample it was trained on
    seconds: float = 0.0  # what the check took
    contest: Contest | None = None  # the comparison; None until test rows make it, or for the reason in `why`
    why: str = ""  # why there is no ROCArea model, or no comparison
    # the smallest BETA for which training for pauc@BETA does not end at w = 0, since the mean score of the BETA n-
    # highest negative rows is below that of the positive ones; NaN if none is known, or it matters to no other measure
    least_beta: float = math.nan

    def as_json(self) -> dict[str, Any]:
        """Return what a model file says of the check."""
        if self.why:
            return {"why": self.why, "seconds": self.seconds}
        record = {"lambda": self.lam, "rows": self.rows, "seconds": self.seconds}
        return record | finite({"least_beta": self.least_beta}) | (self.contest.as_json() if self.contest else {})


def judge(on: str, measure: Measure, judged: JudgedRows) -> Contest:
    """Compare the ROCArea model, the first in `judged`, with the run's own, on rows called `on`. **Collective.**"""
    measures = {"rocarea": ROCAREA, "measure": measure}
    theirs, ours = (
        {name: measure_value(each, scored, at) for name, each in measures.items()}
        for scored, at in zip(judged.scored, judged.thresholds, strict=True)
    )
    gains = {name: difference(each, judged) for name, each in measures.items()}
    useful = not why_chance(judged.scored[0], theirs["rocarea"])
    return Contest(on, measure.name, ours, theirs, gains, useful)


def is_clear(gain: Interval, *values: float) -> bool:
    """Return whether a measure is clearly better, for the interval of the difference and both values. Local."""
    return bool(gain.low > 0 and gain.value >= CLEARLY_BETTER * max(values))


def advise(check: QuickCheck | None, measure: Measure, chance: bool, no_bias: str = "") -> str:
    """Return advice: a quick ROCArea model is clearly better than the run's, or what else may help; or "". Local."""
    if check is None or (contest := check.contest) is None:
        return f"Use the measure rocarea instead, {COMPARE}" if chance and not measure.family.compares_pairs else ""
    if chance and not contest.useful:
        area = f"its ROCArea is {contest.theirs['rocarea']:.3f} on {contest.on}"
        other = "Other columns may help, or standardized ones, or more rows."
        return f"A quick ROCArea model does not clearly do so either: {area}. {other}"
    better = is_clear(contest.gains["measure"], contest.ours["measure"], contest.theirs["measure"])
    worse = contest.gains["rocarea"].low > 0 and contest.gains["rocarea"].value >= CLEARLY_WORSE
    if not (chance or better or worse):
        return ""
    names = ["measure"] * (better or not worse) + ["rocarea"] * (worse or chance)
    values = " and ".join(_compared(contest, name) for name in names)
    begin, beta, use = "A quick ROCArea model has", "", "Use"
    if chance:
        beta = _describe_beta(check)
    elif worse:
        begin = "This model ranks clearly worse than a quick ROCArea model, which has"
    if no_bias and not chance:
        use = f"{no_bias} Or use"
    instead = f"the measure rocarea with lambda {check.lam:g} instead, {COMPARE}"
    return f"{begin} {values}, on {contest.on}.{beta} {use} {instead}"


def _describe_beta(check: QuickCheck) -> str:
    """Return a sentence on the BETA for which training for pauc@BETA gains something; "" if none is known. Local."""
    if math.isnan(check.least_beta):
        return ""
    beta = min(rounded_up(check.least_beta, 2), 1.0)
    return (
        f" Training for pauc@BETA does not end with such a model if BETA is {beta:g} or more: the ROCArea model gives"
        f" positive rows a higher mean score than the highest {100 * beta:.2g} % of the negative rows."
    )


def _compared(contest: Contest, name: str) -> str:
    """Return the value of the ROCArea model and, if it is clearly better, that of the run's model and the interval."""
    gain, measure = contest.gains[name], Measure.parse("rocarea" if name == "rocarea" else contest.measure)
    value = f"{SHOWN.get(measure.name, measure.name)} {contest.theirs[name]:.3f}"
    if not gain.low > 0:  # not clearly better, or no interval
        return value
    more = "less" if measure.family.smaller_is_better else "more"
    interval = f"{gain.low:.3f} to {gain.high:.3f} {more}, with 95 % confidence"
    return f"{value} instead of {contest.ours[name]:.3f} ({interval})"


SHARE, LEAST_SECONDS = 0.1, 2.0
"""A check may take this share of the run's seconds, or this many if that is more."""
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
    """Checks the model of a run on a sample of its rows. Creating it is **collective**."""

    def __init__(self, fit: Fit, comm: Communicator) -> None:
        block, seconds, evaluations = fit.rows.block, fit.result.seconds, fit.result.evaluations
        self._fit, self._comm, self._measure = fit, comm, fit.rows.task.measure
        self._settings = replace(fit.rows.task.settings, checkpoint_every=None, time_limit=math.inf)
        self._begun, limit = time.monotonic(), max(LEAST_SECONDS, SHARE * seconds)
        self._late = lambda: fit.rows.options.stop_wanted() or time.monotonic() > self._begun + limit
        # The sample has as many rows as the time and the memory allow.
        counted, reserved, features = block.counted, fit.rows.reserved, block.features
        sizes = comm.sum(np.array([features.nnz, len(counted), features.nbytes]))
        entries_of_row, n = sizes[0] / max(sizes[1], 1), self._count(counted)
        memory_of_all = (reserved - LIBRARIES) * comm.size
        if math.isinf(reserved):
            memory_of_all = max(sizes[2] / 10, LEAST_BYTES * comm.size)
        seconds_of_row = seconds / max(evaluations, 1) / max(n, 1)
        by_time = limit / max(seconds_of_row * (EVALUATIONS + evaluations), 1e-300)
        expected = min(MOST_ROWS, max(by_time, LEAST_ROWS), memory_of_all / (40 * entries_of_row + 100))
        numbers = block.first_row + np.arange(len(counted))
        drawn = counted & (row_keys(numbers, _DRAW) / 2.0**64 < expected / max(n, 1))
        with comm.fail_together():
            features = features.take(drawn)
        self._n, self._rows = n, numbers[drawn]
        labels, weights = block.labels[drawn], some(block.weights, drawn)
        self._block = replace(block, features=features, labels=labels, weights=weights, groups=None)
        self._held_out = row_keys(self._rows, _DIVIDE) % np.uint64(HELD_OUT) == 0

    def run(self, hold_out: bool) -> QuickCheck:
        """Train the ROCArea model and, with `hold_out`, compare it on held-out rows. **Collective.**"""
        try:
            checked = self._run(hold_out)
        except _OutOfTime:
            checked = QuickCheck(np.empty(0), why="it did not end in its time")
        return replace(checked, seconds=float(self._comm.maximum(np.array([time.monotonic() - self._begun]))[0]))

    def _run(self, hold_out: bool) -> QuickCheck:
        block, comm, labels = self._block, self._comm, self._block.labels
        out = self._held_out & hold_out
        training = ~out
        n_folds = number_of_folds((self._count(training & (labels > 0)), self._count(training & (labels < 0))))
        if n_folds < 2:
            return QuickCheck(np.empty(0), why="the sample has too few rows")
        # 1) Train the ROCArea model, and choose its threshold on its training rows.
        lam = self._choose_lambda(training, n_folds)
        w = self._solve(ROCAREA, self._quick(lam), training).w
        n, weights = self._count(training), block.weights if block.weighted else None
        scored = Scored(block.features.margins(w), labels, comm, weights)
        threshold = self._best_threshold(scored.of(training))
        beta = least_beta(scored.of(training)) if self._measure.family.can_be_vacuous else math.nan
        checked = QuickCheck(w, lam, threshold, n, least_beta=beta)
        if not hold_out:
            return checked
        # 2) Compare it on the held-out rows with a model for the run's measure, of the same rows if there is a proof.
        w_of_run, trained = self._fit.result.w, "trained this one, but not the ROCArea model"
        with suppress(_OutOfTime, InputError):
            result = self._solve(self._measure.on_part(n / self._n), self._settings, training)
            if result.proved:
                w_of_run, trained = result.w, f"trained neither (for that, both were trained on {n:,} others)"
        of_run = replace(scored, scores=self._with_bias().margins(w_of_run))
        judged = JudgedRows((scored.of(out), of_run.of(out)), self._rows[out], (threshold, 0.0))
        n_out = self._count(out)
        measure = self._measure.on_part(n_out / self._n)
        return replace(checked, contest=judge(f"{n_out:,} rows that {trained}", measure, judged))

    def _choose_lambda(self, training: NDArray[np.bool_], n_folds: int) -> float:
        """Return the lambda that `--lambda auto` would take for ROCArea on these rows. **Collective.**"""
        weights = self._block.weights
        training_weights = np.where(training, 1.0 if weights is None else weights, 0.0)
        rows = PathRows(replace(self._block, weights=training_weights), self._comm)
        step, _ = choose_step("auto", self._block.features.shape[1], self._comm.size)
        problem = Problem("rocarea", GRID, n_folds, 0, self._quick(DEFAULT_LAMBDA), Distribution(step=step))
        points = cross_validate(rows, problem, self._late).points
        if not means(points, "rocarea"):
            raise _OutOfTime
        moderate = moderate_choice(points, "rocarea")
        return moderate.chosen.lam if moderate else DEFAULT_LAMBDA

    def _solve(self, measure: Measure, settings: Settings, training: NDArray[np.bool_]) -> Result:
        """Train on some rows of the sample. **Collective.** Raises `_OutOfTime`."""
        features = self._block.features if measure == ROCAREA else self._with_bias()
        _, (loss,) = make_losses(self._block, measure, "auto", self._comm, [training])
        p, weights = features.shape[1], self._block.weights
        with make_vectors(choose_step("auto", p, self._comm.size)[0], p, self._comm) as vectors:
            result = minimize(Objective(features, [loss], self._comm, self._late, None, vectors, weights), settings)
        if result.status in (Status.STOPPED, Status.NONFINITE):
            raise _OutOfTime
        return result

    def _with_bias(self) -> Features:
        return with_bias(self._block.features, self._fit.rows.task.bias)

    def _quick(self, lam: float) -> Settings:
        solver = "lmvm" if self._settings.solver == "lmvm" else "lbfgs"  # lmvm only if PETSc is loaded already
        return Settings(lam, solver=solver, max_evaluations=200)

    def _count(self, rows: NDArray[np.bool_]) -> int:
        return int(self._comm.sum(np.array([np.count_nonzero(rows)]))[0])

    def _best_threshold(self, scored: Scored) -> float:
        """Return the threshold at which scores are best for the error rate or F-beta; 0 for others. **Collective.**"""
        if not self._measure.family.has_threshold:
            return 0.0
        scores, positive, weights = _falling(scored)
        tp, called = np.cumsum(positive * weights), np.cumsum(weights)
        errors, n_pos = called - 2 * tp, tp[-1]  # the number of errors minus n_pos
        beta = self._measure.beta
        merit = -errors if beta is None else tp / (called + beta**2 * n_pos)
        last = np.append(scores[1:] < scores[:-1], True)  # True for the last row of each run of equal scores
        at = int(np.argmax(np.where(last, merit, -np.inf)))
        return float(scores[at] if at + 1 == len(scores) else scores[at] / 2 + scores[at + 1] / 2)


def least_beta(scored: Scored) -> float:
    """Return `QuickCheck.least_beta` for these scores, (n_local,) on this rank. **Collective.**"""
    scores, positive, weights = _falling(scored)
    mean = np.average(scores[positive], weights=weights[positive])
    K, sums = (np.cumsum(values[~positive]) for values in (weights, weights * scores))
    below = sums < mean * K
    return float(K[np.argmax(below)] / K[-1]) if below[-1] else math.nan


def _falling(scored: Scored) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Return scores, whether rows are positive, and weights, of all ranks, by falling score. **Collective.**"""
    comm, counts = scored.comm, scored.comm.allgather(len(scored.scores))
    scores, labels, weights = (
        comm.allgather_rows(array, counts) for array in (scored.scores, scored.labels, scored.mass)
    )
    order = np.argsort(-scores, kind="stable")
    return scores[order], labels[order] > 0, weights[order]


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
        """Return a warning if the ROCArea models are clearly better, or those of the path are useless; otherwise ""."""
        clear = is_clear(self.gain, self.ours, self.theirs)
        if not clear and not chance:
            return ""
        advice = f"Use the measure rocarea with lambda {self.lam:g} instead" if clear else "So they do not help, either"
        interval = f"{self.gain.low:+.3f} to {self.gain.high:+.3f}, with {100 * LEVEL:g} % confidence"
        theirs = f"Quick ROCArea models have {display_name(measure)} {self.theirs:.3f} on the same folds"
        return f"{theirs} instead of {self.ours:.3f} ({interval}). {advice}"


def compare_on_folds(
    rows: PathRows, problem: Problem, points: Sequence[Point], stop_wanted: Callable[[], bool], rule: str
) -> FoldComparison | None:
    """Compare quick ROCArea models on the folds of a path with its `points`, on the root. **Collective.**"""
    by, distribution = problem.chooser, problem.distribution._replace(ordering="auto")  # that was the other measure's
    quick = replace(problem, measure="rocarea", distribution=distribution, select=by, bias=None, scored=0)
    outcome = cross_validate(rows, quick, stop_wanted)
    if outcome.stopped or not rows.comm.is_root:
        return None
    ours, theirs = values_of_folds(points, by, rule), values_of_folds(outcome.points, by)
    if not ours or len(ours) != len(theirs):
        return None
    moderate = moderate_choice(outcome.points, by)
    lam = moderate.chosen.lam if moderate else DEFAULT_LAMBDA
    gain = folds_interval((np.array(theirs) - ours).tolist(), LEVEL)
    return FoldComparison(lam, float(np.mean(ours)), float(np.mean(theirs)), gain)
