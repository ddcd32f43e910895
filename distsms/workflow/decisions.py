"""A threshold that fulfils a condition, and a curve of probabilities, from the scores of held-out rows.

Thresholds of training rows promise too much. So a model is trained outside of each fold, and scores the fold's rows;
all scores are treated as one model's. Where a measure leaves their origin open, each fold's are moved and stretched to
the mean and the deviation that training rows have in the model of all rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import finite
from distsms.base.measures import CONDITIONS_OF_MODELS, Condition, Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.base.wording import format_value, marked
from distsms.metrics import calibration, head_intervals
from distsms.metrics.confidence import LEVEL, MeanEstimate, limits
from distsms.metrics.operating_points import operating_point
from distsms.metrics.row_weights import effective, effective_sizes, mass_of_classes, masses
from distsms.metrics.tied_scores import tied_scores
from distsms.parallel.groups import Groups
from distsms.shards.dataset import DataBlock
from distsms.training.fit import Fit
from distsms.training.plan import folds_at_once
from distsms.workflow.folds import Folds, make_folds
from distsms.workflow.path import HeldOutScores, PathRows, Problem, Start, run
from distsms.workflow.requests import TrainRequest


class HeldOut(NamedTuple):
    """The held-out rows of this rank, each once."""

    scored: Scored  # (m,), by the model of the fold that holds the row out
    folds: NDArray[np.int16]  # (m,), from 1 on
    # folds, folds_by, seed, seconds, and the number of models that are not_proved; the same on every rank
    record: dict[str, Any]


def held_out(
    rows: PathRows,
    problem: Problem,
    spread: tuple[float, float],
    start: Start = lambda fold, lam: None,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> HeldOut | None:
    """Train a model for each fold, at the first lambda, and score the fold's rows; None if stopped. `spread` has mean
    and deviation of the scores of the model of all rows; `start` no model of the fold's rows. **Collective.**
    """
    begun, comm = time.perf_counter(), rows.comm
    # Nothing is chosen, so that GAUC need not be defined on each fold.
    problem = replace(problem, lambdas=[problem.lambdas[0]], all_rows=False, select="rocarea")
    kept, numbers = dict[int, HeldOutScores](), rows.folds_of_rank(problem)
    trained = run(rows, problem, lambda point, result, scores: None, start=start, stop_wanted=stop_wanted, kept=kept)
    if trained.stopped:
        return None
    folds, scores = [kept[fold] for fold in numbers], list[Floats]()
    for fold in folds:
        of_fold, (mean, deviation) = fold.rows.scores, fold.spread
        if Measure.parse(problem.measure).family.ignores_shift:
            unit = spread[1] / deviation if min(spread[1], deviation) > 0 else 1.0
            of_fold = spread[0] + unit * (of_fold - mean)
        scores.append(of_fold)
    weights = [fold.rows.weights for fold in folds if fold.rows.weights is not None]
    weighted = any(comm.allgather(bool(weights)))
    labels = [fold.rows.labels for fold in folds]
    record = {"folds": problem.folds, "folds_by": problem.folds_by, "seed": problem.seed}
    record["not_proved"] = sum(point.result["status"] != "proved" for point in trained.points)
    record["seconds"] = comm.bcast(time.perf_counter() - begun)
    return HeldOut(
        Scored(
            np.concatenate([np.empty(0), *scores]),
            np.concatenate([np.empty(0, np.int8), *labels]),
            comm,
            np.concatenate([np.empty(0), *weights]) if weighted else None,
        ),
        folds=np.repeat(np.array(numbers, np.int16), [*map(len, labels)]),
        record=record,
    )


def check(at: str | Condition | None, calibrate: str | None, folds: int) -> Condition | None:
    """Return the condition. Raises InputError if it, the calibration, or the number of folds cannot be used. Local."""
    if calibrate not in (None, *calibration.METHODS):
        raise InputError(f"calibrate is {format_value(calibrate)}; there are {' and '.join(calibration.METHODS)}")
    condition = at if isinstance(at, Condition | None) else Condition.parse(at, CONDITIONS_OF_MODELS)
    if condition is not None and condition.quantity == "top" and not condition.share:
        alerts = "for 100 alerts among the 20,000 rows of a day, top=0.5%"
        raise InputError(f"{condition}: a threshold is for any number of rows, so give a share of them: {alerts}")
    if (condition is not None or calibrate) and folds < 2:
        raise InputError("a threshold for a condition, and probabilities, need held-out folds; give at least 2 folds")
    return condition


@dataclass(frozen=True)
class Decisions:
    """What a training finds out on held-out folds after the training."""

    at: Condition | None  # the condition for which a threshold is found
    request: TrainRequest  # with the number of folds, which are made by groups if the rows have groups, else by rows

    def make_folds(self, block: DataBlock, comm: Communicator) -> Folds:
        """Return the folds. **Collective.** Raises InputError if there are too few rows or groups."""
        origin = "the threshold and the probabilities come from held-out folds"
        by, keys = ("rows", np.empty(0)) if block.groups is None else ("groups", block.groups)
        try:
            folds = make_folds(by, keys, block.labels, block.counted, self.request.folds, 0, comm)
        except InputError as error:
            why = f"{marked(error.message)} (of distsms path, or folds of SMSClassifier)"
            raise InputError(f"{origin}: {why}", True) from error
        if self.request.measure.within_groups and block.groups is not None:  # as the losses of the folds would find out
            counted = block.counted
            groups = Groups(block.groups[counted], block.labels[counted], 0, comm)
            number = folds.number[counted][groups.to_rows((groups.positive > 0) & (groups.negative > 0))]
            if np.count_nonzero(comm.sum(np.bincount(number, minlength=self.request.folds + 1))) < 2:
                why = "and all groups with rows of both classes are in one of them; use other groups"
                raise InputError(f"{origin}, {why}", True)
        return folds

    def decide(self, fit: Fit, spread: tuple[float, float], comm: Communicator) -> dict[str, Any] | None:
        """Train the models of the folds, and return `findings`; None if it was stopped. **Collective.**"""
        block, task, options = fit.rows.block, fit.rows.task, fit.rows.options
        folds, settings, end = self.make_folds(block, comm), task.settings, fit.begun + task.settings.time_limit
        n_folds, features_of = self.request.folds, self.request.features_of
        at_once = folds_at_once(n_folds, block.p, options.memory)
        bytes_each = settings.vector_bytes // at_once
        problem = Problem(
            task.measure.on_part(1 - 1 / n_folds).name,
            [settings.lam],
            folds=n_folds,
            seed=0,
            settings=replace(settings, checkpoint_every=None, time_limit=math.inf, vector_bytes=bytes_each),
            distribution=fit.distribution,
            at_once=at_once,
            folds_by="rows" if block.groups is None else "groups",
            bias=task.bias,
        )

        def rows_of_fold(fold: int) -> PathRows:
            """Return the rows with the features that are made without the rows of the fold."""
            assert features_of is not None
            features = features_of(folds.training(fold))
            return PathRows(replace(block, features=features, p=features.shape[1]), comm, block.groups)

        rows = PathRows(block if features_of is None else rows_of_fold, comm, block.groups)
        scored = held_out(rows, problem, spread, stop_wanted=lambda: options.stop_wanted() or time.monotonic() > end)
        return None if scored is None else findings(self.at, self.request.calibrate, scored, comm)


def findings(at: Condition | None, calibrate: str | None, rows: HeldOut, comm: Communicator) -> dict[str, Any]:
    """Return what a model's information gets: `decision` with `threshold`, and `calibration`. **Collective.**"""
    info: dict[str, Any] = {}
    if at is not None:
        info["decision"] = decision = decision_at(at, rows, comm)
        if decision["threshold"] is not None:
            info["threshold"] = decision["threshold"]
    if calibrate:
        info["calibration"] = calibrated(calibrate, rows, comm)
    return info


