"""How much better one model is than another at any measure, on the same rows, with a paired interval. Error rate and
F-beta depend on eight numbers, rows of each class that both, either or neither model calls positive, which are Poisson
numbers in a replicate; with weights, influence functions take their place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.measures import PRECISION_AT_K, Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.bootstrap import Draws, top_k_replicates
from distsms.metrics.confidence import LEVEL, Interval, too_few
from distsms.metrics.ranking import measure_value
from distsms.metrics.row_weights import effective_sizes, masses
from distsms.metrics.sampled import sampled

REPLICATES = 1000


class JudgedRows(NamedTuple):
    """This rank's part of the rows on which two models are compared."""

    scored: tuple[Scored, Scored]  # by the first and by the other model
    rows: NDArray[np.int64]  # (n_local,): the rows' global numbers
    thresholds: tuple[float, float]  # the score from which on each model calls a row positive

    def called(self) -> list[NDArray[np.bool_]]:
        """Return which rows each model calls positive."""
        return [of_model.scores >= at for of_model, at in zip(self.scored, self.thresholds, strict=True)]


def difference(measure: Measure, judged: JudgedRows) -> Interval:
    """Return how much better, not larger, the first model is, with its interval of level `LEVEL`. **Collective.**"""
    both, draws = judged.scored, Draws(judged.rows, REPLICATES)
    scored = both[0]
    if measure.family.of_paper:
        first, other = (sampled(measure.name, of_model, draws) for of_model in both)
        return first.less(other).interval(LEVEL)
    values = [measure_value(measure, of_model, at) for of_model, at in zip(both, judged.thresholds, strict=True)]
    value = (values[0] - values[1]) * (-1 if measure.family.smaller_is_better else 1)
    counts, method = effective_sizes(scored), "bootstrap, paired"
    if scored.weights is not None and measure.family.has_threshold:
        method, error = "influence functions, paired", _weighted_error(measure, value, judged, sum(counts))
        half = float(scipy.special.stdtrit(max(min(counts) - 1, 1), 0.5 + LEVEL / 2)) * error
        low, high = value - half, value + half
    else:
        replicates = _replicates(measure, judged, draws)
        replicates = replicates[np.isfinite(replicates)] if np.isfinite(replicates).any() else np.array([math.nan])
        error = float(np.std(replicates))
        low, high = np.quantile(replicates, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)).tolist()
    if why := too_few(counts):
        low = high = math.nan
    return Interval(value, error, low, high, method, why)


def _weighted_error(measure: Measure, value: float, judged: JudgedRows, n: float) -> float:
    """Return the standard error of a difference of error rates or F-beta, from each row's influence. **Collective.**"""
    scored, weights, comm = judged.scored[0], judged.scored[0].mass, judged.scored[0].comm
    positive, total = scored.labels > 0, float(comm.sum(np.array([np.sum(weights)]))[0])
    of_both = []
    for called in judged.called():
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
    return math.sqrt(comm.sum(np.array([np.sum((weights * less) ** 2)]))[0] * n / max(n - 1, 1))


def _replicates(measure: Measure, judged: JudgedRows, draws: Draws) -> Floats:
    """Return replicates (replicates,) of how much better the first model is. **Collective.**"""
    if measure.k:
        which = 0 if measure.family == PRECISION_AT_K else 1
        alike = [replace(of_model, weights=None) for of_model in judged.scored]  # as in `measure_value`
        at_k = [top_k_replicates(of_model, draws, measure.k)[which] for of_model in alike]
        return at_k[0] - at_k[1]
    if measure.max_fpr is not None:
        first, other = (sampled(measure.name, of_model, draws) for of_model in judged.scored)
        return first.less(other).replicates
    scored, called = judged.scored[0], judged.called()
    cells = scored.comm.sum(np.bincount(4 * (scored.labels > 0) + 2 * called[0] + called[1], minlength=8))
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
