"""Choose a lambda from the points of a path: means over the folds, rules, intervals, and where to extend the grid."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distsms.measures import GROUPED, RIVALS, display_name
from distsms.metrics import confidence, estimates
from distsms.metrics.confidence import Interval
from distsms.metrics.estimates import MeanEstimate
from distsms.metrics.within_groups import gauc_interval
from distsms.selection.folds import best_on_other_folds
from distsms.selection.point import Point
from distsms.training.verdict import ERRORS

DECADES = 4
"""At each end, a grid is extended by at most this many powers of ten."""
FLAT = 0.1
"""A step of the grid makes a difference if it changes the mean by more than this many standard errors."""
THE_MEAN = "The mean in the line above is of the folds that made the choice, so it tends to look better"
"""Said beside an interval, whose value is another one."""
_FURTHEST = 10**DECADES * (1 + 1e-6)


class Mean(NamedTuple):
    """The mean of the measure over the held-out folds at a lambda, and its standard error."""

    lam: float
    mean: float
    error: float


class Choice(NamedTuple):
    """The lambda that was chosen, and how flat the measure is around the best one.

    Attributes
    ----------
    best : Mean
        The best mean among the usable lambdas (see `faults`).
    chosen : Mean
        What the rule chooses.
    low, high : Mean
        The smallest and the largest lambda of the unbroken range around the best one whose means are all within one
        standard error of the best mean.
    instead_of : Mean or None
        What the rule would choose if all lambdas were usable; None if that is `chosen`.
    """

    best: Mean
    chosen: Mean
    low: Mean
    high: Mean
    instead_of: Mean | None = None


def means(points: Sequence[Point], measure: str, without: int = 0) -> list[Mean]:
    """Return the mean over the folds for each lambda that has a point of every fold, from the largest lambda on.

    The standard error of a mean is s / sqrt(folds), where s is the sample standard deviation of the folds' measures.
    The fold `without`, if it is not 0, is left out; the mean of one fold has the standard error NaN.
    """
    folds = max((point.fold for point in points), default=0) - bool(without)
    curve = []
    for lam in sorted({point.lam for point in points}, reverse=True):
        own = [point for point in points if point.lam == lam and point.fold != without]
        values: list[Any] = [point.held_out.get(measure) for point in own if point.held_out is not None]
        if folds and len(values) == folds and None not in values:
            curve.append(mean_over_folds(lam, values))
    return curve


def mean_over_folds(lam: float, values: Sequence[float]) -> Mean:
    """Return the mean of the values of the folds at a lambda, with its standard error, which is NaN for one fold."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Mean(lam, float(np.mean(values)), spread / math.sqrt(len(values)))


def values_of_folds(points: Sequence[Point], measure: str, rule: str = "best") -> list[float]:
    """Return the measure of each fold, at the lambda that the rule chooses by the *other* folds.

    So no fold evaluates a lambda that it helped to choose. The list is empty if no lambda has a point of every fold.
    """
    return [held_out[measure] for held_out in _at_lambdas_of_others(points, measure, rule)]


def _at_lambdas_of_others(points: Sequence[Point], measure: str, rule: str) -> list[Mapping[str, Any]]:
    """Return what was measured on each fold, at the lambda that the other folds choose."""
    held = {(point.lam, point.fold): point.held_out for point in points if point.held_out}
    lams, folds = [mean.lam for mean in means(points, measure)], sorted({fold for _, fold in held})
    if not lams:
        return []
    values = np.array([[held[lam, fold][measure] for fold in folds] for lam in lams])
    if rule == "best" or len(folds) < 3:  # the mean of one other fold has no standard error
        at = [lams[k] for k in best_on_other_folds(values)]
    else:
        at, sizes = [], nonzeros(points)
        for k, fold in enumerate(folds):
            others = np.delete(values, k, axis=1)
            errors = np.std(others, axis=1, ddof=1) / math.sqrt(others.shape[1])
            curve = [Mean(*mean) for mean in zip(lams, others.mean(axis=1).tolist(), errors.tolist(), strict=True)]
            at.append(choose(curve, rule, faults(points, fold), sizes).chosen.lam)
    return [held[lam, fold] for lam, fold in zip(at, folds, strict=True)]