def decision_at(condition: Condition, rows: HeldOut, comm: Communicator) -> dict[str, Any]:
    """Return a model's `decision`: the threshold, or None and `why`; `by_rows`: without weights. **Collective.**"""
    scored, alike = rows.scored, replace(rows.scored, weights=None)
    threshold = operating_point(condition, tied_scores(effective(scored)), comm).threshold
    fulfilled = math.isfinite(threshold)
    rates = head_intervals.rates_at(threshold, LEVEL, scored)
    n_pos, n_neg = map(int, mass_of_classes(alike))
    n, size = n_pos + n_neg, sum(effective_sizes(scored))
    shares = _shares(rates)
    if condition.quantity == "top":
        called = shares["called"]
        low, high = limits(MeanEstimate(called, (size * called * (1 - called),), (size, 0)), LEVEL, worst=1.0)
        estimate = {"value": called, "low": low, "high": high}
    else:
        estimate = rates["intervals"][condition.quantity]
    decision = {
        "condition": str(condition),
        "threshold": threshold if fulfilled else None,
        "why": "" if fulfilled else f"no threshold of the {n:,} held-out rows has {condition}",
        "quantity": condition.quantity,
        "estimate": estimate["value"],
        "low": estimate["low"],
        "high": estimate["high"],
        "level": LEVEL,
        "intervals": {name: finite(interval) for name, interval in rates["intervals"].items()},
        **shares,
        **{name: rates[name] for name in ("tp", "fp", "fn", "tn")},
        "n": n,
        "n_pos": n_pos,
        "effective": size,
    }
    if scored.weights is None:
        return finite(decision) | rows.record
    by_rows = _shares(head_intervals.rates_at(threshold, LEVEL, alike)) | {"effective": n}
    return finite(decision) | {"by_rows": finite(by_rows)} | rows.record


