"""The scores that rows get from models that were trained without them: the basis of thresholds and probabilities.

A model ranks its own training rows better than new ones. So a threshold or a probability that is found on training
rows promises too much. Here, for each fold, a model is trained on the rows outside of it, at the same lambda, and
scores the fold's rows. All these scores are then treated as those of one model, as scikit-learn's
`CalibratedClassifierCV(ensemble=False)` does it. That is right on average, since the models of the folds and that of
all rows are trained in the same way, if their scores have the same origin. A measure such as ROCArea leaves the origin
open: the same number may be added to all scores. So each fold's scores are moved by as much as its model's mean score
of its own training rows differs from that of the model of all rows.
"""

from __future__ import annotations

import math
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
from distsms.metrics.row_weights import mean
from distsms.optim.result import Result
from distsms.parallel.communicator import Communicator
from distsms.selection.path import ALONE, CrossValidation, Problem
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
    block: DataBlock,
    problem: Problem,
    comm: Communicator,
    origin: float,
    fold_keys: NDArray[Any] | None = None,
    share_folds: bool = False,
    start: Callable[[int, float], Floats | None] = lambda fold, lam: None,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> HeldOut | None:
    """Train a model for each fold, at one lambda, and score the fold's rows. **Collective.**

    Parameters
    ----------
    block : DataBlock
        This rank's rows.
    problem : Problem
        What is trained. Its first lambda counts.
    comm : Communicator
        The ranks.
    origin : float
        The mean score of the training rows by the model of all rows, from `mean_score`. NaN moves no scores.
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
    models = CrossValidation(block, problem, ALONE if share_folds else comm, stop_wanted, None, fold_keys, own)
    models.objective.kept = kept = dict[int, tuple[Floats, float]]()
    try:
        found = models.run(_nothing, [[lam]] * len(own), start)
    finally:
        models.vectors.close()
    every = comm.allgather(found) if share_folds else [found]
    if any(run.stopped for run in every):
        return None
    points = [point for run in every for point in run.points]
    rows = [np.flatnonzero(models.folds.judged(fold)) for fold in own]
    order = np.concatenate([np.empty(0, np.intp), *rows])
    moves = Measure.parse(problem.measure).ignores_shift and math.isfinite(origin)
    moved = [own_scores + (origin - center if moves else 0.0) for own_scores, center in map(kept.__getitem__, own)]
    scores = np.concatenate([np.empty(0), *moved])
    weights = block.weights[order] if block.weighted and block.weights is not None else None
    record = {"folds": problem.folds, "folds_by": problem.folds_by, "seed": problem.seed}
    record["not_proved"] = sum(point.result["status"] != "proved" for point in points)
    record["seconds"] = comm.bcast(time.perf_counter() - begun)
    return HeldOut(scores, block.labels[order], weights, models.folds.number[order], record)


def mean_score(w: Floats, block: DataBlock, bias: float | None, comm: Communicator) -> float:
    """Return the mean score of all rows that count, with their weights. **Collective.**

    w : (p,) or with a bias (p + 1,), the coefficients for the rows as `block` has them, on every rank.
    """
    scores, _, weights = block.counted_scores(with_bias(block.features, bias).margins(w))
    return mean(scores, weights, comm)


def mean_probability(
    w: Floats, block: DataBlock, bias: float | None, comm: Communicator
) -> dict[str, dict[str, float]]:
    """Return what a model for logistic regression has as `mean_probability`; see `mean_score`. **Collective.**"""
    scores, labels, weights = block.counted_scores(with_bias(block.features, bias).margins(w))
    return calibration.means_of_logistic(scores, labels, comm, weights)


def _nothing(point: Point, result: Result) -> None:
    """Keep nothing of a point but the scores."""
