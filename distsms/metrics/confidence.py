"""Confidence intervals for a measure, and tests of whether one model, or one method, is better
(docs/theory/intervals.md).

Statements (`Interval.of`) are about *this model* on new rows, or about *the method* on other training rows. A measure
is a mean over rows (`distsms.metrics.estimates`), for PRBEP with bootstrap replicates. The limits of a single mean are
quantiles of a Beta distribution with mean and variance of the rows and of one more row of the rarer class; differences
are paired; the rows of k folds are one sample, with the variance enlarged as by Nadeau & Bengio (2003). With weights,
the effective number of rows takes the place of their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start

from distsms.base.typing import Floats
from distsms.metrics.estimates import METHOD, MODEL, MeanEstimate

LEVEL = 0.95
"""The level of intervals over folds; intervals for a model may have any level."""

FEWEST = 10
"""The smallest number of rows of the rarer class for which a difference gets an interval. With fewer rows, the
simulations did not show the intervals to be reliable.
"""


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval."""

    # the value, its standard error, and the limits of the interval. Each is NaN if it does not exist.
    value: float
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


def rocarea_interval(estimate: MeanEstimate, level: float) -> Interval:
    """Return the interval of ROCArea, from `rocarea_estimate`. Local."""
    return mean_interval(estimate, level, "DeLong, beta", "" if min(estimate.counts) else "a class is missing")


def rocarea_difference_interval(estimate: MeanEstimate, level: float, method: str = "DeLong, paired") -> Interval:
    """Return the interval of a difference, from `rocarea_estimate` of that of two models' placements, or from another
    estimate of a difference, by Student's t. Local.
    """
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
    """Return the interval of the difference of two PRBEPs, from `prbep_estimate` of the shares' difference and that of
    paired replicates (B,). The p-value is twice the smaller share on a side of 0, (1 + count) / (1 + B). Local.
    """
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
