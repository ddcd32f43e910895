"""Confidence intervals of measures, and tests of whether a model, or a method, is better (docs/theory/intervals.md).

A measure is a mean over rows (`MeanEstimate`), for PRBEP with bootstrap replicates. The limits of a single mean are
quantiles of a Beta distribution with mean and variance of the rows and of one more row of the rarer class; differences
are paired; the rows of k folds are one sample, with the variance enlarged as by Nadeau & Bengio (2003). With weights,
the effective number of rows takes the place of their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.ranking import exact_sum, placements, top_k_shares
from distsms.metrics.row_weights import effective_sizes, mass_of_classes, weighted_mean

LEVEL = 0.95
"""The level of intervals over folds; intervals for a model may have any level."""

FEWEST = 10
"""With fewer rows of the rarer class, simulations did not show intervals of differences to be reliable."""

MODEL = "this model on new rows"
TRAINED = "this model on rows that partly trained it"
METHOD = "the method, if it is trained on new rows and measured on other new rows"


class MeanEstimate(NamedTuple):
    """A measure as a mean over rows; for several folds, the mean of the folds' measures."""

    value: float  # the measure
    # the sum of squared deviations of the positive rows and, but for PRBEP, of the negative ones
    squares: tuple[float, ...]
    # the (effective) numbers of positive and negative rows, at K of these k rows and others
    counts: tuple[float, float]
    folds: int = 0  # the number of folds; 0 if the estimate is about one model
    of_folds: int = 0  # into how many folds the rows are divided, if the estimate is of some of them; 0 if it is of all

    @property
    def factor(self) -> float:
        """The factor by which the variance grows if the training rows are new, too; 1 for one model."""
        return 1 + self.folds / ((self.of_folds or self.folds) - 1) if self.folds else 1.0

    @property
    def error(self) -> float:
        """The standard error; NaN if a class has fewer than two rows."""
        parts = list(zip(self.squares, self.counts, strict=False))
        if min(n for _, n in parts) < 2:
            return math.nan
        return math.sqrt(self.factor * sum(square / (n * (n - 1)) for square, n in parts))

    @property
    def of(self) -> str:
        """What an interval is about: `MODEL` or `METHOD`."""
        return METHOD if self.folds else MODEL


def rocarea_estimate(twice: NDArray[Any], scored: Scored) -> MeanEstimate:
    """Estimate ROCArea, or a difference, by DeLong's method from `ranking.placements`, or theirs. **Collective.**"""
    weights, comm, (positive, negative) = scored.weights, scored.comm, scored.classes
    if weights is not None:
        of_pos, of_neg = mass_of_classes(scored)
        value = twice / np.where(positive, 2 * (of_neg or 1.0), 2 * (of_pos or 1.0))
        area, of_positive, size = weighted_mean(value, positive, weights, comm)
        _, of_negative, others = weighted_mean(value, negative, weights, comm)
        return MeanEstimate(area, (of_positive, of_negative), (size, others))
    n_pos, n_neg = map(int, comm.sum(np.array([np.count_nonzero(positive), np.count_nonzero(~positive)])))
    if not (n_pos and n_neg):
        return MeanEstimate(math.nan, (math.nan, math.nan), (n_pos, n_neg))
    total = exact_sum(twice[positive], comm)
    of_pos = (n_pos * _squares(twice[positive], comm) - total**2) / (n_pos * (2 * n_neg) ** 2)
    of_neg = (n_neg * _squares(twice[~positive], comm) - total**2) / (n_neg * (2 * n_pos) ** 2)
    return MeanEstimate(total / (2 * n_pos * n_neg), (of_pos, of_neg), (n_pos, n_neg))


def _squares(values: NDArray[np.int64], comm: Communicator) -> int:
    """Return the exact sum of the squares of all ranks' values, which must be below 2^46. Collective."""
    upper, lower = values >> 16, values & 0xFFFF
    parts = (exact_sum(products, comm) for products in (upper * upper, upper * lower, lower * lower))
    return sum(part << shift for part, shift in zip(parts, (32, 17, 0), strict=True))


def prbep_estimate(share: Floats, scored: Scored) -> MeanEstimate:
    """Estimate PRBEP, or a difference, and its spread from `ranking.top_k_shares`, or theirs. **Collective.**"""
    if scored.weights is not None:
        value, squares, _ = weighted_mean(share, scored.labels > 0, scored.weights, scored.comm)
        return MeanEstimate(value, (squares,), effective_sizes(scored))
    of_positives, (n_pos, n_neg) = share[scored.labels > 0], mass_of_classes(scored)
    total, square = scored.comm.sum(np.array([np.sum(of_positives), np.sum(of_positives * of_positives)])).tolist()
    if not n_pos:
        return MeanEstimate(math.nan, (math.nan,), (n_pos, n_neg))
    return MeanEstimate(total / n_pos, (max(square - total**2 / n_pos, 0.0),), (n_pos, n_neg))


