"""Intervals of average precision and of BEDROC, from the influence of each row.

The influence of a row is the derivative of a measure by the row's weight, times this weight. Neither measure changes
if all weights are multiplied by a number, so the influences of all rows add up to 0, and the variance of the measure on
new rows is the sum of their squares. Both measures depend on all positive rows and on all negative rows above them.
Bootstrap replicates would need draws of nearly all rows; the influences need two sums along the sorted scores.

The limits are those of a mean over rows (`distsms.metrics.confidence.limits`): quantiles of Beta distributions that
allow for one more row of each class. `scripts/experiments/head_coverage.py` simulates how reliable they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from distsms.metrics import confidence
from distsms.metrics.confidence import Interval
from distsms.metrics.estimates import MeanEstimate
from distsms.metrics.operating_points import ALPHA, bedroc
from distsms.metrics.ranking import mean_precision
from distsms.metrics.row_weights import effective_sizes
from distsms.metrics.tied_scores import TiedScores
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Labels

METHOD = "influence of rows, beta"


class Influences(NamedTuple):
    """A measure, and what one more row of weight 1 would change per unit of weight, at each of this rank's rows.

    Attributes
    ----------
    value : float
        The measure. NaN if it is not defined; then the influences are of no use.
    rows : (n_local,) float64
        The derivative of the measure by the weight of the row.
    """

    value: float
    rows: Floats

    def less(self, other: Influences) -> Influences:
        """Return the difference of this model and another one on the same rows."""
        return Influences(self.value - other.value, self.rows - other.rows)


def row_influences(tied: TiedScores, scores: Floats, labels: Labels, comm: Communicator) -> dict[str, Influences]:
    """Compute both measures and their influences, by the names of `distsms.measures.WHOLE`. **Collective.**

    Parameters
    ----------
    tied : TiedScores
        The sorted scores of all ranks.
    scores, labels : (n_local,)
        This rank's scores, and labels +1 or -1, from which `tied` was made.
    comm : Communicator
        The ranks.

    Notes
    -----
    The cost is that of `tied_scores.tied_scores`. A rank sends 8 bytes for each different score that it has, and
    receives 32.
    """
    values = {"average_precision": mean_precision(tied, comm), "bedroc": bedroc(tied, comm)}
    slopes = [*_of_average_precision(tied, values["average_precision"], comm)]
    slopes += [np.full(len(tied.values), math.nan)] * 2 if math.isnan(values["bedroc"]) else [*_of_bedroc(tied, comm)]
    found = _look_up(tied, slopes, scores, comm)
    positive = labels > 0
    return {
        name: Influences(values[name], np.where(positive, found[2 * k], found[2 * k + 1]))
        for k, name in enumerate(values)
    }


def _of_average_precision(tied: TiedScores, value: float, comm: Communicator) -> tuple[Floats, Floats]:
    """Return the derivatives of average precision by the weight of a positive and of a negative row at each score.

    Collective. With p(v) = tp / (tp + fp) at the score v, a row at the score u changes p(v) at all v that are not above
    u.
    """
    called, n_pos = tied.tp + tied.fp, tied.n_pos or math.nan
    positive = tied.tp / called - value + _from_below(tied.positive * (tied.fp / called / called), comm)
    negative = -_from_below(tied.positive * (tied.tp / called / called), comm)
    return positive / n_pos, negative / n_pos


def _of_bedroc(tied: TiedScores, comm: Communicator) -> tuple[Floats, Floats]:
    """Return the derivatives of BEDROC by the weight of a positive and of a negative row at each score. Collective.

    BEDROC is g(q) E + h(q), where q is the share of positives and E the enhancement (`operating_points.bedroc`).
    """
    n = tied.n_pos + tied.n_neg
    # Rows with the same score lie between the shares a and b of all rows. Their mean of exp(-alpha x) is m.
    size = tied.positive + tied.negative
    above, reach = (tied.tp + tied.fp - size) / n, (tied.tp + tied.fp) / n
    start, end, width = np.exp(-ALPHA * above), np.exp(-ALPHA * reach), size / n
    m = start * -np.expm1(-ALPHA * width) / (ALPHA * width)
    by_above, by_reach = (m - start) / width, (end - m) / width
    own = tied.positive * np.stack([m, -above * by_above - reach * by_reach])
    mean, everywhere = (comm.sum(own.sum(axis=1)) / tied.n_pos).tolist()
    below = _from_below(tied.positive * (by_above + by_reach), comm) - tied.positive * by_above
    shared = (everywhere + below / tied.n_pos) / n
    share, half = tied.n_pos / n, ALPHA / 2
    spread = math.cosh(half) - math.cosh(half - ALPHA * share)
    g = share * math.sinh(half) / spread
    of_g = math.sinh(half) / spread * (1 - share * ALPHA * math.sinh(half - ALPHA * share) / spread)
    beyond = ALPHA * (1 - share)
    of_h = -ALPHA * math.exp(beyond) / math.expm1(beyond) ** 2
    factor = ALPHA / -math.expm1(-ALPHA)
    by_share = (factor * mean * of_g + of_h) / n
    positive = g * factor * (shared + (m - mean) / tied.n_pos) + by_share * (1 - share)
    negative = g * factor * shared - by_share * share
    return positive, negative


def influence_estimate(found: Influences, labels: Labels, weights: Floats | None, comm: Communicator) -> MeanEstimate:
    """Return a measure, or the difference of two, as a mean over rows with its spread. **Collective**, two numbers.

    Parameters
    ----------
    found : Influences
        Of one measure, or the differences of those of two models.
    labels : (n_local,)
        Labels +1 or -1.
    weights : (n_local,) float64 or None
        The weights with which the scores were sorted.
    comm : Communicator
        The ranks.
    """
    sizes = effective_sizes(labels, weights, comm)
    each = (found.rows if weights is None else found.rows * weights) ** 2
    sums = comm.sum(np.array([np.sum(each[labels > 0]), np.sum(each[labels < 0])])).tolist()
    squares = tuple(size * size * total for size, total in zip(sizes, sums, strict=True))
    return MeanEstimate(found.value, squares, sizes)


def influence_interval(found: MeanEstimate, level: float) -> Interval:
    """Return the interval of average precision or of BEDROC, from `influence_estimate`. Local."""
    if math.isnan(found.value) or not min(found.counts):
        return Interval(found.value, math.nan, math.nan, math.nan, METHOD, "a class is missing")
    return Interval(found.value, found.error, *confidence.limits(found, level), METHOD)


def influence_difference_interval(found: MeanEstimate, level: float) -> Interval:
    """Return the interval of the difference of two models, from the `influence_estimate` of the difference. Local."""
    return replace(confidence.rocarea_difference_interval(found, level), method="influence of rows, paired")


def _from_below(amounts: Floats, comm: Communicator) -> Floats:
    """Return the sum of the amounts at each of this rank's scores and at all lower ones of all ranks. Collective."""
    lower = sum(comm.allgather(float(amounts.sum()))[: comm.rank])
    return np.cumsum(amounts[::-1])[::-1] + lower


def _look_up(tied: TiedScores, columns: Sequence[Floats], scores: Floats, comm: Communicator) -> list[Floats]:
    """Return for each column its entry at each row's score, (n_local,), from the rank that sorted it. Collective.

    columns : each has an entry for each of the rank's `tied.values`.
    """
    lowest = comm.allgather(float(tied.values[-1]) if len(tied.values) else None)
    ranks = [rank for rank, low in enumerate(lowest) if low is not None]
    if not ranks:
        return [np.full(len(scores), math.nan) for _ in columns]
    values, at = np.unique(scores, return_inverse=True)
    lows = np.array([low for low in lowest if low is not None])
    owners = np.array(ranks, np.int64)[np.searchsorted(lows, values, "right") - 1]
    asked, counts = comm.alltoall_rows(values, np.bincount(owners, minlength=comm.size))
    place = len(tied.values) - 1 - np.searchsorted(tied.values[::-1], asked)
    return [comm.alltoall_rows(column[place], counts)[0][at] for column in columns]