def expected(points: Sequence[Point], measure: str, rule: str = "best") -> Interval | None:
    """Estimate the measure that this way of choosing lambda reaches, with its interval.

    It is the mean of `values_of_folds`. The interval comes from the rows where the points have `squares` of this
    measure, and otherwise from the spread of the folds. The result is None if no lambda has a point of every fold, or
    if the points were written by a version that did not keep `squares`.
    """
    if any(point.held_out and "squares" not in point.held_out for point in points):
        return None
    return interval_of(_at_lambdas_of_others(points, measure, rule), measure)


def interval_of(chosen: Sequence[Mapping[str, Any]], measure: str) -> Interval | None:
    """Return the mean of a measure over folds with its interval, given what was measured on each; None without folds.

    Whatever is measured on a fold must be chosen by the other folds.
    """
    if not chosen:
        return None
    if any(fold.get("squares_of", measure) != measure for fold in chosen):
        return confidence.folds_interval([fold[measure] for fold in chosen], confidence.LEVEL, measure)
    pooled = estimates.pool_folds(
        [MeanEstimate(fold[measure], tuple(fold["squares"]), tuple(fold["counts"])) for fold in chosen]
    )
    if measure in GROUPED:
        return gauc_interval(pooled, confidence.LEVEL)
    if measure == "rocarea":
        return confidence.rocarea_interval(pooled, confidence.LEVEL)
    return confidence.prbep_interval(pooled, np.empty(0), confidence.LEVEL)


def chooser(trained: str, select: str | None) -> str:
    """Return the measure of held-out rows that chooses lambda, for a path that trains for `trained`.

    It is `select`, if that is given. Better models must have a larger measure, so a path for the error rate chooses by
    accuracy, and one for logistic regression or normal-auc by ROCArea.
    """
    return select or {"error-rate": "accuracy"}.get(trained, "rocarea" if trained in RIVALS else trained)


def area_of(points: Sequence[Point]) -> str:
    """Return the measure that says whether models rank better than chance: GAUC if they were trained for it."""
    held = next((point.held_out for point in points if point.held_out), {})
    return next((name for name in held if name in GROUPED), "rocarea")


def is_chance(area: Mean, errors: float = 1.0) -> bool:
    """Return whether a mean ROCArea of held-out folds is at most so many standard errors above 0.5, which is chance."""
    return area.mean - errors * area.error <= 0.5


