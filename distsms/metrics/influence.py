"""Intervals of average precision and of BEDROC, from the influence of each row: the derivative of the measure by the
row's weight, times it. Influences add up to 0, and their squares to the variance on new rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.confidence import MeanEstimate
from distsms.metrics.operating_points import ALPHA, bedroc
from distsms.metrics.ranking import mean_precision
from distsms.metrics.row_weights import effective_sizes
from distsms.metrics.tied_scores import TiedScores


class Influences(NamedTuple):
    """A measure, and what one more row of weight 1 would change per unit of weight, at each of this rank's rows."""

    value: float  # the measure. NaN if it is not defined; then the influences are of no use.
    rows: Floats  # (n_local,) float64: the derivative of the measure by the weight of the row

    def __sub__(self, other: Influences) -> Influences:
        return Influences(self.value - other.value, self.rows - other.rows)


def row_influences(tied: TiedScores, scored: Scored) -> dict[str, Influences]:
    """Compute both measures of `distsms.base.measures.WHOLE` and their influences, by name. **Collective.**"""
    comm, look_up = scored.comm, _LookUp(tied, scored)
    value = mean_precision(tied, comm)
    influences = {"average_precision": Influences(value, look_up(_of_average_precision(tied, value, comm)))}
    value = bedroc(tied, comm)
    slopes = (np.full(len(tied.values), math.nan),) * 2 if math.isnan(value) else _of_bedroc(tied, comm)
    return influences | {"bedroc": Influences(value, look_up(slopes))}


def _of_average_precision(tied: TiedScores, value: float, comm: Communicator) -> tuple[Floats, Floats]:
    """Return the derivatives of average precision by the weight of a positive and of a negative row. **Collective.**"""
    called, n_pos = tied.tp + tied.fp, tied.n_pos or math.nan
    positive = tied.tp / called - value + _from_below(tied.positive / called * (tied.fp / called), comm)
    negative = -_from_below(tied.positive / called * (tied.tp / called), comm)
    return positive / n_pos, negative / n_pos


def _of_bedroc(tied: TiedScores, comm: Communicator) -> tuple[Floats, Floats]:
    """Return the derivatives of BEDROC by a positive's and a negative's weight at each score. **Collective.**"""
    n, few = tied.n_pos + tied.n_neg, tied.n_pos <= tied.n_neg
    counted, total = (tied.positive, tied.n_pos) if few else (tied.negative, tied.n_neg)
    # Rows with the same score lie between the shares `reach - width` and `reach` of all rows. Their mean of
    # exp(-alpha x) is m. Arrays are deleted early, since each is as long as the rows.
    reach, width = (tied.tp + tied.fp) / n, (tied.positive + tied.negative) / n
    start = np.exp(ALPHA * (width - reach))
    m = start * (np.expm1(-ALPHA * width) / (-ALPHA * width))
    by_reach, by_above = (start * np.exp(-ALPHA * width) - m) / width, (m - start) / width
    del start
    sums = [counted @ m, counted @ ((width - reach) * by_above), -(counted @ (reach * by_reach))]
    del reach, width
    mean, *rest = (comm.sum(np.array(sums)) / total).tolist()
    by_reach += by_above
    shared = _from_below(counted * by_reach, comm)
    del by_reach
    shared -= counted * by_above
    shared = (sum(rest) + shared / total) / n
    del by_above
    share, half = total / n, ALPHA / 2
    spread = 2 * math.sinh(half - half * share) * math.sinh(half * share)  # cosh(half) - cosh(half - ALPHA share)
    g = share * math.sinh(half) / spread
    of_g = math.sinh(half) / spread * (1 - share * ALPHA * math.sinh(half - ALPHA * share) / spread)
    beyond = ALPHA * (1 - share)
    of_h = -ALPHA * math.exp(beyond) / math.expm1(beyond) ** 2
    factor = ALPHA / -math.expm1(-ALPHA)
    by_share = (factor * mean * of_g + of_h) / n
    of_class = g * factor * (shared + (m - mean) / total) + by_share * (1 - share)
    other = g * factor * shared - by_share * share
    return (of_class, other) if few else (-other, -of_class)


def influence_estimate(influences: Influences, scored: Scored) -> MeanEstimate:
    """Return a measure, or a difference of two, as a mean over rows with its spread. **Collective**, two numbers."""
    sizes, each = effective_sizes(scored), (influences.rows * scored.mass) ** 2
    sums = scored.comm.sum(np.array([np.sum(each[rows]) for rows in scored.classes])).tolist()
    squares = tuple(size * size * total for size, total in zip(sizes, sums, strict=True))
    return MeanEstimate(influences.value, squares, sizes)


def _from_below(amounts: Floats, comm: Communicator) -> Floats:
    """Return the sum of the amounts at each of this rank's scores and at all lower ones of all ranks. Collective."""
    lower = sum(comm.allgather(float(amounts.sum()))[: comm.rank])
    return np.cumsum(amounts[::-1])[::-1] + lower


class _LookUp:
    """Where each of this rank's rows has its score: on which rank, and at which of its `tied.values`. Collective."""

    def __init__(self, tied: TiedScores, scored: Scored) -> None:
        self.scored, comm = scored, scored.comm
        lowest = comm.allgather(float(tied.values[-1]) if len(tied.values) else None)
        ranks = [rank for rank, low in enumerate(lowest) if low is not None]
        self.finite = bool(ranks)  # not if a score is NaN
        if not ranks:
            return
        values, self.at = np.unique(scored.scores, return_inverse=True)
        owners = np.searchsorted(np.array([low for low in lowest if low is not None]), values, "right") - 1
        to = np.bincount(np.array(ranks)[owners], minlength=comm.size)
        queries, self.counts = comm.alltoall_rows(values, to)
        self.place = len(tied.values) - 1 - np.searchsorted(tied.values[::-1], queries)

    def __call__(self, columns: Sequence[Floats]) -> Floats:
        """Return each row's entry (n_local,) of its class's column, which has one for each of `tied.values`."""
        values = np.full(len(self.scored.labels), math.nan)
        for column, rows in zip(columns, self.scored.classes, strict=True):
            if self.finite:
                values[rows] = self.scored.comm.alltoall_rows(column[self.place], self.counts)[0][self.at[rows]]
        return values
