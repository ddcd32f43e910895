"""The scores that rows get from models that were trained without them: the basis of thresholds and probabilities.

A model ranks its own training rows better than new ones. So a threshold or a probability that is found on training
rows promises too much. Here, for each fold, a model is trained on the rows outside of it, at the same lambda, and
scores the fold's rows. All these scores are then treated as those of one model, as scikit-learn's
`CalibratedClassifierCV(ensemble=False)` does it. That is right on average, since the models of the folds and that of
all rows are trained in the same way, if their scores have the same origin and unit. Measures such as ROCArea leave the
origin open: the same number may be added to all scores. The unit depends on the number of training rows, above all
where there are nearly as many columns as positive rows. So each fold's scores are moved and stretched such that its
model's scores of its own training rows have the mean and the standard deviation of those of the model of all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.measures import Measure
from distsms.base.typing import Floats, Labels
from distsms.matrix.augmented import with_bias
from distsms.metrics import calibration
from distsms.metrics.row_sample import sample_rows
from distsms.metrics.row_weights import mean_and_deviation
from distsms.optim.result import Result
from distsms.parallel.communicator import Communicator
from distsms.shards.dataset import DataBlock
from distsms.workflow.choice import Point
from distsms.workflow.path import KeptScores, PathRows, Problem, Start, start_at_zero, trainings


class HeldOut(NamedTuple):
    """The held-out rows of this rank, each once."""

    scores: Floats  # (m,), from the model of the fold that holds the row out
    labels: Labels  # (m,), +1 or -1
    weights: Floats | None  # (m,), above 0; None on every rank if no rank has others than 1
    folds: NDArray[np.int16]  # (m,), from 1 on
    # folds, folds_by, seed, seconds, and the number of models that are not_proved; the same on every rank
    record: dict[str, Any]


def held_out(
    rows: PathRows,
    problem: Problem,
    spread: tuple[float, float],
    start: Start = start_at_zero,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> HeldOut | None:
    """Train a model for each fold, at one lambda, and score the fold's rows; None if stopped. **Collective.**

    The parameters are those of `distsms.workflow.path.run`. The first lambda of the problem counts. `spread` is the
    mean and the standard deviation of the scores that the model of all rows gives them, from `score_spread`. `start`
    must not return a model that has seen the fold's rows: within the gap to prove, the result could remember them.
    Raises InputError on all ranks if a class has fewer rows than there are folds.
    """
    begun, comm, lam = time.perf_counter(), rows.comm, problem.lambdas[0]
    problem = replace(problem, lambdas=[lam], all_rows=False)
    kept = dict[int, KeptScores]()
    models = trainings(rows, problem, stop_wanted, kept=kept)
    try:
        trained = rows.of_all_ranks(models.run(_keep_nothing, [[lam]] * len(models.numbers), start))
    finally:
        models.close()
    if trained.stopped:
        return None
    target = spread if Measure.parse(problem.measure).family.ignores_shift else None
    folds = [kept[fold].rows for fold in models.numbers]
    scores = [_rescaled(kept[fold].rows.scores, kept[fold].training, target) for fold in models.numbers]
    weights = [fold.weights for fold in folds if fold.weights is not None]
    weighted = any(comm.allgather(bool(weights)))
    sizes = [len(fold.labels) for fold in folds]
    record = {"folds": problem.folds, "folds_by": problem.folds_by, "seed": problem.seed}
    record["not_proved"] = sum(point.result["status"] != "proved" for point in trained.points)
    record["seconds"] = comm.bcast(time.perf_counter() - begun)
    return HeldOut(
        scores=np.concatenate([np.empty(0), *scores]),
        labels=np.concatenate([np.empty(0, np.int8), *(fold.labels for fold in folds)]),
        weights=np.concatenate([np.empty(0), *weights]) if weighted else None,
        folds=np.repeat(np.array(models.numbers, np.int16), sizes),
        record=record,
    )


def _rescaled(scores: Floats, spread: tuple[float, float], target: tuple[float, float] | None) -> Floats:
    """Return scores, whose model's mean and deviation are `spread`, with those of `target`; as they are without it."""
    if target is None:
        return scores
    unit = target[1] / spread[1] if min(target[1], spread[1]) > 0 else 1.0
    return target[0] + unit * (scores - spread[0])


def score_spread(w: Floats, block: DataBlock, bias: float | None, comm: Communicator) -> tuple[float, float]:
    """Return the mean and the standard deviation of the scores of all rows that count. **Collective.**

    w : (p,) or with a bias (p + 1,), the coefficients for the rows as `block` has them, on every rank.
    """
    scores, _, weights = block.counted_scores(with_bias(block.features, bias).margins(w))
    return mean_and_deviation(scores, weights, comm)


def sampled_rows(
    w: Floats, block: DataBlock, bias: float | None, comm: Communicator, dtype: str
) -> dict[str, Any] | None:
    """Return what a model keeps of its training rows: `row_sample.sample_rows`; see `score_spread`. **Collective.**"""
    scores, labels, _ = block.counted_scores(with_bias(block.features, bias).margins(w))
    return sample_rows(scores, labels, comm, dtype)


def mean_probability(
    w: Floats, block: DataBlock, bias: float | None, comm: Communicator
) -> dict[str, dict[str, float]]:
    """Return what a model for logistic regression has as `mean_probability`; see `score_spread`. **Collective.**"""
    scores, labels, weights = block.counted_scores(with_bias(block.features, bias).margins(w))
    return calibration.means_of_logistic(scores, labels, comm, weights)


def _keep_nothing(point: Point, result: Result, scores: Floats | None) -> None:
    """Keep nothing of a point but the scores."""
