"""The points of a path: which lambda is chosen, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distsms.base.measures import GROUPED, display_name
from distsms.metrics import confidence
from distsms.metrics.confidence import Interval, MeanEstimate
from distsms.metrics.within_groups import gauc_interval
from distsms.workflow.folds import best_on_other_folds
from distsms.workflow.verdict import ERRORS

DECADES = 4  # at each end, a grid is extended by at most this many powers of ten
FLAT = 0.1  # a step of the grid makes a difference if it changes the mean by more than this many standard errors
_FURTHEST = 10**DECADES * (1 + 1e-6)


class Point(NamedTuple):
    """The outcome of one training, at one lambda for one fold. Mappings of measures have the names of these as keys."""

    lam: float
    fold: int  # 0: trained on all rows
    result: Mapping[str, Any]  # of `Result.numbers`; `vacuous`, `idle`, `chance` from `why_chance`; with l1, `nonzeros`
    threshold: float
    training: Mapping[str, float]  # on the rows that it was trained on
    held_out: Mapping[str, Any] | None  # on the fold's rows, with `MeanEstimate.squares`, `counts`; None for fold 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields as files have them, where the fold is called ``lane``."""
        return {"lane" if name == "fold" else name: value for name, value in self._asdict().items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Point:
        """Return the point of what `as_json` returned."""
        return cls(**{"fold" if name == "lane" else name: value for name, value in fields.items()})


class Mean(NamedTuple):
    """The mean of the measure over the held-out folds at a lambda, and its standard error."""

    lam: float
    mean: float
    error: float


class Choice(NamedTuple):
    """The lambda that was chosen, and how flat the measure is around the best one."""

    best: Mean  # the best mean among the usable lambdas (see `faults`)
    chosen: Mean  # what the rule chooses
    low: Mean  # the smallest lambda of the unbroken range around `best` with means within one standard error of it
    high: Mean  # the largest lambda of this range
    instead_of: Mean | None = None  # what the rule would choose if all lambdas were usable, unless that is `chosen`


def means(points: Sequence[Point], measure: str, without: int = 0) -> list[Mean]:
    """Return the mean over the folds, but `without`, for each lambda at which all have one, the largest first."""
    folds = max((point.fold for point in points), default=0) - bool(without)
    curve = []
    for lam in sorted({point.lam for point in points}, reverse=True):
        at_lam = [point for point in points if point.lam == lam and point.fold != without]
        values = [point.held_out.get(measure, math.nan) for point in at_lam if point.held_out is not None]
        if folds and len(values) == folds and not any(value is None or math.isnan(value) for value in values):
            curve.append(mean_over_folds(lam, values))  # of what is not defined, files have None
    return curve


def mean_over_folds(lam: float, values: Sequence[float]) -> Mean:
    """Return the mean of the values of the folds at a lambda, with its standard error, which is NaN for one fold."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Mean(lam, float(np.mean(values)), spread / math.sqrt(len(values)))


def leads(best: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the values of the folds are better by more than a standard error of their differences."""
    lead = np.array(best) - np.array(other)
    return bool(lead.mean() > lead.std(ddof=1) / np.sqrt(len(lead)) + 1e-12)


def nearest(lambdas: Iterable[float], lam: float) -> float:
    """Return the lambda that is nearest to another one in the logarithm."""
    return min(lambdas, key=lambda other: abs(math.log(other) - math.log(lam)))


def values_of_folds(points: Sequence[Point], measure: str, rule: str = "best") -> list[float]:
    """Return the measure of each fold at the lambda that the *other* folds choose; empty if no lambda has all."""
    return [held_out[measure] for held_out in _at_lambdas_of_others(points, measure, rule)]


def _at_lambdas_of_others(points: Sequence[Point], measure: str, rule: str) -> list[Mapping[str, Any]]:
    """Return what was measured on each fold, at the lambda that the other folds choose."""
    held_out = {(point.lam, point.fold): point.held_out for point in points if point.held_out}
    folds = sorted({fold for _, fold in held_out})
    if rule == "best" or len(folds) < 3:  # the mean of one other fold has no standard error
        return judged([points], measure, usable_only=False)
    lams = {mean.lam for mean in means(points, measure)}
    measured, sizes = list[Mapping[str, Any]](), nonzeros(points)
    for fold in folds if lams else ():
        curve = [mean for mean in means(points, measure, fold) if mean.lam in lams]
        measured.append(held_out[choose(curve, rule, faults(points, fold), sizes).chosen.lam, fold])
    return measured


def judged(paths: Sequence[Sequence[Point]], measure: str, usable_only: bool = True) -> list[Mapping[str, Any]]:
    """Return what was measured on each fold, of the path and the lambda that are best on the *other* folds."""
    held_out = [{(point.lam, point.fold): point.held_out for point in points if point.held_out} for points in paths]
    grids = [[mean.lam for mean in means(points, measure)] for points in paths]
    folds, measured = sorted({fold for of_path in held_out for _, fold in of_path}), list[Mapping[str, Any]]()
    for k, fold in enumerate(folds if any(grids) else ()):
        candidates = []
        for points, of_path, lambdas in zip(paths, held_out, grids, strict=True):
            unusable = faults(points, fold) if usable_only else {}
            usable = [lam for lam in lambdas if lam not in unusable] or lambdas
            candidates += [[of_path[lam, other] for other in folds] for lam in usable]
        values = np.array([[of_fold[measure] for of_fold in candidate] for candidate in candidates])
        measured.append(candidates[best_on_other_folds(values)[k]][k])
    return measured


def expected(points: Sequence[Point], measure: str, rule: str = "best") -> Interval | None:
    """Return the mean of `values_of_folds` with its interval, if a lambda has all folds, and these have `squares`."""
    if any(point.held_out and "squares" not in point.held_out for point in points):
        return None
    return interval_of(_at_lambdas_of_others(points, measure, rule), measure)


def interval_of(folds: Sequence[Mapping[str, Any]], measure: str) -> Interval | None:
    """Return the mean of a measure over folds, each measured at what the other folds chose, with its interval."""
    if not folds:
        return None
    if any(fold.get("squares_of", measure) != measure for fold in folds):
        return confidence.folds_interval([fold[measure] for fold in folds], confidence.LEVEL, measure)
    estimates = [MeanEstimate(fold[measure], tuple(fold["squares"]), tuple(fold["counts"])) for fold in folds]
    pooled = confidence.pool_folds(estimates)
    if measure in GROUPED:
        return gauc_interval(pooled, confidence.LEVEL)
    if measure == "rocarea":
        return confidence.rocarea_interval(pooled, confidence.LEVEL)
    return confidence.prbep_interval(pooled, np.empty(0), confidence.LEVEL)


def area_of(points: Sequence[Point]) -> str:
    """Return the measure that says whether models rank better than chance: GAUC if they were trained for it."""
    measures = next((point.held_out for point in points if point.held_out), {})
    return next((name for name in measures if name in GROUPED), "rocarea")


def why_chance(points: Sequence[Point]) -> str:
    """Return why no lambda ranks held-out rows better than chance, neither by means nor by the interval; else ""."""
    measure = area_of(points)
    areas = means(points, measure)
    if not areas or not all(area.mean - ERRORS * area.error <= 0.5 for area in areas):
        return ""
    if (interval := expected(points, measure)) and interval.low > 0.5:
        return ""
    best = max(areas, key=lambda area: area.mean)
    useless = f"none of {describe_lambdas(areas)} gives a model that ranks held-out rows better than chance"
    area = f"the best mean {display_name(measure)} is {best.mean:.3f}, with a standard error of {best.error:.2g}"
    return f"{useless} ({area})"


def describe_lambdas(curve: Sequence[Mean]) -> str:
    """Return how many lambdas were tried, and from which to which."""
    if len(curve) == 1:
        return f"1 lambda, {curve[0].lam:g},"
    return f"{len(curve)} lambdas from {curve[-1].lam:g} to {curve[0].lam:g}"


def faults(points: Sequence[Point], without: int = 0) -> dict[float, str]:
    """Return the lambdas whose models are not usable, and why: that of all rows, or without one those of all folds,
    rank no better than chance, or the mean area of the folds but `without` is not above 0.5 by one standard error.
    """
    reasons = {}
    with_all = any(not point.fold for point in points)
    results: dict[float, list[Mapping[str, Any]]] = {}
    for point in points:
        if not (with_all and point.fold):
            results.setdefault(point.lam, []).append(point.result)
    for lam, of_models in results.items():
        if all(result.get("chance", result["vacuous"]) for result in of_models):  # earlier versions have no "chance"
            reasons[lam] = "no better than chance"
        elif not with_all and all(result["vacuous"] or result.get("idle") for result in of_models):
            reasons[lam] = "no better than w = 0"
    measure = area_of(points)
    for mean in means(points, measure, without):
        if mean.mean - mean.error <= 0.5:
            reasons.setdefault(mean.lam, f"{display_name(measure)} of the folds not above chance")
    return reasons


def nonzeros(points: Sequence[Point]) -> dict[float, int]:
    """Return for each lambda how many coefficients of the model of all rows are not 0; empty without an l1."""
    of_all = [point for point in points if not point.fold and "nonzeros" in point.result]
    return {point.lam: int(point.result["nonzeros"]) for point in of_all}


def extension(points: Sequence[Point], measure: str, grid: Sequence[float], rule: str = "best") -> float | None:
    """Return a lambda to try beyond the lambdas so far, or None if the best one is inside: at an end of `grid` a power
    of ten further, at most `DECADES` times, unless the last step was `FLAT` or models there are not usable.
    """
    curve, unusable = means(points, measure), faults(points)
    if not curve:
        return None
    choice = choose(curve, rule, unusable, nonzeros(points))
    return beyond(curve, (choice.best, choice.chosen), grid, unusable)


def beyond(
    curve: Sequence[Mean], best: Collection[Mean], grid: Sequence[float], unusable: Collection[float] = ()
) -> float | None:
    """Return a lambda beyond an end of a curve, if one of the `best` means is there; see `extension`."""
    first, last = curve[0], curve[-1]
    if first in best and first.lam not in unusable and not _is_flat(curve[:2]):
        larger = float(f"{10 * first.lam:.6g}")
        if larger <= max(grid) * _FURTHEST:
            return larger
    none_usable = all(mean.lam in unusable for mean in curve)
    if none_usable or (last in best and not _is_flat(curve[:-3:-1])):
        smaller = float(f"{last.lam / 10:.6g}")
        if smaller >= min(grid) / _FURTHEST:
            return smaller
    return None


def ends_at(curve: Sequence[Mean], lambdas: Collection[float]) -> str:
    """Return "smallest" or else "largest" if a lambda is at that end of the grid, and the curve is steep there."""
    ends = (("smallest", curve[:-3:-1]), ("largest", curve[:2]))
    steep = (name for name, last_two in ends if last_two[0].lam in lambdas and not _is_flat(last_two))
    return next(steep, "") if len(curve) > 1 else ""


def _is_flat(last_two: Sequence[Mean]) -> bool:
    """Return whether the last step to an end of the grid made no difference. The mean at the end comes first."""
    return len(last_two) == 2 and abs(last_two[0].mean - last_two[1].mean) <= FLAT * last_two[0].error


def choose(
    curve: Sequence[Mean], rule: str, without: Collection[float] = (), sizes: Mapping[float, int] | None = None
) -> Choice:
    """Choose a lambda from means, from the largest lambda to the smallest, not in `without` if possible: "best" the
    best mean, "one-se" the last lambda upwards with all means within one standard error (Breiman et al., 1984, section
    3.4.3) or, by `sizes`, the one with the fewest coefficients, since with l1 a larger lambda often gives more.
    """
    usable = [i for i, mean in enumerate(curve) if mean.lam not in without] or range(len(curve))
    best = max(usable, key=lambda i: curve[i].mean)
    least, first, last = curve[best].mean - curve[best].error, best, best
    while first - 1 in usable and curve[first - 1].mean >= least:
        first -= 1
    while last + 1 in usable and curve[last + 1].mean >= least:
        last += 1
    simplest = min(range(first, last + 1), key=lambda i: (sizes or {}).get(curve[i].lam, 0))
    by_rule = curve[simplest if rule == "one-se" else best]
    of_all = choose(curve, rule, (), sizes).chosen if without else by_rule
    return Choice(curve[best], by_rule, curve[last], curve[first], None if of_all == by_rule else of_all)
