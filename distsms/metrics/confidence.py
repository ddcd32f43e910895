"""How sure a measure is, and whether one model, or one method, is better than another.

Two kinds of statements (`Interval.of`): what *this model* would reach on new rows, and what *the method*, trained on
new rows, would reach on new rows. New rows are drawn as these were, with class counts of their own.

A measure is a mean over rows (`Spread`). ROCArea: of V10, the share of negatives below a positive, or of V01, the share
of positives above a negative, ties counting one half (DeLong, DeLong & Clarke-Pearson 1988):

    variance = var(V10) / n+  +  var(V01) / n-      (sample variances, with n+ - 1 and n- - 1)

PRBEP: of 1 for each positive among the n+ highest scores, 0 for the others. Its threshold moves with the rows; that
makes it steadier than the binomial variance PRBEP (1 - PRBEP) / n+, unless rows at the threshold are positive more
often than those above it, which bootstrap replicates (`distsms.metrics.bootstrap`) see: of both kinds of limits the
wider hold.

Limits of one mean (`limits`): quantiles of Beta distributions of the mean and variance that the rows have with one
more, unseen row in each class, which lies at the worst end for the lower limit and at the best for the upper. Of zeros
and ones they are Clopper & Pearson's (1934); the bound of Learned-Miller & Thomas (2019) is of this kind. There are
such limits for few rows, and for a measure of 0 or 1, too.

Differences are of the same rows, and paired: what two models have in common cancels row by row, before anything is
squared. ROCArea: Student's t, with as many degrees of freedom as the rarer class has rows, less one. PRBEP:
percentiles of the replicates' differences.

Folds: rows of all folds count as one sample, each about the mean of all. Their models share training rows, and other
training rows would give others: the variance is enlarged by Nadeau & Bengio's (2003) n_test / n_train, 1 / (k - 1) of k
folds, to 1/k. They estimate a fold's variance from the spread of k values; here it is of the rows, which are many.

A p-value is two-sided, for "both are equally good". `scripts/experiments/coverage.py`
simulates what all of this is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from distsms.metrics.ranking import among, exact_sum, placements
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

LEVEL = 0.95
"""Of the intervals of folds; those of a model are of any level."""

FEWEST = 10
"""Rows of the rarer class that a difference wants; what it is worth with fewer was not found to hold."""

MODEL = "this model on new rows"
METHOD = "the method, trained on new rows, on new rows"


@dataclass(frozen=True)
class Interval:
    """A value with its interval; NaN where there is none, and then `why`. For a difference also the p-value."""

    value: float
    standard_error: float
    low: float
    high: float
    method: str
    why: str = ""
    p: float | None = None
    of: str = MODEL

    def as_json(self) -> dict[str, Any]:
        """By name, without what does not apply."""
        return {name: one for name, one in vars(self).items() if one not in ("", None)}


class Spread(NamedTuple):
    """A measure as a mean over rows; of several folds of the rows, the mean of theirs.

    squares : sums of squared deviations of positive and of negative rows; of PRBEP of positive rows alone.
    counts : of positive and of negative rows.  folds : 0 for a model.
    """

    value: float
    squares: tuple[float, ...]
    counts: tuple[int, int]
    folds: int = 0

    @property
    def factor(self) -> float:
        """What the variance is enlarged by, for new training rows."""
        return 1 + self.folds / (self.folds - 1) if self.folds else 1.0

    @property
    def error(self) -> float:
        """The standard error; NaN where a class has one row."""
        parts = list(zip(self.squares, self.counts, strict=False))
        if min(n for _, n in parts) < 2:
            return math.nan
        return math.sqrt(self.factor * sum(square / (n * (n - 1)) for square, n in parts))

    @property
    def of(self) -> str:
        """What an interval is of."""
        return METHOD if self.folds else MODEL


def delong(twice: NDArray[np.int64], labels: NDArray[np.int8], comm: Communicator) -> Spread:
    """ROCArea from this rank's (n_local,) placements; NaN where a class is missing.

    twice : of `measures.placements`; a difference of two models' gives the difference of their ROCAreas. All sums are
    of whole numbers and exact: nothing cancels, and any number of ranks gives the same bits. Collective, a few numbers.
    """
    positive = labels > 0
    n_pos, n_neg = map(int, comm.sum(np.array([np.count_nonzero(positive), np.count_nonzero(~positive)])))
    if not (n_pos and n_neg):
        return Spread(math.nan, (math.nan, math.nan), (n_pos, n_neg))
    total = exact_sum(twice[positive], comm)
    squares = tuple(
        (n * _squares(twice[rows], comm) - total**2) / (n * (2 * others) ** 2)
        for rows, n, others in ((positive, n_pos, n_neg), (~positive, n_neg, n_pos))
    )
    return Spread(total / (2 * n_pos * n_neg), squares, (n_pos, n_neg))


def _squares(values: NDArray[np.int64], comm: Communicator) -> int:
    """The exact sum of all ranks' squares, of numbers below 2^46. Collective."""
    upper, lower = values >> 16, values & 0xFFFF
    parts = (exact_sum(one, comm) for one in (upper * upper, upper * lower, lower * lower))
    return sum(part << shift for part, shift in zip(parts, (32, 17, 0), strict=True))