def why_chance(points: Sequence[Point]) -> str:
    """Return why no lambda gives a model that ranks rows better than chance, by the held-out folds; else "".

    It is so if no mean ROCArea (or GAUC, see `area_of`) is more than two standard errors above 0.5, and if the interval
    of `expected` does not show that the area is above 0.5 either: the spread of a few folds that differ, such as folds
    by groups, is large.
    """
    measure = area_of(points)
    areas = means(points, measure)
    if not areas or not all(is_chance(area, ERRORS) for area in areas):
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
    """Return the lambdas whose models are not usable, and why.

    A lambda is not usable if the model of all rows ranks its training rows no better than chance. A J that is hardly
    below J(0) is no fault then: at a large lambda, w is short, but it may rank the rows as well as any other. Without a
    model of all rows, a lambda is not usable if the models of all folds are hardly better than w = 0, or rank no better
    than chance: a training at this lambda, which begins at w = 0, might end there at once. Nor is a lambda usable if
    the mean ROCArea of the held-out folds is at most one standard error above 0.5, which is chance. The rows of the
    fold `without`, if it is not 0, have no part in that mean: what is judged on a fold must not depend on its rows.
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
        if is_chance(mean):
            reasons.setdefault(mean.lam, f"{display_name(measure)} of the folds not above chance")
    return reasons


def nonzeros(points: Sequence[Point]) -> dict[float, int]:
    """Return for each lambda how many coefficients of the model of all rows are not 0; empty without an l1."""
    of_all = [point for point in points if not point.fold and "nonzeros" in point.result]
    return {point.lam: int(point.result["nonzeros"]) for point in of_all}


def extension(points: Sequence[Point], measure: str, grid: Sequence[float], rule: str = "best") -> float | None:
    """Return a lambda to try beyond the lambdas so far, or None if the best one is inside.

    Parameters
    ----------
    points : sequence of Point
        All points so far.
    measure : str
        The measure that chooses.
    grid : sequence of float
        The lambdas that were asked for; the extension ends `DECADES` powers of ten beyond them.
    rule : {"best", "one-se"}
        The rule of the choice.

    Notes
    -----
    If the best lambda, or the lambda that the rule takes, is at an end of the grid, the grid grows there by a factor of
    10. It does not grow if the last step there changed the mean by at most `FLAT` standard errors. Nor does it grow
    upwards if the models at its upper end are not usable (see `faults`), since those of larger lambdas would not be
    usable either. If no model is usable, it grows downwards.
    """
    curve, unusable = means(points, measure), faults(points)
    if not curve:
        return None
    found = choose(curve, rule, unusable, nonzeros(points))
    first, last = curve[0], curve[-1]
    if first in (found.best, found.chosen) and first.lam not in unusable and not _is_flat(curve[:2]):
        larger = _rounded(10 * first.lam)
        if larger <= max(grid) * _FURTHEST:
            return larger
    none_usable = all(mean.lam in unusable for mean in curve)
    if none_usable or (last in (found.best, found.chosen) and not _is_flat(curve[:-3:-1])):
        smaller = _rounded(last.lam / 10)
        if smaller >= min(grid) / _FURTHEST:
            return smaller
    return None


def ends_at(curve: Sequence[Mean], lambdas: Collection[float]) -> str:
    """Return "largest" or "smallest" if one of the lambdas is at that end of the grid and the curve is not flat there.

    If it is so at both ends, the answer is "smallest".
    """
    ends = (("smallest", curve[:-3:-1]), ("largest", curve[:2]))
    found = (name for name, last_two in ends if last_two[0].lam in lambdas and not _is_flat(last_two))
    return next(found, "") if len(curve) > 1 else ""


def _is_flat(last_two: Sequence[Mean]) -> bool:
    """Return whether the last step to an end of the grid made no difference. The mean at the end comes first."""
    return len(last_two) == 2 and abs(last_two[0].mean - last_two[1].mean) <= FLAT * last_two[0].error


def _rounded(lam: float) -> float:
    return float(f"{lam:.6g}")


def choose(
    curve: Sequence[Mean], rule: str, without: Collection[float] = (), sizes: Mapping[float, int] | None = None
) -> Choice:
    """Choose a lambda.

    Parameters
    ----------
    curve : sequence of Mean
        The means, at least one, from the largest lambda to the smallest.
    rule : {"best", "one-se"}
        "best" takes the lambda of the best mean (the largest lambda if several are equal). "one-se" goes from there to
        larger lambdas, as long as all means are within one standard error of the best mean, and takes the last of them.
        If there are `sizes`, it also goes to smaller lambdas, and takes the one with the fewest coefficients (the
        largest lambda if several are equal).
    without : collection of float
        Lambdas that are not chosen as long as there are others; see `faults`.
    sizes : mapping of float to int, optional
        `nonzeros` of the points: with l1, a larger lambda often gives more coefficients, and not a simpler model.

    References
    ----------
    Breiman et al., Classification and Regression Trees (1984), section 3.4.3.
    """
    usable = [i for i, mean in enumerate(curve) if mean.lam not in without] or range(len(curve))
    at = max(usable, key=lambda i: curve[i].mean)
    least, first, last = curve[at].mean - curve[at].error, at, at
    while first - 1 in usable and curve[first - 1].mean >= least:
        first -= 1
    while last + 1 in usable and curve[last + 1].mean >= least:
        last += 1
    simplest = min(range(first, last + 1), key=lambda i: (sizes or {}).get(curve[i].lam, 0))
    chosen = curve[simplest if rule == "one-se" else at]
    alone = choose(curve, rule, (), sizes).chosen if without else chosen
    return Choice(curve[at], chosen, curve[last], curve[first], None if alone == chosen else alone)
