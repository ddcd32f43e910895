"""How much better one model is than another at any measure, on the same rows, with a paired interval.

ROCArea and PRBEP are compared as `distsms evaluate` compares them (`distsms.metrics.confidence`). Precision@K and
recall@K are compared by the bootstrap replicates of both models, which use the same draws. The error rate and F-beta
depend only on eight numbers: how many rows of each class are called positive by both models, by the first alone, by the
other alone, and by neither. In a bootstrap replicate over rows these eight are independent Poisson numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.measures import HeadMeasure, Measure
from distsms.metrics import confidence
from distsms.metrics.bootstrap import prbep_replicates, top_k_replicates
from distsms.metrics.confidence import LEVEL, Interval
from distsms.metrics.head_intervals import head_replicates
from distsms.metrics.ranking import measure_value, placements, top_k_shares
from distsms.metrics.tied_scores import tied_scores
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Labels

REPLICATES = 1000


class JudgedRows(NamedTuple):
    """This rank's part of the rows on which two models are compared.

    Attributes
    ----------
    labels : ndarray of int8, shape (n_local,)
        +1 or -1.
    rows : ndarray of int64, shape (n_local,)
        The rows' global numbers.
    scores : pair of ndarray, shape (n_local,)
        Those of the first and of the other model.
    thresholds : pair of float
        The score from which on each model calls a row positive.
    """

    labels: Labels
    rows: NDArray[np.int64]
    scores: tuple[Floats, Floats]
    thresholds: tuple[float, float]


def difference(measure: Measure, judged: JudgedRows, comm: Communicator) -> Interval:
    """Return how much better the first model is, with its interval of level `LEVEL`. **Collective.**

    For the error rate, where smaller is better, this is the other model's error rate minus the first one's.
    """
    labels, both = judged.labels, judged.scores
    n_pos, n_neg = map(int, comm.sum(np.array([np.sum(labels > 0), np.sum(labels < 0)])))
    if measure.family == "rocarea":
        placed = [placements(scores, labels, comm) for scores in both]
        return confidence.rocarea_difference_interval(
            confidence.rocarea_estimate(placed[0] - placed[1], labels, comm), LEVEL
        )
    if measure.family == "prbep":
        shares = [top_k_shares(scores, n_pos, comm) for scores in both]
        less = confidence.prbep_estimate(shares[0] - shares[1], labels, comm)
        drawn = [prbep_replicates(scores, labels, judged.rows, REPLICATES, 0, comm) for scores in both]
        return confidence.prbep_difference_interval(less, drawn[0] - drawn[1], LEVEL)
    values = [measure_value(measure, *at, comm) for at in _models(judged)]
    if measure.k:
        at_k = [top_k_replicates(scores, labels, judged.rows, measure.k, REPLICATES, 0, comm) for scores in both]
        which = 0 if measure.family == "precision@k" else 1
        replicates = at_k[0][which] - at_k[1][which]
    elif measure.family == "pauc":
        head = HeadMeasure.parse(measure.name)
        assert head is not None
        of_head = [
            head_replicates(
                [head], tied_scores(own, labels, None, comm), own, labels, judged.rows, REPLICATES, 0, comm
            )[head.name]
            for own in both
        ]
        replicates = of_head[0] - of_head[1]
    else:
        replicates = _replicates(measure, judged, comm)
    replicates = replicates[np.isfinite(replicates)] if np.isfinite(replicates).any() else np.array([math.nan])
    low, high = np.quantile(replicates, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)).tolist()
    value = (values[0] - values[1]) * (-1 if measure.family == "error-rate" else 1)
    return _interval("bootstrap, paired", value, float(np.std(replicates)), low, high, counts=(n_pos, n_neg))


def _interval(method: str, *found: float, counts: tuple[int, int]) -> Interval:
    """Return an interval of value, error, low and high; with too few rows, the reason instead of limits."""
    value, error, low, high = found
    if why := confidence.too_few(counts):
        low = high = math.nan
    return Interval(value, error, low, high, method, why)


def _models(judged: JudgedRows) -> Sequence[tuple[Floats, Labels, float]]:
    return [(own, judged.labels, at) for own, at in zip(judged.scores, judged.thresholds, strict=True)]


def _replicates(measure: Measure, judged: JudgedRows, comm: Communicator) -> Floats:
    """Return replicates of how much better the first model is at the error rate or at F-beta, (REPLICATES,).

    **Collective**, eight numbers. The replicates are the same on every rank.
    """
    calls = [own >= at for own, _, at in _models(judged)]
    cells = comm.sum(np.bincount(4 * (judged.labels > 0) + 2 * calls[0] + calls[1], minlength=8))
    drawn: Any = np.random.default_rng(0).poisson(cells, (REPLICATES, 8))  # of cells, the same on every rank
    n, n_pos = drawn.sum(axis=1), drawn[:, 4:].sum(axis=1)
    found = []
    for fp, tp in (drawn[:, [[2, 3], [6, 7]]].sum(axis=2).T, drawn[:, [[1, 3], [5, 7]]].sum(axis=2).T):
        with np.errstate(invalid="ignore", divide="ignore"):
            if measure.beta is None:
                found.append(-(fp + n_pos - tp) / n)
            else:
                weight = measure.beta**2
                found.append((1 + weight) * tp / (tp + fp + weight * n_pos))
    return np.asarray(found[0] - found[1], float)
