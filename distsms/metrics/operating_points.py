"""Contingency tables, measures of the head of a ranking, and thresholds that fulfil a condition, from all ranks' rows.

A threshold calls all rows positive from this score on, so never divides ties; one that fulfils a condition is a score
of some row. A measure is NaN if a class that it needs is missing, or a score is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.measures import Condition, HeadMeasure
from distsms.base.scored import Scored
from distsms.metrics.row_weights import masses
from distsms.metrics.tied_scores import TiedScores

ALPHA = 20.0
"""The parameter of BEDROC: with 20, the first 8 % of the rows have 80 % of the weight."""

SLACK = 1e-12
"""Relative difference by which a rate may miss its limit. Sums of weights are rounded."""


@dataclass(frozen=True)
class Contingency:
    """The numbers, or weights, of true and false positives and negatives at a threshold, over all ranks."""

    tp: float
    fp: float
    fn: float
    tn: float

    @property
    def precision(self) -> float:
        """tp / (tp + fp)."""
        return ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """tp / (tp + fn)."""
        return ratio(self.tp, self.tp + self.fn)

    def f(self, beta: float) -> float:
        """Return (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp); beta above 1 favours recall."""
        true = (1 + beta * beta) * self.tp
        return ratio(true, true + beta * beta * self.fn + self.fp)

    @property
    def error_rate(self) -> float:
        """(fp + fn) / n."""
        return ratio(self.fp + self.fn, self.tp + self.fp + self.fn + self.tn)


def contingency(scored: Scored, threshold: float) -> Contingency:
    """Compute the contingency table of all ranks' rows, on every rank. **Collective**, four numbers."""
    called, positive = scored.scores >= threshold, scored.labels > 0
    groups = called & positive, called & ~positive, ~called & positive, ~called & ~positive
    return Contingency(*masses(groups, scored.weights, scored.comm).tolist())


def ratio(part: float, whole: float) -> float:
    """Return part / whole, or NaN if the whole is 0."""
    return part / whole if whole else float("nan")


class OperatingPoint(NamedTuple):
    """A threshold and the contingency table that it gives."""

    threshold: float  # infinite if no row is to be called positive
    table: Contingency


def operating_point(condition: Condition, tied: TiedScores, comm: Communicator) -> OperatingPoint:
    """Find the threshold that fulfils a condition best: the highest with a recall; the lowest with a precision,
    although one above may have less, within a false positive rate or a number of rows. Infinite if none does.
    **Collective.**"""
    tp, fp, level = tied.tp, tied.fp, condition.level
    with np.errstate(invalid="ignore", divide="ignore"):
        if condition.quantity == "fpr":
            fulfilled = fp / tied.n_neg <= level * (1 + SLACK)
        elif condition.quantity == "precision":
            fulfilled = tp / (tp + fp) >= level * (1 - SLACK)
        elif condition.quantity == "recall":
            fulfilled = tp / tied.n_pos >= level * (1 - SLACK)
        else:
            fulfilled = tp + fp <= level * ((tied.n_pos + tied.n_neg) if condition.share else 1.0) * (1 + SLACK)
    values = tied.values[fulfilled]
    sign = 1.0 if condition.quantity == "recall" else -1.0
    best = sign * float(comm.maximum(np.array([np.max(sign * values, initial=-np.inf)]))[0])
    threshold = best if math.isfinite(best) else math.inf
    at = tied.values == threshold
    true, false = comm.sum(np.array([tp[at].sum(), fp[at].sum()])).tolist()
    return OperatingPoint(threshold, Contingency(true, false, max(tied.n_pos - true, 0), max(tied.n_neg - false, 0)))


class Head(NamedTuple):
    """Measures of the rows with the highest scores."""

    rows: float  # how many rows they are, or the sum of their weights
    precision: float
    recall: float
    lift: float  # the precision divided by the share of positives among all rows


def head(tied: TiedScores, condition: Condition, comm: Communicator) -> Head:
    """Measure the rows of highest score, "top=100" or "top=1%"; ties by their mean, or NaN. **Collective.**"""
    n = tied.n_pos + tied.n_neg
    rows = condition.level * (n if condition.share else 1.0)
    if not 0 < rows <= n:
        return Head(rows, math.nan, math.nan, math.nan)
    size = tied.positive + tied.negative
    counted = np.clip(rows - (tied.tp + tied.fp - size), 0, size)
    tp = float(comm.sum(np.array([np.sum(tied.positive * (counted / size))]))[0])
    recall = ratio(tp, tied.n_pos)
    return Head(rows, tp / rows, recall, recall * n / rows)


def partial_area(tied: TiedScores, max_fpr: float, comm: Communicator) -> float:
    """Return `roc_auc_score(max_fpr=max_fpr)`, before McClish's correction, divided by `max_fpr`. **Collective.**"""
    if not (tied.n_pos and tied.n_neg):
        return math.nan
    limit = max_fpr * tied.n_neg
    width = np.clip(limit - (tied.fp - tied.negative), 0, tied.negative)
    share = width / np.where(tied.negative > 0, tied.negative, 1)
    heights = tied.tp - tied.positive * (1 - share / 2)  # in the middle of the part that is counted
    return min(float(comm.sum(np.array([np.sum(width / limit * (heights / tied.n_pos))]))[0]), 1.0)


def bedroc(tied: TiedScores, comm: Communicator, alpha: float = ALPHA) -> float:
    """Compute BEDROC (Truchon & Bayly, J. Chem. Inf. Model. 47, 2007, equation 36), 0 to 1: a positive row at the share
    x of all rows has the weight exp(-alpha x); ties count by the mean over orders. Where negatives are fewer, 1 minus
    theirs, which loses no digits. **Collective**, one number."""
    if not (tied.n_pos and tied.n_neg):
        return math.nan
    n, size = tied.n_pos + tied.n_neg, tied.positive + tied.negative
    reach, few = tied.tp + tied.fp, tied.n_pos <= tied.n_neg
    # The sum of exp(-alpha r / n) over the places r of tied rows, divided by their number and by a constant factor of
    # the geometric series, which cancels, so that weights need not be whole.
    above = np.exp(-alpha * (reach - size) / n) * -np.expm1(-alpha * size / n)
    total = float(comm.sum(np.array([np.sum((tied.positive if few else tied.negative) / size * above)]))[0])
    share = (tied.n_pos if few else tied.n_neg) / n
    high = -math.expm1(-alpha * share)
    if not high:
        return math.nan
    spread = -high * math.expm1(-alpha * (1 - share))
    scaled = min(max((total - (high - spread)) / spread, 0.0), 1.0)
    return scaled if few else 1 - scaled


POINTS = {
    "tpr@fpr": ("fpr", "recall"),
    "recall@precision": ("precision", "recall"),
    "precision@recall": ("recall", "precision"),
}
"""What a condition limits at the threshold of a measure, and the rate there that is the measure, by its family."""


def head_value(measure: HeadMeasure, tied: TiedScores, comm: Communicator) -> float:
    """Compute a measure of the head from sorted scores. **Collective**, a few numbers."""
    if measure.family == "pauc":
        return partial_area(tied, measure.level, comm)
    if measure.family not in POINTS:
        return float(getattr(head(tied, Condition("top", measure.level), comm), measure.family.split("@")[0]))
    limited, rate = POINTS[measure.family]
    table = operating_point(Condition(limited, measure.level), tied, comm).table
    return math.nan if limited == "fpr" and not tied.n_neg else float(getattr(table, rate))
