"""Which lambdas of a path are trained next, and which are left out because w = 0 is proved to be as good there.

A lower bound on min J at one lambda gives a bound on what any lambda can gain, J(0) - min J (see
`distsms.optim.result.largest_gain`). A lambda is left out if, for all rows and for each fold, this gain is at most the
target: a training there might end at w = 0 at once. The smallest lambda is never left out, since it has the most to
gain.

The gain is largest at the smallest lambda. So if nothing was gained at the largest lambda by PRBEP or pauc, whose
problems can be vacuous at every lambda, the smallest one is trained next. If nothing is gained there either, the
lambdas between the two are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distsms.measures import Measure
from distsms.optim.result import largest_gain
from distsms.training.advice import describe_distance

if TYPE_CHECKING:
    from distsms.optim.settings import Settings
    from distsms.selection.point import Point

CAN_BE_VACUOUS = ("prbep", "pauc")
"""The families of measures for which w = 0 may be optimal although the classes have different means."""


def gained_nothing(J: float | None, J_at_zero: float | None, settings: Settings) -> bool:
    """Return whether J is not lower than J(0) by more than the target; None stands for a number that is not finite."""
    return J is not None and J_at_zero is not None and J_at_zero - J <= settings.target(J_at_zero)


def next_lambdas(
    measure: str, settings: Settings, lambdas: Sequence[float], folds: Iterable[int], points: Sequence[Point]
) -> tuple[list[float], dict[float, float]]:
    """Return the lambdas to train next, and those to leave out, each with the most that can be gained there.

    Parameters
    ----------
    measure : str
        The measure that is trained for.
    settings : Settings
        The target of the trainings.
    lambdas : sequence of float
        All lambdas, from the largest to the smallest.
    folds : iterable of int
        The folds, with 0 for all rows.
    points : sequence of Point
        The points so far, also those of earlier runs.
    """
    of_folds: dict[int, dict[float, Any]] = {fold: {} for fold in folds}
    for point in points:
        of_folds.get(point.fold, {})[point.lam] = point.result
    missing = [lam for lam in lambdas if any(lam not in solved for solved in of_folds.values())]
    untouched = [lam for lam in missing if lam != min(lambdas) and not any(lam in own for own in of_folds.values())]
    gains = {lam: [_gain(solved, lam, settings) for solved in of_folds.values()] for lam in untouched}
    left_out = {lam: max(of_lam) for lam, of_lam in gains.items() if of_lam and max(of_lam) < float("inf")}
    rest, first = [lam for lam in missing if lam not in left_out], lambdas[0]
    idle = all(
        first in solved and gained_nothing(solved[first]["J"], solved[first].get("J_at_zero"), settings)
        for solved in of_folds.values()
    )
    if idle and min(lambdas) in rest and Measure.parse(measure).family in CAN_BE_VACUOUS:
        rest = [min(lambdas)]
    return rest, left_out


def describe(
    left_out: Mapping[float, float],
    target: str,
    measure: str = "rocarea",
    points: Sequence[Point] = (),
    weights: tuple[float, float] | None = None,
) -> str:
    """Return a line that says which lambdas were left out, and why; "" if there are none. Local.

    `target` is in words. With the measure that was trained for, the points and the weights of both classes, the line
    also says how close the classes are.
    """
    if not left_out:
        return ""
    slopes = [point.result.get("slope_at_zero") for point in points if not point.fold]
    slope = min((slope for slope in slopes if slope is not None), default=None)
    distance = describe_distance(Measure.parse(measure), slope, weights)
    named = ", ".join(f"{lam:g}" for lam in sorted(left_out, reverse=True))
    return (
        f"left out  lambda {named}: the bounds at the other lambdas prove that J is nowhere lower than at w = 0 by more"
        f" than {max(left_out.values()):.2g} there, and the gap to prove is {target}{distance and '. '}{distance}"
    )


def _gain(solved: dict[float, Any], lam: float, settings: Settings) -> float:
    """Return the most that can be gained at a lambda, by the results of other lambdas of the same rows.

    The result is infinity if this is more than the target, or not known.
    """
    bounds = [
        (largest_gain(result["J_at_zero"], result["lower_bound"], own, lam), result["J_at_zero"])
        for own, result in solved.items()
        if result["lower_bound"] is not None and result.get("J_at_zero") is not None
    ]
    return min((gain for gain, J_at_zero in bounds if gain <= settings.target(J_at_zero)), default=float("inf"))
