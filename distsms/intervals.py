"""How sure a measure on test rows is, and whether one model is better than another on the same rows.

ROCArea: DeLong, DeLong & Clarke-Pearson (1988). V10 of a positive is the share of negatives below it, V01 of a negative
the share of positives above it, ties counting one half; ROCArea is the mean of either, and

    variance = var(V10) / n+  +  var(V01) / n-      (sample variances, with n+ - 1 and n- - 1)

A difference of two models has the variance of the differences of their V: what they have in common cancels row by row,
before anything is squared. The interval of one ROCArea is symmetric in its logit, so that it stays within (0, 1); that
of a difference is symmetric itself.

PRBEP: percentiles of bootstrap replicates (`distsms.bootstrap`), for two models of the differences in each replicate.

A p-value is two-sided, for "both are equally good". A difference is called one where its interval leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.comm import Communicator
from distsms.measures import exact_sum

Floats = NDArray[np.float64]


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

    def as_json(self) -> dict[str, Any]:
        """By name, without what does not apply."""
        return {name: one for name, one in vars(self).items() if one not in ("", None)}


def delong(twice: NDArray[np.int64], labels: NDArray[np.int8], comm: Communicator) -> tuple[float, float, str]:
    """ROCArea, its standard error, and why there is none (then it is NaN), from this rank's (n_local,) placements.

    twice : of `measures.placements`; a difference of two models' gives the difference of their ROCAreas. All sums are
    of whole numbers and exact: nothing cancels, and any number of ranks gives the same bits. Collective, a few numbers.
    """
    positive = labels > 0
    n_pos, n_neg = map(int, comm.sum(np.array([np.count_nonzero(positive), np.count_nonzero(~positive)])))
    if not (n_pos and n_neg):
        return math.nan, math.nan, "a class is missing"
    total = exact_sum(twice[positive], comm)
    area = total / (2 * n_pos * n_neg)
    if min(n_pos, n_neg) < 2:
        return (
            area,
            math.nan,
            f"a variance needs two rows of each class, and there is one {'positive' if n_pos < 2 else 'negative'}",
        )
    variance = 0.0
    for rows, n, others in ((positive, n_pos, n_neg), (~positive, n_neg, n_pos)):
        variance += (n * _squares(twice[rows], comm) - total**2) / (n * n * (n - 1) * (2 * others) ** 2)
    return area, math.sqrt(variance), ""


def _squares(values: NDArray[np.int64], comm: Communicator) -> int:
    """The exact sum of all ranks' squares, of numbers below 2^46. Collective."""
    upper, lower = values >> 16, values & 0xFFFF
    parts = (exact_sum(one, comm) for one in (upper * upper, upper * lower, lower * lower))
    return sum(part << shift for part, shift in zip(parts, (32, 17, 0), strict=True))


def mean_of_folds(found: Sequence[tuple[float, float, str]]) -> tuple[float, float, str]:
    """The mean of what `delong` found on folds, which have no row in common: like `delong`. Local.

    LeDell, Petersen & van der Laan (2015): the models of the folds count as given.
    """
    values, errors, whys = zip(*found, strict=True)
    error = math.sqrt(math.fsum(one**2 for one in errors)) / len(found)
    return math.fsum(values) / len(found), error, next(filter(None, whys), "")


def of_rocarea(found: tuple[float, float, str], level: float) -> Interval:
    """A model's ROCArea, from what `delong` found of its placements. Local."""
    area, error, why = found
    if not why and not area * (1 - area) > 0:
        why = "no pair or every pair is in the wrong order, which leaves no variance to estimate"
    if not why and error == 0:
        why = "all rows of a class have the same place, which leaves no variance to estimate"
    if why:
        return Interval(area, error, math.nan, math.nan, "DeLong", why)
    factor = math.exp(min(_z(level) * error / (area * (1 - area)), 700.0))
    low, high = area / (area + (1 - area) * factor), area / (area + (1 - area) / factor)
    return Interval(area, error, low, high, "DeLong")


def of_rocarea_difference(found: tuple[float, float, str], level: float) -> Interval:
    """How much larger one model's ROCArea is, from what `delong` found of its placements less the other's. Local."""
    value, error, why = found
    if not why and error == 0:
        if value:
            why = "all rows differ alike, which leaves no variance to estimate"
        else:
            return Interval(0.0, 0.0, 0.0, 0.0, "DeLong, paired", p=1.0)
    if why:
        return Interval(value, error, math.nan, math.nan, "DeLong, paired", why, math.nan)
    half = _z(level) * error
    p = math.erfc(abs(value) / error / math.sqrt(2))
    return Interval(value, error, value - half, value + half, "DeLong, paired", p=p)


def of_prbep(prbep: float, replicates: Floats, level: float, n_pos: int) -> Interval:
    """A model's PRBEP, from (B,) replicates; those without a positive are NaN and left out. Local."""
    found = _percentiles(prbep, replicates, level, n_pos, "bootstrap")
    if found.standard_error == 0:
        return replace(found, low=math.nan, high=math.nan, why="every replicate has the same value")
    return found


def of_prbep_difference(
    prbep: float, other: float, replicates: Floats, others: Floats, level: float, n_pos: int
) -> Interval:
    """How much larger the first model's PRBEP is; `replicates` of both are of the same draws. Local.

    p : twice the smaller share of replicates on one side of 0, those at 0 on both, each share as (1 + count) / (1 + B).
    """
    differences = replicates - others
    found = _percentiles(prbep - other, differences, level, n_pos, "bootstrap, paired")
    beyond = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    p = min(1.0, 2 * (1 + beyond) / (1 + np.count_nonzero(np.isfinite(differences))))
    return replace(found, p=math.nan if found.why else p)


def verdict(difference: Interval, first: str, other: str) -> str:
    """In words, which model is better, or that this is not to be told."""
    if difference.why:
        return f"not comparable: {difference.why}"
    if difference.low > 0 or difference.high < 0:
        return f"{first if difference.low > 0 else other} is better"
    return "not distinguishable"


def _percentiles(value: float, replicates: Floats, level: float, n_pos: int, method: str) -> Interval:
    there = replicates[np.isfinite(replicates)]
    if n_pos < 2 or len(there) < 2:
        why = f"resampling needs two positive rows, and there is {n_pos}" if n_pos < 2 else "there are no replicates"
        return Interval(value, math.nan, math.nan, math.nan, method, why)
    low, high = np.quantile(there, [0.5 - level / 2, 0.5 + level / 2]).tolist()
    return Interval(value, float(np.std(there, ddof=1)), low, high, method)


def _z(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)