def top_k_estimates(share: Floats, k: int, scored: Scored) -> tuple[MeanEstimate, MeanEstimate]:
    """Estimate precision@k, over k rows, and recall@k, over the positives, as `prbep_estimate`. **Collective.**"""
    recall = prbep_estimate(share, scored)
    n_pos, n_neg = recall.counts
    precision = min(recall.value * n_pos / k, 1.0) if n_pos else 0.0  # rounding may exceed 1
    return MeanEstimate(precision, (k * precision * (1 - precision),), (k, n_pos + n_neg - k)), recall


def measure_estimate(measure: str, scored: Scored) -> MeanEstimate:
    """Compute ROCArea or PRBEP and its spread. **Collective.**"""
    if measure == "rocarea":
        return rocarea_estimate(placements(scored), scored)
    return prbep_estimate(top_k_shares(scored, mass_of_classes(scored)[0]), scored)


def pool_folds(folds: Sequence[MeanEstimate], of_folds: int = 0) -> MeanEstimate:
    """Combine the estimates of folds, which have no row in common, into an estimate of the method's mean; `of_folds`:
    into how many folds the rows are divided, if these are some of them. Local."""
    values = np.array([fold.value for fold in folds])
    counts = np.array([fold.counts for fold in folds])
    squares = np.array([fold.squares for fold in folds])
    masses = counts[:, : squares.shape[1]]
    about = values[:, None] - (masses * values[:, None]).sum(0) / masses.sum(0)
    n_pos, n_neg = counts.sum(0).tolist()
    pooled = tuple((squares + masses * about**2).sum(0).tolist())
    return MeanEstimate(float(values.mean()), pooled, (n_pos, n_neg), len(folds), of_folds)


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval."""

    value: float  # NaN, as its standard error and the limits, if it does not exist
    standard_error: float
    low: float
    high: float
    method: str  # how the interval was computed
    why: str = ""  # why there is no interval; "" if there is one
    p: float | None = None  # the p-value of a difference; None if this is not a difference
    of: str = MODEL  # what the interval is about: `MODEL` or `METHOD`

    def as_json(self) -> dict[str, Any]:
        """Return the attributes by name, without those that do not apply."""
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def limits(estimate: MeanEstimate, level: float, worst: float = 0.5) -> tuple[float, float]:
    """Return the limits of a mean of values from 0 to 1; `worst`: 0 for the lower and 1 for the upper one. Local."""
    low, high = (_limit(estimate, end, 0.5 + (end - 0.5) * level, worst) for end in (0.0, 1.0))
    return low if estimate.value > 0 else estimate.value, high if estimate.value < 1 else estimate.value


def _limit(estimate: MeanEstimate, end: float, quantile: float, worst: float) -> float:
    """Return one limit: the quantile of the Beta distribution, where `end` is the worst value."""
    value, mean, variance = estimate.value, estimate.value, 0.0
    counts = estimate.counts[: len(estimate.squares)]
    for k, (squares, n) in enumerate(zip(estimate.squares, counts, strict=True)):
        more = 1.0 if k == counts.index(min(counts)) else 0.0
        to_end, to_other = worst * more, (1 - worst) * more
        of_class = (n * value + to_end * end + to_other * (1 - end)) / (n + more)
        added = n * (value - of_class) ** 2 + to_end * (end - of_class) ** 2 + to_other * (1 - end - of_class) ** 2
        variance += (estimate.factor * squares + added) / ((n + more) * (n + more + 1))
        mean += of_class - value
    if not 0 < mean < 1:
        return mean
    if not variance > 0:  # squares vanish: the mean is below 1e-150
        return end
    size = max(mean * (1 - mean) / variance - 1, 1e-3)  # the sum of both parameters
    limit = float(scipy.special.betaincinv(mean * size, (1 - mean) * size, quantile))
    return max(limit, value) if end else min(limit, value)


def mean_interval(estimate: MeanEstimate, level: float, method: str, why: str, worst: float = 0.5) -> Interval:
    """Return a mean with its `limits`, or if there is a reason `why` it has none, with this reason. Local."""
    error, ends = (math.nan, (math.nan, math.nan)) if why else (estimate.error, limits(estimate, level, worst))
    return Interval(estimate.value, error, *ends, method, why, of=estimate.of)


def rocarea_interval(estimate: MeanEstimate, level: float, method: str = "DeLong, beta") -> Interval:
    """Return the interval of ROCArea, or another measure of both classes, from its estimate. Local."""
    lacks_class = math.isnan(estimate.value) or not min(estimate.counts)
    return mean_interval(estimate, level, method, "a class is missing" * lacks_class)


def rocarea_difference_interval(estimate: MeanEstimate, level: float, method: str = "DeLong, paired") -> Interval:
    """Return the interval of a difference, of ROCArea or another one, from its estimate, by Student's t. Local."""
    value, error = estimate.value, estimate.error
    why = too_few(estimate.counts)
    if not why and error == 0:
        if not value:
            return Interval(0.0, 0.0, 0.0, 0.0, method, p=1.0, of=estimate.of)
        why = "the difference is the same in all rows, so there is no variance to estimate"
    if why:
        return Interval(value, error, math.nan, math.nan, method, why, math.nan, estimate.of)
    freedom = min(estimate.counts) - 1
    half = float(scipy.special.stdtrit(freedom, 0.5 + level / 2)) * error
    p = 2 * float(scipy.special.stdtr(freedom, -abs(value) / error))
    return Interval(value, error, value - half, value + half, method, p=p, of=estimate.of)