def recall(share: Floats, labels: NDArray[np.int8], comm: Communicator) -> Spread:
    """PRBEP from this rank's (n_local,) shares of `measures.among`; NaN without positives. Collective, a few numbers.

    A difference of two models' shares gives the difference of their PRBEP.
    """
    own = share[labels > 0]
    n_pos, n_neg = map(int, comm.sum(np.array([len(own), len(labels) - len(own)])))
    total, square = comm.sum(np.array([np.sum(own), np.sum(own * own)])).tolist()
    if not n_pos:
        return Spread(math.nan, (math.nan,), (n_pos, n_neg))
    return Spread(total / n_pos, (max(square - total**2 / n_pos, 0.0),), (n_pos, n_neg))


def spread_of(measure: str, scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> Spread:
    """ROCArea or PRBEP of this rank's (n_local,) scores and labels. Collective."""
    if measure == "rocarea":
        return delong(placements(scores, labels, comm), labels, comm)
    n_pos = int(comm.sum(np.array([np.count_nonzero(labels > 0)]))[0])
    return recall(among(scores, n_pos, comm), labels, comm)


def of_folds(found: Sequence[Spread]) -> Spread:
    """The mean of folds, which have no row in common, as a measure of the method. Local."""
    values = np.array([one.value for one in found])
    counts = np.array([one.counts for one in found])
    squares = np.array([one.squares for one in found])
    own = counts[:, : squares.shape[1]]
    about = values[:, None] - (own * values[:, None]).sum(0) / own.sum(0)
    n_pos, n_neg = counts.sum(0).tolist()
    return Spread(float(values.mean()), tuple((squares + own * about**2).sum(0).tolist()), (n_pos, n_neg), len(found))


def limits(one: Spread, level: float) -> tuple[float, float]:
    """Of a mean of values from 0 to 1. See the module. Local."""
    low, high = (_limit(one, end, quantile) for end, quantile in ((0.0, 0.5 - level / 2), (1.0, 0.5 + level / 2)))
    return min(low, one.value), max(high, one.value)


def _limit(one: Spread, end: float, quantile: float) -> float:
    """With one row more, at `end`, in each class."""
    mean, variance, kept = one.value, 0.0, 1.0
    for squares, n in zip(one.squares, one.counts, strict=False):
        together = one.factor * squares + (end - mean) ** 2 * n / (n + 1)
        variance += together / ((n + 1) * (n + 2))
        kept *= n / (n + 1)
    mean = end + (mean - end) * kept
    if not 0 < mean < 1:
        return mean
    weight = max(mean * (1 - mean) / variance - 1, 1e-3)  # what both parameters add up to
    return float(special.betaincinv(mean * weight, (1 - mean) * weight, quantile))


def of_rocarea(found: Spread, level: float) -> Interval:
    """ROCArea, from what `delong` found of placements. Local."""
    method = "DeLong, beta"
    if not min(found.counts):
        return Interval(found.value, math.nan, math.nan, math.nan, method, "a class is missing", of=found.of)
    return Interval(found.value, found.error, *limits(found, level), method, of=found.of)


def of_rocarea_difference(found: Spread, level: float) -> Interval:
    """How much larger one ROCArea is, from what `delong` found of placements less the other's. Local."""
    value, error, method = found.value, found.error, "DeLong, paired"
    why = too_few(found.counts)
    if not why and error == 0:
        if not value:
            return Interval(0.0, 0.0, 0.0, 0.0, method, p=1.0, of=found.of)
        why = "all rows differ alike, which leaves no variance to estimate"
    if why:
        return Interval(value, error, math.nan, math.nan, method, why, math.nan, found.of)
    freedom = min(found.counts) - 1
    half = float(special.stdtrit(freedom, 0.5 + level / 2)) * error
    p = 2 * float(special.stdtr(freedom, -abs(value) / error))
    return Interval(value, error, value - half, value + half, method, p=p, of=found.of)


def of_prbep(found: Spread, replicates: Floats, level: float) -> Interval:
    """PRBEP, from what `recall` found, and (B,) replicates, none with B = 0. Local."""
    if not found.counts[0]:
        return Interval(found.value, math.nan, math.nan, math.nan, "binomial", "there is no positive row", of=found.of)
    low, high, method, drawn = *limits(found, level), "binomial", _enlarged(found, replicates)
    if len(drawn):
        low, high = min(low, max(_quantile(drawn, level, 0), 0.0)), max(high, min(_quantile(drawn, level, 1), 1.0))
        method = "binomial and bootstrap"
    return Interval(found.value, found.error, low, high, method, of=found.of)


def of_prbep_difference(found: Spread, replicates: Floats, level: float) -> Interval:
    """How much larger one PRBEP is, from `recall` of the difference of shares, and (B,) differences of replicates of
    the same draws. Local.

    p : twice the smaller share of replicates on one side of 0, those at 0 on both, each share as (1 + count) / (1 + B).
    """
    method, drawn = "bootstrap, paired", _enlarged(found, replicates)
    if why := too_few(found.counts) or ("" if len(drawn) > 1 else "there are no replicates"):
        return Interval(found.value, math.nan, math.nan, math.nan, method, why, math.nan, found.of)
    beyond = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    p = min(1.0, 2 * (1 + beyond) / (1 + len(drawn)))
    error = float(np.std(drawn, ddof=1))
    low, high = (_quantile(drawn, level, side) for side in (0, 1))
    return Interval(found.value, error, low, high, method, p=p, of=found.of)


def _enlarged(found: Spread, replicates: Floats) -> Floats:
    """Replicates that have a positive row, as far from the value as new training rows take them."""
    return found.value + math.sqrt(found.factor) * (replicates[np.isfinite(replicates)] - found.value)


def _quantile(drawn: Floats, level: float, side: int) -> float:
    return float(np.quantile(drawn, (0.5 - level / 2, 0.5 + level / 2)[side]))


def too_few(counts: Sequence[int]) -> str:
    """Why there is no verdict on as many positive and negative rows; empty where there may be one. Local."""
    if min(counts) >= FEWEST:
        return ""
    which = ("positive", "negative")[counts.index(min(counts))]
    return f"{min(counts)} {which} rows are too few; a difference wants {FEWEST} of each class"


def verdict(difference: Interval, first: str, other: str) -> str:
    """In words, which model is better, or that this is not to be told."""
    if difference.why:
        return f"no verdict: {difference.why}"
    if difference.low > 0 or difference.high < 0:
        return f"{first if difference.low > 0 else other} is better"
    return "not distinguishable"
