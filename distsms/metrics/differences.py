"""How much better one model is than another at any measure, on the same rows, with a paired interval: ROCArea and PRBEP
as in `distsms.metrics.confidence`, precision@K and recall@K by paired replicates. Error rate and F-beta depend on eight
numbers, rows of each class that are called positive by both, either or neither model, which are independent Poisson
numbers in a replicate; with weights, influence functions take their place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.measures import PRBEP, PRECISION_AT_K, ROCAREA, HeadMeasure, Measure
from distsms.base.typing import Floats, Labels
from distsms.metrics import confidence, estimates
from distsms.metrics.bootstrap import Draws, prbep_replicates, top_k_replicates
from distsms.metrics.confidence import LEVEL, Interval
from distsms.metrics.head_intervals import head_replicates
from distsms.metrics.ranking import measure_value, placements, top_k_shares
from distsms.metrics.row_weights import effective, effective_sizes, mass_of_classes, masses
from distsms.metrics.tied_scores import tied_scores

REPLICATES = 1000


class JudgedRows(NamedTuple):
    """This rank's part of the rows on which two models are compared."""

    labels: Labels  # (n_local,): +1 or -1
    rows: NDArray[np.int64]  # (n_local,): the rows' global numbers
    scores: tuple[Floats, Floats]  # (n_local,): those of the first and of the other model
    thresholds: tuple[float, float]  # the score from which on each model calls a row positive
    weights: Floats | None = None  # (n_local,): the weights of the rows, above 0


def difference(measure: Measure, judged: JudgedRows, comm: Communicator) -> Interval:
    """Return how much better, not larger, the first model is, with its interval of level `LEVEL`. **Collective.**"""
    labels, both, weights = judged.labels, judged.scores, judged.weights
    draws = Draws(judged.rows, REPLICATES)
    if measure.family == ROCAREA:
        placed = [placements(scores, labels, comm, weights) for scores in both]
        area = estimates.rocarea_estimate(placed[0] - placed[1], labels, comm, weights)
        return confidence.rocarea_difference_interval(area, LEVEL)
    if measure.family == PRBEP:
        of_pos = mass_of_classes(labels, weights, comm)[0]
        shares = [top_k_shares(scores, of_pos, comm, weights) for scores in both]
        less = estimates.prbep_estimate(shares[0] - shares[1], labels, comm, weights)
        drawn = [prbep_replicates(scores, labels, draws, comm, weights) for scores in both]
        return confidence.prbep_difference_interval(less, drawn[0] - drawn[1], LEVEL)
    values = [measure_value(measure, scores, labels, at, comm, weights) for scores, at in _models(judged)]
    value = (values[0] - values[1]) * (-1 if measure.family.smaller_is_better else 1)
    counts = effective_sizes(labels, weights, comm)
    if weights is not None and measure.family.has_threshold:
        return _weighted_interval(measure, value, judged, weights, counts, comm)
    if measure.k:
        at_k = [top_k_replicates(scores, labels, draws, measure.k, comm) for scores in both]
        which = 0 if measure.family == PRECISION_AT_K else 1
        replicates = at_k[0][which] - at_k[1][which]
    elif measure.max_fpr is not None:
        head = HeadMeasure.parse(measure.name)
        assert head is not None
        scaled = effective(weights, comm)
        of_both = [
            head_replicates([head], tied_scores(scores, labels, scaled, comm), scores, labels, draws, comm, scaled)
            for scores in both
        ]
        replicates = of_both[0][head.name] - of_both[1][head.name]
    else:
        replicates = _replicates(measure, judged, comm)
    replicates = replicates[np.isfinite(replicates)] if np.isfinite(replicates).any() else np.array([math.nan])
    low, high = np.quantile(replicates, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)).tolist()
    return _interval("bootstrap, paired", value, float(np.std(replicates)), low, high, counts=counts)


def _interval(
    method: str, value: float, error: float, low: float, high: float, *, counts: tuple[float, float]
) -> Interval:
    """Return an interval; with too few rows, the reason instead of limits."""
    if why := confidence.too_few(counts):
        low = high = math.nan
    return Interval(value, error, low, high, method, why)


def _weighted_interval(
    measure: Measure, value: float, judged: JudgedRows, weights: Floats, counts: tuple[float, float], comm: Communicator
) -> Interval:
    """Return the interval of a difference of error rates or F-beta, from the influence of each row. **Collective.**"""
    positive, total = judged.labels > 0, float(comm.sum(np.array([np.sum(weights)]))[0])
    of_both = []
    for scores, at in _models(judged):
        called = scores >= at
        if measure.beta is None:
            of_both.append((called == positive) / total)  # of the accuracy
            continue
        beta2 = measure.beta**2
        tp, of_called, of_pos = masses((called & positive, called, positive), weights, comm).tolist()
        whole = (of_called + beta2 * of_pos) or math.nan
        f = (1 + beta2) * tp / whole
        of_both.append(((1 + beta2) * (called & positive) - f * (called + beta2 * positive)) / whole)
    less = of_both[0] - of_both[1]
    if measure.beta is None:
        less -= value / total
    n = sum(counts)
    error = math.sqrt(comm.sum(np.array([np.sum((weights * less) ** 2)]))[0] * n / max(n - 1, 1))
    half = float(scipy.special.stdtrit(max(min(counts) - 1, 1), 0.5 + LEVEL / 2)) * error
    return _interval("influence functions, paired", value, error, value - half, value + half, counts=counts)


def _models(judged: JudgedRows) -> Iterator[tuple[Floats, float]]:
    """Yield the scores of each model, and its threshold."""
    return zip(judged.scores, judged.thresholds, strict=True)


def _replicates(measure: Measure, judged: JudgedRows, comm: Communicator) -> Floats:
    """Return replicates of how much better the first model is at error rate or F-beta. **Collective.**"""
    calls = [scores >= at for scores, at in _models(judged)]
    cells = comm.sum(np.bincount(4 * (judged.labels > 0) + 2 * calls[0] + calls[1], minlength=8))
    drawn: Any = np.random.default_rng(0).poisson(cells, (REPLICATES, 8))  # of cells, the same on every rank
    n, n_pos = drawn.sum(axis=1), drawn[:, 4:].sum(axis=1)
    values = []
    for fp, tp in (drawn[:, [[2, 3], [6, 7]]].sum(axis=2).T, drawn[:, [[1, 3], [5, 7]]].sum(axis=2).T):
        with np.errstate(invalid="ignore", divide="ignore"):
            if measure.beta is None:
                values.append(-(fp + n_pos - tp) / n)
            else:
                weight = measure.beta**2
                values.append((1 + weight) * tp / (tp + fp + weight * n_pos))
    return np.asarray(values[0] - values[1], float)