def prbep_interval(estimate: MeanEstimate, replicates: Floats, level: float, worst: float = 0.5) -> Interval:
    """Return the interval of PRBEP, from `prbep_estimate` and `bootstrap.prbep_replicates`, perhaps none. Local."""
    if not estimate.counts[0]:
        return mean_interval(estimate, level, "binomial", "there is no positive row")
    (low, high), method = limits(estimate, level, worst), "binomial"
    if len(drawn := _enlarged(estimate, replicates)):
        low, high = min(low, max(_quantile(drawn, level, 0), 0.0)), max(high, min(_quantile(drawn, level, 1), 1.0))
        method = "binomial and bootstrap"
    return Interval(estimate.value, estimate.error, low, high, method, of=estimate.of)


def prbep_difference_interval(estimate: MeanEstimate, replicates: Floats, level: float) -> Interval:
    """Return the interval of a difference of PRBEP, from its estimate and the difference of paired replicates (B,). The
    p-value is twice the smaller share on a side of 0, (1 + count) / (1 + B). Local."""
    method, drawn = "bootstrap, paired", _enlarged(estimate, replicates)
    if why := too_few(estimate.counts) or ("" if len(drawn) > 1 else "there are no replicates"):
        return Interval(estimate.value, math.nan, math.nan, math.nan, method, why, math.nan, estimate.of)
    beyond = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    p = min(1.0, 2 * (1 + beyond) / (1 + len(drawn)))
    error = float(np.std(drawn, ddof=1))
    low, high = (_quantile(drawn, level, side) for side in (0, 1))
    return Interval(estimate.value, error, low, high, method, p=p, of=estimate.of)


def _enlarged(estimate: MeanEstimate, replicates: Floats) -> Floats:
    """Return the replicates with positive rows, their distances from the value enlarged by sqrt(`factor`)."""
    return estimate.value + math.sqrt(estimate.factor) * (replicates[np.isfinite(replicates)] - estimate.value)


def _quantile(drawn: Floats, level: float, side: int) -> float:
    """Return the lower (0) or upper (1) end of the interval, one of the replicates: so it agrees with the p-value."""
    share, method = (0.5 + level / 2, "higher") if side else (0.5 - level / 2, "lower")
    return float(np.quantile(drawn, share, method=method))  # type: ignore[call-overload]


def folds_interval(values: Sequence[float], level: float, measure: str = "") -> Interval:
    """Return the interval of Nadeau & Bengio (2003) for the mean over folds, within `measure`'s range. Local."""
    k, mean = len(values), float(np.mean(values))
    error = float(np.std(values, ddof=1)) * math.sqrt(1 / k + 1 / (k - 1))
    half = float(scipy.special.stdtrit(k - 1, 0.5 + level / 2)) * error
    least, most = (0.0 if measure else -math.inf), (1.0 if measure and not measure.startswith("lift") else math.inf)
    ends = max(mean - half, least), min(mean + half, most)
    return Interval(mean, error, *ends, "Student's t over the folds", of=METHOD)


def too_few(counts: Sequence[float]) -> str:
    """Say why these (effective) numbers of positive and negative rows are too small for a verdict; "" if not. Local."""
    if min(counts) >= FEWEST:
        return ""
    which = ("positive", "negative")[counts.index(min(counts))]
    return f"{min(counts):.4g} {which} rows are too few; a difference needs at least {FEWEST} rows of each class"


def verdict(difference: Interval, first: str, other: str) -> str:
    """Say which model is better, or that they are not distinguishable."""
    if difference.why:
        return f"no verdict: {difference.why}"
    if difference.low > 0 or difference.high < 0:
        return f"{first if difference.low > 0 else other} is better"
    return "not distinguishable"
