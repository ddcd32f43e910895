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

from distsms.data.shards.dataset import DataBlock
from distsms.matrix.augmented import with_bias
from distsms.measures import Measure
from distsms.metrics import calibration
from distsms.metrics.row_sample import sample_rows
from distsms.metrics.row_weights import mean_and_deviation
from distsms.optim.result import Result
from distsms.parallel.communicator import Communicator
from distsms.selection.folds_objective import KeptScores
from distsms.selection.path import ALONE, FoldRows, Problem, trainings
from distsms.selection.point import Point
from distsms.utils.typing import Floats, Labels

FOLDS = 5
"""How many folds there are if nobody says otherwise."""


class HeldOut(NamedTuple):
    """The held-out rows of this rank, each once.

    Attributes
    ----------
    scores : (m,) float64
        The score from the model of the fold that holds the row out.
    labels : (m,) int8
        +1 or -1.
    weights : (m,) float64 or None
        The weights, above 0; None on every rank if no rank has others than 1.
    folds : (m,) int16
        The fold of each row, from 1 on.
    record : dict
        How this was made, the same on every rank: folds, folds_by, seed, seconds, and not_proved, the number of models
        whose gap was not proved.
    """

    scores: Floats
    labels: Labels
    weights: Floats | None
    folds: NDArray[np.int16]
    record: dict[str, Any]


def held_out(
    block: DataBlock | FoldRows,
    problem: Problem,
    comm: Communicator,
    spread: tuple[float, float],
    fold_keys: NDArray[Any] | None = None,
    share_folds: bool = False,
    start: Callable[[int, float], Floats | None] = lambda fold, lam: None,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> HeldOut | None:
    """Train a model for each fold, at one lambda, and score the fold's rows. **Collective.**

    Parameters
    ----------
    block : DataBlock or FoldRows
        This rank's rows, as for `distsms.selection.path.run`.
    problem : Problem
        What is trained. Its first lambda counts.
    comm : Communicator
        The ranks.
    spread : tuple of float
        The mean and the standard deviation of the scores that the model of all rows gives them, from `score_spread`.
    fold_keys, share_folds, start, stop_wanted
        As for `distsms.selection.path.run`. `start` must not return a model that has seen the fold's rows: within the
        gap to prove, the result could remember them.

    Returns
    -------
    HeldOut or None
        None, on all ranks, if it was stopped.

    Raises
    ------
    InputError
        On all ranks, if a class has fewer rows than there are folds.
    """
    begun, lam = time.perf_counter(), problem.lambdas[0]
    problem = replace(problem, lambdas=[lam], all_rows=False)
    numbers = range(1, problem.folds + 1)
    own = numbers[comm.rank :: comm.size] if share_folds else numbers
    kept = dict[int, KeptScores]()
    inner = ALONE if share_folds else comm
    models = trainings(block, problem, inner, stop_wanted, None, fold_keys, own, kept)
    try:
        found = models.run(_nothing, [[lam]] * len(own), start)
    finally:
        models.close()
    every = comm.allgather(found) if share_folds else [found]
    if any(run.stopped for run in every):
        return None
    points = [point for run in every for point in run.points]
    like = spread if Measure.parse(problem.measure).ignores_shift else None
    scores = np.concatenate([np.empty(0), *(_matched(kept[fold].scores, kept[fold].training, like) for fold in own)])
    labels = np.concatenate([np.empty(0, np.int8), *(kept[fold].labels for fold in own)])
    weighted = any(comm.allgather(any(kept[fold].weights is not None for fold in own)))
    of_rows = (kept[fold].weights for fold in own)
    weights = np.concatenate([np.empty(0), *(a for a in of_rows if a is not None)]) if weighted else None
    number = np.repeat(np.array(own, np.int16), [len(kept[fold].labels) for fold in own])
    record = {"folds": problem.folds, "folds_by": problem.folds_by, "seed": problem.seed}
    record["not_proved"] = sum(point.result["status"] != "proved" for point in points)
    record["seconds"] = comm.bcast(time.perf_counter() - begun)
    return HeldOut(scores, labels, weights, number, record)


def _matched(scores: Floats, own: tuple[float, float], like: tuple[float, float] | None) -> Floats:
    """Return scores whose model's mean and deviation are `own` as if they were `like`; as they are if that is None."""
    if like is None:
        return scores
    unit = like[1] / own[1] if min(like[1], own[1]) > 0 else 1.0
    return like[0] + unit * (scores - own[0])


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


def _nothing(point: Point, result: Result) -> None:
    """Keep nothing of a point but the scores."""