def _shares(rates: dict[str, Any]) -> dict[str, float]:
    """Return the rates at a threshold, and the shares of the rows, or of their weight, that are (called) positive."""
    total = rates["tp"] + rates["fp"] + rates["fn"] + rates["tn"]
    return {
        "precision": rates["precision"],
        "tpr": rates["recall"],
        "fpr": rates["fpr"],
        "called": (rates["tp"] + rates["fp"]) / total,
        "positive_share": (rates["tp"] + rates["fn"]) / total,
    }


def calibrated(method: str, rows: HeldOut, comm: Communicator) -> dict[str, Any]:
    """Return `calibration`: the curve, fitted to all held-out rows, and what judges it, from curves fitted to the other
    folds: Brier score, log loss, means by class in which rows count alike, and a reliability diagram. **Collective.**
    """
    scored, scores = rows.scored, rows.scored.scores
    curve = calibration.fit(method, scored)
    after = np.empty(len(scores))
    for fold in range(1, rows.record["folds"] + 1):
        in_fold = rows.folds == fold
        curve_of_others = calibration.fit(method, scored.of(~in_fold))
        after[in_fold] = calibration.probabilities(curve_of_others, scores[in_fold])
    n_pos, n_neg = map(int, mass_of_classes(replace(scored, weights=None)))
    mass, mass_pos = masses((scored.labels != 0, scored.labels > 0), scored.weights, comm).tolist()
    # Probabilities are compared with scores that are taken for the logarithm of the odds, and with a constant.
    predictions = {
        "before": scipy.special.expit(scores),
        "after": after,
        "constant": np.full(len(scores), mass_pos / mass),
    }
    losses = {name: calibration.losses(replace(scored, scores=p)) for name, p in predictions.items()}
    predicted = replace(scored, scores=after)
    return {
        **curve,
        "n": n_pos + n_neg,
        "n_pos": n_pos,
        "before": "1 / (1 + exp(-score))",
        "brier": {name: loss["brier"] for name, loss in losses.items()},
        "log_loss": {name: loss["log_loss"] for name, loss in losses.items()},
        "means": calibration.means_by_class(replace(predicted, weights=None)),
        "bins": calibration.reliability(predicted),
    } | rows.record
