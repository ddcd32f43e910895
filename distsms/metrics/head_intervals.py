"""Intervals of the measures of the head of a ranking, from bootstrap replicates over rows and ranks.

The draws are those of `distsms.metrics.bootstrap`, and the limits as for PRBEP (docs/theory/intervals.md). In a
replicate, the curve is computed at a few hundred thresholds that are dense where measures have their points, 16 bytes
for each; of the negatives below, only the number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.hashing import row_keys
from distsms.base.measures import Condition, HeadMeasure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.bootstrap import DrawnRows, Draws, tables
from distsms.metrics.confidence import Interval, MeanEstimate, limits, mean_interval, prbep_interval
from distsms.metrics.operating_points import POINTS, SLACK, OperatingPoint, contingency, operating_point
from distsms.metrics.row_weights import weighted_mean
from distsms.metrics.tied_scores import TiedScores

COARSE, FINE, REACH = 0.5, 0.05, 8.0
"""The rows between two thresholds, in units of the square root of the rows above them: `COARSE`, or `FINE` where a
measure has its point within `REACH` units."""
FEWEST_REACHED, FEWEST_TRUE = 20, 10
"""A recall at a precision has no interval if fewer than `FEWEST_REACHED` positive rows reach this precision, nor has a
precision at a recall if fewer are beyond it, nor either at a threshold with fewer true positives than `FEWEST_TRUE`:
the simulations did not show the intervals to be reliable then."""


def head_replicates(
    measures: Sequence[HeadMeasure], tied: TiedScores, scored: Scored, draws: Draws
) -> dict[str, Floats]:
    """Return replicates of measures of the head (replicates,) by name, alike on every rank, NaN without a class, of
    scores with weights from `row_weights.effective`. **Collective.**"""
    replicates, comm, positive = draws.replicates, scored.comm, scored.labels > 0
    values = {measure.name: np.full(replicates, np.nan) for measure in measures}
    if not (tied.n_pos and tied.n_neg and replicates):
        return values
    thresholds = _thresholds(measures, tied, comm)
    # Column 2 k is for the negatives that reach threshold k and none above it, column 2 k + 1 for such positives, and
    # the last one for the positives below all thresholds.
    level = len(thresholds) - np.searchsorted(thresholds[::-1], scored.scores, "right")
    drawn = positive | (level < len(thresholds))
    column, keys = (2 * level + positive)[drawn], row_keys(draws.rows[drawn], draws.seed)
    column[column == 2 * len(thresholds) + 1] -= 1
    rows = DrawnRows(keys, column, 2 * len(thresholds) + 1, scored.weights_of(drawn))
    left = scored.mass[~drawn]
    below, variance = comm.sum(np.array([np.sum(left), np.sum(left * left)])).tolist()
    rest = np.maximum(below + math.sqrt(variance) * np.random.default_rng(draws.seed).standard_normal(replicates), 0.0)
    for block, table in tables(rows, np.arange(replicates), comm):
        curves = _Curves(table, rest[block])
        for measure in measures:
            values[measure.name][block] = curves.value(measure)
    return values


def _thresholds(measures: Sequence[HeadMeasure], tied: TiedScores, comm: Communicator) -> Floats:
    """Return the thresholds, from the highest to the lowest, the same on every rank. Collective."""
    tp, fp, n = tied.tp, tied.fp, tied.n_pos + tied.n_neg
    points, depth = [], 1.0
    for measure in measures:
        at, rate = _point(measure, tied, comm), measure.level
        points.append(at)
        more = min(rate + REACH / 2 * math.sqrt(rate * (1 - rate) / tied.n_pos), 1.0)
        beyond = _point(replace(measure, level=more), tied, comm)[1]
        deepest = {"recall@precision": tied.n_pos * (1 - rate) / rate, "precision@recall": beyond}
        of_measure = deepest.get(measure.family, rate * n if measure.family.endswith("@share") else at[1])
        depth = max(depth, of_measure + REACH * math.sqrt(of_measure))
    kept = np.zeros(len(tp), bool)
    for kind, (reach, counts) in enumerate(((tp, tied.positive), (fp, tied.negative))):
        kept |= np.floor(2 / COARSE * np.sqrt(reach)) > np.floor(2 / COARSE * np.sqrt(np.maximum(reach - counts, 0)))
        for at in points:
            center = at[kind]
            near = np.abs(reach - center) <= REACH * math.sqrt(center) + REACH
            width = max(1.0, FINE * math.sqrt(center))
            kept |= near & (np.floor(reach / width) > np.floor((reach - counts) / width))
    kept &= fp - tied.negative <= depth
    values = tied.values[kept]
    return np.sort(comm.allgather_rows(values, comm.allgather(len(values))))[::-1]


def _point(measure: HeadMeasure, tied: TiedScores, comm: Communicator) -> tuple[float, float]:
    """Return about how many positive and negative rows are above the place of a measure. Collective."""
    quantity = "fpr" if measure.family == "pauc" else POINTS.get(measure.family, ("top",))[0]
    table = operating_point(Condition(quantity, measure.level), tied, comm).table
    return table.tp, max(table.fp, measure.level * tied.n_neg) if quantity == "fpr" else table.fp


class _Curves:
    """The curves of a block of B replicates at L thresholds, before which no row is called, and after which all are."""

    def __init__(self, table: NDArray[Any], rest: Floats) -> None:
        nothing = np.zeros(len(table))
        self.tp = np.cumsum(np.column_stack([nothing, table[:, 1:-1:2], table[:, -1]]), axis=1)  # (B, L + 2)
        self.fp = np.cumsum(np.column_stack([nothing, table[:, :-1:2], rest]), axis=1)
        self.n_pos, self.n_neg = (np.where(curve[:, -1] > 0, curve[:, -1], np.nan) for curve in (self.tp, self.fp))

    def value(self, measure: HeadMeasure) -> Floats:
        """Return the measure in each replicate, (B,)."""
        tp, fp = self.tp, self.fp
        level, each = measure.level, np.arange(len(self.tp))
        if measure.family == "pauc":
            limit = (level * self.n_neg)[:, None]
            passed, gained = np.diff(fp), np.diff(tp)
            width = np.clip(limit - fp[:, :-1], 0, passed)
            heights = tp[:, 1:] - gained * (1 - width / np.where(passed > 0, passed, 1) / 2)
            return np.sum(width / limit * heights, axis=1) / self.n_pos
        if not measure.family.endswith("@share"):
            if measure.family == "tpr@fpr":
                fulfilled = fp <= (level * (1 + SLACK) * self.n_neg)[:, None]
            elif measure.family == "precision@recall":
                fulfilled = tp < (level * (1 - SLACK) * self.n_pos)[:, None]
            else:
                fulfilled = tp >= level * (1 - SLACK) * (tp + fp)
            last = fulfilled.shape[1] - 1 - np.argmax(fulfilled[:, ::-1], axis=1)
            if measure.family == "precision@recall":  # the first threshold that fulfils it
                last = np.minimum(last + 1, tp.shape[1] - 1)
                called = tp[each, last] + fp[each, last]
                return tp[each, last] / np.where(called > 0, called, 1)
            return tp[each, last] / self.n_pos
        rows, called = level * (self.n_pos + self.n_neg), tp + fp
        last = np.clip(np.argmax(called >= rows[:, None], axis=1), 1, None)
        before = called[each, last - 1]
        passed = called[each, last] - before
        share = (rows - before) / np.where(passed > 0, passed, 1)
        true = tp[each, last - 1] + (tp[each, last] - tp[each, last - 1]) * share
        recall = true / self.n_pos
        return {"recall@share": recall, "precision@share": true / rows, "lift@share": recall / level}[measure.family]


def head_estimate(measure: HeadMeasure, value: float, n_pos: float, n_neg: float) -> MeanEstimate:
    """Return a measure of the head on (effective) n_pos and n_neg rows as a mean of 0 and 1; of a lift, recall."""
    counted = n_pos
    if measure.family == "lift@share":
        value *= measure.level
    elif measure.family == "precision@share":
        counted = max(round(measure.level * (n_pos + n_neg)), 1)
    elif measure.family == "precision@recall" and value > 0:
        counted = max(round(measure.level * n_pos / value), 1)  # about how many rows are called positive
    value = value if math.isnan(value) else min(value, 1.0)  # a sum of shares may be rounded up
    return MeanEstimate(value, (counted * value * (1 - value),), (counted, n_pos + n_neg - counted))


def head_interval(measure: HeadMeasure, estimate: MeanEstimate, drawn: Floats, level: float) -> Interval:
    """Return the smallest interval that contains that of `head_estimate` and that of `drawn` (B,). Local."""
    if math.isnan(estimate.value):
        return mean_interval(estimate, level, "binomial", "there are too few rows, or a class is missing")
    true = estimate.value * estimate.counts[0]  # positive rows above the threshold
    beyond = true * (1 - measure.level) / measure.level
    counted = {
        "recall@precision": (true, "reach this precision"),
        "precision@recall": (beyond, "are beyond this recall"),
    }
    rows, text = counted.get(measure.family, (math.inf, ""))
    if rows < FEWEST_REACHED * (1 - SLACK):
        why = f"fewer than {FEWEST_REACHED} positive rows {text}"
        return mean_interval(estimate, level, "binomial and bootstrap", why)
    if measure.family in ("recall@share", "lift@share"):  # no more of them can be positive than there are rows
        n, share = sum(estimate.counts), estimate.counts[0] / sum(estimate.counts)
        fewest = limits(MeanEstimate(share, (n * share * (1 - share),), (n, 0)), level)[0]
        most = max(measure.level / max(fewest, measure.level), estimate.value)
        scale = measure.level if measure.family == "lift@share" else 1.0
        of_recall = prbep_interval(estimate, drawn * scale, level)
        of_recall = replace(of_recall, high=min(of_recall.high, most))
        names = ("value", "standard_error", "low", "high")
        return replace(of_recall, **{name: getattr(of_recall, name) / scale for name in names})
    return prbep_interval(estimate, drawn, level, 1.0 if measure.family in counted else 0.5)


def point_intervals(point: OperatingPoint, level: float, scored: Scored) -> dict[str, Interval]:
    """Return the intervals of precision, recall and false positive rate at a threshold, on new rows: binomial (Clopper
    & Pearson 1934), or with weights, and then **collective**, of weighted means. In simulations they also hold for
    thresholds chosen on the same rows."""
    table, intervals, weights, comm = point.table, {}, scored.weights, scored.comm
    called, (positive, negative) = scored.scores >= point.threshold, scored.classes
    reached = table.tp if weights is None else weighted_mean(1.0 * called, called & positive, weights, comm)[2]
    of_rows = {"precision": (positive, called), "recall": (called, positive), "fpr": (called, negative)}
    masses = (table.tp, table.tp + table.fp), (table.tp, table.tp + table.fn), (table.fp, table.fp + table.tn)
    for (name, (values, rows)), (part, whole) in zip(of_rows.items(), masses, strict=True):
        value = part / whole if whole else math.nan
        why = "" if whole else "there is no such row"
        if not why and name != "fpr" and reached < FEWEST_TRUE:
            why = f"fewer than {FEWEST_TRUE} positive rows reach the threshold"
        estimate = MeanEstimate(value, (part * (1 - value),), (whole, 0))
        if weights is not None:
            _, squares, size = weighted_mean(1.0 * values, rows, weights, comm)
            estimate = MeanEstimate(value, (squares,), (size, 0))
        intervals[name] = mean_interval(estimate, level, "binomial", why, worst=1.0)
    return intervals


def rates_at(threshold: float, level: float, scored: Scored) -> dict[str, Any]:
    """Return a threshold, its contingency table, and the rates at it with their intervals. **Collective.**"""
    point = OperatingPoint(threshold, contingency(scored, threshold))
    rates = point_intervals(point, level, scored)
    return {
        "threshold": point.threshold,
        **vars(point.table),
        **{name: interval.value for name, interval in rates.items()},
        "intervals": {name: interval.as_json() for name, interval in rates.items()},
    }
